// Text that continues a prompt, piece by piece as it comes.

import { element } from "../dom.js";
import { examplesFor } from "../examples.js";
import { t } from "../strings.js";

export const generate = {
  id: "generate",
  streams: true,
  offered: (model) => model.capabilities.includes("generate"),
  fields: () => [
    { kind: "area", name: "prompt", label: t("prompt"), rows: 3 },
    { kind: "number", name: "maxNewTokens", label: t("maxNewTokens"), value: 50, min: 1, max: 500, advanced: true },
    { kind: "number", name: "temperature", label: t("temperature"), hint: t("temperature.hint"), value: 0, min: 0, max: 5, step: 0.1, advanced: true },
    { kind: "number", name: "topK", label: t("sampleK"), min: 1, max: 1000, optional: true, advanced: true },
    { kind: "number", name: "topP", label: t("topP"), min: 0.01, max: 1, step: 0.01, optional: true, advanced: true },
    { kind: "number", name: "seed", label: t("seed"), min: 0, max: 2 ** 31 - 1, optional: true, advanced: true },
  ],
  examples: (model) => examplesFor("generate", model),
  request({ prompt, maxNewTokens, temperature, topK, topP, seed }) {
    const sampling = temperature > 0 ? { temperature, top_k: topK, top_p: topP, seed } : {};
    return { route: "generate", body: { prompt, max_new_tokens: maxNewTokens, ...sampling, stream: true } };
  },
  render({ text, done }, { prompt }, model) {
    const continues = !model.capabilities.includes("translate"); // an encoder-decoder writes a text of its own
    const caret = done ? null : element("span", { class: "caret", "aria-hidden": "true" });
    const parts = continues ? [element("span", { class: "prompt" }, prompt), joined(prompt, text)] : [text];
    return [element("p", { class: "reading written", dir: "auto" }, parts, caret)];
  },
  summary: ({ text, stopped }) => (stopped ? t("generate.stopped") : t("generate.done", { count: Array.from(text).length })),
};

/** Return the continuation with a space before it where the two texts need one. */
function joined(prompt, text) {
  const needed = /[\p{L}\p{N}]$/u.test(prompt) && /^[\p{L}\p{N}]/u.test(text);
  return needed ? ` ${text}` : text;
}
