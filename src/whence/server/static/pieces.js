/* Tokens of what a model reads and writes, put back in their places: texts, and where each token stands in them. */

/** The written tokens as one text, with the span of each. Tokens say themselves whether a space precedes them. */
export function joined(tokens) {
  const marked = tokens.some((token) => /^\s/.test(token)), spans = [];
  let text = "";
  for (const token of tokens) {
    const glued = token.startsWith("##"), own = glued ? token.slice(2) : token;
    if (!marked && !glued && text && !/^[.,;:!?)’'\]]/.test(own)) text += " ";
    const lead = own.match(/^\s*/)[0], start = Array.from(text + lead).length;
    text += own;
    spans.push([start, Array.from(text).length]);
  }
  return { text, spans };
}

/** Where tokens without spans stand in a text: one after the other; those that are not found are special. */
export function found(text, tokens) {
  const low = Array.from(text.toLowerCase());
  let last = 0;
  return tokens.map((token) => {
    const own = Array.from(token.replace(/^##/, "").toLowerCase());
    for (let i = last; own.length && i + own.length <= low.length; i++) {
      if (own.every((letter, k) => low[i + k] === letter)) {
        last = i + own.length;
        return [i, last];
      }
    }
    return null;
  });
}

/** The tokens' numbers, cut after punctuation. */
export function clauses(tokens) {
  const out = [[]];
  tokens.forEach((token, j) => {
    out.at(-1).push(j);
    if (/[.,;:!?]\s*$/.test(token) && j < tokens.length - 1) out.push([]);
  });
  return out;
}
