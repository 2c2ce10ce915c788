/* The line chart of a deletion check: one line per method, the random control as a grey band, and where the
   slider is. */

import { el, svg } from "./dom.js";
import { KEYS } from "./numbers.js";

const DASHES = ["", "7 4", "2 3", "10 3 2 3"], TOP = 14, BOTTOM = 34, LEFT = 44;

const text = (x, y, anchor, words, style = {}) => svg("text", { x, y, "text-anchor": anchor, style }, words);

const TOPS = [1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1];

/** The top of the axis: 100 %, or less where nothing comes near it. */
const topOf = (lines, band) => {
  const most = Math.max(...lines.flatMap((line) => line.y), ...(band ? [...band.high, ...band.mean] : []));
  return TOPS.find((top) => most <= top) ?? 1;
};

/** `lines`: {place, name, y}; `band`: {mean, low, high}; all over `places`, the numbers of units that are gone. */
export function curves({ lines, band, places, at, label, below, width, height = 250 }) {
  const slim = width < 460, right = slim ? 12 : 128, last = places.at(-1) || 1;
  const W = width - LEFT - right, H = height - TOP - BOTTOM;
  const top = topOf(lines, band);
  const x = (k) => LEFT + (W * k) / last, y = (p) => TOP + H * (1 - p / top);
  const path = (ys) => ys.map((p, i) => `${i ? "L" : "M"}${x(places[i]).toFixed(1)} ${y(p).toFixed(1)}`).join("");
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": label });
  for (const p of [0, 0.25, 0.5, 0.75, 1].map((part) => part * top)) {
    drawing.append(svg("line", { class: p === 0.5 && top === 1 ? "half" : "grid", x1: LEFT, x2: LEFT + W,
      y1: y(p), y2: y(p) }),
      text(LEFT - 8, y(p) + 4, "end", `${Number((100 * p).toPrecision(3))} %`));
  }
  for (const k of steps(last, slim)) drawing.append(text(x(k), TOP + H + 16, "middle", String(k)));
  drawing.append(text(LEFT + W / 2, height - 2, "middle", below));
  if (band) {
    const back = band.low.map((p, i) => `L${x(places[i]).toFixed(1)} ${y(p).toFixed(1)}`).reverse().join("");
    drawing.append(svg("path", { class: "band", d: `${path(band.high)}${back}Z` }),
      svg("path", { class: "ln mean", d: path(band.mean) }));
  }
  for (const line of lines) {
    drawing.append(svg("path", { class: "ln", d: path(line.y), "stroke-dasharray": DASHES[line.place % 4],
      style: { stroke: `var(--k${line.place % 4})` } }));
  }
  if (at != null) drawing.append(...marks(lines, places, at, x, y, H));
  if (slim && band) {
    const i = Math.round((places.length - 1) * 0.45);
    drawing.append(text(x(places[i]), y(band.mean[i]) - 6, "middle", "random"));
  }
  if (!slim) drawing.append(...names(lines, band, y, LEFT + W + 8, TOP + H));
  return drawing;
}

/** The line of the slider, and each method's probability on it. */
function marks(lines, places, at, x, y, H) {
  const i = nearest(places, at);
  return [svg("line", { class: "here", x1: x(places[i]), x2: x(places[i]), y1: TOP, y2: TOP + H }),
    ...lines.map((line) => svg("circle", { cx: x(places[i]), cy: y(line.y[i]), r: 3.5, class: "spot",
      style: { fill: `var(--k${line.place % 4})` } }))];
}

/** The place of the list that is nearest to k from below. */
export const nearest = (places, k) => Math.max(0, places.findLastIndex((place) => place <= k));

function steps(last, slim) {
  const most = slim ? 6 : 9, step = [1, 2, 3, 5, 7, 10, 20, 50, 100].find((one) => last / one <= most)
    ?? Math.ceil(last / most);
  return Array.from({ length: Math.floor(last / step) + 1 }, (_, i) => i * step);
}

/** The lines' names at their ends, moved apart. */
function names(lines, band, y, left, low) {
  const found = lines.map((line) => ({ words: `${KEYS[line.place]}  ${line.name}`, at: y(line.y.at(-1)),
    colour: `var(--k${line.place % 4})` }));
  if (band) found.push({ words: "random", at: y(band.mean.at(-1)), colour: "var(--faint)" });
  found.sort((a, b) => a.at - b.at);
  for (let i = 1; i < found.length; i++) found[i].at = Math.max(found[i].at, found[i - 1].at + 14);
  const over = Math.max(0, (found.at(-1)?.at ?? 0) - low - 2);
  return found.map(({ words, at, colour }) => text(left, at - over + 4, "start", words,
    { fill: colour, "font-weight": "600" }));
}

/** Draws at the width of its box, again whenever that changes. */
export function fitted(draw, most = 640) {
  const box = el("div", { class: "fitted" });
  let last = 0;
  const again = () => {
    const width = Math.round(Math.max(280, Math.min(most, box.clientWidth || most)));
    if (width !== last) box.replaceChildren(draw((last = width)));
  };
  new ResizeObserver(again).observe(box);
  return box;
}
