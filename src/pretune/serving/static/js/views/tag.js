// Labeled spans, highlighted in the text, with a legend.

import { element } from "../dom.js";
import { examplesFor } from "../examples.js";
import { renderSpans } from "../spans.js";
import { t } from "../strings.js";

const COLORS = 8; // classes tag-0 to tag-7 of results.css

/** Return the class of each label; labels keep their color as long as the model is the same. */
function colorsOf(labels, model) {
  const known = model.labels ?? [];
  const order = [...new Set([...known.map(plainLabel).filter((label) => labels.includes(label)), ...labels])];
  return new Map(order.map((label, at) => [label, `tag-${at % COLORS}`]));
}

/** Return a label without the prefix of a tagging scheme: B-PER is PER. */
function plainLabel(label) {
  return label.replace(/^[BIES]-/, "");
}

export const tag = {
  id: "tag",
  offered: (model) => model.capabilities.includes("tag"),
  fields: () => [{ kind: "area", name: "text", label: t("text"), rows: 4 }],
  examples: (model) => examplesFor("tag", model),
  request: ({ text }) => ({ route: "tag", body: { texts: [text] } }),
  render({ predictions: [{ text, spans }] }, values, model) {
    const labels = [...new Set(spans.map((span) => span.label))];
    const colors = colorsOf(labels, model);
    const nodes = renderSpans(text, spans, (part, { label }) =>
      element("mark", { class: `tag ${colors.get(label)}` }, part, element("span", { class: "tag-name" }, label)));
    const legend = labels.map((label) => {
      const count = spans.filter((span) => span.label === label).length;
      return element("li", {}, element("span", { class: `swatch ${colors.get(label)}` }), `${label} · ${count}`);
    });
    return [
      element("p", { class: "reading tagged", dir: "auto" }, nodes),
      labels.length ? element("ul", { class: "legend" }, legend) : element("p", { class: "hint" }, t("tag.none")),
    ];
  },
  summary: ({ predictions: [{ spans }] }) => t("tag.count", { count: spans.length }),
};
