/* Over all rows: lone numbers, and which words move the model, each with its mean and interval on one axis. */

import { el, svg } from "./dom.js";
import { fitted } from "./chart.js";
import { nice, short, signed, whole } from "./numbers.js";

/** Lone numbers with their names. */
export const stats = (pairs) => el("dl", { class: "stats" }, pairs.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));

/** Two charts on one axis: what speaks for a class, and what speaks against it. `pick(word)` filters the rows by a word. */
export function movers(target, { for: pro = [], against = [], both = [] }, unit, pick) {
  const all = [...pro, ...against, ...both];
  if (!all.length) return null;
  const least = Math.min(0, ...all.map((one) => one.low ?? one.mean)), most = Math.max(0, ...all.map((one) => one.high ?? one.mean));
  const chart = (title, list) => list.length ? el("figure", {}, el("figcaption", {}, el("b", {}, title)),
    fitted((width) => means(list, [least, most], width, unit, pick, title), 760)) : null;
  return el("div", { class: "swarms" }, chart(`Speak for “${target}”`, pro), chart(`Speak against “${target}”`, against), chart(`Matter for “${target}”`, both));
}

/** One line per word: a bar for the interval, a stroke for the mean. */
function means(list, [least, most], width, unit, pick, label) {
  const left = Math.min(120, width * 0.28), right = 96, row = 26, height = list.length * row + 34, step = nice((most - least) / 4 || 1);
  const x = (value) => left + ((value - least) / (most - least || 1)) * (width - left - right);
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "group", "aria-label": label });
  for (let tick = Math.ceil(least / step) * step; tick <= most + 1e-9; tick += step) {
    const at = Math.abs(tick) < 1e-9 ? 0 : tick;
    drawing.append(svg("line", { class: at ? "grid" : "zero", x1: x(at), x2: x(at), y1: 4, y2: height - 30 }), svg("text", { x: x(at), y: height - 16, "text-anchor": "middle" }, at ? signed(at, step < 0.1 ? 2 : 1) : "0"));
  }
  drawing.append(svg("text", { x: (left + width - right) / 2, y: height - 2, "text-anchor": "middle" }, unit));
  list.forEach((one, i) => {
    const y = i * row + row / 2 + 4, side = one.mean >= 0 ? "for" : "against";
    const name = svg("text", { x: left - 12, y: y + 4, "text-anchor": "end", class: "word" }, one.name.length > 16 ? `${one.name.slice(0, 15)}…` : one.name);
    const group = svg("g", { class: "mover", role: "button", tabindex: 0, "aria-label": `${one.name}: mean ${short(one.mean)} in ${whole(one.rows)} rows; show these rows` }, svg("rect", { x: 0, y: y - row / 2, width, height: row, class: "touch" }), name,
      one.low != null ? svg("line", { class: `reach ${side}`, x1: x(one.low), x2: x(one.high), y1: y, y2: y }) : "", svg("line", { class: "mid", x1: x(one.mean), x2: x(one.mean), y1: y - 5, y2: y + 5 }),
      svg("text", { x: width - right + 44, y: y + 4, "text-anchor": "end", class: "word" }, signed(one.mean)), svg("text", { x: width, y: y + 4, "text-anchor": "end" }, `n ${whole(one.rows)}`));
    group.addEventListener("click", () => pick(one.name));
    group.addEventListener("keydown", (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), pick(one.name)));
    drawing.append(group);
  });
  return drawing;
}
