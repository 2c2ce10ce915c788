/* The view "Browse a run": summaries, filters, all rows in a table, and the row that is open beside it. */

import { el, fill, later } from "./dom.js";
import { fixed, part, percent, ticks, whole } from "./numbers.js";
import { get } from "./net.js";
import { bar, scale, section, trouble, wash } from "./parts.js";
import { overAll } from "./summary.js";
import { windowed } from "./table.js";
import { rowDrawer } from "./drawer.js";
import { slice } from "./words.js";

const FILTERS = ["word", "prediction", "label", "gap", "apart", "wrong", "failed", "from"], GAP = 0.005, APART = 0.5;
const ASKED = { sort: "sort", word: "word", prediction: "prediction", label: "label", gap: "gap_above",
  apart: "in_common_below", wrong: "wrong", failed: "failed", from: "probability_above" };

/** Draws into `place`. `run` is what the server says of the run as a whole. */
export function runView(place, app, run) {
  const main = el("main", { class: "main run", id: "main", tabindex: -1 });
  const head = el("div", { class: "slot over-all" }), counted = el("span", { class: "soft", "aria-live": "polite" });
  const labels = Object.keys(run.labels), predictions = Object.keys(run.predictions);
  let state = {}, table = null, drawer = null, timer = 0;

  function keep(changes) {
    Object.assign(state, changes);
    app.keep({ ...state, view: "run" });
  }

  function show(next) {
    state = { ...next, view: "run" };
    document.title = `${whole(run.rows)} rows · Whence`;
    app.keep(state);
    drawer = rowDrawer(run, app);
    table = windowed({
      label: "Rows of the run", columns: columns(), cells, fetch: rows,
      details: (offset, count) => (limit() ? rows(offset, count, true) : null), open: opened, sort: sortBy,
      sorted: () => ({ by: state.sort ?? "", descending: state.order === "down" }),
    });
    fill(place, main);
    fill(main, head, section("rows", "Rows", counted, filters(), colours,
      el("div", { class: `browse${labels.length ? " has-label" : ""}${run.methods.length > 1 ? " has-common" : ""}` },
      table.node, drawer.node)));
    drawHead();
    again().then(() => state.row != null && open(state.row));
  }

  // ---- over all rows ----

  const colours = el("div", { class: "slot" });

  function drawHead() {
    fill(colours, legendOf());
    fill(head, overAll(run, { word: byWord, row: (number) => open(number, true) }));
    clearTimeout(timer);
    if (run.pending) timer = setTimeout(learn, 2000);
  }

  /** The summary is computed while the table can be used already. */
  async function learn() {
    const fresh = await get("/api/run").catch(() => null);
    if (!main.isConnected) return;
    if (!fresh || fresh.pending) return void (timer = setTimeout(learn, 2000));
    Object.assign(run, fresh);
    drawHead();
    again(true);
  }

  function byWord(word) {
    field.value = word;
    keep({ word });
    again();
    document.getElementById("rows").scrollIntoView();
  }

  // ---- filters ----

  const field = el("input", { class: "field", type: "search", placeholder: "contains a word …",
    "aria-label": "contains a word" });
  field.addEventListener("input", later(250, () => (keep({ word: field.value }), again())));

  function filters() {
    field.value = state.word ?? "";
    const change = (name, value) => {
      keep({ [name]: value });
      again();
    };
    const choice = (name, title, values) => {
      if (values.length < 2) return null;
      const box = el("select", { class: "btn", on: { change: () => change(name, box.value) } },
        el("option", { value: "" }, "all"), values.map((value) =>
        el("option", { value, selected: state[name] === value }, value)));
      return el("label", { class: "soft" }, `${title} `, box);
    };
    const tick = (name, value, title) => {
      const box = el("input", { type: "checkbox", checked: Boolean(state[name]),
        on: { change: () => change(name, box.checked ? value : "") } });
      return el("label", { class: "tick" }, box, title);
    };
    const least = el("input", { type: "range", min: 0, max: 100, value: 100 * (state.from || 0),
      "aria-label": "probability from" }), told = el("output", { class: "num" }, `${least.value} %`);
    const moved = later(150, () => change("from", Number(least.value) ? String(least.value / 100) : ""));
    least.addEventListener("input", () => {
      told.textContent = `${least.value} %`;
      moved();
    });
    const clear = el("button", { class: "btn quiet", type: "button", on: {
      click: () => {
        keep(Object.fromEntries(FILTERS.map((name) => [name, ""])));
        show(state);
      },
    } }, "Clear");
    return el("div", { class: "filters", role: "search" }, field, choice("prediction", "predicted", predictions),
      choice("label", "label", labels),
      el("label", { class: "soft range" }, "probability from ", least, told), labels.length
        ? tick("wrong", "true", "prediction is not the label") : null,
      run.methods.length > 1 ? tick("apart", String(APART), "methods disagree") : null,
        tick("gap", String(GAP), "gap over 0.5 %"), run.failed ? tick("failed", "true", "not explained") : null, clear);
  }

  // ---- the table ----

  const several = run.methods.length > 1;
  const columns = () => [
    { title: "#", class: "n num", sort: "row" }, { title: run.images ? "Image" : "Text", class: "what" },
      ...(labels.length ? [{ title: "label", class: "lab", sort: "label" }] : []),
    { title: "prediction", class: "pre", sort: "prediction" },
      { title: "probability", class: "pro", sort: "probability" },
      ...(several ? [{ title: "in common", class: "com num", sort: "in_common" }] : []),
      { title: "gap", class: "gap num", sort: "gap" },
  ];

  function cells(row) {
    const wrong = row.label != null && row.prediction != null && row.label !== row.prediction;
    const spot = row.in_common < APART ? el("span", { class: "spotted", title: "methods disagree" }, "● ") : "";
    const common = row.in_common == null ? (run.pending ? "…" : "–") : [spot, part(row.in_common, false)];
    const sure = row.probability == null ? "–"
      : [bar(row.probability), el("span", { class: "num" }, percent(row.probability, 0))];
    return [
      whole(row.row), row.error ? el("span", { class: "faint" }, row.error) : excerpt(row),
      ...(labels.length ? [el("span", { class: wrong ? "differs" : null }, row.label ?? "–")] : []),
      row.prediction ?? "–", sure, ...(several ? [common] : []),
      row.gap == null ? "–" : `${fixed(100 * row.gap, 2)} %`,
    ];
  }

  const method = run.methods[0], limit = () => run.summary?.limits?.[method.name];

  /** The row's own texts, with the first method's values behind the words once they are there. */
  function excerpt(row) {
    const texts = [row.text ?? row.image ?? "", row.second].filter((text) => text != null);
    const signs = run.summary?.signed?.[method.name] ?? true;
    const parts = texts.map((text, which) => {
      const out = [];
      let last = 0;
      for (const [start, end, own, value] of limit() ? row.values ?? [] : []) {
        if (own !== which || start < last || end <= start) continue;
        const word = el("span", { class: "w" }, slice(text, start, end));
        out.push(slice(text, last, start), wash(word, value, limit(), signs));
        last = end;
      }
      return [which ? " · " : "", ...out, slice(text, last)];
    });
    return el("span", { class: "line-of", dir: "auto" }, parts);
  }

  function legendOf() {
    if (!limit() || !run.summary.unit) return null;
    const measure = { limit: limit(), over: true, times: false }, signs = run.summary.signed?.[method.name] ?? true;
    const colour = signs ? scale("two", ticks(measure, 2, ""))
      : scale("one", ticks(measure, 1, ""), ["nothing", "much"]);
    return el("div", { class: "legend" }, colour,
      el("span", { class: "faint note-of" }, `One scale for all rows: parts of the ${run.space}, by ${method.title}.`));
  }

  function rows(offset, limit, values = false) {
    const asked = new URLSearchParams({ offset, limit, ...(values ? { values } : {}) });
    for (const [name, key] of Object.entries(ASKED)) if (state[name]) asked.set(key, state[name]);
    if (state.order === "down") asked.set("descending", "true");
    return get(`/api/run/rows?${asked}`);
  }

  async function again(stay = false) {
    const total = await table.reset(stay);
    if (total != null) fill(counted, `${whole(total)} of ${whole(run.rows)}`);
    if (stay && state.row != null) table.mark(state.row);
  }

  function sortBy(name) {
    const same = state.sort === name;
    keep({ sort: name, order: same && state.order !== "down" ? "down" : "" });
    again();
  }

  // ---- the open row ----

  const opened = later(80, (row, clicked) => open(row.row, clicked && matchMedia("(max-width: 1000px)").matches));

  async function open(number, seen = false) {
    keep({ row: number });
    try {
      await drawer.show(await get(`/api/run/rows/${number}`));
      table.mark(number);
      if (seen) drawer.node.scrollIntoView({ block: "start" });
    } catch (error) {
      drawer.fail(trouble(error.message));
    }
  }

  return { show, stop: () => clearTimeout(timer), question: () => null };
}
