/* Numbers: how they are written, shares of a total, one scale for several methods, and what two methods have in
   common. */

const MINUS = "\u2212", THIN = "\u202f";
export const KEYS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

/** A number with a true minus sign. */
export const fixed = (x, digits = 2) => (x < 0 && Number(x.toFixed(digits)) ? MINUS : "") + Math.abs(x).toFixed(digits);
export const signed = (x, digits = 2) => (Number(x.toFixed(digits)) === 0 ? "" : x < 0 ? MINUS
  : "+") + Math.abs(x).toFixed(digits);

/** With as many digits as tell something. */
export function short(x) {
  const size = Math.abs(x);
  if (!Number.isFinite(x)) return Number.isNaN(x) ? "not a number" : `${x < 0 ? MINUS : ""}∞`;
  if (size && (size < 1e-3 || size >= 1e5)) return x.toExponential(1).replace(/-/g, MINUS);
  return fixed(x, size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3);
}

/** A probability in percent. The ends are not reached by rounding. */
export function percent(p, digits = 1) {
  const x = 100 * p, least = 10 ** -digits;
  if (x > 0 && x < least / 2) return `< ${least}${THIN}%`;
  if (x < 100 && x > 100 - least / 2) return `> ${(100 - least).toFixed(digits)}${THIN}%`;
  return `${fixed(x, digits)}${THIN}%`;
}

/** A share in percent; of a method without a sign, without one. */
export function part(x, sign = true) {
  const size = 100 * Math.abs(x), shown = size >= 9.5 ? size.toFixed(0) : size.toFixed(1);
  return `${!sign || Number(shown) === 0 ? "" : x < 0 ? MINUS : "+"}${shown}${THIN}%`;
}

/** A difference of probabilities, in points. */
export const points = (x) => `${signed(100 * x, 1)}${THIN}pts`;
export const multiple = (x, sign = true) => `${!sign ? "" : x < 0 ? MINUS : "+"}${Math.abs(x).toFixed(1)} ×`;
export const whole = (n) => n.toLocaleString("en-US");
export const counted = (n, one, many = `${one}s`) => `${whole(n)} ${n === 1 ? one : many}`;
export const seconds = (s) => (s < 0.9995 ? `${Math.max(1, Math.round(1000 * s))} ms` : `${s.toFixed(1)} s`);

/** The next number upwards that reads well. */
export function nice(x) {
  if (!(x > 0) || !Number.isFinite(x)) return 1;
  const power = 10 ** Math.floor(Math.log10(x));
  const step = [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].find((m) => m * power >= x * (1 - 1e-9)) ?? 10;
  return Number((step * power).toPrecision(6));
}

export const sum = (values) => values.reduce((total, x) => total + x, 0);
export const sizes = (values) => values.reduce((total, x) => total + Math.abs(x), 0);
const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];

/** Each value's share of the total of magnitudes; those that are left out have none, and what they took is `aside`. */
export function shares(values, leftOut = null) {
  const kept = leftOut ? values.map((x, i) => (leftOut[i] ? 0 : x)) : values;
  const inner = sizes(kept), outer = sizes(values);
  return { shares: kept.map((x) => (inner ? x / inner : 0)), aside: outer ? 1 - inner / outer : 0 };
}

/** The end of a scale of shares, and whether something lies beyond. */
export function scaleOfShares(lists) {
  const top = Math.max(0, ...lists.map((list) => list.reduce((most, x) => Math.max(most, Math.abs(x)), 0)));
  const limit = Math.min(0.5, Math.max(0.01, nice(top)));
  return { limit, over: top > limit * (1 + 1e-9), times: false };
}

/** The same of pictures, in multiples of an even spread: by the method in the middle, whose last hundredth is
 * clipped. */
export function scaleOfTimes(lists) {
  const reach = lists.map((list) => {
    const sorted = Float64Array.from(list, Math.abs).sort();
    return sorted[sorted.length > 100 ? Math.floor(0.99 * (sorted.length - 1)) : sorted.length - 1] ?? 0;
  });
  const limit = nice(reach.length ? median(reach) : 0);
  return { limit, over: lists.some((list) => list.some((x) => Math.abs(x) > limit * (1 + 1e-9))), times: true };
}

/** The numbers of a legend, of two sides or one. */
export function ticks({ limit, over, times }, sides = 2, unit = times ? " ×" : `${THIN}%`) {
  const factor = times || unit === "" ? 1 : 100;
  return (sides === 2 ? [-1, -0.5, 0, 0.5, 1] : [0, 1]).map((place) => {
    if (!place) return "0";
    const size = Number((Math.abs(place) * limit * factor).toPrecision(3));
    const end = !over || Math.abs(place) < 1 ? "" : place < 0 ? "≤ " : "≥ ";
    return `${end}${place < 0 ? MINUS : sides === 2 && !times ? "+" : ""}${size}${unit}`;
  });
}

/** How much two methods place alike, 1 − ½ Σ|a − b| of their shares; of magnitudes where one has no sign. */
export function common(a, b, signs) {
  const [x, y] = [a, b].map((list) => (signs ? list : list.map(Math.abs)));
  const wholes = [sizes(x), sizes(y)];
  if (!wholes[0] || !wholes[1] || x.length !== y.length) return NaN;
  return 1 - sizes(x.map((value, i) => value / wholes[0] - y[i] / wholes[1])) / 2;
}

/** The same with the numbers of the first dealt anew, eight times. */
export function byChance(a, b, signs) {
  const draw = random(7);
  const found = Array.from({ length: 8 }, () => common(dealt(a, draw), b, signs));
  return sum(found) / found.length;
}

function dealt(values, draw) {
  const list = [...values];
  for (let i = list.length - 1; i > 0; i--) {
    const j = Math.floor(draw() * (i + 1));
    [list[i], list[j]] = [list[j], list[i]];
  }
  return list;
}

/** Numbers from 0 to 1 that are the same for the same seed (a linear congruence is enough to deal cards). */
function random(seed) {
  let state = seed >>> 0;
  return () => (state = (Math.imul(state, 1664525) + 1013904223) >>> 0) / 2 ** 32;
}

/** A grid of values summed over the places of a coarser one. */
export function pooled(values, [height, width], [rows, columns]) {
  const found = new Array(rows * columns).fill(0);
  values.forEach((value, i) => {
    const row = Math.floor((Math.floor(i / width) * rows) / height),
      column = Math.floor(((i % width) * columns) / width);
    found[row * columns + column] += value;
  });
  return found;
}
