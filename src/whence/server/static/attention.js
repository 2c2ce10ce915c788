/* "Attention of a word, layer by layer": where the word under the pointer looks, in one layer and head or their
   mean. */

import { el, fill, roving } from "./dom.js";
import { percent } from "./numbers.js";
import { fold, select, trouble, wash } from "./parts.js";

/** A fold. `on.attention(layer, head)` asks for one map, when the fold is opened and when another is chosen. */
export function attention(ask, on) {
  return fold("Attention of a word, layer by layer", (inside) => {
    const maps = new Map();
    let from = null;
    const line = el("p", { class: "reading tokens", role: "group",
      "aria-label": "Tokens; the one in focus looks at the others" });
    const told = el("p", { class: "soft", "aria-live": "polite" }), choices = el("div", { class: "bar2" });
    fill(inside, choices, line);

    async function show() {
      const name = `${ask.layer} ${ask.head}`;
      if (!maps.has(name)) maps.set(name, on.attention(ask.layer, ask.head));
      try {
        draw(await maps.get(name));
      } catch (error) {
        maps.delete(name);
        fill(line, trouble(error.message));
      }
    }

    function draw({ layers, heads, layer, tokens, rows }) {
      const choose = (field) => (value) => {
        ask.layer ??= layer;
        ask[field] = Number(value);
        on.keep();
        show();
      };
      const list = (count) => Array.from({ length: count }, (_, i) => [i, `${i + 1}`]);
      fill(choices, select("layer", list(layers), layer, choose("layer")),
        select("head", [[-1, "mean"], ...list(heads[layer])], ask.head ?? -1, choose("head")), told);
      from ??= Math.max(0, tokens.findIndex((token) => !token.special));
      const nodes = tokens.map((token, i) => el("span",
        { class: `w${token.special ? " special" : ""}`, role: "button", data: { here: i === from ? "1" : null } },
        token.text));
      nodes.forEach((node, i) => {
        const turn = () => {
          from = i;
          paint(nodes, tokens, rows);
        };
        node.addEventListener("pointerenter", turn);
        node.addEventListener("focus", turn);
      });
      fill(line, nodes.flatMap((node) => [node, " "]));
      roving(line, ".w");
      paint(nodes, tokens, rows);
    }

    function paint(nodes, tokens, rows) {
      const weights = rows[from], top = Math.max(...weights);
      nodes.forEach((node, i) => {
        node.classList.remove("much");
        node.classList.toggle("looks", i === from);
        wash(node, weights[i], Math.max(0.05, top), false);
      });
      const best = weights.map((x, i) => [x, i]).sort((a, b) => b[0] - a[0]).slice(0, 3);
      fill(told, el("b", {}, tokens[from].text), " looks at ",
        best.map(([x, i], n) => [n ? ", " : "", el("b", {}, tokens[i].text), ` ${percent(x, 0)}`]));
    }

    show();
  }, ask.layer != null);
}
