// How similar sentences are: a heat map of all pairs, and the most similar ones.

import { bar, element, withProperty } from "../dom.js";
import { examplesFor } from "../examples.js";
import { InputError, linesOf } from "../fields.js";
import { formatNumber, t } from "../strings.js";

const MAX_PAIRS = 5;
const TWO_DIGITS = { minimumFractionDigits: 2, maximumFractionDigits: 2 };

/** Return a function that places a similarity between the lowest and the highest of all pairs, from 0 to 1. */
function relativeTo(similarities) {
  const values = pairsOf(similarities).map((pair) => pair.value);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return (value) => (high > low ? (value - low) / (high - low) : 0.5);
}

function cell(value, share, same) {
  const made = element("td", { class: same ? "same" : "" }, formatNumber(value, TWO_DIGITS));
  return withProperty(made, "--share", String(0.05 + 0.95 * share));
}

function matrix(similarities, texts) {
  const share = relativeTo(similarities);
  const head = texts.map((_, at) => element("th", { scope: "col" }, String(at + 1)));
  const rows = similarities.map((row, at) =>
    element("tr", {}, element("th", { scope: "row", title: texts[at] }, element("span", { class: "number" }, `${at + 1} `),
      element("span", { class: "long", dir: "auto" }, texts[at])), row.map((value, column) => cell(value, share(value), at === column))));
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": t("similarity.matrix") },
    element("table", { class: "matrix" }, element("caption", {}, t("similarity.matrix")),
      element("thead", {}, element("tr", {}, element("td"), head)), element("tbody", {}, rows)));
}

/** Return all pairs of texts as {a, b, value}, the most similar first. */
function pairsOf(similarities) {
  const pairs = similarities.flatMap((row, a) => row.slice(a + 1).map((value, at) => ({ a, b: a + 1 + at, value })));
  return pairs.sort((one, other) => other.value - one.value);
}

export const similarity = {
  id: "similarity",
  offered: (model) => model.capabilities.includes("embed"),
  fields: () => [{ kind: "area", name: "texts", label: t("sentences"), rows: 6 }],
  examples: (model) => examplesFor("similarity", model),
  check({ texts }) {
    if (linesOf(texts).length < 2) throw new InputError("texts", t("error.few"));
  },
  request: ({ texts }) => ({ route: "similarity", body: { texts: linesOf(texts) } }),
  render({ similarities }, values) {
    const texts = linesOf(values.texts);
    const pairs = pairsOf(similarities).slice(0, MAX_PAIRS).map(({ a, b, value }) =>
      element("li", {}, element("span", { class: "name" }, element("span", { dir: "auto" }, texts[a]), element("span", { dir: "auto" }, texts[b])),
        bar(value), element("span", { class: "number" }, formatNumber(value, TWO_DIGITS))));
    return [matrix(similarities, texts), element("h3", {}, t("similarity.pairs")), element("ul", { class: "bars pairs" }, pairs)];
  },
  summary({ similarities }, values) {
    const [{ a, b, value }] = pairsOf(similarities);
    const texts = linesOf(values.texts);
    return `${texts[a]} / ${texts[b]}: ${formatNumber(value, TWO_DIGITS)}`;
  },
};
