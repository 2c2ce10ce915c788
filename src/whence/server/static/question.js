/* "Question it": take words, patches or atoms out and see what the model does, beside what each method had said. */

import { el, fill } from "./dom.js";
import { answered } from "./drawn.js";
import { counted, percent, points, signed } from "./numbers.js";
import { bar, key, section, shareOf, trouble } from "./parts.js";
import { PICKERS } from "./pickers.js";
import { deletion } from "./deletion.js";
import { edits } from "./edit.js";

/** The section. `ask.out` is what is out; `on.remove(out)` asks the model, `on.keep()` notes the state in the
 * address. */
export function question(ask, list, on) {
  const picker = PICKERS[ask.kind];
  if (!picker) return null;
  const after = el("div", { class: "ba", "aria-live": "polite" }), said = el("div", { class: "said" });
  const back = el("button", { class: "btn right", type: "button", hidden: true }, "Put all back");
  const state = { answer: null, error: null, waiting: false };
  const draw = () => {
    back.hidden = !ask.out.size;
    fill(after, state.error ? trouble(state.error) : beforeAfter(ask, state, picker));
    fill(said, saidTable(ask, answered(list), state.answer));
  };
  let turn = 0;
  const changed = async () => {
    on.keep();
    const own = ++turn, out = [...ask.out].sort((a, b) => a - b);
    Object.assign(state, { error: null, waiting: out.length > 0 });
    if (!out.length) state.answer = null;
    draw();
    if (!out.length) return;
    try {
      const answer = await on.remove(out);
      if (own === turn) Object.assign(state, { answer, waiting: false });
    } catch (error) {
      if (own === turn) Object.assign(state, { error: error.message, answer: null, waiting: false });
    }
    if (own === turn) draw();
  };
  const pick = picker.draw(ask, () => {
    ask.touched = true;
    changed();
  });
  back.addEventListener("click", () => {
    ask.touched = true;
    ask.out.clear();
    pick.update();
    changed();
  });
  const curves = on.deletion ? deletion(ask, list, on, (out) => {
    if (ask.touched) return;
    ask.out = new Set(out);
    pick.update();
    changed();
  }) : null;
  const halves = ask.kind === "image" ? [[pick.node], [after, said, curves]] : curves
    ? [[pick.node, after, said, on.predict ? edits(ask, on) : null], [curves]] : [[pick.node, after], [said]];
  const node = section("ask", "Question it", [el("span", { class: "soft" }, picker.told), back],
    el("div", { class: `quiz of-${ask.kind}` }, halves.map((half) => el("div", { class: "half" }, half))));
  if (ask.out.size) changed();
  else draw();
  return { node, again: (fresh) => { list = fresh; draw(); } };
}

/** The probability before and after, and whether the decision flips. */
function beforeAfter(ask, { answer, waiting }, picker) {
  const asked = ask.predicted.classes.find((one) => one.index === ask.target);
  const before = answer?.before?.probability ?? asked?.probability ?? 0, after = answer?.after?.probability;
  const shown = after ?? before;
  const line = (name, share, text, old) => [el("span", { class: "soft" }, name), bar(share, old ? "was" : "now"),
    el(old ? "span" : "output", { class: "num" }, text)];
  const gone = [...ask.out];
  let told = "Nothing is taken out yet.", change = "";
  if (answer && gone.length) {
    const was = answer.before.prediction, is = answer.after.prediction;
    const what = gone.length === 1 ? picker.name(ask, gone[0]) : counted(gone.length, picker.unit, picker.units);
    if (is == null) told = `Without ${what} the model gives ${asked.label} ${percent(after)}.`;
    else told = `Without ${what} the model says ${is}${was === is ? " still" : " instead: the decision flips"}.`;
    change = points(after - before);
  } else if (waiting) told = "The model is asked …";
  return [line("before", before, percent(before), true),
    line("after", shown, gone.length && after == null ? "…" : percent(shown), false),
    el("span"), el("span", { class: "soft" }, told), el("span", { class: "num soft" }, change)];
}

const labelOf = (ask) => ask.predicted.classes.find((one) => one.index === ask.target)?.label ?? "the target";

/** What each method had said of what is out, beside what was measured, in the same unit. */
function saidTable(ask, list, answer) {
  const out = [...ask.out];
  if (!list.length || !out.length) return null;
  const rows = list.map((d) => {
    const share = sharesOut(ask, d, out), { change: delta = null, why = "" } = answer?.expected?.[d.name] ?? {};
    return el("tr", {}, el("td", {}, key(d.place), ` ${d.title}`),
      el("td", { class: "num" }, share != null ? shareOf(share, d) : "–"),
      el("td", { class: "num" }, delta != null ? signed(delta) : "–"),
        el("td", { class: "tiny faint", title: why }, answer && delta == null ? "has no unit" : ""));
  });
  const measured = answer ? answer.after.score - answer.before.score : null;
  return [el("h3", {}, "What each method had said of it"), el("table", { class: "lines" },
    el("thead", {}, el("tr", {}, el("th", {}, el("span", { class: "sr" }, "method")),
      el("th", { class: "num" }, "share"), el("th", { class: "num" }, "predicted Δ"), el("th"))),
    el("tbody", {}, rows, el("tr", {}, el("td", {}, el("b", {}, "measured")), el("td"),
      el("td", { class: "num" }, el("b", {}, measured == null || Number.isNaN(measured) ? "–" : signed(measured))),
      el("td", { class: "tiny faint" }, `${answer?.unit ?? list[0].result.space} of ${labelOf(ask)}`))))];
}

function sharesOut(ask, d, out) {
  const places = PICKERS[ask.kind].places(ask, d, out);
  return places ? places.reduce((total, [i, weight]) => total + d.shares[i] * weight, 0) : null;
}
