// Translations, each below its line.

import { element } from "../dom.js";
import { examplesFor } from "../examples.js";
import { linesOf } from "../fields.js";
import { t } from "../strings.js";

export const translate = {
  id: "translate",
  offered: (model) => model.capabilities.includes("translate"),
  fields: () => [{ kind: "area", name: "text", label: t("translate.text"), rows: 4 }],
  examples: (model) => examplesFor("translate", model),
  request: ({ text }) => ({ route: "translate", body: { texts: linesOf(text) } }),
  render({ translations }, { text }) {
    const lines = linesOf(text);
    return translations.map((translation, at) =>
      element("div", { class: "translation" }, element("p", { class: "source", dir: "auto" }, lines[at]),
        element("p", { class: "target", dir: "auto" }, translation)));
  },
  summary: ({ translations }) => translations.join(" "),
};
