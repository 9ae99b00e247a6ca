// The attention of one head: two columns of tokens, joined by lines that are as strong as the weights.

import { element, svg, withProperty } from "./dom.js";
import { roving } from "./keyboard.js";
import { formatPercent, t } from "./strings.js";

const ROW = 26; // pixels, as in results.css
const WIDTH = 100; // of the drawing, in its own units
const VISIBLE = 0.05; // the smallest weight that is drawn while no token is chosen
const VISIBLE_CHOSEN = 0.005;
const LISTED = 3; // tokens in the sentence for screen readers

/** Return {node, show}: `show` draws a map of weights, (query, key). */
export function createConnections(tokens) {
  const left = tokens.map((token, at) => tokenButton(token, () => point("from", at)));
  const right = tokens.map((token, at) => tokenButton(token, () => point("to", at)));
  const lines = svg("svg", { viewBox: `0 0 ${WIDTH} ${tokens.length * ROW}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const readout = element("p", { class: "hint readout", "aria-live": "polite" }, t("attention.hint"));
  const columns = [element("div", { class: "tokens from", role: "group", "aria-label": t("attention.from") }, left), lines,
                   element("div", { class: "tokens to", role: "group", "aria-label": t("attention.to") }, right)];
  const node = element("div", {}, element("div", { class: "columns-heading", "aria-hidden": "true" },
    element("span", {}, t("attention.from")), element("span", {}, t("attention.to"))),
    element("div", { class: "connections" }, columns), readout);
  withProperty(lines, "height", `${tokens.length * ROW}px`);
  roving(columns[0], left);
  roving(columns[2], right);
  node.addEventListener("pointerleave", () => point(null, -1));
  let weights = null;
  let pointed = { side: null, index: -1 };

  function tokenButton(token, onPoint) {
    return element("button", { type: "button", class: "token", dir: "auto", title: token, onpointerenter: onPoint, onfocus: onPoint, onclick: onPoint },
      element("span", { class: "share", "aria-hidden": "true" }), element("span", { class: "word" }, token));
  }

  function point(side, index) {
    pointed = { side, index };
    draw();
  }

  function draw() {
    const { side, index } = pointed;
    const drawn = [];
    weights.forEach((row, query) => row.forEach((weight, key) => {
      const relevant = side === null ? weight >= VISIBLE : (side === "from" ? query : key) === index && weight >= VISIBLE_CHOSEN;
      if (relevant) drawn.push(line(query, key, weight));
    }));
    lines.replaceChildren(...drawn);
    shade(left, (at) => (side === "to" ? weights[at][index] : null), side === "from" ? index : -1);
    shade(right, (at) => (side === "from" ? weights[index][at] : null), side === "to" ? index : -1);
    readout.textContent = side === "from" ? sentence(index) : t("attention.hint");
  }

  function sentence(query) {
    const best = weights[query].map((weight, key) => ({ weight, key })).sort((a, b) => b.weight - a.weight).slice(0, LISTED);
    const list = best.map(({ weight, key }) => `${tokens[key]} (${formatPercent(weight)})`).join(", ");
    return t("attention.most", { token: tokens[query], list });
  }

  function show(map) {
    weights = map;
    draw();
  }

  return { node, show };
}

function line(query, key, weight) {
  return svg("line", { x1: 0, y1: (query + 0.5) * ROW, x2: WIDTH, y2: (key + 0.5) * ROW, opacity: Math.min(1, 0.08 + weight).toFixed(3),
                       "vector-effect": "non-scaling-stroke" });
}

/** Shade tokens by their weight, write it beside them, and mark the chosen one. */
function shade(buttons, weightOf, chosen) {
  buttons.forEach((button, at) => {
    const weight = weightOf(at);
    withProperty(button, "--share", String(weight ?? 0));
    button.classList.toggle("chosen", at === chosen);
    button.firstChild.textContent = weight !== null && weight >= 0.01 ? formatPercent(weight) : "";
  });
}
