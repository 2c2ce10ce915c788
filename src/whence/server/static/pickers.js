/* What can be taken out of an input, by clicking, brushing, or with the keys: words, patches of an image, atoms. */

import { $$, el, roving } from "./dom.js";
import { atomName, molecule } from "./molecule.js";
import { plain } from "./pictures.js";
import { nameOf, sentences } from "./words.js";

/** A switch that is on while its unit is there. */
function dressed(node, i, ask, changed) {
  node.setAttribute("role", "switch");
  node.dataset.unit = i;
  node.dataset.focus = `unit ${i}`;
  const flip = () => {
    if (!ask.out.delete(i)) ask.out.add(i);
    show(node, ask);
    changed();
  };
  node.addEventListener("keydown", (event) => {
    if (event.key !== " " && event.key !== "Enter") return;
    event.preventDefault();
    flip();
  });
  show(node, ask);
  return { node, flip };
}

function show(node, ask) {
  const out = ask.out.has(Number(node.dataset.unit));
  node.setAttribute("aria-checked", String(!out));
  node.classList.toggle("gone", out);
}

const updates = (box, ask, also = () => {}) => () => {
  $$("[data-unit]", box).forEach((node) => show(node, ask));
  also();
};

function words(ask, changed) {
  const parts = sentences(ask.texts, ask.units, (i, text) => {
    const { node, flip } = dressed(el("span", { class: "w pick" }, text), i, ask, changed);
    node.addEventListener("click", flip);
    return node;
  });
  const box = el("div", { class: "pick-words", role: "group", "aria-label": "Words that can be taken out" },
    parts.map((nodes) => el("p", { class: "reading", dir: "auto" }, nodes)));
  return { node: roving(box, ".pick"), update: updates(box, ask) };
}

/** The image under a grid of switches; a drag brushes over them. */
function patches(ask, changed) {
  const [rows, columns] = ask.patches, { image } = ask;
  const grid = el("div", { class: "patches", role: "group", "aria-label": `The image in ${rows * columns} patches`,
    style: { "--rows": rows, "--columns": columns } });
  let brush = null; // whether the drag takes out (true) or puts back (false)
  const paint = (node) => {
    const i = Number(node?.dataset?.unit);
    if (brush === null || !node || Number.isNaN(i) || ask.out.has(i) === brush) return;
    if (brush) ask.out.add(i);
    else ask.out.delete(i);
    show(node, ask);
    changed();
  };
  for (let i = 0; i < rows * columns; i++) {
    const label = `row ${Math.floor(i / columns) + 1}, column ${(i % columns) + 1}`;
    const { node } = dressed(el("span", { class: "patch", "aria-label": label, tabindex: i ? -1 : 0 }), i, ask,
      changed);
    grid.append(node);
  }
  grid.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    brush = !ask.out.has(Number(event.target.dataset.unit));
    for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => (brush = null), { once: true });
    event.target.focus({ preventScroll: true });
    paint(event.target);
  });
  grid.addEventListener("pointermove", (event) => brush !== null
    && paint(document.elementFromPoint(event.clientX, event.clientY)));
  grid.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    const from = Number(event.target.dataset.unit), to = from + step;
    if (!step || to < 0 || to >= rows * columns) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    grid.children[to].tabIndex = 0;
    grid.children[to].focus();
  });
  const box = el("div", { class: "brush", style: { "--ratio": `${image.width} / ${image.height}` } }, plain(image),
    grid);
  return { node: box, update: updates(box, ask) };
}

/** The molecule, each atom a switch. */
function atoms(ask, changed) {
  const drawing = molecule(ask, "Atoms that can be taken out", () => null, (group, i) => {
    const { node, flip } = dressed(group, i, ask, changed);
    node.addEventListener("click", flip);
    return node;
  });
  return { node: drawing, update: updates(drawing, ask) };
}

/** What a method gives some atoms, and the bonds that one of them is in. */
function atAtoms(ask, d, out) {
  const { atoms: own, bonds } = ask.molecule, gone = new Set(out);
  if (d.values.length !== own.length + bonds.length) return each(ask, d, out);
  const broken = bonds.map((bond, k) => (bond.atoms.some((atom) => gone.has(atom)) ? own.length + k : -1));
  return [...out, ...broken.filter((k) => k >= 0)].map((i) => [i, 1]);
}

/** A list of patches, blacked out in a small copy of the image. */
export function without(ask, out) {
  const canvas = plain(ask.image), pen = canvas.getContext("2d"), [rows, columns] = ask.patches,
    { width, height } = ask.image;
  pen.fillStyle = "#000000";
  for (const i of out) {
    const [left, right] = [0, 1].map((more) => Math.ceil((((i % columns) + more) * width) / columns));
    const [top, low] = [0, 1].map((more) => Math.ceil(((Math.floor(i / columns) + more) * height) / rows));
    pen.fillRect(left, top, right - left, low - top);
  }
  return canvas;
}

/** The values of a method that lie in some patches, each with the part of it that does. */
function inPatches(ask, d, out) {
  const [height, width] = d.shape ?? [ask.image.height, ask.image.width], [rows, columns] = ask.patches,
    gone = new Set(out), found = [];
  const fine = height >= rows && width >= columns;
  const across = fine ? 1 : Math.ceil(columns / width), down = fine ? 1 : Math.ceil(rows / height);
    // samples of a value that is larger than a patch
  for (let i = 0; i < height * width; i++) {
    let inside = 0;
    for (let a = 0; a < down; a++) {
      for (let b = 0; b < across; b++) {
        const row = Math.floor(((Math.floor(i / width) + (a + 0.5) / down) * rows) / height),
          column = Math.floor((((i % width) + (b + 0.5) / across) * columns) / width);
        if (gone.has(row * columns + column)) inside += 1 / (down * across);
      }
    }
    if (inside) found.push([i, inside]);
  }
  return found;
}

const each = (ask, d, out) => (d.values.length > Math.max(-1, ...out) ? out.map((i) => [i, 1]) : null);

const spelled = { draw: words, told: "Click words to take them out. The model is asked again at once.",
  name: (ask, i) => `“${nameOf(ask, i)}”`, unit: "word", units: "words", places: each };

export const PICKERS = {
  text: spelled,
  tokens: { ...spelled, told: "Click tokens to take them out. The model reads the same answer again at once.",
    unit: "token", units: "tokens" },
  image: { draw: patches, told: "Click or brush patches to take them out. The model is asked again at once.",
    name: (ask, i) => `the patch in row ${Math.floor(i / ask.patches[1]) + 1}, column ${(i % ask.patches[1]) + 1}`,
    unit: "patch", units: "patches", places: inPatches },
  molecule: { draw: atoms, told: "Click atoms to leave them out of the graph; their neighbours stay as they were.",
    name: atomName, unit: "atom", units: "atoms", places: atAtoms },
};
