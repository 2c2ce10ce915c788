/* Evidence on molecules: atoms and bonds drawn flat, a disc behind each atom in the colour of its share. */

import { el, roving, svg } from "./dom.js";
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

/** The drawing. `paint(i)` gives {share, limit, signed} for an atom, or null; `node(i, atom)` may add to its group. */
export function molecule(ask, label, paint, dress) {
  const { atoms, bonds } = ask.molecule, { at, unit, height } = placed(ask.molecule);
  const drawing = svg("svg", { class: "molecule", viewBox: `0 0 ${WIDE} ${height.toFixed(0)}`, role: "group", "aria-label": label });
  const discs = atoms.map((atom, i) => {
    const told = paint(i), size = Math.min(20, 0.52 * unit);
    if (!told) return svg("circle", { cx: at[i][0], cy: at[i][1], r: size, class: "disc" });
    const strength = Math.min(1, Math.abs(told.share) / told.limit), side = !told.signed ? "size" : told.share >= 0 ? "for" : "against";
    return svg("circle", { cx: at[i][0], cy: at[i][1], r: size, class: `disc ${side}${strength > 0.3 ? " much" : ""}`, style: { "--a": (strength ** 0.85).toFixed(3) } });
  });
  const lines = bonds.flatMap((bond) => strokes(at[bond.a], at[bond.b], bond.order, unit));
  const groups = atoms.map((atom, i) => {
    const group = svg("g", { class: "atom", data: { i }, "aria-label": `${atom.symbol} ${i + 1}` }, discs[i]);
    if (atom.symbol !== "C" || atoms.length === 1) {
      group.append(svg("circle", { class: "hole", cx: at[i][0], cy: at[i][1], r: 8 }), svg("text", { x: at[i][0], y: at[i][1] + 4.5, "text-anchor": "middle" }, atom.symbol));
    }
    return dress(group, i);
  });
  drawing.append(svg("g", { class: "under" }, discs.map((disc) => disc.cloneNode())), svg("g", { class: "bonds" }, lines), ...groups);
  groups.forEach((group, i) => group.replaceChild(svg("circle", { cx: at[i][0], cy: at[i][1], r: 0.5 * unit, class: "touch" }), discs[i]));
  return roving(drawing, ".atom");
}

function strokes([x1, y1], [x2, y2], order, unit) {
  const long = Math.hypot(x2 - x1, y2 - y1) || 1, off = 0.075 * unit;
  const [dx, dy] = [(-(y2 - y1) / long) * off, ((x2 - x1) / long) * off];
  const places = order >= 3 ? [-1.4, 0, 1.4] : order > 1 ? [-0.8, 0.8] : [0];
  return places.map((place, i) => svg("line", { x1: x1 + dx * place, y1: y1 + dy * place, x2: x2 + dx * place, y2: y2 + dy * place,
    class: order === 1.5 && i === 1 ? "dashed" : null }));
}

/** One method's drawing; an atom shows its numbers for all methods. */
export function drawing(d, ask, list, measure) {
  return molecule(ask, `${d.title}: the molecule`, (i) => (d.values ? { share: d.shares[i], limit: measure.limit, signed: d.signed } : null), (group, i) =>
    onHover(group, () => atomTip(ask, i, list), () => mark(i, true), () => mark(i, false)));
}

const mark = (i, on) => document.querySelectorAll(`#say .atom[data-i="${i}"]`).forEach((one) => one.classList.toggle("at", on));

export const atomName = (ask, i) => `${ask.molecule.atoms[i].symbol} (atom ${i + 1})`;

const atomTip = (ask, i, list) => numbers(atomName(ask, i),
  list.map((d) => [`${d.letter} ${d.title}`, d.values ? shareOf(d.shares[i], d) : "–", d.values ? short(d.values[i]) : ""]));

export const cards = (list, draw) => el("div", { class: "cards side" }, list.map(draw));
