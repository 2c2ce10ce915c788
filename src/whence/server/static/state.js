/* What is on the screen, as the fragment of the address: a link shows the same. Images stay out, examples go by
   number. */

const LISTS = new Set(["methods", "out"]), NUMBERS = new Set(["target", "k", "token", "layer", "head", "row",
  "example"]);
const WORDS = new Set(["view", "model", "text", "pair", "prompt", "answer", "smiles", "look", "rather", "sort", "word",
  "label", "prediction", "gap", "apart", "wrong", "failed", "from", "order", "span", "messages"]);

/** The fragment as an object; what is not known is left out. */
export function read(fragment = location.hash) {
  const found = {};
  for (const [key, value] of new URLSearchParams(fragment.replace(/^#/, ""))) {
    if (LISTS.has(key)) found[key] = value ? value.split(",") : [];
    else if (NUMBERS.has(key) && /^-?\d{1,9}$/.test(value)) found[key] = Number(value);
    else if (WORDS.has(key)) found[key] = value;
  }
  if (found.out) found.out = found.out.map(Number).filter((n) => Number.isInteger(n) && n >= 0);
  return found;
}

/** The object as a fragment, without what is empty (but that nothing is out is a choice). */
export function written(state) {
  const found = new URLSearchParams();
  for (const key of [...WORDS, ...LISTS, ...NUMBERS]) {
    const value = state[key];
    if (value == null || value === "" || (key !== "out" && Array.isArray(value) && !value.length)) continue;
    found.set(key, LISTS.has(key) ? [...value].join(",") : String(value));
  }
  return found.toString();
}

let last = null;

/** Puts the state into the address; `anew` makes a step that the Back button can take back. */
export function keep(state, anew = false) {
  const fragment = written(state);
  if (fragment === last) return;
  history[anew && last !== null ? "pushState" : "replaceState"](null, "", `#${fragment}`);
  last = fragment;
}

/** Calls `changed` when the address was changed by a link or by Back. */
export function follow(changed) {
  addEventListener("popstate", () => {
    if (location.hash.replace(/^#/, "") === last) return;
    last = location.hash.replace(/^#/, "");
    changed(read());
  });
}
