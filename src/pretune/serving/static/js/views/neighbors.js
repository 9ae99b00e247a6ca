// Words of other texts that are used as a word is used in its sentence.

import { bar, element } from "../dom.js";
import { examplesFor } from "../examples.js";
import { InputError, linesOf } from "../fields.js";
import { highlighted } from "../spans.js";
import { formatNumber, t } from "../strings.js";

const TWO_DIGITS = { minimumFractionDigits: 2, maximumFractionDigits: 2 };

function layers(model) {
  const numbers = Array.from({ length: model.layers }, (_, at) => String(at + 1));
  return [{ value: "-1", label: t("layer.last") }, ...numbers.map((number) => ({ value: number, label: number }))];
}

export const neighbors = {
  id: "neighbors",
  offered: (model) => model.capabilities.includes("neighbors"),
  fields: (model) => [
    { kind: "line", name: "word", label: t("word") },
    { kind: "line", name: "text", label: t("sentence") },
    { kind: "area", name: "texts", label: t("corpus"), rows: 6 },
    { kind: "number", name: "topK", label: t("neighborsK"), value: 5, min: 1, max: 50, advanced: true },
    { kind: "choice", name: "layer", label: t("layer"), value: "-1", options: layers(model), advanced: true },
  ],
  examples: (model) => examplesFor("neighbors", model),
  check({ word, text }) {
    if (!text.toLowerCase().includes(word.trim().toLowerCase())) throw new InputError("word", t("error.word", { word: word.trim() }));
  },
  request: ({ word, text, texts, topK, layer }) => ({
    route: "neighbors", body: { word: word.trim(), text, texts: linesOf(texts), top_k: topK, layer: Number(layer) },
  }),
  render({ neighbors: found }) {
    if (!found.length) return [element("p", { class: "hint" }, t("neighbors.none"))];
    const rows = found.map((one) =>
      element("li", {}, element("span", { class: "name" }, highlighted(one.text, one.begin, one.end)), bar(one.similarity),
        element("span", { class: "number" }, formatNumber(one.similarity, TWO_DIGITS))));
    return [element("ol", { class: "bars pairs" }, rows)];
  },
  summary: ({ neighbors: found }) =>
    found.length ? `${found[0].word}: ${formatNumber(found[0].similarity, TWO_DIGITS)}` : t("neighbors.none"),
};
