/* A table of any length: only the rows that are seen exist, and pages of them are fetched when they come into view. */

import { el, fill } from "./dom.js";
import { trouble } from "./parts.js";

const ROW = 37, PAGE = 100, CHUNK = 25, AROUND = 8; // pixels; rows, rows with details; rows beyond the edges
const TALLEST = 2e7; // pixels that a browser can scroll

/** `columns`: {name, title, class, sort}; `fetch(offset, limit)` gives {total, rows}, `details` the same with values,
 * which take longer, or null where none are wanted; `cells(row)` gives a node per column. */
export function windowed({ columns, fetch, details, cells, open, sorted, sort, label }) {
  const head = el("div", { class: "thead", role: "row", "aria-rowindex": 1 });
  const inner = el("div", { class: "tall", role: "rowgroup" });
  const scroller = el("div", { class: "scroller", tabindex: 0, data: { focus: "rows" } }, inner);
  const told = el("div", { class: "none", hidden: true });
  const box = el("div", { class: "grid-of", role: "grid", "aria-label": label, "aria-colcount": columns.length },
    el("div", { role: "rowgroup" }, head), scroller, told);
  const drawn = new Map(); // by place
  let pages = new Map(), total = 0, chosen = -1, turn = 0, factor = 1;

  function drawHead() {
    const { by, descending } = sorted();
    fill(head, columns.map((column) => el("div", { role: "columnheader", class: column.class,
      "aria-sort": column.sort === by && by ? (descending ? "descending" : "ascending") : null },
      column.sort ? el("button", { type: "button", data: { focus: `sort ${column.sort}` },
        on: { click: () => sort(column.sort) } }, column.title, el("span", { class: "arrow", "aria-hidden": "true" },
        column.sort === by ? (descending ? " ↓" : " ↑") : ""))
        : column.title)));
  }

  /** Asks anew: another filter, another order; `stay` where the same rows know more. */
  async function reset(stay = false) {
    turn++;
    pages = new Map();
    drawn.forEach((node) => node.remove());
    drawn.clear();
    drawHead();
    if (!stay) {
      scroller.scrollTop = 0;
      chosen = -1;
    }
    const first = await page(0);
    if (first) layout(first);
    return first ? total : null;
  }

  function layout(found) {
    total = found.total;
    const whole = total * ROW;
    factor = Math.min(1, TALLEST / Math.max(1, whole));
    inner.style.setProperty("height", `${whole * factor}px`);
    box.setAttribute("aria-rowcount", total + 1);
    told.hidden = total > 0;
    fill(told, "No row fits these filters.");
    scroller.hidden = !total;
    paint();
  }

  /** A page of rows: fetched once. */
  async function page(number) {
    const own = turn;
    if (!pages.has(number)) pages.set(number, fetch(number * PAGE, PAGE));
    try {
      const found = await pages.get(number);
      if (own !== turn) return null;
      pages.set(number, found);
      return found;
    } catch (error) {
      if (own !== turn) return null;
      pages.delete(number);
      told.hidden = false;
      fill(told, trouble(error.message));
      return null;
    }
  }

  const rowAt = (place) => pages.get(Math.floor(place / PAGE))?.rows?.[place % PAGE];
  const seen = () => {
    const start = scroller.scrollTop / factor / ROW, count = scroller.clientHeight / ROW;
    return [Math.max(0, Math.floor(start) - AROUND), Math.min(total - 1, Math.ceil(start + count) + AROUND)];
  };

  let waiting = 0, idle = 0, asking = false;
  function paint() {
    const [first, last] = seen(), shift = scroller.scrollTop - scroller.scrollTop / factor;
    for (const [place, node] of drawn) {
      if (place >= first && place <= last) continue;
      node.remove();
      drawn.delete(place);
    }
    let missing = false;
    for (let place = first; place <= last; place++) {
      const row = rowAt(place);
      let node = drawn.get(place);
      if (!node || (row && node.dataset.empty)) {
        const fresh = line(place, row);
        if (node) node.replaceWith(fresh);
        else inner.append(fresh);
        drawn.set(place, (node = fresh));
      }
      node.style.setProperty("transform", `translateY(${place * ROW + shift}px)`);
      missing ||= !row;
    }
    clearTimeout(idle);
    idle = setTimeout(detail, 200);
    clearTimeout(waiting);
    if (missing) waiting = setTimeout(load, 40); // not for every page that flies past
  }

  /** Asks for the details of the rows that are seen, some at a time, once the table stands still. */
  async function detail() {
    const [first, last] = seen(), own = turn;
    const places = Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => first + i);
    const place = places.find((one) => rowAt(one) && rowAt(one).values === undefined);
    if (asking || place === undefined) return;
    const offset = place - (place % CHUNK), answer = details(offset, CHUNK);
    if (!answer) return;
    asking = true;
    const found = await answer.catch(() => null);
    asking = false;
    if (own === turn && found) {
      found.rows.forEach((more, i) => {
        const row = rowAt(offset + i), node = drawn.get(offset + i);
        if (!row) return;
        Object.assign(row, { values: more.values ?? null });
        if (node) node.dataset.empty = "1";
      });
    }
    if (found || own !== turn) paint();
  }

  function load() {
    const [first, last] = seen();
    for (let number = Math.floor(first / PAGE); number <= Math.floor(last / PAGE); number++) {
      if (!pages.get(number)) page(number).then((found) => found && paint());
    }
  }

  function line(place, row) {
    const node = el("div", { class: "tr", role: "row", id: `row-${place}`, "aria-rowindex": place + 2,
      "aria-selected": String(place === chosen), data: { empty: row ? null : "1", place, row: row?.row } },
      row ? cells(row).map((cell, i) => el("div", { role: "gridcell", class: columns[i].class }, cell))
        : el("div", { role: "gridcell", class: "faint" }, "…"));
    node.addEventListener("click", () => choose(place, true));
    return node;
  }

  function choose(place, clicked = false, quietly = false) {
    drawn.get(chosen)?.setAttribute("aria-selected", "false");
    chosen = place;
    drawn.get(chosen)?.setAttribute("aria-selected", "true");
    scroller.setAttribute("aria-activedescendant", `row-${place}`);
    const row = rowAt(place);
    if (row && !quietly) open(row, clicked);
  }

  scroller.addEventListener("keydown", (event) => {
    const many = Math.max(1, Math.floor(scroller.clientHeight / ROW) - 1);
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: many, PageUp: -many, Home: -Infinity,
      End: Infinity }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(total - 1, chosen + step));
    const top = next * ROW * factor, view = scroller.clientHeight;
    if (top < scroller.scrollTop) scroller.scrollTop = top;
    else if (top + ROW > scroller.scrollTop + view) scroller.scrollTop = top + ROW - view;
    paint();
    choose(next);
  });
  let frame = 0;
  scroller.addEventListener("scroll", () => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      paint();
    });
  }, { passive: true });
  new ResizeObserver(() => total && paint()).observe(scroller);
  return {
    node: box, reset, told,
    /** Marks the row with this number, where it is on a page that is there. */
    mark(number) {
      const [at, found] = [...pages].find(([, one]) => one.rows?.some((row) => row.row === number)) ?? [];
      if (found) choose(at * PAGE + found.rows.findIndex((row) => row.row === number), false, true);
    },
  };
}
