// Spans of text. The server counts characters (code points); JavaScript counts UTF-16 units, two for an emoji.

import { element } from "./dom.js";

/**
 * Return the parts of a text as nodes: strings between the spans, and `render(part, span)` for each span. Spans are
 * {begin, end} in characters; one that begins inside another is left out.
 */
export function renderSpans(text, spans, render) {
  const characters = Array.from(text);
  const nodes = [];
  let at = 0;
  for (const span of [...spans].sort((a, b) => a.begin - b.begin || b.end - a.end)) {
    if (span.begin < at) continue;
    nodes.push(characters.slice(at, span.begin).join(""), render(characters.slice(span.begin, span.end).join(""), span));
    at = span.end;
  }
  return [...nodes, characters.slice(at).join("")];
}

/** Return a text as a paragraph with one span highlighted, or none. */
export function highlighted(text, begin, end) {
  const spans = begin === null || begin === undefined ? [] : [{ begin, end }];
  return element("p", { class: "reading", dir: "auto" }, renderSpans(text, spans, (part) => element("mark", {}, part)));
}
