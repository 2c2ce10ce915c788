/* One row of a run by all of its methods, on one scale. */

import { el, fill } from "./dom.js";
import { agreement, answered, drawn, scaleOf } from "./drawn.js";
import { percent, whole } from "./numbers.js";
import { key, legend, warning, warnings } from "./parts.js";
import { pictures, pixels } from "./pictures.js";
import { addsUp, noted } from "./receipt.js";
import { reading, tops } from "./words.js";

const NONE = "Click a row to see what every method says of it. Arrow keys move through the rows.";

/** The drawer: {node, show(row), fail(node)}. */
export function rowDrawer(run, app) {
  const node = el("aside", { class: "drawer", id: "say", "aria-label": "The open row", "aria-live": "polite" },
    el("p", { class: "soft" }, NONE));
  async function show(row) {
    const image = row.picture ? await pixels(row.picture.png) : null, first = row.results[0];
    const ask = {
      kind: image ? "image" : "text", image, methods: row.results.map((one) => one.method), errors: new Map(),
      results: new Map(row.results.map((one) => [one.method, one])),
        model: { methods: row.results.map((one) => ({ ...one, name: one.method })) },
      texts: [row.text, row.second].filter((text) => text != null), units: first?.units.length
        ? first.units.map((unit) => ({ ...unit, part: unit.segment ?? 0 })) : null,
    };
    const list = drawn(ask), measure = scaleOf(ask, list), shown = answered(list);
    const link = run.served && ask.texts.length ? el("button",
      { class: "link right", type: "button", on: { click: () =>
      app.open({ view: "explain", model: run.served, text: ask.texts[0],
      pair: ask.texts[1] }) } }, "Question it") : null;
    fill(node, el("div", { class: "head" }, el("h2", {}, `Row ${whole(row.row)}`),
      el("span", { class: "soft" }, said(row)), link), el("div", { class: "warns" }, warnings(notes(shown))),
      legend(measure, shown.some((d) => d.signed), shown.some((d) => !d.signed), "", image ? ["pixels", "light"]
        : ["two", "one"]),
      row.error ? el("p", { class: "trouble" }, row.error) : image ? pictures(ask, list, measure, "overlay")
        : shown.map((d) => el("article", { class: "card", "aria-label": d.title },
        el("header", {}, key(d.place), el("h3", {}, d.title),
        el("span", { class: "tiny faint right" }, addsUp(d.result))), reading(d, ask, list, measure), tops(d, ask))));
  }

  const said = (row) => [row.prediction, row.probability != null ? percent(row.probability) : null, row.label != null
    && row.label !== row.prediction ? `(label: ${row.label})` : null].filter(Boolean).join(" ");

  function notes(shown) {
    const found = [];
    if (shown.length > 1) {
      const least = Math.min(...agreement(shown).table.flat().filter((x) => !Number.isNaN(x)));
      if (least < 0.5) found.push(warning("Methods disagree.",
        `Two of them place only ${percent(least, 0)} of their shares alike. Do not quote one of them alone.`));
    }
    return [...found, ...noted(shown)];
  }

  return { node, show, fail: (told) => fill(node, told) };
}
