// Attention maps: a small map of every head, and the connections of the chosen one.

import { element, newId, withProperty } from "../dom.js";
import { examplesFor } from "../examples.js";
import { createConnections } from "../connections.js";
import { drawMap } from "../heat_map.js";
import { roving } from "../keyboard.js";
import { t } from "../strings.js";

/** Return the mean of several maps, (query, key). */
function meanMap(maps) {
  return maps[0].map((row, query) => row.map((_, key) => maps.reduce((sum, map) => sum + map[query][key], 0) / maps.length));
}

/** Return how much words look at other words: the mean of each inner token's strongest weight on another inner token. */
function focus(map) {
  const inner = map.slice(1, -1);
  const strongest = inner.map((row, at) => Math.max(0, ...row.slice(1, -1).filter((_, key) => key !== at)));
  return strongest.reduce((sum, weight) => sum + weight, 0) / (inner.length || 1);
}

/** Return the head to show first: the one with the most focus, not one that only looks at itself or at special tokens. */
function clearestHead(maps) {
  const heads = maps.flatMap((row, layer) => row.map((map, head) => ({ layer, head, value: focus(map) })));
  return heads.reduce((best, one) => (one.value > best.value ? one : best));
}

function picker(label, options, onchange) {
  const id = newId("picker");
  const made = element("select", { id, onchange: () => onchange(Number(made.value)) },
    options.map(([value, text]) => element("option", { value: String(value) }, text)));
  return { node: element("div", { class: "picker" }, element("label", { for: id }, label), made), set: (value) => { made.value = String(value); } };
}

export const attention = {
  id: "attention",
  offered: (model) => model.capabilities.includes("attention"),
  fields: () => [{ kind: "area", name: "text", label: t("text"), rows: 2 }],
  examples: (model) => examplesFor("attention", model),
  request: ({ text }) => ({ route: "attention", body: { text } }),
  render({ tokens, attention: maps }) {
    const heads = maps[0].length;
    const connections = createConnections(tokens);
    const layerPicker = picker(t("layer"), maps.map((_, at) => [at, String(at + 1)]), (layer) => choose(layer, chosen.head));
    const headPicker = picker(t("head"), [[-1, t("head.mean")], ...maps[0].map((_, at) => [at, String(at + 1)])],
      (head) => choose(chosen.layer, head));
    const cells = maps.flatMap((row, layer) => row.map((map, head) => {
      const label = t("attention.cell", { layer: layer + 1, head: head + 1 });
      return element("button", { type: "button", class: "head", "aria-label": label, title: label, "aria-pressed": "false",
                                 onclick: () => choose(layer, head) }, drawMap(map));
    }));
    const grid = element("div", { class: "heads", role: "group", "aria-label": t("attention.heads") }, cells);
    withProperty(grid, "--columns", String(heads));
    let chosen = clearestHead(maps);
    const focusable = roving(grid, cells, { columns: heads, start: chosen.layer * heads + chosen.head, onMove: (at) => choose(Math.floor(at / heads), at % heads) });

    function choose(layer, head) {
      chosen = { layer, head };
      layerPicker.set(layer);
      headPicker.set(head);
      const index = head < 0 ? -1 : layer * heads + head;
      cells.forEach((cell, at) => cell.setAttribute("aria-pressed", String(at === index)));
      if (index >= 0) focusable(index);
      connections.show(head < 0 ? meanMap(maps[layer]) : maps[layer][head]);
    }

    choose(chosen.layer, chosen.head);
    return [
      element("div", { class: "attention-layout" },
        element("div", {}, element("h3", {}, t("attention.heads")), grid, element("div", { class: "pickers" }, layerPicker.node, headPicker.node)),
        connections.node),
    ];
  },
  summary: ({ tokens, attention: maps }) => t("attention.size", { tokens: tokens.length, layers: maps.length, heads: maps[0].length }),
};
