/* "Where methods disagree": what every two have in common, and about what they differ most. */

import { el } from "./dom.js";
import { agreement, answered } from "./drawn.js";
import { part, percent } from "./numbers.js";
import { section, wash } from "./parts.js";
import { atomName } from "./molecule.js";
import { nameOf } from "./words.js";

export function disagreement(ask, all) {
  const list = answered(all);
  if (list.length < 2) return null;
  const { table, chance } = agreement(list);
  return section("agree", "Where methods disagree",
    el("span", { class: "soft" }, "How much of their shares two methods place alike.", mixed(list)
      ? " * of magnitudes, because one of the two has no sign." : ""),
    el("div", { class: "disagree" }, matrix(list, table, chance),
      el("p", { class: "note" }, sentence(ask, list, table, chance))));
}

const mixed = (list) => new Set(list.map((d) => d.signed)).size > 1;
const cell = (x) => (Number.isNaN(x) ? "–" : percent(x, 0));

function matrix(list, table, chance) {
  const rows = list.map((a, i) => el("tr", {}, el("th", { scope: "row" }, `${a.letter}  ${a.title}`),
    list.map((b, j) => {
    if (j > i) return el("td");
    if (j === i) return el("td", { class: "faint" }, "–");
    const star = a.signed !== b.signed ? "*" : "", node = el("td", { class: "c" }, cell(table[i][j]), star);
    return Number.isNaN(table[i][j]) ? node : wash(node, Math.max(0, table[i][j]) ** 1.6, 1, false);
  })));
  return el("div", { class: "scroll" }, el("table", { class: "mat" },
    el("thead", {}, el("tr", {}, el("th", {}, el("span", { class: "sr" }, "method")),
      list.map((d) => el("th", { scope: "col" }, d.letter)))),
    el("tbody", {}, rows, el("tr", { class: "faint" }, el("th", { scope: "row", class: "faint" }, "random"),
      chance.map((x) => el("td", {}, cell(x)))))));
}

function sentence(ask, list, table, chance) {
  let least = null;
  list.forEach((a, i) => list.forEach((b, j) => {
    if (j < i && !Number.isNaN(table[i][j]) && (!least || table[i][j] < least.common)) least = { a, b,
      common: table[i][j], by: Math.min(chance[i], chance[j]) };
  }));
  if (!least) return "The methods give numbers to different things, so that their shares cannot be compared.";
  const { a, b } = least, signs = a.signed && b.signed, of = (d, i) => (signs ? d.shares[i] : Math.abs(d.shares[i]));
  const out = [`${a.title} and ${b.title} have least in common (${percent(least.common, 0)})`];
  if (a.shares.length === b.shares.length && ask.kind !== "image") {
    const apart = a.shares.map((_, i) => Math.abs(of(a, i) - of(b, i)));
    const i = apart.indexOf(Math.max(...apart));
    out.push(", most of all about ", el("b", { dir: "auto" }, ask.kind === "molecule" ? atomName(ask, i)
      : nameOf(ask, i)), `: ${part(of(a, i), signs)} and ${part(of(b, i), signs)} of their totals. `);
  } else out.push(". ");
  if (least.common < least.by + 0.1) out.push("That is hardly more than chance: do not quote one of them alone. ");
  out.push(a.family === b.family ? "They ask the same question and answer it differently."
    : `They ask different questions: “${a.question}” and “${b.question}”`);
  const curves = ask.predicted && ask.kind !== "molecule";
  if (curves) out.push(" The curves above show which ranking the model itself bears out on this row.");
  return out;
}
