/* Evidence on molecules: atoms and bonds drawn flat, a disc behind each atom in the colour of its share. */

import { roving, svg } from "./dom.js";
import { short } from "./numbers.js";
import { numbers, shareOf } from "./parts.js";
import { onHover } from "./tip.js";

const WIDE = 320, EDGE = 26;

/** Coordinates that fit a box: y goes up in chemistry, and down on a screen. */
function placed({ atoms }) {
  const xs = atoms.map((atom) => atom.x), ys = atoms.map((atom) => -atom.y);
  const [left, top] = [Math.min(...xs), Math.min(...ys)];
  const across = Math.max(Math.max(...xs) - left, 1e-6), down = Math.max(Math.max(...ys) - top, 1e-6);
  const unit = Math.min(46, (WIDE - 2 * EDGE) / across, (WIDE - 2 * EDGE) / down);
  return {
    unit, height: Math.max(2 * EDGE + 10, down * unit + 2 * EDGE),
    at: atoms.map((_, i) => [WIDE / 2 + (xs[i] - left - across / 2) * unit, EDGE + (ys[i] - top) * unit]),
  };
}

const BELOW = "₀₁₂₃₄₅₆₇₈₉";

/** An atom as chemists write it: carbon is a corner, others have their hydrogens and their charge. */
function written({ symbol, hydrogens = 0, charge = 0 }, alone) {
  if (symbol === "C" && !charge && !alone) return "";
  const count = hydrogens > 1 ? [...String(hydrogens)].map((digit) => BELOW[digit]).join("") : "";
  const sign = charge ? `${Math.abs(charge) > 1 ? Math.abs(charge) : ""}${charge > 0 ? "+" : "−"}` : "";
  return `${symbol}${hydrogens ? `H${count}` : ""}${sign}`;
}

const strengthOf = ({ share, limit }) => Math.min(1, Math.abs(share) / limit);
const sideOf = ({ share, signed }) => (!signed ? "size" : share >= 0 ? "for" : "against");

/** The drawing. `paint(i)` gives {share, limit, signed} for an atom or (counted on) a bond; `dress` makes use of
 * their groups. */
export function molecule(ask, label, paint, dress) {
  const { atoms, bonds } = ask.molecule, { at, unit, height } = placed(ask.molecule);
  const drawing = svg("svg", { class: "molecule", viewBox: `0 0 ${WIDE} ${height.toFixed(0)}`, role: "group",
    "aria-label": label });
  const under = svg("g", { class: "under" }), over = svg("g", { class: "bonds" });
  bonds.forEach(({ atoms: [a, b] }, k) => {
    const told = paint(atoms.length + k);
    if (told?.share) under.append(svg("line", { x1: at[a][0], y1: at[a][1], x2: at[b][0], y2: at[b][1],
      class: `weight ${sideOf(told)}`, style: { "--a": (strengthOf(told) ** 0.85).toFixed(3) } }));
  });
  atoms.forEach((_, i) => {
    const told = paint(i), place = { cx: at[i][0], cy: at[i][1], r: Math.min(20, 0.46 * unit) };
    if (told) under.append(svg("circle", { ...place,
      class: `disc ${sideOf(told)}${strengthOf(told) > 0.3 ? " much" : ""}`,
      style: { "--a": (strengthOf(told) ** 0.85).toFixed(3) } }));
  });
  for (const { atoms: [a, b], order } of bonds) over.append(...strokes(at[a], at[b], order, unit));
  const groups = atoms.map((atom, i) => {
    const name = written(atom, atoms.length === 1), [x, y] = at[i];
    const group = svg("g", { class: "atom", data: { i }, "aria-label": atomName(ask, i) },
      svg("circle", { cx: x, cy: y, r: Math.min(20, 0.46 * unit), class: "touch" }));
    if (name) group.append(svg("ellipse", { class: "hole", cx: x, cy: y, rx: 3 + 4.5 * name.length, ry: 9 }),
      svg("text", { x, y: y + 4.5, "text-anchor": "middle" }, name));
    return dress(group, i);
  });
  drawing.append(under, over, ...groups);
  return roving(drawing, ".atom");
}

function strokes([x1, y1], [x2, y2], order, unit) {
  const long = Math.hypot(x2 - x1, y2 - y1) || 1, off = 0.075 * unit;
  const [dx, dy] = [(-(y2 - y1) / long) * off, ((x2 - x1) / long) * off];
  const places = order >= 3 ? [-1.4, 0, 1.4] : order > 1 ? [-0.8, 0.8] : [0];
  return places.map((place, i) => svg("line", { x1: x1 + dx * place, y1: y1 + dy * place, x2: x2 + dx * place,
    y2: y2 + dy * place,
    class: order === 1.5 && i === 1 ? "dashed" : null }));
}

/** One method's drawing; an atom shows its numbers for all methods. */
export function drawing(d, ask, list, measure) {
  return molecule(ask, `${d.title}: the molecule`, (i) =>
    (d.values ? { share: d.shares[i], limit: measure.limit, signed: d.signed } : null), (group, i) =>
    onHover(group, () => atomTip(ask, i, list), () => mark(i, true), () => mark(i, false)));
}

const mark = (i, on) => document.querySelectorAll(`#say .atom[data-i="${i}"]`).forEach((one) =>
  one.classList.toggle("at", on));

export const atomName = (ask, i) => `${ask.molecule.atoms[i].symbol} (atom ${i + 1})`;

const atomTip = (ask, i, list) => numbers(atomName(ask, i),
  list.map((d) => [`${d.letter} ${d.title}`, d.values ? shareOf(d.shares[i], d) : "–", d.values ? short(d.values[i])
    : ""]));
