/* What each method says in one unit: a share of its total, or a multiple of an even spread; and what is said
   about all. */

import { KEYS, byChance, common, pooled, scaleOfShares, scaleOfTimes, shares } from "./numbers.js";

/** The results of the chosen methods in their order; a method that has not answered yet has no values. */
export function drawn(ask) {
  const special = ask.units ? ask.units.map((unit) => unit.special) : null;
  return ask.methods.map((name, place) => {
    const about = ask.model.methods.find((one) => one.name === name) ?? { name, title: name, family: "Others" };
    const result = ask.results.get(name), error = ask.errors.get(name);
    const base = { name, place, letter: KEYS[place], title: about.title, family: about.family,
      question: about.question, error };
    if (!result) return { ...base, signed: about.signed ?? true, values: null };
    const fits = special && special.length === result.values.length && !special.every(Boolean);
    const own = shares(result.values, fits ? special : null);
    const picture = ask.kind === "image";
    const shown = picture ? own.shares.map((x) => x * own.shares.length) : own.shares;
    return { ...base, ...own, shown, values: result.values, shape: result.shape, signed: result.signed, result };
  });
}

export const answered = (list) => list.filter((d) => d.values);

/** One scale for all methods. */
export function scaleOf(ask, list) {
  const shown = answered(list).map((d) => d.shown);
  return ask.kind === "image" ? scaleOfTimes(shown) : scaleOfShares(shown);
}

/** The shares of two methods over the same places; nothing where their units differ. */
function paired(a, b) {
  if (a.values.length === b.values.length) return [a.shares, b.shares];
  if (!a.shape || !b.shape) return null;
  const size = [0, 1].map((axis) => Math.min(a.shape[axis], b.shape[axis]));
  return [a, b].map((d) => pooled(d.shares, d.shape, size));
}

/** What every two methods have in common, and what each has in common with the others by chance. */
export function agreement(list) {
  const of = (measure) => (a, b) => {
    const pair = paired(a, b);
    return pair ? measure(pair[0], pair[1], a.signed && b.signed) : NaN;
  };
  const table = list.map((a) => list.map((b) => (a === b ? 1 : of(common)(a, b))));
  const chance = list.map((a) => {
    const found = list.filter((b) => b !== a).map((b) => of(byChance)(b, a)).filter((x) => !Number.isNaN(x));
    return found.length ? found.reduce((x, y) => x + y) / found.length : NaN;
  });
  return { table, chance };
}

/** The places of the largest and of the smallest share. */
export function ends(values) {
  let top = 0, low = 0;
  values.forEach((x, i) => {
    if (x > values[top]) top = i;
    if (x < values[low]) low = i;
  });
  return [top, low];
}

/** The places with the largest magnitudes, at most `count` of them. */
export const strongest = (values, count) =>
  values.map((x, i) => [Math.abs(x), i]).filter(([size]) => size > 0).sort((a, b) => b[0] - a[0]).slice(0,
    count).map(([, i]) => i);
