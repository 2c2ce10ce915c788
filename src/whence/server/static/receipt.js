/* Gap, cost and receipt of a method in plain words: one line, and more behind it. */

import { el } from "./dom.js";
import { counted, fixed, percent, seconds } from "./numbers.js";
import { facts } from "./parts.js";

const within = (gap) => (gap < 1e-4 ? "0.01" : (100 * gap).toFixed(gap < 1e-3 ? 2 : 1));

/** Whether the parts add up. */
export function addsUp({ gap, complete }) {
  if (gap == null || (!complete && gap > 0.05)) return "no sum is promised";
  return gap < 0.05 ? `adds up within ${within(gap)} %` : `misses the sum by ${within(gap)} %`;
}

export function cost({ passes, cost_fb: total, seconds: time }) {
  const count = passes ? (passes.forward ?? 0) + (passes.backward ?? 0) : total;
  return [count != null ? counted(Math.round(count), "pass", "passes") : null, time != null ? seconds(time) : null].filter(Boolean).join(", ");
}

/** All that is known, as pairs of a name and a sentence. */
export function inWords(result) {
  const { gap, complete, passes, seconds: time, score, baseline_score: start, unit } = result;
  const found = [];
  if (gap == null || (!complete && gap > 0.05)) found.push(["Adds up?", "Not promised by this method; nothing to check."]);
  else if (gap < 0.02) found.push(["Adds up?", `Yes: the parts miss the score's change by ${within(gap)} % of it.`]);
  else found.push(["Adds up?", `Not quite: the parts miss the score's change by ${within(gap)} % of it.`]);
  if (passes) {
    found.push(["Cost", `${counted(passes.forward ?? 0, "forward pass", "forward passes")} and ${counted(passes.backward ?? 0, "backward pass", "backward passes")}${time != null ? `, ${seconds(time)} here` : ""}.`]);
  } else found.push(["Cost", `${cost(result)}.`]);
  if (score != null) {
    const from = start != null ? `Score of the empty input ${fixed(start)}, of this input ${fixed(score)}` : `Score ${fixed(score)}`;
    found.push(["Score", `${from}${unit ? ` (${unit})` : ""}.`]);
  }
  found.push(["Sign", result.signed ? "Positive speaks for the class, negative against it." : "None: it says how much, not for or against."]);
  for (const line of result.receipt ?? []) found.push(typeof line === "string" ? ["Receipt", line] : line);
  return found;
}

/** One line that folds open. */
export const receipt = (result) =>
  el("details", { class: "end" }, el("summary", {}, el("span", {}, addsUp(result), el("br"), cost(result))), facts(inWords(result)));

export const aside = (share, what) => `${percent(share, share > 0.99 ? 1 : 0)} ${what}`;
