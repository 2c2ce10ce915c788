/* What is on the screen as a file, and the Python or the command that gives its numbers again. */

import { el, fill } from "./dom.js";
import { fold, segments, trouble } from "./parts.js";
import { postForFile } from "./net.js";

const FILES = { html: ["HTML", "a report that needs no server"], png: ["PNG", "a picture"],
  json: ["JSON", "every number"], python: ["Python", "the script"], shell: ["Shell", "the command"] };
const ENDINGS = { python: "py", shell: "sh" };

/** A menu below a button. `question()` is what is on the screen, as the server takes it, or null. */
export function exportMenu(question) {
  const told = el("div", { "aria-live": "polite" });
  const list = el("div", { class: "menu", role: "menu", id: "export-menu" });
  const box = el("details", { class: "menu-of", id: "export" },
    el("summary", { class: "btn", role: "button", "aria-haspopup": "menu" }, "Export"), list);
  const close = () => (box.open = false);
  const copy = el("button", { role: "menuitem", type: "button", on: {
    async click() {
      await navigator.clipboard?.writeText(location.href);
      fill(told, el("p", { class: "tiny" }, "The link is copied."));
    },
  } }, el("b", {}, "Link"), el("span", { class: "faint" }, "to this very view"));
  fill(list, Object.entries(FILES).map(([format, [name, what]]) =>
    el("button", { role: "menuitem", type: "button", data: { format }, on: { click: () => save(format) } },
    el("b", {}, name), el("span", { class: "faint" }, what))), copy, told);
  async function save(format) {
    const asked = question();
    if (!asked) return fill(told, el("p", { class: "tiny" }, "There is nothing to export yet."));
    fill(told, el("p", { class: "tiny" }, "Made …"));
    try {
      const blob = await postForFile("/api/export", { ...asked, format });
      const link = el("a", { href: URL.createObjectURL(blob), download: `explained.${ENDINGS[format] ?? format}` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
      fill(told);
      close();
    } catch (error) {
      fill(told, trouble(error.message));
    }
  }
  document.addEventListener("click", (event) => !box.contains(event.target) && close());
  box.addEventListener("keydown", (event) => {
    const items = [...list.querySelectorAll("[role=menuitem]")], at = items.indexOf(document.activeElement);
    if (event.key === "Escape") {
      close();
      box.querySelector("summary").focus();
    } else if (box.open && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      items.at((at + (event.key === "ArrowDown" ? 1 : -1)) % items.length)?.focus();
    }
  });
  return box;
}

/** The fold "Reproduce". */
export function reproduce(question) {
  let format = "shell";
  return fold("Reproduce: the command and the Python that give this page's numbers", (inside) => {
    const code = el("pre", { class: "cmd", tabindex: 0 }), choice = el("div", { class: "bar2" });
    const draw = async () => {
      fill(choice, segments("Language", { shell: "Shell", python: "Python" }, format, (next) => {
        format = next;
        draw();
      }), el("button", { class: "btn quiet", type: "button",
        on: { click: () => navigator.clipboard?.writeText(code.textContent) } }, "Copy"));
      try {
        code.textContent = await (await postForFile("/api/export", { ...question(), format })).text();
      } catch (error) {
        fill(code, trouble(error.message));
      }
    };
    fill(inside, choice, code);
    draw();
  });
}
