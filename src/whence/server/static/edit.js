/* "Or change the text": what the model says of another wording, before and after, with the words that differ. */

import { el, fill, later } from "./dom.js";
import { percent } from "./numbers.js";
import { trouble } from "./parts.js";

const tried = new WeakMap(); // the edits of each question, newest first

/** The words of two texts: kept ones as they are, others struck out or put in (the longest common run of words). */
export function changes(before, after) {
  const [a, b] = [before, after].map((text) => text.split(/(\s+)/).filter(Boolean));
  const long = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) long[i][j] = a[i] === b[j] ? long[i + 1][j + 1] + 1
      : Math.max(long[i + 1][j], long[i][j + 1]);
  }
  const out = [];
  const push = (kind, text) => (out.at(-1)?.kind === kind ? (out.at(-1).text += text) : out.push({ kind, text }));
  for (let i = 0, j = 0; i < a.length || j < b.length;) {
    if (i < a.length && j < b.length && a[i] === b[j]) push("same", (i++, b[j++]));
    else if (i < a.length && (j >= b.length || long[i + 1][j] >= long[i][j + 1])) push("del", a[i++]);
    else push("ins", b[j++]);
  }
  return out;
}

const marked = (before, after) => changes(before, after).filter((one) => one.text.trim()).map(({ kind, text }) =>
  kind === "same" ? (text.length > 24 ? " … " : text) : [el(kind, {}, text.trim()), " "]);

/** A field with the text, and the list of what was tried. `on.predict(input)` asks the model,
 * `on.explain(input)` goes over to it. */
export function edits(ask, on) {
  const list = tried.get(ask.predicted) ?? [], part = ask.texts.length - 1,
    field = el("textarea", { class: "field", id: "edit", rows: 2, data: { focus: "edit" } });
  tried.set(ask.predicted, list);
  field.value = ask.texts[part];
  const now = el("div", { class: "ba-edit", "aria-live": "polite" }), table = el("table", { class: "lines edits" });
  const before = ask.predicted.classes.find((one) => one.index === ask.target)?.probability ?? 0;
  const best = (classes) => classes.reduce((a, b) => (a.probability >= b.probability ? a : b)).index;
  const row = ({ text, classes }) => {
    const after = classes.find((one) => one.index === ask.target)?.probability ?? 0,
      flips = best(classes) !== best(ask.predicted.classes);
    return el("tr", {}, el("td", { dir: "auto" }, marked(ask.texts[part], text)),
      el("td", { class: "num soft" }, `${percent(before)} →`),
      el("td", { class: "num" }, flips ? el("b", {}, percent(after)) : percent(after)),
        el("td", { class: "num soft" }, flips ? "flips" : ""),
      el("td", {}, el("button", { class: "btn quiet", type: "button",
        on: { click: () => on.explain(on.withText(text)) } }, "Explain")));
  };
  const draw = () => fill(table, el("tbody", {}, list.slice(0, 8).map(row)));
  let turn = 0;
  const ask_again = async () => {
    const own = ++turn, text = field.value;
    if (text === ask.texts[part]) return;
    if (!text.trim()) return fill(now, el("p", { class: "tiny faint" }, "An empty text is not asked about."));
    try {
      const { classes } = await on.predict(on.withText(text));
      if (own !== turn) return;
      fill(now);
      if (list[0]?.open) list.shift();
      list.unshift({ text, classes, open: true });
      draw();
    } catch (error) {
      if (own === turn) fill(now, trouble(error.message));
    }
  };
  const soon = later(250, ask_again);
  field.addEventListener("input", soon);
  field.addEventListener("change", () => list[0] && (list[0].open = false)); // the next edit is another line
  draw();
  const title = ask.kind === "molecule" ? "Or change the SMILES" : "Or change the text";
  return el("div", { class: "edit" }, el("h3", {}, el("label", { for: "edit" }, title)), field, now,
    table);
}
