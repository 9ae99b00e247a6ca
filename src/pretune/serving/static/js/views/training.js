// The curves of a run, and a link to its report.

import { accessToken, address, get, modelPath } from "../api.js";
import { createChart } from "../chart.js";
import { element } from "../dom.js";
import { errorNotice } from "../messages.js";
import { t } from "../strings.js";

const COOKIE_SECONDS = 30;
const COUNTERS = new Set(["tokens", "flops", "seconds"]); // they only grow
const SETTINGS = ["lr", "gradient_norm", "tokens_per_second"]; // shown after the losses and the metrics

/** Hand the access token to the server for one page: a link cannot send it in a header. */
function allowReport(path) {
  const token = accessToken();
  if (token) document.cookie = `pretune_token=${encodeURIComponent(token)}; Path=${path}; Max-Age=${COOKIE_SECONDS}; SameSite=Strict`;
}

function reportLink(model) {
  const url = address(modelPath(model.name, "report"));
  return element("a", { class: "button", href: url, target: "_blank", rel: "noopener", onclick: () => allowReport(new URL(url).pathname) },
    t("training.report"));
}

/** Return the series to show as [name, points], losses and metrics first. */
function chosenSeries(series) {
  const shown = Object.entries(series).filter(([name, points]) => points.length && !COUNTERS.has(name));
  return shown.sort(([one], [other]) => SETTINGS.indexOf(one) - SETTINGS.indexOf(other));
}

async function showCurves(model, memory, output) {
  output.setAttribute("aria-busy", "true");
  try {
    memory.curves ??= (await get(modelPath(model.name, "curves"))).series;
    const charts = chosenSeries(memory.curves).map(([name, points]) => createChart(name, points));
    output.replaceChildren(element("div", { class: "charts" }, charts), element("p", { class: "hint" }, t("training.hint")));
  } catch (error) {
    output.replaceChildren(errorNotice(error, () => showCurves(model, memory, output)));
  } finally {
    output.removeAttribute("aria-busy");
  }
}

export const training = {
  id: "training",
  offered: (model) => model.has_curves || model.has_report,
  build(model, memory) {
    const output = element("div", { class: "output" });
    if (model.has_curves) showCurves(model, memory, output);
    else output.append(element("p", { class: "hint" }, t("training.none")));
    return element("div", { class: "panel panel-training" }, element("section", { class: "card result" },
      element("div", { class: "field-heading" }, element("h2", {}, t("training.intro")), model.has_report ? reportLink(model) : null), output));
  },
};
