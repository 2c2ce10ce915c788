/* Evidence behind text: words in their places, a card per method, or bars; the pointer on a word shows all methods. */

import { $$, el, roving } from "./dom.js";
import { strongest } from "./drawn.js";
import { percent, short } from "./numbers.js";
import { diverging, key, numbers, shareOf, wash } from "./parts.js";
import { onHover } from "./tip.js";

/** A text's letters as the server counts them: by code point, where JavaScript counts halves of some. */
const letters = new Map();
export function slice(text, start, end) {
  if (!letters.has(text)) {
    if (letters.size > 64) letters.clear();
    letters.set(text, Array.from(text));
  }
  return letters.get(text).slice(start, end).join("");
}

/** The texts with a node for each word, and what stands between them as it is: one list of nodes for each text. */
export function sentences(texts, units, node) {
  return texts.map((text, part) => {
    const out = [];
    let last = 0;
    units.forEach((unit, i) => {
      if (unit.special || (unit.part ?? 0) !== part || unit.end <= unit.start) return;
      const start = Math.max(last, unit.start);
      if (start > last) out.push(slice(text, last, start));
      out.push(node(i, slice(text, start, unit.end)));
      last = Math.max(last, unit.end);
    });
    const rest = slice(text, last);
    return rest ? [...out, rest] : out;
  });
}

/** Marks a word in every card and shows its numbers for all methods, while the pointer or the focus is on it. */
function linked(node, i, ask, list) {
  node.dataset.i = i;
  const all = () => $$(`[data-i="${i}"]`, document.getElementById("say") ?? document);
  return onHover(node, () => wordTip(i, ask, list),
    () => all().forEach((one) => one.classList.add("at")), () => all().forEach((one) => one.classList.remove("at")));
}

export const nameOf = (ask, i) => {
  const unit = ask.units[i];
  return unit.special ? unit.text : slice(ask.texts[unit.part ?? 0], unit.start, unit.end) || unit.text;
};

const wordTip = (i, ask, list) => numbers(`“${nameOf(ask, i)}”`,
  list.map((d) => [`${d.letter} ${d.title}`, d.values ? shareOf(d.shares[i], d) : "–", d.values ? short(d.values[i])
    : ""]));

/** One method's reading of the text. */
export function reading(d, ask, list, measure) {
  const draw = (i, text) => {
    const word = el("span", { class: "w", role: "mark",
      "aria-label": `${text} ${d.values ? shareOf(d.shares[i], d) : ""}` }, text);
    return linked(d.values ? wash(word, d.shares[i], measure.limit, d.signed) : word, i, ask, list);
  };
  const parts = sentences(ask.texts, ask.units, draw).map((nodes) => el("p", { class: "reading", dir: "auto" }, nodes));
  return roving(el("div", { class: `readings${d.values ? "" : " pending"}` }, parts), ".w");
}

/** Its strongest words, and what is not drawn. */
export function tops(d, ask) {
  const found = strongest(d.shares, 3).map((i) =>
    el("span", {}, el("b", { dir: "auto" }, nameOf(ask, i)), ` ${shareOf(d.shares[i], d)}`));
  if (!found.length) found.push(el("span", {}, "0 for every word"));
  const names = [...new Set(ask.units.filter((unit) => unit.special).map((unit) => unit.text))];
  const size = percent(d.aside, d.aside > 0.99 ? 1 : 0);
  const told = ask.asideTold?.(d.aside) ?? `${size} on ${names.slice(0, 3).join(", ")}`;
  const aside = d.aside > 0.0005 ? el("span", { class: "faint" }, told) : null;
  return el("p", { class: "tops" }, found, aside);
}

/** Every word as a line, every method as a column of bars of the same length per unit. */
export function bars(ask, list, measure) {
  const shown = ask.units.map((_, i) => i).filter((i) => !ask.units[i].special);
  const head = el("tr", {}, el("th", {}, el("span", { class: "sr" }, "word")),
    list.map((d) => el("th", { colspan: 2, scope: "colgroup" }, key(d.place), ` ${d.title}`)));
  const rows = shown.map((i) => el("tr", {}, el("th", { scope: "row" },
    linked(el("span", { class: "w", dir: "auto" }, nameOf(ask, i)), i, ask, list)),
    list.map((d) => d.values
      ? [el("td", { class: "wide-bar" }, diverging(d.shares[i], measure.limit, d.signed)),
        el("td", { class: "num" }, shareOf(d.shares[i], d))]
      : [el("td"), el("td", { class: "num faint" }, "…")])));
  const table = el("table", { class: "bars" }, el("thead", {}, head), el("tbody", {}, rows));
  roving(table, ".w");
  return el("div", { class: "scroll" }, table);
}
