// What went wrong, in a sentence, with a button where trying again can help.

import { ApiError } from "./api.js";
import { element } from "./dom.js";
import { InputError } from "./fields.js";
import { t } from "./strings.js";

const RETRY = new Set(["busy", "restarting", "down", "unauthorized", "slow", "failed"]);

/** Return the sentence for a failed request or a bad input. */
export function errorMessage(error) {
  if (error instanceof InputError) return error.message;
  if (!(error instanceof ApiError)) return t("error.failed");
  const message = t(`error.${error.kind}`, { seconds: Math.ceil(error.retryAfter ?? 1) });
  const tells = error.kind === "input" || error.kind === "failed" || error.kind === "large" || error.kind === "missing";
  return tells && error.message ? `${message} ${error.message}` : message;
}

/** Return an alert for an error; `again` is called by its button. */
export function errorNotice(error, again) {
  const helps = error instanceof ApiError && RETRY.has(error.kind);
  return element("div", { class: "notice", role: "alert" },
    element("p", {}, errorMessage(error)),
    helps ? element("button", { type: "button", class: "small", onclick: again }, t("again")) : null);
}
