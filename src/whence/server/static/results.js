/* "What the methods say": the question, the answer in a sentence, warnings, legend and the picture of each method. */

import { el } from "./dom.js";
import { answered, drawn, ends, scaleOf } from "./drawn.js";
import { multiple, percent } from "./numbers.js";
import { key, legend, segments, section, trouble, warning, warnings } from "./parts.js";
import { LOOKS, coarse, pictures, tenth } from "./pictures.js";
import { drawing } from "./molecule.js";
import { noted, receipt } from "./receipt.js";
import { bars, nameOf, reading, tops } from "./words.js";

const WAYS = { rows: "Rows", columns: "Columns", bars: "Bars" };

/** The looks that a kind of input has, and the first of them. */
export const looks = (kind) => (kind === "image" ? LOOKS : kind === "text" ? WAYS : {});
export const lookOf = (kind, look) => (look in looks(kind) ? look : Object.keys(looks(kind))[0]);

/** The heading and the sentence below it. */
export function opening(ask, list) {
  const asked = ask.predicted.classes.find((one) => one.index === ask.target);
  const label = asked?.label ?? "this";
  return [el("h1", { dir: "auto" }, `Why “${label}”?`),
    el("p", { class: "lead soft" }, lead(ask, answered(list), asked))];
}

function lead(ask, list, asked) {
  const others = ask.predicted.classes.filter((one) => one !== asked).sort((a, b) => b.probability - a.probability);
  const first = asked && others.every((one) => one.probability <= asked.probability);
  const out = [asked?.probability == null ? "" : ask.model.exclusive === false
    ? `The model gives ${asked.label} ${percent(asked.probability)}; its classes do not exclude each other. `
    : `The model says ${asked.label} at ${percent(asked.probability)}`];
  if (ask.model.exclusive === false) return out;
  if (ask.kind === "image" && others.length) {
    out.push(first ? `; next is ${others[0].label} at ${percent(others[0].probability)}. `
      : `; its first choice is ${others[0].label} at ${percent(others[0].probability)}. `,
      "Every picture has the same scale, so a pale map is a spread-out one.");
    return out;
  }
  const best = others[0];
  out.push(first || !best ? ". " : `; its first choice is ${best.label} at ${percent(best.probability)}. `);
  const signs = list.filter((d) => d.signed && d.shares.some((x) => x));
  if (ask.kind !== "text" || !signs.length) return out;
  const pulls = signs.map((d) => ends(d.shares)),
    total = signs[0].shares.map((_, i) => signs.reduce((t, d) => t + d.shares[i], 0));
  const [top, low] = ends(total);
  const same = pulls.every(([a, b]) => a === pulls[0][0] && b === pulls[0][1]);
  if (signs.length > 1) out.push(same ? "The signed methods agree on what pulls hardest: "
    : "The signed methods differ on what pulls hardest; together: ");
  if (total[top] > 0) out.push(el("b", {}, nameOf(ask, top)), " speaks for it");
  if (total[top] > 0 && total[low] < 0) out.push(", ");
  if (total[low] < 0) out.push(el("b", {}, nameOf(ask, low)), total[top] > 0 ? " against it" : " speaks against it");
  out.push(total[top] > 0 || total[low] < 0 ? "." : "nothing.");
  return out;
}

function told(ask, list) {
  const all = noted(answered(list));
  const rough = ask.kind === "image" ? answered(list).filter((d) => coarse(d, ask.image)) : [];
  if (rough.length) {
    all.push(warning(`${rough.map((d) => d.letter).join(", ")} ${rough.length === 1 ? "is" : "are"} coarse.`,
      rough.map((d) => `${d.title} gives one number for each of ${d.shape.join(" × ")} places`).join(", "),
        "; it knows nothing finer than its blocks."));
  }
  return all;
}

function note(ask, list, look, measure) {
  const sizes = answered(list).some((d) => !d.signed);
  if (ask.kind === "image") {
    const even = `1 × is what an even spread over the ${ask.image.width * ask.image.height} pixels would give`;
    if (look === "contour") {
      const begins = answered(list).map((d) => `${d.letter} ${multiple(tenth(d), d.signed)}`).join(", ");
      return `A line around the strongest tenth of the pixels, which begins at ${begins}. ${even}.`;
    }
    if (look === "masked") return `The image as bright as it matters; what speaks against stays dark. ${even}.`;
    const ends = measure.over ? "; beyond the scale's ends the colour stays" : "";
    return `${even}${ends}.${sizes ? " Brightness instead of colour: the method has no sign." : ""}`;
  }
  const what = { text: "word", molecule: "atom", features: "feature" }[ask.kind] ?? "unit";
  const line = look === "bars" || ask.kind !== "text" ? "" : " Dashed line: against.";
  const grey = sizes ? " Grey: the method has no sign." : "", hover = `Hover or focus a ${what} for all its numbers.`;
  return `One scale for all: each ${what}'s share of its method's total, Σ|φ|.${line}${grey} ${hover}`;
}

const scales = { image: { overlay: ["pixels", "light"], map: ["drawn", "greys"], masked: ["none", "light"] } };

/** The section. `change` is told of a new look. */
export function results(ask, look, change) {
  const list = drawn(ask), measure = scaleOf(ask, list);
  const choices = looks(ask.kind);
  const beside = Object.keys(choices).length ? el("div", { class: "right" },
    segments("How to draw", choices, look, change)) : null;
  const failed = list.filter((d) => d.error).map((d) =>
    el("div", { class: "failed" }, key(d.place), trouble(`${d.title}: ${d.error}`)));
  const signs = answered(list).some((d) => d.signed), sizes = answered(list).some((d) => !d.signed);
  const shown = look === "contour" ? [false, false] : look === "masked" ? [false, true] : [signs, sizes];
  return {
    list, measure,
    node: section("say", "What the methods say", beside, el("div", { class: "warns" }, warnings(told(ask, list))),
      failed,
      legend(measure, ...shown, note(ask, list, look, measure), scales[ask.kind]?.[look]
        ?? (ask.kind === "image" ? ["pixels", "light"] : ["two", "one"])),
      el("div", { class: "box" }, body(ask, list, measure, look))),
  };
}

function body(ask, list, measure, look) {
  const shown = list.filter((d) => !d.error);
  if (ask.kind === "image") return pictures(ask, shown, measure, look);
  if (look === "bars" || ask.kind === "features") return bars(ask, shown, measure);
  const way = ask.kind === "molecule" ? "side" : look;
  return el("div", { class: `cards ${way}` }, shown.map((d) => card(d, ask, shown, measure)));
}

function card(d, ask, list, measure) {
  const family = `${d.family}${d.signed ? "" : " · magnitude only"}`;
  const drawingOf = ask.kind === "molecule" ? drawing(d, ask, list, measure) : reading(d, ask, list, measure);
  return el("article", { class: "card", "aria-label": d.title, data: { method: d.name } },
    el("header", {}, key(d.place), el("h3", {}, d.title),
      el("span", { class: "tiny faint fam-of", title: d.question }, family)),
    drawingOf, !d.values ? el("p", { class: "tops faint" }, "asked …") : ask.kind === "molecule" ? null : tops(d, ask),
    d.values ? receipt(d.result) : el("span", { class: "end" }));
}

