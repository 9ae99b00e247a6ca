// Candidates for each mask; choosing one shows it in the sentence.

import { bar, element } from "../dom.js";
import { examplesFor } from "../examples.js";
import { InputError } from "../fields.js";
import { formatPercent, t } from "../strings.js";

function insertMask(input, mask) {
  input.setRangeText(mask, input.selectionStart, input.selectionEnd, "end");
  input.dispatchEvent(new Event("input"));
  input.focus();
}

/** Return a piece of a word as it is written in the sentence. */
function written(token) {
  return token.startsWith("##") ? token.slice(2) : token;
}

function gapCandidates(candidates, number, many, slot) {
  const buttons = candidates.map(({ token, probability }) =>
    element("button", { type: "button", class: "candidate", "aria-pressed": "false", onclick: () => choose(token) },
      element("span", { class: "name", dir: "auto" }, token), bar(probability),
      element("span", { class: "number" }, formatPercent(probability))));

  function choose(token) {
    slot.textContent = written(token);
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(candidates[at].token === token)));
  }

  choose(candidates[0].token);
  const label = t("fill.gap", { number });
  return element("div", { class: "gap", role: "group", "aria-label": label }, many ? element("h3", {}, label) : null, buttons);
}

export const fill = {
  id: "fill",
  offered: (model) => model.capabilities.includes("fill"),
  fields: (model) => [
    { kind: "area", name: "text", label: t("text"), rows: 3,
      action: { label: t("fill.insert", { mask: model.mask_token }), run: (input) => insertMask(input, model.mask_token) } },
    { kind: "number", name: "topK", label: t("topK"), value: 5, min: 1, max: 20, advanced: true },
  ],
  examples: (model) => examplesFor("fill", model).map(({ text }) => ({ text: text.replaceAll("[MASK]", model.mask_token) })),
  check({ text }, model) {
    if (!text.includes(model.mask_token)) throw new InputError("text", t("error.mask", { mask: model.mask_token }));
  },
  request: ({ text, topK }) => ({ route: "fill", body: { texts: [text], top_k: topK } }),
  render({ results: [{ text, masks }] }, values, model) {
    const slots = masks.map(() => element("mark", { class: "slot" }));
    const parts = text.split(model.mask_token).flatMap((part, at) => (at ? [slots[at - 1], part] : [part]));
    const gaps = masks.map((candidates, at) => gapCandidates(candidates, at + 1, masks.length > 1, slots[at]));
    return [
      element("p", { class: "reading large", dir: "auto", "aria-live": "polite" }, parts),
      element("p", { class: "hint" }, t("fill.hint")),
      element("div", { class: "gaps" }, gaps),
    ];
  },
  summary: ({ results: [{ masks }] }) => masks.map(([best]) => `${best.token}, ${formatPercent(best.probability)}`).join("; "),
};
