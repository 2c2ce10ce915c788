/* The parts of which the page is made: letters, warnings, legends, predictions, switches, waiting, facts. */

import { el, fill, roving, svg } from "./dom.js";
import { KEYS, counted, part, percent, ticks } from "./numbers.js";

/** The letter of a method, in its colour. */
export const key = (place) => el("span", { class: "key", style: { "--k": `var(--k${place % 4})` } }, KEYS[place]);

const sign = () => svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" },
  svg("path", { d: "M8 1.5 15 14H1z", fill: "none", stroke: "currentColor", "stroke-width": "1.4",
    "stroke-linejoin": "round" }),
  svg("path", { d: "M8 6v4M8 11.6v.8", stroke: "currentColor", "stroke-width": "1.6" }));

/** Something that may be misread: what, how much, what to do. */
export const warning = (bold, ...told) =>
  el("div", { class: "warn", role: "note", "aria-label": "Warning" }, sign(),
    el("p", {}, bold ? el("b", {}, `${bold} `) : null, ...told));

/** Warnings above the picture: two stand open, more fold. */
export function warnings(all) {
  const rest = all.slice(2);
  const fold = rest.length
    ? el("details", {}, el("summary", {}, `${rest.length} more ${rest.length === 1 ? "warning" : "warnings"}`),
      ...rest) : null;
  return [...all.slice(0, 2), fold].filter(Boolean);
}

/** What could not be done: the fact, and below it the way out. */
export function trouble(message) {
  const [fact, ...way] = String(message).split("\n");
  return el("div", { class: "trouble", role: "alert" }, el("p", {}, fact),
    way.length ? el("p", { class: "soft" }, way.join(" ").trim()) : null);
}

/** One scale with its numbers. `look` is its class in the style sheet. */
export const scale = (look, numbers, [from, to] = ["against", "for"]) =>
  el("figure", {}, el("span", {}, from), el("span", { class: `scale ${look}` }), el("span", {}, to),
    el("span", { class: "ticks" }, numbers.map((number) => el("span", {}, number))));

/** The scales of a comparison, and what the numbers are. */
export function legend(measure, anySigned, anySize, note, [two, one] = ["two", "one"]) {
  return el("div", { class: "legend" },
    anySigned ? scale(two, ticks(measure)) : null,
    anySize ? scale(one, ticks(measure, 1), ["nothing", "much"]) : null,
    el("span", { class: "faint note-of" }, note));
}

/** Classes with their probabilities: a group of radio buttons, which the arrow keys move through. */
export function predictions(rows, chosen, choose, labelledby, widest = 1) {
  const box = el("div", { class: "preds choose", role: "radiogroup", "aria-labelledby": labelledby },
    rows.map((row) => el("button", {
      class: "pred", role: "radio", type: "button", "aria-checked": String(row.index === chosen),
      data: { focus: `pred ${row.index}`, index: row.index }, on: { click: () => choose(row.index) },
    }, el("i", { class: "dot" }), el("span", { class: "name", dir: "auto" }, row.label), bar(row.probability / widest),
      el("span", { class: "num" }, percent(row.probability, row.digits ?? 1)))));
  return roving(box, ".pred", (item) => choose(Number(item.dataset.index)));
}

export const bar = (share, name = "") =>
  el("span", { class: `bar ${name}` }, el("i", { class: "eases",
    style: { width: `${100 * Math.min(1, Math.max(0, share))}%` } }));

/** A few choices of which one holds. */
export function segments(label, choices, chosen, choose) {
  return el("div", { class: "seg", role: "group", "aria-label": label },
    Object.entries(choices).map(([value, name]) => el("button", {
      type: "button", "aria-pressed": String(value === chosen), data: { focus: `${label} ${value}`, value },
        on: { click: () => choose(value) },
    }, name)));
}

/** A labelled list to choose from. `options`: pairs of value and name. */
export function select(label, options, chosen, choose, hidden = false) {
  const box = el("select", { class: "btn", "aria-label": hidden ? label : null, data: { focus: label },
    on: { change: () => choose(box.value) } },
    options.map(([value, name]) => el("option", { value, selected: String(value) === String(chosen) }, name)));
  return hidden ? box : el("label", { class: "soft" }, `${label} `, box);
}

/** What is said while a method works. */
export function working(model, name, passes) {
  const title = model.methods.find((method) => method.name === name)?.title ?? "The methods";
  return passes ? `${title}, ${counted(passes, "pass", "passes")}` : title;
}

/** A line of progress with a button that ends the work. */
export function progress(cancel) {
  const told = el("span", { class: "told" }), line = el("i", {}),
    stop = el("button", { class: "btn", type: "button" }, "Cancel");
  const box = el("div", { class: "progress", role: "status", hidden: true }, told, el("span", { class: "line" }, line),
    stop);
  stop.addEventListener("click", () => cancel());
  return {
    box,
    show(text, done = null, of = null) {
      box.hidden = false;
      fill(told, text);
      box.classList.toggle("unknown", !of);
      line.style.setProperty("width", of ? `${(100 * done) / of}%` : "30%");
    },
    hide: () => (box.hidden = true),
  };
}

/** Names and what is said of them. */
export const facts = (pairs) =>
  el("dl", { class: "facts" }, pairs.map(([name, told]) => [el("dt", {}, name), el("dd", {}, told)]));

/** A part of the page with a heading. */
export function section(id, title, beside, ...inner) {
  return el("section", { id, "aria-labelledby": `h-${id}` },
    el("div", { class: "head" }, el("h2", { id: `h-${id}` }, title), beside), ...inner);
}

/** A fold that is drawn when it is opened first. */
export function fold(title, draw, open = false) {
  const inside = el("div", { class: "inside" });
  const box = el("details", { class: "fold" }, el("summary", {}, title), inside);
  let drawn = false;
  box.addEventListener("toggle", () => {
    if (box.open && !drawn) draw(inside);
    drawn ||= box.open;
  });
  box.open = open;
  return box;
}

/** A bar to the right for, to the left against; of a size only, from the left edge of the same axis. */
export function diverging(share, limit, hasSign, centre = true) {
  const reach = Math.min(1, Math.abs(share) / (limit || 1)) * (centre ? 50 : 100);
  const start = !centre ? 0 : !hasSign || share >= 0 ? 50 : 50 - reach;
  const name = !hasSign ? "size" : share >= 0 ? "for" : "against";
  return el("div", { class: centre ? "div" : "div left" },
    el("i", { class: name, style: { left: `${start}%`, width: `${reach}%` } }));
}

/** The colour behind a word, by its share: the sign is also in the line below it. */
export function wash(node, share, limit, hasSign = true) {
  const strength = Math.min(1, Math.abs(share) / (limit || 1));
  node.style.setProperty("--a", (strength ** 0.85).toFixed(3));
  node.classList.add(hasSign ? (share >= 0 ? "for" : "against") : "size");
  if (strength > 0.3) node.classList.add("much");
  return node;
}

/** The lines of a tooltip: each method's share and its own number. */
export const numbers = (title, rows) => [
  el("b", { dir: "auto" }, title),
  el("table", {}, el("tbody", {}, rows.map((cells) =>
    el("tr", {}, cells.map((cell, i) => el("td", { class: i ? "num" : null }, cell)))))),
];

export const shareOf = (share, method) => part(share, method.signed);
