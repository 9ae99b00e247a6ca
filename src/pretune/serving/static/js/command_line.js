// The request that was just answered, as a command to copy.

import { accessToken } from "./api.js";
import { element } from "./dom.js";
import { t } from "./strings.js";

/** Return a fold-out with the curl command of a request; a token is written as a variable, never shown. */
export function commandLine(url, body) {
  const token = accessToken() ? ` \\\n  -H "Authorization: Bearer $PRETUNE_TOKEN"` : "";
  const json = JSON.stringify(body).replaceAll("'", String.raw`'\''`);
  const command = `curl '${url}'${token} \\\n  -H 'Content-Type: application/json' \\\n  -d '${json}'`;
  const button = element("button", { type: "button", class: "small", onclick: copy }, t("copy"));
  const code = element("code", {}, command);

  async function copy() {
    try {
      await navigator.clipboard.writeText(command);
      button.textContent = t("copied");
    } catch {
      getSelection().selectAllChildren(code); // the page is not in a secure context: select the text instead
    }
  }

  return element("details", { class: "command" }, element("summary", {}, t("request")),
    element("pre", { tabindex: "0" }, code), button);
}
