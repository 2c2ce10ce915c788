/* The input: a text, a pair, a prompt, a SMILES, or an image that is dropped, pasted or chosen; and examples to try. */

import { el, fill } from "./dom.js";
import { chatFields, isFull, same } from "./chat.js";
import { plain } from "./pictures.js";

const FIELDS = {
  text: [["text", "Text", 4]], pair: [["text", "First text", 2], ["pair", "Second text", 3]],
    prompt: [["prompt", "Prompt", 4]],
  seq2seq: [["text", "Text", 3]], molecule: [["smiles", "SMILES", 2]],
};

export const textKeys = (kind, pair) => (kind === "text" && pair ? FIELDS.pair : FIELDS[kind] ?? []).map(([key]) =>
  key);

/** The rail's first part. `given(input, anew)` is called with what is to be explained. */
export function inputPart(box, model, input, told, given) {
  const head = el("div", { class: "head" }, el("h2", { id: "h-input" }, "Input"),
    el("span", { class: "right tiny faint" }, told));
  const fields = model.kind === "image" ? imageField : input.messages ? chatPart : textFields;
  fill(box, head, fields(model, input, given));
}

// ---- texts ----

function textFields(model, input, given) {
  const two = model.kind === "pair" || input.pair != null, shown = two && model.kind === "text" ? FIELDS.pair
    : FIELDS[model.kind];
  const fields = shown.map(([key, name, rows]) => {
    const field = el("textarea", { class: "field", id: `in-${key}`, rows, spellcheck: "false", dir: "auto",
      data: { focus: `in ${key}`, key }, "aria-label": name });
    field.value = input[key] ?? "";
    return field;
  });
  const send = () => {
    const next = Object.fromEntries(fields.map((field) => [field.dataset.key, field.value]));
    const same = fields.every((field) => field.value === (input[field.dataset.key] ?? ""));
    if (!same && Object.values(next).some((text) => text.trim())) given(next, true);
  };
  const go = el("button", { class: "btn primary", type: "button", data: { focus: "go" }, on: { click: send } },
    "Explain");
  const changed = () => (go.disabled = fields.every((field) => field.value === (input[field.dataset.key] ?? ""))
    || !fields.some((field) => field.value.trim())); // an empty text is not asked about
  for (const field of fields) {
    field.addEventListener("input", changed);
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && (event.ctrlKey || event.metaKey || model.kind === "molecule")) {
        event.preventDefault();
        send();
      }
    });
  }
  changed();
  const pairs = model.kind === "text" && model.takes_pair
    ? el("button", { class: "link", type: "button",
      on: { click: () => given(input.pair == null ? { ...input, pair: "" } : { text: input.text },
      false) } }, input.pair == null ? "second text" : "one text") : null;
  return [el("div", { class: "fields" }, fields),
    el("div", { class: "under" }, go, el("span", { class: "tiny faint" }, "Ctrl ↵"), pairs,
    model.chat ? el("button", { class: "link", type: "button", on: { click: () =>
      given({ messages: [{ role: "user", content: fields[0].value }] }, false) } }, "conversation") : null,
    examplesOf(model, input, given))];
}

// ---- conversations ----

function chatPart(model, input, given) {
  const send = () => !go.disabled && given({ messages: chat.messages() }, true);
  const go = el("button", { class: "btn primary", type: "button", data: { focus: "go" }, on: { click: send } },
    "Explain");
  const changed = (now) => (go.disabled = !isFull(now) || same(now, input.explained ?? []));
  const chat = chatFields(input.messages, changed, send);
  changed(input.messages);
  const plainly = () => given({ prompt: chat.messages().map((one) => one.content).join("\n") }, false);
  return [chat.node, el("div", { class: "under" }, go, el("span", { class: "tiny faint" }, "Ctrl ↵"),
    el("button", { class: "link", type: "button", on: { click: plainly } }, "one prompt"))];
}

/** The next example, and all of them in a list. */
function examplesOf(model, input, given) {
  const key = textKeys(model.kind)[0];
  const all = model.examples.filter((one) => one[key]);
  if (!all.length) return null;
  const name = (one) => (one[key].length > 60 ? `${one[key].slice(0, 58)}…` : one[key]);
  const box = el("select", { class: "btn quiet examples", "aria-label": "Examples",
    on: { change: () => given({ ...all[Number(box.value)] }, true) } },
    el("option", { value: "", hidden: true, selected: true }, "Examples"),
      all.map((one, i) => el("option", { value: i }, name(one))));
  return box;
}

// ---- images ----

function imageField(model, input, given) {
  const file = el("input", { type: "file", accept: "image/*", class: "sr", id: "file",
    on: { change: () => taken(file.files[0], given) } });
  const choose = el("label", { class: "link", for: "file" }, "choose a file");
  const zone = el("div", { class: "drop" }, input.pixels ? thumb(input.pixels) : el("span", { class: "px" }),
    el("div", {}, el("p", {}, input.name ?? "An image"),
      el("p", { class: "tiny faint" }, "Drop an image here, paste one, or ", file, choose, ".")));
  const over = (on) => (event) => {
    event.preventDefault();
    zone.classList.toggle("over", on);
    if (event.type === "drop") taken(event.dataTransfer.files[0], given);
  };
  zone.addEventListener("dragover", over(true));
  zone.addEventListener("dragleave", over(false));
  zone.addEventListener("drop", over(false));
  const thumbs = el("div", { class: "thumbs", role: "group", "aria-label": "Examples" },
    model.examples.map((one, i) => el("button", {
    type: "button", "aria-label": one.name ?? `Example ${i + 1}`, title: one.name,
      "aria-current": String(input.example === i), data: { focus: `example ${i}` },
    on: { click: () => given({ example: i, name: one.name ?? `Example ${i + 1}` }, true) },
  }, el("img", { src: one.url, alt: "", class: "px", loading: "lazy" }))));
  return [zone, thumbs];
}

function thumb(image) {
  const canvas = plain(image);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", "What the model sees of the image");
  return canvas;
}

/** A file as base64, which is what the server takes. */
export function taken(file, given) {
  if (!file) return;
  const reader = new FileReader();
  reader.addEventListener("load", () => given({ image: String(reader.result).replace(/^data:[^,]*,/, ""),
    name: file.name || "pasted image" }, true));
  reader.readAsDataURL(file);
}

/** What the server is given of an input: no names, no pixels. */
export function sent(input) {
  const { name: _, pixels: __, explained: ___, ...rest } = input;
  return rest;
}
