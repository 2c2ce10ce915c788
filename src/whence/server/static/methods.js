/* The methods by the question that their family asks; three of a family are seen, the chosen ones always. */

import { el, fill } from "./dom.js";
import { KEYS } from "./numbers.js";

const SEEN = 3;
const opened = new Set();

/** `choose` is given the new list of names; `most` methods can be chosen at once, and the oldest gives way. */
export function methods(box, model, chosen, choose, most = 4) {
  const families = Map.groupBy(model.methods, (method) => method.family);
  const again = () => methods(box, model, chosen, choose, most);
  const runs = model.methods.filter((method) => method.runs !== false).length;
  fill(box, el("details", { class: "mdet", open: true, data: { part: "methods" } },
    el("summary", {}, el("h2", { id: "h-methods" }, "Methods"),
      el("span", { class: "right tiny faint" }, `${chosen.length} of ${runs}`)),
    [...families].map(([family, own]) => el("div",
      { class: "family", role: "group", "aria-label": `${family}: ${own[0].question}` },
      el("b", { title: own[0].question }, family),
        el("div", { class: "chips" }, chips(own, chosen, (name) => choose(toggled(chosen, name, most))),
        more(family, own, chosen, again))))));
  const details = box.querySelector("details");
  details.open = matchMedia("(min-width: 961px)").matches || box.dataset.open === "true";
  details.addEventListener("toggle", () => (box.dataset.open = String(details.open)));
}

function toggled(chosen, name, most) {
  if (chosen.includes(name)) return chosen.length > 1 ? chosen.filter((one) => one !== name) : chosen;
  return [...chosen, name].slice(-most);
}

const first = (own, chosen) => {
  const ranked = [...own].sort((a, b) => chosen.includes(b.name) - chosen.includes(a.name)
    || (b.runs !== false) - (a.runs !== false));
  return ranked.slice(0, Math.max(SEEN, own.filter((one) => chosen.includes(one.name)).length));
};

function chips(own, chosen, press) {
  const shown = opened.has(own[0].family) ? own : first(own, chosen);
  return shown.map((method) => {
    const on = chosen.includes(method.name), off = method.runs === false && !on;
    return el("button", {
      class: "chip", type: "button", "aria-pressed": String(on), "aria-disabled": off ? "true" : null,
      title: off ? method.why_not : [method.question, method.seconds_estimate > 1
        ? `About ${method.seconds_estimate.toFixed(0)} s.` : ""].join(" ").trim(),
      data: { key: on ? KEYS[chosen.indexOf(method.name)] : null, focus: `method ${method.name}`, method: method.name },
      on: { click: () => !off && press(method.name) },
    }, method.title);
  });
}

function more(family, own, chosen, again) {
  const hidden = own.length - first(own, chosen).length;
  if (!hidden) return null;
  return el("button", { class: "chip more", type: "button", "aria-expanded": String(opened.has(family)),
    data: { focus: `more ${family}` }, on: {
    click: () => {
      if (!opened.delete(family)) opened.add(family);
      again();
    },
  } }, opened.has(family) ? "fewer" : `${hidden} more`);
}
