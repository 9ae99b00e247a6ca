// Labels with their probabilities; several labels at once; or a number.

import { bar, element } from "../dom.js";
import { examplesFor } from "../examples.js";
import { formatNumber, formatPercent, t } from "../strings.js";

const MAX_BARS = 20; // the most likely labels

function fields(model) {
  const text = { kind: "area", name: "text", label: t("text"), rows: 4 };
  return model.pair ? [text, { kind: "area", name: "pair", label: t("pair"), rows: 2, optional: true, advanced: true }] : [text];
}

function request({ text, pair }) {
  return { route: "predict", body: pair === undefined ? { texts: [text] } : { texts: [text], pairs: [pair] } };
}

function ranked(prediction) {
  return Object.entries(prediction.probabilities).sort((a, b) => b[1] - a[1]);
}

/** Return the labels that the model chose: one, or any number of several. */
function chosenLabels(prediction) {
  return prediction.labels ?? [prediction.label];
}

function probabilityBars(prediction) {
  const chosen = new Set(chosenLabels(prediction));
  const rows = ranked(prediction).slice(0, MAX_BARS).map(([label, share]) =>
    element("li", { class: chosen.has(label) ? "chosen" : "" },
      element("span", { class: "name", dir: "auto" }, label), bar(share), element("span", { class: "number" }, formatPercent(share))));
  return element("ul", { class: "bars" }, rows);
}

function headline(prediction) {
  return chosenLabels(prediction).join(", ") || t("classify.nothing");
}

const shared = { fields, request, examples: (model) => examplesFor("classify", model) };

export const classify = {
  ...shared,
  id: "classify",
  offered: (model) => model.capabilities.includes("predict") && model.task !== "regress",
  render({ predictions: [prediction] }) {
    return [element("p", { class: "headline", dir: "auto" }, headline(prediction)), probabilityBars(prediction)];
  },
  summary({ predictions: [prediction] }) {
    const share = prediction.labels ? "" : `, ${formatPercent(ranked(prediction)[0][1])}`;
    return headline(prediction) + share;
  },
};

export const score = {
  ...shared,
  id: "score",
  offered: (model) => model.capabilities.includes("predict") && model.task === "regress",
  render: ({ predictions: [{ value }] }) => [element("p", { class: "headline" }, formatNumber(value))],
  summary: ({ predictions: [{ value }] }) => `${t("classify.value")}: ${formatNumber(value)}`,
};
