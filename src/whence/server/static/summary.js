/* Over all rows: lone numbers, and which words move the model, each with its mean and interval on one axis. */

import { el, svg } from "./dom.js";
import { fitted } from "./chart.js";
import { nice, part, percent, short, signed, whole } from "./numbers.js";
import { section, select, trouble, warning, warnings } from "./parts.js";

const OUTSTANDING = { disagree: "Methods disagree most", gaps: "Largest gaps", wrong: "Surest and not the label" };
const shown = {}; // whose values, and of which class

/** The head of a run: what it is, and what holds over all of its rows once that is computed. */
export function overAll(run, on) {
  const names = run.methods.map((method) => method.title).join(", "),
    model = run.model.replace(/\/+$/, "").split("/").at(-1);
  const opening = el("section", {}, el("h1", {}, `${whole(run.rows)} rows, explained`),
    el("p", { class: "lead soft" }, "Model: ", el("b", {}, model), `. By ${names}.`), stats(numbersOf(run)));
  if (!run.summary) return [opening, run.pending ? el("p", { class: "soft", role: "status" },
    "What holds over all rows is being computed; the rows below are ready.") : run.why ? trouble(run.why) : null];
  const box = el("div", { class: "slot" });
  const draw = () => box.replaceChildren(...[moving(run, on, draw)].filter(Boolean));
  draw();
  return [opening, el("div", { class: "warns" }, warnings((run.summary.notes ?? []).map((note) => warning("", note)))),
    box, outstanding(run, on)];
}

function numbersOf(run) {
  const found = [["rows", whole(run.rows)], ["methods", String(run.methods.length)]], s = run.summary;
  for (const [name, count] of Object.entries(run.predictions).slice(0, 2)) found.push([`predicted “${name}”`,
    percent(count / run.rows, 0)]);
  if (s?.labelled) found.push(["prediction is not the label", `${whole(s.wrong)} of ${whole(s.labelled)}`]);
  const common = (s?.agreement ?? []).filter((one) => one.mean != null);
  if (common.length) found.push(["methods have in common, least two",
    part(Math.min(...common.map((one) => one.mean)), false)]);
  if (run.failed) found.push(["not explained", whole(run.failed)]);
  if (run.missing) found.push(["shards missing", whole(run.missing)]);
  return found;
}

/** Which words move the model, for a class and by a method that can be chosen. */
function moving(run, on, draw) {
  const { units, unit } = run.summary, targets = Object.keys(units ?? {});
  if (!targets.length) return null;
  const target = targets.includes(shown.target) ? shown.target : targets[0],
    methods = run.methods.filter((method) => units[target][method.name]);
  const method = methods.find((one) => one.name === shown.method) ?? methods[0];
  const choose = (name) => (value) => {
    shown[name] = value;
    draw();
  };
  return section("movers", `Which ${unit}s move the model`,
    el("span", { class: "soft" }, "Means with 95 % intervals, ordered by their near ends. Click one for its rows."),
    el("div", { class: "bar2" }, select("class", targets.map((one) => [one, one]), target, choose("target")),
      select("method", methods.map((one) => [one.name, one.title]), method.name, choose("method"))),
    movers(target, units[target][method.name], `parts of the ${run.space} of ${target}`, on.word)
      ?? el("p", { class: "soft" }, `No ${unit} occurs in five rows.`));
}

function outstanding(run, on) {
  const lists = Object.entries(run.summary.stand_out ?? {}).filter(([, list]) => list.length);
  if (!lists.length) return null;
  const value = (name, x) => (name === "gaps" ? `${short(100 * x)} %` : percent(x, 0));
  return section("outstanding", "Rows that stand out", null,
    el("div", { class: "swarms" }, lists.map(([name, list]) =>
    el("div", {}, el("h3", {}, OUTSTANDING[name]),
    el("p", { class: "outs" }, list.slice(0, 8).map(({ row, value: x }) =>
    el("button", { class: "btn", type: "button", on: { click: () => on.row(row) } }, `Row ${whole(row)}`,
      el("span", { class: "faint" }, value(name, x)))))))));
}

/** Lone numbers with their names. */
const stats = (pairs) => el("dl", { class: "stats" },
  pairs.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));

/** Two charts on one axis: what speaks for a class, and what speaks against it. `pick(word)` filters the rows by
 * a word. */
function movers(target, { for: pro = [], against = [], both = [] }, unit, pick) {
  const all = [...pro, ...against, ...both];
  if (!all.length) return null;
  const least = Math.min(0, ...all.map((one) => one.low ?? one.mean)),
    most = Math.max(0, ...all.map((one) => one.high ?? one.mean));
  const chart = (title, list) => list.length ? el("figure", {}, el("figcaption", {}, el("b", {}, title)),
    fitted((width) => means(list, [least, most], width, unit, pick, title), 760)) : null;
  return el("div", { class: "swarms" }, chart(`Speak for “${target}”`, pro),
    chart(`Speak against “${target}”`, against), chart(`Matter for “${target}”`, both));
}

/** One line per word: a bar for the interval, a stroke for the mean. */
function means(list, [least, most], width, unit, pick, label) {
  const left = Math.min(120, width * 0.28), right = 96, row = 26, height = list.length * row + 34,
    step = nice((most - least) / 4 || 1);
  const x = (value) => left + ((value - least) / (most - least || 1)) * (width - left - right);
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "group", "aria-label": label });
  for (let tick = Math.ceil(least / step) * step; tick <= most + 1e-9; tick += step) {
    const at = Math.abs(tick) < 1e-9 ? 0 : tick;
    drawing.append(svg("line", { class: at ? "grid" : "zero", x1: x(at), x2: x(at), y1: 4, y2: height - 30 }),
      svg("text", { x: x(at), y: height - 16, "text-anchor": "middle" }, at ? signed(at, step < 0.1 ? 2 : 1) : "0"));
  }
  drawing.append(svg("text", { x: (left + width - right) / 2, y: height - 2, "text-anchor": "middle" }, unit));
  list.forEach((one, i) => {
    const y = i * row + row / 2 + 4, side = one.mean >= 0 ? "for" : "against";
    const name = svg("text", { x: left - 12, y: y + 4, "text-anchor": "end", class: "word" }, one.name.length > 16
      ? `${one.name.slice(0, 15)}…` : one.name);
    const group = svg("g", { class: "mover", role: "button", tabindex: 0,
      "aria-label": `${one.name}: mean ${short(one.mean)} in ${whole(one.rows)} rows; show these rows` }, svg("rect",
      { x: 0, y: y - row / 2, width, height: row, class: "touch" }), name,
      one.low != null ? svg("line", { class: `reach ${side}`, x1: x(one.low), x2: x(one.high), y1: y, y2: y }) : "",
        svg("line", { class: "mid", x1: x(one.mean), x2: x(one.mean), y1: y - 5, y2: y + 5 }),
      svg("text", { x: width - right + 44, y: y + 4, "text-anchor": "end", class: "word" }, signed(one.mean)),
        svg("text", { x: width, y: y + 4, "text-anchor": "end" }, `n ${whole(one.rows)}`));
    group.addEventListener("click", () => pick(one.name));
    group.addEventListener("keydown", (event) => (event.key === "Enter" || event.key === " ")
      && (event.preventDefault(), pick(one.name)));
    drawing.append(group);
  });
  return drawing;
}
