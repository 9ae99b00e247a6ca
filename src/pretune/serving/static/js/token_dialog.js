// The dialog that asks for the access token of the server.

import { element, newId } from "./dom.js";
import { t } from "./strings.js";

/** Ask for the token; return a promise of it, or of null if the user declines. `rejected`: one was refused before. */
export function askForToken(rejected) {
  return new Promise((resolve) => {
    const id = newId("token");
    const input = element("input", { id, type: "password", autocomplete: "off", required: true, "data-field": "token" });
    const send = (event) => {
      event.preventDefault();
      dialog.returnValue = input.value.trim();
      if (dialog.returnValue) dialog.close(dialog.returnValue);
    };
    const dialog = element("dialog", { "aria-labelledby": `${id}-title` },
      element("form", { onsubmit: send },
        element("h2", { id: `${id}-title` }, t("token.title")),
        element("p", {}, t("token.text")),
        rejected ? element("p", { class: "notice", role: "alert" }, t("token.rejected")) : null,
        element("div", { class: "field" }, element("label", { for: id }, t("token.label")), input),
        element("div", { class: "actions" },
          element("button", { type: "submit", class: "primary" }, t("token.send")),
          element("button", { type: "button", onclick: () => dialog.close("") }, t("token.cancel")))));
    dialog.addEventListener("cancel", () => {
      dialog.returnValue = "";
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue || null);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
