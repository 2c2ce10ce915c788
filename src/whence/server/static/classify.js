/* A classifier: predictions, what the methods say, questions to the model, where methods disagree, attention. */

import { el, fill } from "./dom.js";
import { answered, drawn } from "./drawn.js";
import { counted } from "./numbers.js";
import { attention } from "./attention.js";
import { disagreement } from "./agree.js";
import { reproduce } from "./export.js";
import { sent } from "./input.js";
import { ask as asked, job, post } from "./net.js";
import { predictions, progress, working } from "./parts.js";
import { pixels } from "./pictures.js";
import { question } from "./question.js";
import { lookOf, opening, results } from "./results.js";

const SHOWN = 5; // classes in the rail
const KINDS = { text: "text", pair: "text", image: "image", molecule: "molecule", features: "features" };
const kept = new Map(); // the latest questions, so that going back to a class is instant

/** The view's changing half: {ready, stop, choose(methods), question()}. */
export function classify({ model, input, state, rail, main, told, keep, explain, still }) {
  const slots = Object.fromEntries(["opening", "wait", "say", "ask", "agree", "more"].map((name) =>
    [name, el("div", { class: `slot slot-${name}` })]));
  slots.opening.setAttribute("aria-live", "polite");
  let ask = null, running = null, asking = null, measuring = null;
  const wait = progress(() => running?.cancel());
  const base = () => ({ model: model.name, input: sent(input), target: ask.target });
  const ready = begin();

  async function begin() {
    fill(main, Object.values(slots));
    fill(slots.wait, wait.box);
    wait.show("The model is asked");
    const predicted = await post("/api/predict", { model: model.name, input: sent(input),
      ...(state.target != null ? { target: state.target } : {}) });
    if (!still()) return;
    const image = predicted.image ? await pixels(predicted.image.png) : null;
    if (image) Object.assign(input, { pixels: image });
    wait.hide();
    told(size(predicted));
    open(predicted, state.target ?? predicted.chosen, image, new Set(state.out ?? []));
  }

  function size({ tokens, image, molecule }) {
    if (image) return `${image.width} × ${image.height}`;
    if (molecule) return counted(molecule.atoms.length, "atom");
    return tokens?.length ? counted(tokens.length, "token") : "";
  }

  /** Turns to a class, with what is known about it already. */
  function open(predicted, target, image, out) {
    stop();
    const name = JSON.stringify([model.name, sent(input), target]),
      texts = [predicted.text].flat().filter((text) => text != null);
    const known = kept.get(name) ?? { results: new Map(), errors: new Map(), deletion: null, attention: null };
    kept.delete(name);
    kept.set(name, known);
    if (kept.size > 24) kept.delete(kept.keys().next().value);
    ask = Object.assign(known, {
      model, kind: KINDS[model.kind], input, predicted, target, texts, image, out, methods: state.methods, k: state.k
        ?? known.k,
      units: predicted.units.length ? predicted.units.map((unit) =>
        ({ ...unit, part: unit.segment ?? 0, kind: unit.part })) : null,
      molecule: predicted.molecule, patches: predicted.image?.patches, touched: state.out != null, layer: state.layer,
        head: state.head,
    });
    ask.errors.clear();
    drawPredictions();
    run();
  }

  function drawPredictions() {
    const { classes } = ask.predicted, chosen = ask.target;
    const shown = classes.filter((one, i) => i < SHOWN || one.index === chosen), rest = classes.length - shown.length;
    const more = ask.allClasses || !rest ? null : el("button", { class: "link tiny", type: "button", on: {
      click: () => {
        ask.allClasses = true;
        drawPredictions();
      },
    } }, counted(rest, "more class", "more classes"));
    const choose = (index) => {
      if (index === ask.target) return;
      keep({ target: index });
      open(ask.predicted, index, ask.image, ask.out);
    };
    fill(rail, el("div", { class: "head" }, el("h2", { id: "h-target" }, "Prediction"),
      el("span", { class: "right tiny faint" }, "choose what to explain")),
      predictions(ask.allClasses ? classes : shown, chosen, choose, "h-target"), more);
  }

  /** Asks the methods that have not answered yet. */
  function run() {
    const missing = ask.methods.filter((name) => !ask.results.has(name));
    let done = () => {};
    const explained = missing.length ? new Promise((resolve) => (done = resolve)) : Promise.resolve();
    if (ask.deletionOf !== ask.methods.join()) ask.deletion = null;
    draw();
    drawQuestion(explained);
    if (!missing.length) return wait.hide();
    const own = ask;
    wait.show("The methods are asked");
    running = job({ kind: "explain", ...base(), methods: missing }, {
      progress: ({ done: count, of, method, passes }) =>
        wait.show(working(model, method, passes), count, of),
      result: (found) => {
        own.results.set(found.method, found);
        draw();
      },
      failed: ({ method, error }) => {
        for (const name of method ? [method] : missing.filter((one) => !own.results.has(one))) own.errors.set(name,
          error);
        draw();
      },
    });
    running.finished.then((how) => {
      wait.hide();
      if (how === "cancelled" && own === ask) cancelled(missing);
      done(how);
    });
  }

  function cancelled(missing) {
    for (const name of missing) if (!ask.results.has(name)) ask.errors.set(name, "Cancelled before it answered.");
    if (still()) {
      draw();
      fill(slots.more, el("button", { class: "btn", type: "button", on: { click: () => (ask.errors.clear(), run()) } },
        "Ask again"));
    }
  }

  function draw() {
    if (!still()) return;
    const look = lookOf(ask.kind, state.look), list = drawn(ask);
    fill(slots.opening, opening(ask, list));
    const found = results(ask, look, (next) => {
      keep({ look: next });
      draw();
    });
    fill(slots.say, found.node);
    fill(slots.agree, disagreement(ask, list));
    asking?.again(list);
  }

  function drawQuestion(explained) {
    measuring?.cancel();
    asking = question(ask, drawn(ask), {
      keep: () => keep({ out: [...ask.out].sort((a, b) => a - b), k: ask.k, layer: ask.layer, head: ask.head }),
      remove: without,
      predict: (next) => post("/api/predict", { model: model.name, input: sent(next), target: ask.target }),
      explain, withText: (text) => ({ ...input,
        [ask.kind === "molecule" ? "smiles" : ask.texts.length > 1 ? "pair" : "text"]: text }),
      deletion: (listeners) => explained.then((how) => how !== "cancelled" && measure(listeners)),
    });
    fill(slots.ask, asking?.node);
    const heads = model.has_attention && ask.kind === "text" ? attention(ask, {
      attention: (layer, head) => asked({ kind: "attention", ...base(), ...(layer != null ? { layer } : {}),
        ...(head != null && head >= 0 ? { head } : {}) }),
      keep: () => keep({ layer: ask.layer, head: ask.head }),
    }) : null;
    fill(slots.more, heads, reproduce(exported));
  }

  /** The model again without some units, in the words of the class that is explained. */
  async function without(out) {
    const own = ask.target;
    const { before, after, expected, space } = await asked({ kind: "remove", ...base(), removed: out,
      methods: answered(drawn(ask)).map((d) => d.name) });
    const told = (classes) => ({ ...classes.find((one) => one.index === own),
      prediction: model.exclusive === false ? null // each class is decided by itself
        : classes.reduce((a, b) => (a.probability >= b.probability ? a : b)).label });
    return { before: told(before), after: told(after), expected, unit: space };
  }

  function measure(listeners) {
    const own = ask, names = own.methods.filter((name) => own.results.has(name));
    if (!names.length || !still()) return;
    measuring = job({ kind: "deletion", ...base(), methods: names }, {
      ...listeners,
      result: (found) => {
        own.deletionOf = own.methods.join();
        if (own === ask) listeners.result(found);
        else own.deletion = found;
      },
    });
    listeners.started(measuring);
    measuring.finished.then((how) => how === "cancelled" && own === ask && listeners.cancelled());
  }

  const exported = () => ({ ...base(), methods: ask.methods.filter((name) => !ask.errors.has(name)),
    ...(input.name && input.image ? { file: input.name } : {}) });

  function stop() {
    running?.cancel();
    measuring?.cancel();
  }

  return {
    ready, stop,
    themed: () => ask?.kind === "image" && draw(),
    question: () => (ask ? exported() : null),
    choose(names) {
      if (!ask) return;
      stop();
      ask.methods = names;
      ask.errors.clear();
      run();
    },
  };
}
