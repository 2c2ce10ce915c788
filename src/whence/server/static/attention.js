/* "Attention of a word, layer by layer": where the word under the pointer looks, in one layer and head or their mean. */

import { $$, el, fill, roving } from "./dom.js";
import { percent } from "./numbers.js";
import { fold, progress, select, trouble, wash } from "./parts.js";
import { onHover } from "./tip.js";

/** A fold. `on.attention(listeners)` starts the job; the map is asked for when the fold is opened. */
export function attention(ask, on) {
  return fold("Attention of a word, layer by layer", (inside) => {
    if (ask.attention) return draw(inside, ask, on);
    const wait = progress(() => running?.cancel());
    let running = null;
    fill(inside, wait.box);
    wait.show("The model is asked");
    on.attention({
      started: (job) => (running = job),
      progress: ({ text, done, of }) => wait.show(text ?? "The model is asked", done, of),
      result: (found) => draw(inside, Object.assign(ask, { attention: found }), on),
      failed: ({ error }) => fill(inside, trouble(error)),
      cancelled: () => fill(inside, el("p", { class: "soft" }, "Cancelled. Fold it and open it again to ask anew.")),
    });
  }, ask.layer != null);
}

function draw(inside, ask, on) {
  const { layers, heads, tokens, maps } = ask.attention;
  const layer = () => Math.min(layers - 1, Math.max(0, ask.layer ?? layers - 1)), head = () => (ask.head != null && ask.head < heads ? ask.head : -1);
  let from = Math.min(tokens.length - 1, tokens.findIndex((token) => !token.special) + 1);
  const line = el("p", { class: "reading tokens", role: "group", "aria-label": "Tokens; the one in focus looks at the others" });
  const told = el("p", { class: "soft", "aria-live": "polite" });
  const row = () => {
    const map = maps[layer()];
    if (head() >= 0) return map[head()][from];
    return map[0][from].map((_, key) => map.reduce((total, one) => total + one[from][key], 0) / map.length);
  };
  const nodes = tokens.map((token, i) => {
    const node = el("span", { class: `w${token.special ? " special" : ""}`, role: "button", data: { here: i === from ? "1" : null } }, token.text);
    return onHover(node, () => [el("b", {}, token.text)], () => paint((from = i)));
  });
  const paint = () => {
    const weights = row(), top = Math.max(...weights);
    nodes.forEach((node, i) => {
      node.classList.remove("much", "size");
      node.classList.toggle("looks", i === from);
      wash(node, weights[i], Math.max(0.05, top), false);
    });
    const best = weights.map((x, i) => [x, i]).sort((a, b) => b[0] - a[0]).slice(0, 3);
    fill(told, el("b", {}, tokens[from].text), " looks at ", best.map(([x, i], n) => [n ? ", " : "", el("b", {}, tokens[i].text), ` ${percent(x, 0)}`]));
  };
  const choose = (name) => (value) => {
    ask[name] = Number(value);
    on.keep();
    paint();
  };
  const list = (count, first) => [...first, ...Array.from({ length: count }, (_, i) => [i, `${i + 1}`])];
  fill(line, nodes.flatMap((node) => [node, " "]));
  roving(line, ".w");
  fill(inside, el("div", { class: "bar2" }, select("layer", list(layers, []), layer(), choose("layer")), select("head", list(heads, [[-1, "mean"]]), head(), choose("head")), told), line);
  paint();
  $$(".w", line).forEach((node) => node.addEventListener("pointerleave", () => node.blur()));
}
