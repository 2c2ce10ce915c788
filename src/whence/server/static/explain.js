/* The view "Explain": the rail with input, prediction and methods, and beside it what a kind of model has to show. */

import { el, fill } from "./dom.js";
import { isFull, parsed } from "./chat.js";
import { inputPart, taken, textKeys } from "./input.js";
import { methods } from "./methods.js";
import { trouble } from "./parts.js";
import { classify } from "./classify.js";
import { language } from "./language.js";

const MOST = 4; // methods at once: each has a letter and a line of its own

/** Draws into `place`. `app`: {describe(name), keep(state, anew)}. */
export function explainView(place, app) {
  const rail = { input: el("section", { "aria-labelledby": "h-input" }),
    target: el("section", { "aria-labelledby": "h-target" }),
    methods: el("section", { "aria-labelledby": "h-methods" }) };
  const main = el("main", { class: "main", id: "main", tabindex: -1 });
  fill(place, el("div", { class: "shell" }, el("div", { class: "rail" }, rail.input, rail.target, rail.methods), main));
  let now = null, turn = 0; // what is shown, and the number of the last wish

  /** Shows what a state says: another model, input, class or choice of methods. */
  async function show(state, anew = false) {
    const own = ++turn;
    now?.stop?.();
    if (now?.model.name !== state.model) fill(main,
      el("p", { class: "soft", role: "status" }, `${state.model} is loaded …`));
    try {
      const model = await app.describe(state.model);
      if (own !== turn) return;
      const input = inputOf(model, state);
      const known = (state.methods ?? []).filter((name) =>
        model.methods.some((one) => one.name === name && one.runs !== false)).slice(0, MOST);
      const chosen = known.length ? known : model.defaults.slice(0, MOST);
      now = { model, input, state: { ...state, model: model.name, methods: chosen } };
      document.title = `${model.title} · Whence`;
      drawInput("");
      drawMethods();
      app.keep(stateOf(), anew);
      if (model.kind !== "image" && !isThere(input)) return waiting();
      const kind = model.kind === "prompt" || model.kind === "seq2seq" ? language : classify;
      Object.assign(now, kind({ model, input, state: now.state, rail: rail.target, main, told: drawInput, keep,
        explain: go, still: () => own === turn }));
      await now.ready;
    } catch (error) {
      if (own === turn) fail(error);
    }
  }

  function fail(error) {
    if (!error.status && !error.kind) console.error(error);
    fill(main, el("section", {}, el("h1", {}, "There is no answer to this"), trouble(error.message)));
    fill(rail.target);
  }

  function waiting() {
    fill(rail.target);
    fill(main, el("section", {}, el("h1", {}, "What should be explained?"),
      el("p", { class: "lead soft" }, "Write something, and the model's answer and what it rests on stand here.")));
    rail.input.querySelector("textarea")?.focus();
  }

  /** Explains another input by the same model. */
  function go(input, anew = true) {
    const { model, methods: chosen, look } = now.state;
    now.input = input;
    show({ view: "explain", model, methods: chosen, look, ...fields(input) }, anew);
    uploads.set(model, input);
  }

  const uploads = new Map(); // images are not in the address: the last one of each model

  function inputOf(model, state) {
    const keys = textKeys(model.kind, state.pair != null), messages = model.chat ? parsed(state.messages) : null;
    if (messages) return { messages, explained: messages };
    if (model.kind === "image") {
      const last = uploads.get(model.name);
      if (state.example != null && model.examples[state.example]) return { example: state.example,
        name: nameOf(model, state.example) };
      return last ?? (now?.model === model && now.input.image ? now.input : { example: 0, name: nameOf(model, 0) });
    }
    if (keys.some((key) => state[key])) return Object.fromEntries(keys.filter((key) => state[key] != null).map((key) =>
      [key, state[key]]));
    const shown = model.kind === "text" ? model.examples.toSorted((a, b) => b.text.length - a.text.length)
      : model.examples;
    return { ...(shown[0] ?? {}) }; // the longest text has most to question
  }

  const nameOf = (model, i) => model.examples[i]?.name ?? `Example ${i + 1}`;
  const isThere = (input) => (input.messages ? isFull(input.messages)
    : Object.values(input).some((text) => text?.trim()));
  const fields = (input) => ({ ...Object.fromEntries(["text", "pair", "prompt", "smiles", "example"].filter((key) =>
    input[key] != null).map((key) => [key, input[key]])),
    ...(input.messages ? { messages: JSON.stringify(input.messages) } : {}) });
  const stateOf = () => ({ ...now.state, ...fields(now.input), view: "explain" });

  /** Notes what has changed on the screen in the address. */
  function keep(changes, anew = false) {
    Object.assign(now.state, changes);
    app.keep(stateOf(), anew);
  }

  function drawInput(told) {
    inputPart(rail.input, now.model, now.input, told, (input, anew) => (anew ? go(input) : fillOnly(input)));
  }

  function fillOnly(input) {
    now.input = input;
    drawInput("");
  }

  function drawMethods() {
    methods(rail.methods, now.model, now.state.methods, (chosen) => {
      keep({ methods: chosen });
      drawMethods();
      now.choose?.(chosen);
    }, MOST);
  }

  place.addEventListener("paste", (event) => {
    const file = [...event.clipboardData.files].find((one) => one.type.startsWith("image/"));
    if (file && now?.model.kind === "image") taken(file, (input) => go(input));
  });

  addEventListener("themed", () => place.contains(main) && now?.themed?.());

  return {
    show: (state) => show(state),
    stop: () => (turn++, now?.stop?.()),
    question: () => now?.question?.() ?? null,
  };
}
