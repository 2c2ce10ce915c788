/* Elements. Text is only ever given as text, and styles one property at a time, so that nothing that comes from a
   server, a file or a user can become markup. */

export const $ = (selector, within = document) => within.querySelector(selector);
export const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];

/** An element. `props`: class, style (an object), data (an object), on (listeners), and attributes; null leaves
 * one out. */
export function el(tag, props = {}, ...children) {
  return filled(document.createElement(tag), props, children);
}

/** The same for the parts of a drawing. */
export function svg(tag, props = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

function filled(node, { class: name, style, data, on, ...attributes }, children) {
  if (name) node.setAttribute("class", name);
  for (const [key, value] of Object.entries(style ?? {})) node.style.setProperty(key, value);
  for (const [key, value] of Object.entries(data ?? {})) if (value != null) node.dataset[key] = value;
  for (const [key, listener] of Object.entries(on ?? {})) node.addEventListener(key, listener);
  for (const [key, value] of Object.entries(attributes)) {
    if (value != null && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return node;
}

/** Replaces what a node holds, and keeps the focus on what has the same `data-focus` afterwards. */
export function fill(node, ...children) {
  const held = node.contains(document.activeElement) ? document.activeElement.dataset?.focus : undefined;
  node.replaceChildren(...children.flat(Infinity).filter((child) => child != null && child !== false));
  if (held !== undefined) $$("[data-focus]", node).find((one) =>
    one.dataset.focus === held)?.focus({ preventScroll: true });
  return node;
}

/** Arrow keys move the focus through items that are one stop of the Tab key; `choose` is told where it went. */
export function roving(box, selector, choose = null) {
  const items = $$(selector, box);
  const start = Math.max(0, items.findIndex((item) => item.getAttribute("aria-checked") === "true"
    || item.dataset.here));
  items.forEach((item, i) => (item.tabIndex = i === start ? 0 : -1));
  box.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity }[event.key];
    const at = items.indexOf(event.target);
    if (!step || at < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(items.length - 1, at + step));
    items[at].tabIndex = -1;
    items[next].tabIndex = 0;
    items[next].focus();
    if (choose) choose(items[next]);
  });
  return box;
}

/** A function that waits until it has not been called for a while. */
export function later(milliseconds, action) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...given), milliseconds);
  };
}
