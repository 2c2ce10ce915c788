/* The tooltip: one box, shown beside what the pointer or the focus is on. */

import { el } from "./dom.js";

const box = el("div", { id: "tip", role: "tooltip" });
document.body.append(box);

/** Shows some nodes above an element, or below it where there is no room. */
export function show(target, ...content) {
  box.replaceChildren(...content.flat(Infinity));
  box.classList.add("on");
  const at = target.getClientRects()[0] ?? target.getBoundingClientRect(), own = box.getBoundingClientRect();
  const left = Math.min(Math.max(8, at.left + at.width / 2 - own.width / 2), innerWidth - own.width - 8);
  const above = at.top - own.height - 8;
  box.style.setProperty("left", `${left}px`);
  box.style.setProperty("top", `${above < 8 ? at.bottom + 8 : above}px`);
}

export const hide = () => box.classList.remove("on");

addEventListener("scroll", hide, { passive: true, capture: true });
addEventListener("keydown", (event) => event.key === "Escape" && hide());

/** Shows `content()` while the pointer or the focus is on an element. */
export function onHover(node, content, enter = null, leave = null) {
  const on = () => {
    enter?.();
    show(node, content());
  };
  const off = () => {
    leave?.();
    hide();
  };
  node.addEventListener("pointerenter", on);
  node.addEventListener("focus", on);
  node.addEventListener("pointerleave", off);
  node.addEventListener("blur", off);
  return node;
}
