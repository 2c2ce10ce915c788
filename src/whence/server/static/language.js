/* A model that writes: its answer token by token, what each token rests on, and what else could stand there. */

import { el, fill, roving } from "./dom.js";
import { answered, drawn, scaleOf } from "./drawn.js";
import { counted, fixed, percent, sum } from "./numbers.js";
import { disagreement } from "./agree.js";
import { blocks, placed } from "./chat.js";
import { reproduce } from "./export.js";
import { sent } from "./input.js";
import { ask as asked, job } from "./net.js";
import {
  key, legend, predictions, progress, section, segments, trouble, warning, warnings, working,
} from "./parts.js";
import { clauses, found, joined } from "./pieces.js";
import { question } from "./question.js";
import { noted, receipt } from "./receipt.js";
import { bars, reading, slice, tops } from "./words.js";

const SPANS = { token: "Token", clause: "Clause", whole: "Whole answer" },
  SCOPES = { prompt: "The prompt", all: "Everything before" };
const LOOKS = { rows: "Rows", columns: "Columns", bars: "Bars" };
const clean = (text) => text.replace(/^##/, "").trim() || "␣";

/** The view's changing half: {ready, stop, choose(methods), question()}. */
export function language({ model, input, state, rail, main, told, keep, still }) {
  const slots = Object.fromEntries(["opening", "wait", "answer", "say", "ask", "else", "agree", "more"].map((name) =>
    [name, el("div", { class: `slot slot-${name}` })]));
  slots.opening.setAttribute("aria-live", "polite");
  let written = null, running = null, methods = state.methods;
  let at = state.token ?? 0, span = state.span in SPANS ? state.span : "token", scope = state.order === "all" ? "all"
    : "prompt", look = state.look in LOOKS ? state.look : "rows";
  let rather = null, asking = null, askedOf = ""; // the other token of a contrast; the questions, and of what
  let measuring = null, k = state.k;
  const measured = new Map(); // deletion curves by what they are of
  const out = new Set(state.out ?? []);
  let touched = state.out != null;
  const results = new Map(), errors = new Map(); // by method, and by the contrast that it is of
  const wait = progress(() => running?.cancel());
  const base = () => ({ model: model.name, input: sent(input), target: written.ids });
  const ready = begin();

  async function begin() {
    fill(main, Object.values(slots));
    fill(slots.wait, wait.box);
    wait.show("The model writes");
    written = await asked({ kind: "generate", model: model.name, input: sent(input), tokens: 20,
      ...(state.answer ? { target: state.answer } : {}) });
    if (!still()) return;
    at = Math.min(at, written.tokens.length - 1);
    drawRail();
    const other = written.tokens[at]?.alternatives?.find((one) => one.text === state.rather);
    if (other) rather = other;
    run();
  }

  // ---- the rail: a continuation of one's own ----

  function drawRail() {
    const field = el("textarea", { class: "field", rows: 2, id: "in-answer", "aria-label": "The answer to explain",
      placeholder: "The model's own answer; write another one to explain that" });
    field.value = state.answer ?? "";
    const send = () => {
      if (field.value === (state.answer ?? "")) return;
      keep({ answer: field.value, token: 0, rather: "" }, true);
      Object.assign(state, { answer: field.value });
      stop();
      results.clear();
      errors.clear();
      rather = null;
      at = 0;
      begin().catch((error) => fill(slots.answer, trouble(error.message)));
    };
    field.addEventListener("keydown", (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && send());
    field.addEventListener("change", send);
    fill(rail, el("div", { class: "head" }, el("h2", { id: "h-target" }, "Answer"),
      el("span", { class: "right tiny faint" }, state.answer ? "given" : "as the model writes it")), field);
  }

  // ---- asking ----

  const name = (method) => (rather ? `${method} ${at} ${rather.id}` : method);

  function run() {
    draw();
    const missing = methods.filter((method) => !results.has(name(method)) && !errors.has(name(method)));
    if (!missing.length) return;
    const named = Object.fromEntries(missing.map((method) => [method, name(method)]));
    running?.cancel();
    wait.show("The methods are asked");
    running = job({ kind: "explain", ...base(), methods: missing,
      ...(rather ? { contrast: { token: at, instead: rather.id } } : {}) }, {
      progress: ({ done, of, method, passes }) =>
        wait.show(working(model, method, passes), done, of),
      result: (one) => {
        if (!results.size) told(counted(one.units.filter((unit) => unit.part !== "written").length, "token"));
        results.set(named[one.method], one);
        draw();
      },
      failed: ({ method, error }) => {
        for (const one of method ? [method] : missing.filter((m) => !results.has(named[m]))) errors.set(named[one],
          error);
        draw();
      },
    });
    running.finished.then(() => wait.hide());
  }

  // ---- what is drawn: the shares of the chosen tokens ----

  const picked = () => {
    const all = written.tokens.map((_, j) => j);
    return rather || span === "token" ? [at] : span === "whole" ? all
      : clauses(written.tokens.map((one) => one.text)).find((own) => own.includes(at));
  };

  /** The answers of the methods for the chosen tokens, in the form of a text of two parts: prompt, answer so far. */
  function view() {
    const last = Math.max(...picked()), first = [...results.values()][0];
    const answer = joined(written.tokens.slice(0, last + 1).map((one) => one.text));
    const prompt = written.prompt ?? input.prompt ?? input.text ?? "", chat = written.messages, units = [];
    const texts = chat ? chat.map(({ start, end }) => slice(prompt, start, end)) : [prompt];
    if (first) {
      const reads = first.units.filter((unit) => unit.part !== "written");
      const spans = reads.some((unit) => unit.end > unit.start) ? reads.map((unit) => [unit.start, unit.end])
        : found(prompt, reads.map((unit) => unit.text));
      if (chat) units.push(...placed(reads, chat));
      else reads.forEach((unit, i) => units.push({ ...unit, start: spans[i]?.[0] ?? 0, end: spans[i]?.[1] ?? 0,
        part: 0, special: unit.special || !spans[i] }));
      const starts = first.units.length - reads.length > written.tokens.length - 1 ? 1 : 0;
        // an encoder's decoder begins with a token of its own
      first.units.filter((unit) => unit.part === "written").forEach((unit, k) => {
        const own = answer.spans[k - starts];
        units.push({ ...unit, part: texts.length, start: own?.[0] ?? 0, end: own?.[1] ?? 0, written: true,
          special: scope === "prompt" || !own || k - starts >= last });
      });
    }
    const rows = new Map(methods.filter((method) => results.has(name(method))).map((method) =>
      [method, { ...results.get(name(method)), values: totals(results.get(name(method)).values) }]));
    const failed = new Map(methods.filter((method) => errors.has(name(method))).map((method) =>
      [method, errors.get(name(method))]));
    return { kind: "text", model, methods, results: rows, errors: failed, units: units.length ? units : null,
      texts: scope === "prompt" ? texts : [...texts, answer.text], prompts: texts.length,
      roles: chat ? [...chat.map((one) => one.role), "answer so far"] : null, asideTold: (share) =>
      `${percent(share, 0)} rests on ${beside(chat)}` };
  }

  /** What has a part in the total and is not drawn. */
  const beside = (chat) => [chat ? "the chat template" : null, scope === "prompt" || !chat ? "the answer itself" : null]
    .filter(Boolean).join(" and ");

  const totals = (values) => (Array.isArray(values[0])
    ? (values.length === 1 ? values[0] : values[0].map((_, i) => sum(picked().map((j) => values[j]?.[i] ?? 0))))
    : values);

  function draw() {
    if (!still()) return;
    const ask = view(), list = ask.units ? drawn(ask) : [], measure = scaleOf(ask, list), P = picked();
    const what = P.map((j) => written.tokens[j].text), label = clean(joined(what).text);
    const lp = sum(P.map((j) => Math.log(Math.max(1e-45, written.tokens[j].probability))));
    fill(slots.opening, el("h1", { dir: "auto" }, rather ? `Why “${label}” rather than “${clean(rather.text)}”?`
      : span === "whole" ? "What does the answer rest on?" : `Why “${label}”?`), el("p", { class: "lead soft" },
      lead(P, label, lp)));
    fill(slots.answer, answerPart(P));
    fill(slots.say, say(ask, list, measure));
    fill(slots.else, span === "token" || rather ? elsePart() : null);
    fill(slots.agree, list.length ? disagreement(ask, list) : null);
    if (ask.units && answered(list).length === methods.filter((method) => !errors.has(name(method))).length
      && !rather) drawQuestion(ask, list);
    else if (rather) {
      askedOf = "";
      fill(slots.ask);
    }
    if (!slots.more.childElementCount) fill(slots.more, reproduce(exported));
  }

  function lead(P, label, lp) {
    const one = written.tokens[at];
    if (rather) {
      const both = [percent(one.probability, 2), percent(rather.probability, 2)];
      return `The model gave “${label}” ${both[0]} and “${clean(rather.text)}” ${both[1]}. `
        + "Orange pulls towards the first, blue towards the second.";
    }
    if (P.length === 1) {
      const given = percent(one.probability, one.probability < 0.1 ? 2 : 1);
      return `The model gives this token ${given} after everything before it. `
        + "Click another token of the answer, or use the arrow keys.";
    }
    return `These ${P.length} tokens have a log-probability of ${fixed(lp)} after everything before them.`;
  }

  function answerPart(P) {
    const last = Math.max(...P), tokens = written.tokens.map((one) => one.text), { text, spans } = joined(tokens),
      letters = Array.from(text);
    const nodes = [];
    let end = 0;
    spans.forEach(([start, stop], j) => {
      nodes.push(letters.slice(end, start).join(""),
        el("span", { class: `w tk${P.includes(j) ? " sel" : ""}${j > last ? " later" : ""}`, role: "radio",
        "aria-checked": String(j === at), data: { j, focus: `token ${j}` },
        title: percent(written.tokens[j].probability), on: { click: () => turn(j) } }, letters.slice(start,
        stop).join("") || "␣"));
      end = stop;
    });
    const line = el("p", { class: "reading", role: "radiogroup", "aria-label": "The answer's tokens", dir: "auto" },
      nodes);
    roving(line, ".tk", (item) => turn(Number(item.dataset.j)));
    return el("div", { class: "blk ans" }, el("div", { class: "role" }, "answer",
      el("small", {}, state.answer ? "given" : "written by the model")), line);
  }

  function turn(j) {
    at = j;
    rather = null;
    if (span === "whole") span = "token";
    keep({ token: j, span, rather: "" });
    run();
  }

  function say(ask, list, measure) {
    const change = (field) => (value) => {
      if (field === "span") {
        span = value;
        rather = null;
      } else if (field === "order") scope = value;
      else look = value;
      keep({ span, order: scope === "all" ? "all" : "", look, rather: rather?.text ?? "" });
      run();
    };
    const head = el("div", { class: "bar2" }, segments("What to explain", SPANS, rather ? "token" : span,
      change("span")), segments("Over", SCOPES, scope, change("order")), el("span", { class: "right" },
      segments("How to draw", LOOKS, look, change("look"))));
    const failed = list.filter((d) => d.error).map((d) =>
      el("div", { class: "failed" }, key(d.place), trouble(`${d.title}: ${d.error}`)));
    const shown = list.filter((d) => !d.error), ready = answered(shown);
    const over = scope === "prompt" ? "the prompt" : "everything before";
    const note = `Each token's share of its method's total over ${over}, Σ|φ|. Hover or focus one for its numbers.`;
    const body = !ask.units ? el("p", { class: "soft" }, "The methods are asked …") : look === "bars"
      ? bars(ask, shown, measure) : el("div", { class: `cards ${look}` },
      shown.map((d) => card(d, ask, shown, measure)));
    return section("say", "What the methods say", null, head, el("div", { class: "warns" }, warnings(warned(ready))),
      failed,
      legend(measure, ready.some((d) => d.signed), ready.some((d) => !d.signed), note),
        el("div", { class: "box" }, body));
  }

  function warned(list) {
    const out = [], own = list.filter((d) => scope === "prompt" && d.aside > 0.5);
    if (own.length) out.push(warning(
      `${own.map((d) => d.letter).join(", ")}: most rests on ${beside(written.messages)}.`,
      `${own.map((d) => `${d.title} puts ${percent(d.aside, 0)} there`).join(", ")}. `,
      "Drawn is how the rest is spread over the prompt; “Everything before” shows it all."));
    const best = written.tokens[at].alternatives?.[0];
    if (state.answer && !rather && span === "token" && best
      && best.text !== written.tokens[at].text) out.push(warning("Not what the model would have said.",
      `Its first choice here was “${clean(best.text)}” (${percent(best.probability)}). `,
      "The answer was given, not written by it."));
    return [...out, ...noted(list)];
  }

  const card = (d, ask, list, measure) => el("article",
    { class: "card", "aria-label": d.title, data: { method: d.name } },
    el("header", {}, key(d.place), el("h3", {}, d.title),
      el("span", { class: "tiny faint fam-of", title: d.question },
      `${d.family}${d.signed ? "" : " · magnitude only"}`)),
    ask.roles ? blocks(reading(d, ask, list, measure), d, ask, measure.limit) : reading(d, ask, list, measure),
    d.values ? tops(d, ask) : el("p", { class: "tops faint" }, "asked …"),
    d.values ? receipt(d.result) : el("span", { class: "end" }));

  /** The likeliest tokens at this place: a click asks why not this one. */
  function elsePart() {
    const own = written.tokens[at], others = (own.alternatives ?? []).filter((one) => one.text !== own.text);
    if (!others.length) return null;
    const rows = [{ ...own, said: true }, ...others].sort((a, b) => b.probability - a.probability).map((one, i) =>
      ({ ...one, index: i, label: clean(one.text), digits: one.probability < 0.1 ? 2 : 1 }));
    const chosen = rows.findIndex((one) => (rather ? one.text === rather.text : one.said));
    return section("else", `What else could stand at “${clean(own.text)}”`,
      el("span", { class: "soft" }, "Click one to ask: why not this?"),
      el("div", { class: "narrow-of" }, predictions(rows, chosen, (i) => {
        rather = rows[i].said ? null : rows[i];
        keep({ rather: rather?.text ?? "", token: at });
        run();
      }, "h-else", rows[0].probability || 1)));
  }

  /** Tokens of the prompt can be taken out: the same answer is read again without them. */
  function drawQuestion(ask, list) {
    const P = picked(), said = `“${clean(joined(P.map((j) => written.tokens[j].text)).text)}”`;
    const label = P.length > 1 ? `a token of ${said} on average` : said;
    const own = JSON.stringify([P, methods, written.ids]);
    if (own === askedOf && asking) return asking.again(list);
    askedOf = own;
    measuring?.cancel();
    const whole = (told, of) => of(P.map((j) => told[j]));
    const product = (parts) => parts.reduce((p, one) => p * one.probability ** (1 / parts.length), 1),
      score = (parts) => sum(parts.map((one) => one.score));
    if (!touched && answered(list).length) { // the page shows how it is done
      const shares = answered(list)[0].shares.map((x, i) => (ask.units[i].part >= ask.prompts || ask.units[i].special
        ? -Infinity : x));
      out.add(shares.indexOf(Math.max(...shares)));
      touched = true;
    }
    const about = Object.assign({}, ask, { kind: "tokens", out, touched: true, target: 0, k,
      texts: ask.texts.slice(0, ask.prompts), deletion: measured.get(own) ?? null,
      predicted: { classes: [{ index: 0, label, probability: product(P.map((j) => written.tokens[j])) }] } });
    about.units = about.units.map((unit) => ({ ...unit, special: unit.special || unit.part >= ask.prompts }));
    asking = question(about, list, {
      keep: () => keep({ out: [...out].sort((a, b) => a - b), k: (k = about.k) }),
      deletion(listeners) {
        const names = answered(list).map((d) => d.name);
        if (!names.length) return listeners.failed({ error: "No method has an answer that could be measured." });
        measuring = job({ kind: "deletion", ...base(), methods: names, chosen: P }, { ...listeners,
          result: (found) => (measured.set(own, found), listeners.result(found)) });
        listeners.started(measuring);
        measuring.finished.then((how) => how === "cancelled" && askedOf === own && listeners.cancelled());
      },
      async remove(removed) {
        const found = await asked({ kind: "remove", ...base(), removed, methods: answered(list).map((d) => d.name) });
        const expected = Object.fromEntries(Object.entries(found.expected).map(([method, { change, why }]) =>
          [method, { change: change && sum(P.map((j) => change[j])), why }]));
        return { before: { probability: whole(found.before, product), score: whole(found.before, score) },
          after: { probability: whole(found.after, product), score: whole(found.after, score) }, expected,
          unit: found.space };
      },
    });
    fill(slots.ask, asking.node);
  }

  const exported = () => ({ ...base(), methods: methods.filter((method) => !errors.has(method)) });

  function stop() {
    running?.cancel();
    measuring?.cancel();
  }

  return {
    ready, stop,
    question: () => (written ? exported() : null),
    choose(names) {
      methods = names;
      if (written) run();
    },
  };
}
