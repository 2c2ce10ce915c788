/* Conversations: the messages of a prompt as they are written, sent, kept in the address, and drawn in blocks. */

import { el, fill } from "./dom.js";
import { sum } from "./numbers.js";
import { diverging, shareOf } from "./parts.js";

const ROLES = ["system", "user", "assistant"], MOST = 40;

/** The messages of an address; null where there are none. */
export function parsed(text) {
  if (!text) return null;
  try {
    const found = JSON.parse(text);
    const fine = Array.isArray(found) && found.length && found.length <= MOST && found.every((one) =>
      typeof one?.role === "string" && typeof one?.content === "string");
    return fine ? found.map(({ role, content }) => ({ role, content })) : null;
  } catch {
    return null;
  }
}

export const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
export const isFull = (messages) => messages.length > 0 && messages.every((one) => one.content.trim());

/** Messages that can be written: {node, messages()}. `changed` is called with every key, `send` to explain. */
export function chatFields(messages, changed, send) {
  const now = messages.map((one) => ({ ...one })), list = el("ol", { class: "chat", "aria-label": "Messages" });
  const tell = () => changed(now);
  const draw = (focus = null) => {
    fill(list, now.map((message, i) => {
      const known = ROLES.includes(message.role) ? ROLES : [...ROLES, message.role];
      const role = el("select", { class: "btn quiet", "aria-label": `Role of message ${i + 1}`,
        data: { focus: `role ${i}` }, on: { change: () => ((message.role = role.value), tell()) } },
        known.map((name) => el("option", { value: name, selected: name === message.role }, name)));
      const field = el("textarea", { class: "field", rows: 2, spellcheck: "false", dir: "auto",
        "aria-label": `Message ${i + 1}`, data: { focus: `message ${i}` } });
      field.value = message.content;
      field.addEventListener("input", () => ((message.content = field.value), tell()));
      field.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
        event.preventDefault();
        send();
      });
      const gone = el("button", { class: "link tiny right", type: "button", "aria-label": `Remove message ${i + 1}`,
        on: { click: () => {
          now.splice(i, 1);
          draw(`message ${Math.min(i, now.length - 1)}`);
          tell();
        } } }, "remove");
      return el("li", {}, el("div", { class: "head" }, role, now.length > 1 ? gone : null), field);
    }));
    if (focus) list.querySelector(`[data-focus="${focus}"]`)?.focus();
  };
  const more = el("button", { class: "btn quiet", type: "button", on: { click: () => {
    if (now.length >= MOST) return;
    now.push({ role: now.at(-1)?.role === "user" ? "assistant" : "user", content: "" });
    draw(`message ${now.length - 1}`);
    tell();
  } } }, "Add a message");
  draw();
  return { node: el("div", { class: "chat-of" }, list, more), messages: () => now.map((one) => ({ ...one })) };
}

/** The places of a conversation's units: each in its message; what the template puts between them is special. */
export function placed(units, messages) {
  return units.map((unit) => {
    const part = unit.special ? -1 : messages.findIndex(({ start, end }) => unit.start >= start && unit.end <= end);
    if (part < 0) return { ...unit, part: 0, start: 0, end: 0, special: true };
    return { ...unit, part, start: unit.start - messages[part].start, end: unit.end - messages[part].start };
  });
}

/** A method's reading in blocks: who speaks, the message with its shares, and the sum of them. */
export function blocks(read, d, ask, limit) {
  [...read.children].forEach((text, part) => {
    const own = ask.units.map((unit, i) => (!unit.special && unit.part === part ? i : -1)).filter((i) => i >= 0);
    const total = d.values ? sum(own.map((i) => d.shares[i])) : null;
    const block = el("div", { class: "blk of-role", data: { role: ask.roles[part] } },
      el("div", { class: "role" }, ask.roles[part]), el("div", { class: "sum num" },
        total == null ? "…" : [shareOf(total, d), diverging(total, limit, d.signed)]));
    text.replaceWith(block);
    block.children[0].after(text);
  });
  return read;
}
