// The answer to a question, lit in its context.

import { element } from "../dom.js";
import { examplesFor } from "../examples.js";
import { highlighted } from "../spans.js";
import { formatPercent, t } from "../strings.js";

export const answer = {
  id: "answer",
  offered: (model) => model.capabilities.includes("answer"),
  fields: () => [
    { kind: "line", name: "question", label: t("question") },
    { kind: "area", name: "context", label: t("context"), rows: 6 },
  ],
  examples: (model) => examplesFor("answer", model),
  request: ({ question, context }) => ({ route: "answer", body: { questions: [question], contexts: [context] } }),
  render({ answers: [found] }, { context }) {
    const headline = found.answer || t("answer.none");
    return [element("p", { class: "headline", dir: "auto" }, headline), highlighted(context, found.begin, found.end)];
  },
  summary: ({ answers: [found] }) =>
    `${found.answer || t("answer.none")}${found.score === null ? "" : `, ${t("answer.score", { score: formatPercent(found.score) })}`}`,
};
