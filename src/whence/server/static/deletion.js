/* "Take out the top k": the probability as each method's first units go, beside random orders, with a slider. */

import { el, fill } from "./dom.js";
import { curves, fitted, nearest } from "./chart.js";
import { percent } from "./numbers.js";
import { key, progress, trouble } from "./parts.js";
import { PICKERS, without } from "./pickers.js";

/** The right half of "Question it". `on.deletion(listeners)` starts the job; `first` is given what most methods
 * put first. */
export function deletion(ask, list, on, first) {
  const unit = PICKERS[ask.kind], box = el("div");
  const title = el("h3", {}, `Take out the top ${unit.units} of each method`), place = el("div", { class: "curve" });
  fill(box, title, place);
  if (ask.deletion) drawnIn(place, ask, list, on, unit);
  else waiting(place, ask, list, on, unit, first);
  return box;
}

/** What most methods put first. */
function firstOf({ orders }) {
  const tops = Object.values(orders).map((order) => order[0] ?? []), count = (own) =>
    tops.filter((one) => one.join() === own.join()).length;
  return tops.toSorted((a, b) => count(b) - count(a))[0] ?? [];
}

function waiting(place, ask, list, on, unit, first) {
  const wait = progress(() => running?.cancel());
  fill(place, wait.box);
  let running = null;
  const again = () => fill(place, el("button", { class: "btn", type: "button",
    on: { click: () => waiting(place, ask, list, on, unit, first) } }, "Measure the curves"));
  wait.show("Measured when the methods have answered.");
  on.deletion({
    started: (job) => (running = job),
    progress: ({ passes }) => wait.show(`The model is asked again and again${passes ? `, ${passes} times` : ""}`),
    result: (found) => {
      ask.deletion = found;
      if (!place.isConnected) return;
      drawnIn(place, ask, list, on, unit);
      first(firstOf(found));
    },
    failed: ({ error }) => fill(place, trouble(error)),
    cancelled: again,
  });
}

function drawnIn(place, ask, list, on, unit) {
  const { places, curves: found, random, orders, failed = {} } = ask.deletion;
  const last = places.at(-1), label = ask.predicted.classes.find((one) => one.index === ask.target)?.label
    ?? "the target";
  const lines = list.filter((d) => found[d.name]).map((d) =>
    ({ place: d.place, name: brief(d.title), y: found[d.name], order: orders[d.name] ?? [] }));
  ask.k = Math.min(last, ask.k ?? Math.min(3, last));
  const chart = el("div"), told = el("div", { class: "ktable" }), shown = el("output", { class: "num" });
  const slider = el("input", { type: "range", min: 0, max: last, value: ask.k, id: "k", data: { focus: "k" } });
  const below = `${unit.units} taken out, highest first; y: probability of ${label}`;
  const draw = () => {
    shown.textContent = String(ask.k);
    slider.setAttribute("aria-valuetext", `${ask.k} ${unit.units}`);
    fill(chart, fitted((width) => curves({ lines, band: random, places, at: ask.k, below, width,
      label: `Probability of ${label} as the top ${unit.units} of each method are taken out` })));
    fill(told, ask.kind === "image" ? tiles(ask, lines, places, random) : table(ask, lines, places, random, unit));
  };
  slider.addEventListener("input", () => {
    ask.k = Number(slider.value);
    draw();
    on.keep();
  });
  draw();
  const lost = Object.entries(failed).map(([name, why]) =>
    el("p", { class: "tiny faint" }, `${name} is not measured: ${why}`));
  fill(place, chart, el("div", { class: "kk" }, el("label", { for: "k", class: "soft" }, `${unit.units} out`), slider,
    shown), told, lost);
}

const brief = (title) => title.replace(/^Integrated gradients$/, "int. gradients").replace(/^Transformer attribution$/,
  "transf. attr.").slice(0, 18);
const reach = ({ mean, low, high }, i) =>
  `${percent(mean[i])} (${(100 * low[i]).toFixed(0)}–${(100 * high[i]).toFixed(0)})`;

/** The words that each method would take out, and what the model says then. */
function table(ask, lines, places, random, unit) {
  const i = nearest(places, ask.k), name = PICKERS[ask.kind].name;
  const rows = lines.map((line) => {
    const out = line.order.slice(0, ask.k).flat().map((one) => name(ask, one).replace(/[“”]/g, ""));
    return el("tr", {}, el("td", {}, key(line.place)),
      el("td", { class: "soft", dir: "auto" }, out.length ? listed(out) : "nothing"),
      el("td", { class: "num" }, percent(line.y[i])));
  });
  return el("table", { class: "lines" }, el("tbody", {}, rows,
    el("tr", {}, el("td"), el("td", { class: "soft" }, `random ${unit.units}, mean (10–90 %)`),
      el("td", { class: "num" }, reach(random, i)))));
}

const listed = (names) => (names.length > 12 ? `${names.slice(0, 12).join(", ")} and ${names.length - 12} more`
  : names.join(", "));

function tiles(ask, lines, places, random) {
  const i = nearest(places, ask.k);
  return [el("div", { class: "tiles" }, lines.map((line) =>
    el("figure", {}, without(ask, line.order.slice(0, ask.k).flat()),
    el("figcaption", {}, key(line.place), " ", el("span", { class: "num" }, percent(line.y[i])))))),
  el("p", { class: "tiny faint" }, `Random patches: ${reach(random, i)}, mean and 10 to 90 %.`)];
}
