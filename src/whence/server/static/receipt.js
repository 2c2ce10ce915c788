/* Gap, cost and receipt of a method in plain words: one line, and more behind it. */

import { el } from "./dom.js";
import { counted, fixed, seconds } from "./numbers.js";
import { facts, warning } from "./parts.js";

const MUCH = 0.05; // of the score's change
const within = (gap) => (gap < 1e-4 ? "0.01" : (100 * gap).toFixed(gap < 1e-3 ? 2 : gap < 0.1 ? 1 : 0));

/** Whether the parts add up. */
export function addsUp({ gap }) {
  if (gap == null) return "no sum is promised";
  return gap < MUCH ? `adds up within ${within(gap)} %` : `misses the sum by ${within(gap)} %`;
}

export function cost({ passes, seconds: time }) {
  const count = (passes?.forward ?? 0) + (passes?.backward ?? 0);
  return [count ? counted(count, "pass", "passes") : null, time != null ? seconds(time)
    : null].filter(Boolean).join(", ");
}

/** All that is known, as pairs of a name and a sentence. */
function inWords(result) {
  const { gap, passes, seconds: time, targets, baseline, space, params } = result, found = [];
  if (gap == null) found.push(["Adds up?", "Not promised by this method; nothing to check."]);
  else if (gap < 0.02) found.push(["Adds up?", `Yes: the parts miss the score's change by ${within(gap)} % of it.`]);
  else found.push(["Adds up?", `Not quite: the parts miss the score's change by ${within(gap)} % of it.`]);
  const took = time == null ? "" : `, ${seconds(time)} here`;
  const [forward, backward] = ["forward", "backward"].map((way) =>
    counted(passes?.[way] ?? 0, `${way} pass`, `${way} passes`));
  found.push(["Cost", `${forward} and ${backward}${took}.`]);
  if (targets?.length === 1) {
    const from = baseline?.[0] == null ? "Score" : `Score of the empty input ${fixed(baseline[0])}, of this input`;
    found.push(["Score", `${from} ${fixed(targets[0].score)} (${space}).`]);
  }
  found.push(["Sign", result.signed ? "Positive speaks for the class, negative against it."
    : "None: it says how much, not for or against."]);
  const chosen = Object.entries(params ?? {}).map(([name, value]) => `${name} ${value}`).join(", ");
  if (chosen) found.push(["Chosen", `${chosen}.`]);
  if (result.receipt?.length) found.push(["Receipt", result.receipt.join(" ")]);
  return found;
}

/** One line that folds open. */
export const receipt = (result) =>
  el("details", { class: "end" }, el("summary", {}, el("span", {}, addsUp(result), el("br"), cost(result))),
    facts(inWords(result)));

/** Warnings of several methods, each text once with the letters of those that it is about. */
export function noted(list) {
  const found = new Map();
  for (const d of list) for (const line of d.result.warnings ?? []) found.set(line,
    [...(found.get(line) ?? []), d.letter]);
  const all = [...found].map(([line, who]) => warning(`${who.join(", ")}.`, line));
  for (const d of list.filter((one) => one.result.gap >= MUCH)) {
    all.push(warning(`${d.letter} does not add up.`,
      `The parts of ${d.title} miss the score's change by ${within(d.result.gap)} %. `,
      "Read which places come first, not how much each has."));
  }
  return all;
}
