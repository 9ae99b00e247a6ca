// The theme: that of the system, unless one was chosen.

import { settings } from "./storage.js";

const KEY = "pretune.theme";
export const THEMES = ["auto", "light", "dark"];

/** Return the chosen theme. */
export function theme() {
  const chosen = settings.get(KEY);
  return THEMES.includes(chosen) ? chosen : "auto";
}

/** Choose a theme and remember it. */
export function setTheme(chosen) {
  if (chosen === "auto") {
    settings.remove(KEY);
    delete document.documentElement.dataset.theme;
  } else {
    settings.set(KEY, chosen);
    document.documentElement.dataset.theme = chosen;
  }
}
