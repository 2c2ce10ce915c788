/* Evidence on images: each method as a picture on one scale, drawn over the image, as a mask, as contours or as
   a map. */

import { el } from "./dom.js";
import { addsUp, cost } from "./receipt.js";
import { multiple, short } from "./numbers.js";
import { key, numbers } from "./parts.js";
import { hide, show } from "./tip.js";

export const LOOKS = { overlay: "Overlay", masked: "Masked", contour: "Contour", map: "Map" };
const FOR = [194, 68, 14], AGAINST = [31, 101, 176];

/** The pixels of a PNG that the server sent. */
export async function pixels(png) {
  const image = new Image();
  image.src = png.startsWith("data:") ? png : `data:image/png;base64,${png}`;
  await image.decode();
  const canvas = el("canvas", { width: image.naturalWidth, height: image.naturalHeight });
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.drawImage(image, 0, 0);
  return pen.getImageData(0, 0, canvas.width, canvas.height);
}

/** The image itself. */
export function plain(image) {
  const canvas = el("canvas", { class: "px", width: image.width, height: image.height });
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/** The number of a method at each pixel of the image. */
function spread(d, image) {
  const [height, width] = d.shape ?? [image.height, image.width];
  return (x, y) => d.shown[Math.floor((y * height) / image.height) * width + Math.floor((x * width) / image.width)];
}

/** The page's ground, which is light or dark. */
const paper = () => getComputedStyle(document.documentElement).backgroundColor.match(/[\d.]+/g).slice(0, 3).map(Number);

/** One method's picture. */
export function picture(d, image, look, limit) {
  const { width, height, data: seen } = image;
  const canvas = el("canvas", { class: "px", width, height, role: "img", "aria-label": `${d.title}, ${look}` });
  const pen = canvas.getContext("2d"), out = pen.createImageData(width, height);
  const at = spread(d, image), paint = PAINT[look];
  const ground = paper(), ink = ground[0] > 128 ? [40, 44, 52] : [240, 241, 243];
  for (let place = 0, y = 0; y < height; y++) {
    for (let x = 0; x < width; x++, place += 4) {
      const value = at(x, y), strength = Math.min(1, Math.abs(value) / limit);
      const light = 0.3 * seen[place] + 0.59 * seen[place + 1] + 0.11 * seen[place + 2];
      const colour = value >= 0 ? FOR : AGAINST;
      for (let k = 0; k < 3; k++) {
        out.data[place + k] = paint(seen[place + k], light, value, strength, d.signed, colour[k], ground[k], ink[k]);
      }
      out.data[place + 3] = 255;
    }
  }
  pen.putImageData(out, 0, 0);
  return look === "contour" ? outlined(canvas, d, image) : canvas;
}

const mix = (from, to, share) => from + (to - from) * share;

/** One channel of one pixel. */
const PAINT = {
  overlay: (seen, light, value, strength, signed, colour) => (signed
    ? mix(0.55 * light + 28, colour, strength ** 0.7) : mix(0.42 * light, 150 + 0.4 * light, strength ** 0.8)),
  masked: (seen, light, value, strength, signed) => seen * (0.08 + 0.92 * (!signed || value > 0 ? strength ** 0.6 : 0)),
  contour: (seen) => 0.8 * seen,
  map: (seen, light, value, strength, signed, colour, ground, ink) =>
    mix(ground, signed ? colour : ink, strength ** 0.8),
};

/** Lines between pixels, around the strongest tenth of them. */
function outlined(canvas, d, image) {
  const { width, height } = image, k = Math.max(2, Math.ceil(336 / width)), at = spread(d, image);
  const inside = strongestTenth(width, height, at);
  const big = el("canvas", { class: "px", width: width * k, height: height * k, role: "img",
    "aria-label": canvas.getAttribute("aria-label") });
  const pen = big.getContext("2d");
  pen.imageSmoothingEnabled = false;
  pen.drawImage(canvas, 0, 0, width * k, height * k);
  const has = (x, y) => x >= 0 && y >= 0 && x < width && y < height && inside.has(y * width + x);
  pen.beginPath();
  for (const place of inside) {
    const x = place % width, y = Math.floor(place / width);
    const edges = [[0, -1, 0, 0, 1, 0], [0, 1, 0, 1, 1, 1], [-1, 0, 0, 0, 0, 1], [1, 0, 1, 0, 1, 1]];
    for (const [right, down, a, b, c, e] of edges) {
      if (has(x + right, y + down)) continue;
      pen.moveTo((x + a) * k, (y + b) * k);
      pen.lineTo((x + c) * k, (y + e) * k);
    }
  }
  pen.lineCap = "round";
  for (const [thick, colour] of [[Math.max(3, k / 2), "#000000"],
    [Math.max(1.5, k / 4), d.signed ? "#f08a55" : "#ffffff"]]) {
    Object.assign(pen, { lineWidth: thick, strokeStyle: colour });
    pen.stroke();
  }
  return big;
}

function strongestTenth(width, height, at) {
  const order = Array.from({ length: width * height }, (_, i) => [at(i % width, Math.floor(i / width)), i]);
  order.sort((a, b) => b[0] - a[0]);
  return new Set(order.slice(0, Math.max(1, Math.round(order.length / 10))).map(([, i]) => i));
}

/** Where the strongest tenth of a method begins. */
export const tenth = (d) => [...d.shown].sort((a, b) => b - a)[Math.max(0, Math.round(d.shown.length / 10) - 1)];

/** The image and each method's picture of it; a crosshair moves in all of them, with the numbers of all methods. */
export function pictures(ask, list, measure, look) {
  const { image } = ask, cells = [];
  const figure = (canvas, title, small) => {
    const cell = el("div", { class: "xy" });
    cell.style.setProperty("width", `${100 / image.width}%`);
    cell.style.setProperty("height", `${100 / image.height}%`);
    cells.push(cell);
    const frame = el("div", { class: "frame-of" }, canvas, cell);
    frame.addEventListener("pointermove", (event) => point(event, frame));
    frame.addEventListener("pointerleave", () => {
      cells.forEach((one) => one.classList.remove("on"));
      hide();
    });
    return el("figure", {}, frame, el("figcaption", {}, title), el("p", { class: "tiny faint" }, small));
  };
  const point = (event, frame) => {
    const box = frame.getBoundingClientRect();
    const x = Math.max(0, Math.min(image.width - 1,
      Math.floor(((event.clientX - box.left) / box.width) * image.width)));
    const y = Math.max(0, Math.min(image.height - 1,
      Math.floor(((event.clientY - box.top) / box.height) * image.height)));
    for (const cell of cells) {
      cell.classList.add("on");
      cell.style.setProperty("left", `${(100 * x) / image.width}%`);
      cell.style.setProperty("top", `${(100 * y) / image.height}%`);
    }
    show(cells.find((cell) => frame.contains(cell)), pixelTip(x, y, image, list));
  };
  const made = list.map((d) => {
    const canvas = d.values ? picture(d, image, look, measure.limit)
      : Object.assign(plain(image), { ariaLabel: `${d.title}: not there yet` });
    if (!d.values) canvas.classList.add("pending");
    const small = d.error ? d.error : d.values ? [addsUp(d.result), cost(d.result), coarse(d, image)
      ? `${d.shape.join(" × ")} tokens` : null].filter(Boolean).join(" · ") : "…";
    return figure(canvas, [key(d.place), el("b", {}, d.title)], small);
  });
  return el("div", { class: "multi" }, figure(plain(image), el("b", {}, "The image"),
    `${image.width} × ${image.height}`), made);
}

export const coarse = (d, image) => d.shape && d.shape[0] * d.shape[1] < (image.width * image.height) / 4;

function pixelTip(x, y, image, list) {
  const seen = image.data.slice(4 * (y * image.width + x), 4 * (y * image.width + x) + 3);
  const colour = seen[0] === seen[1] && seen[1] === seen[2] ? `grey ${seen[0]}` : `colour ${[...seen].join(", ")}`;
  return numbers(`pixel ${x}, ${y} · ${colour}`, list.filter((d) => d.values).map((d) => {
    const value = spread(d, image)(x, y), [height, width] = d.shape ?? [image.height, image.width];
    const place = Math.floor((y * height) / image.height) * width + Math.floor((x * width) / image.width);
    return [`${d.letter} ${d.title}`, multiple(value, d.signed), short(d.values[place])];
  }));
}
