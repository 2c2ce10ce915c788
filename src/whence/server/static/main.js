/* The page: which models there are, which view is shown, light or dark, and the state in the address. */

import { $, el, fill } from "./dom.js";
import { get } from "./net.js";
import { select, trouble } from "./parts.js";
import { follow, keep, read } from "./state.js";
import { exportMenu } from "./export.js";
import { explainView } from "./explain.js";
import { runView } from "./browse.js";

const GROUPS = { text: "Text", pair: "Text", image: "Image", prompt: "Language model", seq2seq: "Translation",
  molecule: "Molecule", features: "Table" };
const place = $("#place");
let models = [], runs = null, view = null, state = {};
const described = new Map();

const app = {
  /** All about a model; it is loaded by the server when it is asked for first. */
  describe(name) {
    const names = models.map((model) => model.name);
    if (!names.includes(name)) {
      const error = new Error(`There is no model “${name}” here.\nChoose one of ${names.join(", ")}.`);
      return Promise.reject(Object.assign(error, { kind: "model" }));
    }
    if (!described.has(name)) {
      const asked = get(`/api/models/${encodeURIComponent(name)}`);
      described.set(name, asked);
      asked.then((found) => learned(found), () => described.delete(name));
    }
    return described.get(name);
  },
  keep(next, anew) {
    state = next;
    keep(next, anew);
    drawTop();
  },
  open: (next) => shown(next, true),
};

/** What is known of a model once it is loaded. */
function learned(found) {
  Object.assign(models.find((model) => model.name === found.name), { kind: found.kind });
  drawTop();
}

const groupOf = (model) => GROUPS[model.kind] ?? "Others";

function drawTop() {
  const groups = [...new Set(models.map(groupOf))], here = models.find((model) => model.name === state.model);
  const tab = (name, on, go) => el("a", { href: "#", "aria-current": on ? "page" : null,
    data: { focus: `tab ${name}` }, on: {
    click: (event) => {
      event.preventDefault();
      go();
    },
  } }, name);
  const running = state.view === "run";
  fill($("#tabs"), groups.map((name) => tab(name, !running && here && groupOf(here) === name, () =>
    shown({ view: "explain", model: models.find((model) => groupOf(model) === name).name }, true))),
    runs ? tab("Browse a run", running, () => shown({ view: "run" }, true)) : null);
  $("#export").hidden = running;
  const own = here ? models.filter((model) => groupOf(model) === groupOf(here)) : models;
  fill($("#chosen"), running || own.length < 1 ? null
    : select("Model", own.map((model) => [model.name, model.name]), state.model, (name) =>
    shown({ view: "explain", model: name }, true), true));
}

/** Shows a state: in the view that it belongs to. */
function shown(next, anew = false) {
  const kind = next.view === "run" && runs ? "run" : "explain";
  state = kind === "run" ? { ...next, view: "run" }
    : { ...next, view: "explain", model: next.model ?? models[0]?.name };
  if (view?.kind !== kind) {
    view?.stop();
    view = { kind, ...(kind === "run" ? runView(place, app, runs) : explainView(place, app)) };
  }
  if (anew) keep(state, true);
  drawTop();
  scrollTo(0, 0);
  view.show(state);
}

function drawTools() {
  const dark = () => (document.documentElement.dataset.theme
    ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  fill($("#tools"), el("span", { id: "chosen" }), exportMenu(() => view?.question() ?? null),
    el("button", { class: "btn quiet", type: "button", id: "theme", "aria-label": "Switch between light and dark", on: {
    click() {
      document.documentElement.dataset.theme = dark() ? "light" : "dark";
      dispatchEvent(new Event("themed"));
    },
  } }, "◐"));
}

async function start() {
  drawTools();
  try {
    [models, runs] = await Promise.all([get("/api/models"), get("/api/run")]);
    follow((next) => shown(next));
    shown(location.hash.length > 1 ? read() : runs ? { view: "run" } : {});
  } catch (error) {
    fill(place, el("main", { class: "main", id: "main" }, trouble(error.message)));
  }
}

$(".brand").addEventListener("click", (event) => {
  event.preventDefault();
  shown({}, true);
});
start();
