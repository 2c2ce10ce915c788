/* "Question it": take words, patches or atoms out and see what the model does, beside what each method had said. */

import { el, fill } from "./dom.js";
import { answered } from "./drawn.js";
import { counted, percent, points, signed } from "./numbers.js";
import { bar, key, section, shareOf, trouble } from "./parts.js";
import { PICKERS } from "./pickers.js";
import { deletion } from "./deletion.js";
import { edits } from "./edit.js";

/** The section. `ask.out` is what is out; `on.remove(out)` asks the model, `on.keep()` notes the state in the address. */
export function question(ask, list, on) {
  const picker = PICKERS[ask.kind];
  if (!picker) return null;
  const after = el("div", { class: "ba", "aria-live": "polite" }), said = el("div", { class: "said" });
  const back = el("button", { class: "btn right", type: "button", hidden: true }, "Put all back");
  const state = { answer: null, error: null, waiting: false };
  const draw = () => {
    back.hidden = !ask.out.size;
    fill(after, state.error ? trouble(state.error) : beforeAfter(ask, state, picker));
    fill(said, saidTable(ask, answered(list), state.answer));
  };
  let turn = 0;
  const changed = async () => {
    on.keep();
    const own = ++turn, out = [...ask.out].sort((a, b) => a - b);
    Object.assign(state, { error: null, waiting: out.length > 0 });
    if (!out.length) state.answer = null;
    draw();
    if (!out.length) return;
    try {
      const answer = await on.remove(out);
      if (own === turn) Object.assign(state, { answer, waiting: false });
    } catch (error) {
      if (own === turn) Object.assign(state, { error: error.message, answer: null, waiting: false });
    }
    if (own === turn) draw();
  };
  const pick = picker.draw(ask, changed);
  back.addEventListener("click", () => {
    ask.out.clear();
    pick.update();
    changed();
  });
  const left = el("div", { class: "asked-left" }, pick.node, after, said, ask.kind === "text" ? edits(ask, on) : null);
  const node = section("ask", "Question it", [el("span", { class: "soft" }, picker.told), back],
    el("div", { class: `quiz ${ask.kind}` }, left, deletion(ask, list, on)));
  if (ask.out.size) changed();
  else draw();
  return { node, out: () => (pick.update(), changed()), again: (fresh) => { list = fresh; draw(); } };
}

const decision = (ask, label) => label ?? ask.predicted.classes.reduce((a, b) => (a.probability >= b.probability ? a : b)).label;

/** The probability before and after, and whether the decision flips. */
function beforeAfter(ask, { answer, waiting }, picker) {
  const asked = ask.predicted.classes.find((one) => one.index === ask.target);
  const before = answer?.before?.probability ?? asked?.probability ?? 0, after = answer?.after?.probability;
  const shown = after ?? before;
  const line = (name, share, text, old) => [el("span", { class: "soft" }, name), bar(share, old ? "was" : "now"), el(old ? "span" : "output", { class: "num" }, text)];
  const gone = [...ask.out];
  let told = "Nothing is taken out yet.", change = "";
  if (answer && gone.length) {
    const was = decision(ask, answer.before.prediction), is = decision(ask, answer.after.prediction);
    const what = gone.length === 1 ? picker.name(ask, gone[0]) : counted(gone.length, picker.unit, picker.units);
    told = `Without ${what} the model says ${is}${was === is ? " still" : " instead: the decision flips"}.`;
    change = points(after - before);
  } else if (waiting) told = "The model is asked …";
  return [line("before", before, percent(before), true), line("after", shown, gone.length && after == null ? "…" : percent(shown), false),
    el("span"), el("span", { class: "soft" }, told), el("span", { class: "num soft" }, change)];
}

/** What each method had said of what is out, beside what was measured, in the same unit. */
function saidTable(ask, list, answer) {
  const out = [...ask.out];
  if (!list.length) return null;
  const rows = list.map((d) => {
    const share = sharesOut(ask, d, out), change = answer?.expected?.[d.name];
    const delta = typeof change === "number" ? change : change?.score_change;
    return el("tr", {}, el("td", {}, key(d.place), ` ${d.title}`), el("td", { class: "num" }, out.length && share != null ? shareOf(share, d) : "–"),
      el("td", { class: "num" }, out.length && delta != null ? signed(delta) : "–"), el("td", { class: "tiny faint" }, out.length && answer && delta == null ? "has no unit" : ""));
  });
  const measured = answer && out.length ? answer.after.score - answer.before.score : null;
  return [el("h3", {}, `What each method had said of ${out.length ? "this" : "it"}`), el("table", { class: "lines" },
    el("thead", {}, el("tr", {}, el("th", {}, el("span", { class: "sr" }, "method")), el("th", { class: "num" }, "share"), el("th", { class: "num" }, "predicted Δ"), el("th"))),
    el("tbody", {}, rows, el("tr", {}, el("td", {}, el("b", {}, "measured")), el("td"), el("td", { class: "num" }, el("b", {}, measured == null || Number.isNaN(measured) ? "–" : signed(measured))),
      el("td", { class: "tiny faint" }, `${answer?.unit ?? list[0].result.unit ?? "score"} of ${ask.predicted.classes.find((one) => one.index === ask.target)?.label ?? "the target"}`))))];
}

function sharesOut(ask, d, out) {
  const places = PICKERS[ask.kind].places(ask, d, out);
  return places ? places.reduce((total, [i, weight]) => total + d.shares[i] * weight, 0) : null;
}
