/* The view "Browse a run": summaries, filters, all rows in a table, and the row that is open beside it. */

import { el, fill, later } from "./dom.js";
import { fixed, percent, ticks, whole } from "./numbers.js";
import { get } from "./net.js";
import { bar, scale, section, trouble, warnings, warning, wash } from "./parts.js";
import { movers, stats } from "./summary.js";
import { windowed } from "./table.js";
import { rowDrawer } from "./drawer.js";
import { slice } from "./words.js";

const FILTERS = ["word", "prediction", "label", "gap", "apart"];

/** Draws into `place`. `run` is what the server says of the run as a whole. */
export function runView(place, app, run) {
  const main = el("main", { class: "main run", id: "main", tabindex: -1 });
  let state = {}, table = null, drawer = null;
  const counted = el("span", { class: "soft", "aria-live": "polite" });

  function keep(changes) {
    Object.assign(state, changes);
    app.keep({ ...state, view: "run" });
  }

  function show(next) {
    state = { ...next, view: "run" };
    document.title = `${run.title} · Whence`;
    app.keep(state);
    drawer = rowDrawer(run, app);
    table = windowed({
      label: "Rows of the run", columns: columns(), cells, fetch: rows, open: opened, sort: sortBy,
      sorted: () => ({ by: state.sort ?? "", descending: state.order === "down" }),
    });
    fill(place, main);
    fill(main, opening(), section("rows", "Rows", counted, filters(), legendOf(), el("div", { class: "browse" }, table.node, drawer.node)));
    again().then(() => {
      if (state.row != null) open(state.row);
    });
  }

  // ---- the head ----

  function opening() {
    const told = run.summary ?? {};
    const classes = Object.entries(told.for ?? {}).slice(0, 2);
    return [el("section", {}, el("h1", { dir: "auto" }, run.title), el("p", { class: "lead soft" }, run.lead ?? `Model: ${run.model}.`), stats(told.facts ?? [["rows", whole(run.rows)]])),
      el("div", { class: "warns" }, warnings((run.notes ?? []).map((note) => warning("", note)))),
      classes.map(([target, units], i) => section(`movers-${i}`, `Which ${run.unit}s move the model`, el("span", { class: "soft" }, `Mean and 95 % interval over the rows, by whose near end they are ordered. Click one for its rows.`), movers(target, units, `${run.space ?? "score"} of ${target}`, (word) => {
        field.value = word;
        keep({ word });
        again();
        document.getElementById("rows").scrollIntoView();
      })))];
  }

  // ---- filters ----

  const field = el("input", { class: "field", type: "search", placeholder: "contains a word …", "aria-label": "contains a word" });
  field.addEventListener("input", later(250, () => (keep({ word: field.value }), again())));

  function filters() {
    field.value = state.word ?? "";
    const choice = (name, title, values) => {
      if (!values?.length) return null;
      const box = el("select", { class: "btn", on: { change: () => (keep({ [name]: box.value }), again()) } }, el("option", { value: "" }, "all"), values.map((value) => el("option", { value, selected: state[name] === value }, value)));
      return el("label", { class: "soft" }, `${title} `, box);
    };
    const tick = (name, value, title) => {
      const box = el("input", { type: "checkbox", checked: state[name] != null && state[name] !== "", on: { change: () => (keep({ [name]: box.checked ? value : "" }), again()) } });
      return el("label", { class: "tick" }, box, ` ${title}`);
    };
    const clear = el("button", { class: "btn quiet", type: "button", on: {
      click: () => {
        keep(Object.fromEntries(FILTERS.map((name) => [name, ""])));
        show(state);
      },
    } }, "Clear");
    const predictions = Array.isArray(run.predictions) ? run.predictions : Object.keys(run.predictions ?? {});
    return el("div", { class: "filters", role: "search" }, field, choice("prediction", "predicted", predictions), choice("label", "label", run.labels),
      run.methods.length > 1 ? tick("apart", "0.5", "methods disagree") : null, tick("gap", "0.005", "gap over 0.5 %"), clear);
  }

  function legendOf() {
    return run.limit ? el("div", { class: "legend" }, scale("two", ticks({ limit: run.limit, over: true, times: false }, 2, "")),
      el("span", { class: "faint note-of" }, `One scale for all rows: parts of the ${run.space ?? "score"}, by ${run.title_of?.[run.methods[0]] ?? run.methods[0]}.`)) : null;
  }

  // ---- the table ----

  const columns = () => [
    { title: "#", class: "n num", sort: "row" }, { title: run.kind === "image" ? "Image" : "Text", class: "what" },
    ...(run.labels?.length ? [{ title: "label", class: "lab" }] : []), { title: "prediction", class: "pre" },
    { title: "probability", class: "pro", sort: "probability" }, ...(run.methods.length > 1 ? [{ title: "in common", class: "com num", sort: "common" }] : []), { title: "gap", class: "gap num", sort: "gap" },
  ];

  function cells(row) {
    const gap = row.gap == null ? "–" : `${fixed(100 * row.gap, 2)} %`;
    const apart = row.in_common == null ? "–" : [row.in_common < 0.5 ? el("span", { class: "spotted", title: "methods disagree" }, "● ") : "", percent(row.in_common, 0)];
    return [whole(row.row), excerpt(row), ...(run.labels?.length ? [el("span", { class: row.label != null && row.label !== row.prediction ? "differs" : null }, row.label ?? "–")] : []),
      row.prediction ?? "–", row.probability == null ? "–" : [bar(row.probability), el("span", { class: "num" }, percent(row.probability, 0))], ...(run.methods.length > 1 ? [apart] : []), gap];
  }

  /** The row's own text with the values behind its words. */
  function excerpt(row) {
    if (row.image) return el("img", { src: row.image, alt: `Row ${row.row}`, class: "px small" });
    const text = row.text ?? row.smiles ?? "", out = [];
    let last = 0;
    for (const [start, end, value] of row.values ?? []) {
      if (start < last || end <= start) continue;
      out.push(slice(text, last, start), wash(el("span", { class: "w" }, slice(text, start, end)), value, run.limit, run.signed?.[run.methods[0]] ?? true));
      last = end;
    }
    return el("span", { class: "line-of", dir: "auto" }, out, slice(text, last));
  }

  function rows(offset, limit) {
    const asked = new URLSearchParams({ offset, limit });
    for (const [name, key] of [["sort", "sort"], ["word", "word"], ["prediction", "prediction"], ["label", "label"], ["gap", "gap_above"], ["apart", "common_below"]]) {
      if (state[name]) asked.set(key, state[name]);
    }
    if (state.order === "down") asked.set("descending", "true");
    return get(`/api/run/rows?${asked}`);
  }

  async function again() {
    const total = await table.reset();
    if (total != null) fill(counted, `${whole(total)} of ${whole(run.rows)}`);
  }

  function sortBy(name) {
    const same = state.sort === name;
    keep({ sort: name, order: same && state.order !== "down" ? "down" : "" });
    again();
  }

  // ---- the open row ----

  const opened = later(80, (row) => open(row.row));

  async function open(number) {
    keep({ row: number });
    try {
      drawer.show(await get(`/api/run/rows/${number}`));
      table.mark(number);
    } catch (error) {
      drawer.fail(trouble(error.message));
    }
  }

  return { show, stop: () => {}, question: () => (state.row != null ? drawer?.question() ?? null : null) };
}
