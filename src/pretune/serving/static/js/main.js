// The page: a choice of models, language and theme above the tabs of what the chosen model can do.

import { get, onUnauthorized } from "./api.js";
import { element } from "./dom.js";
import { errorNotice } from "./messages.js";
import { createPanel } from "./panel.js";
import { formatNumber, language, LANGUAGES, setLanguage, t } from "./strings.js";
import { createTabs } from "./tabs.js";
import { setTheme, theme, THEMES } from "./theme.js";
import { askForToken } from "./token_dialog.js";
import { answer } from "./views/answer.js";
import { attention } from "./views/attention.js";
import { classify, score } from "./views/classify.js";
import { fill } from "./views/fill.js";
import { generate } from "./views/generate.js";
import { neighbors } from "./views/neighbors.js";
import { similarity } from "./views/similarity.js";
import { tag } from "./views/tag.js";
import { training } from "./views/training.js";
import { translate } from "./views/translate.js";

const VIEWS = [classify, score, tag, answer, translate, generate, fill, similarity, neighbors, attention, training];
const content = document.getElementById("content");
const controls = document.getElementById("controls");
const memories = new Map(); // what was typed and answered, by model and view
let models = null;
let failed = null; // why the models could not be read
let place = readAddress();

/** Return the model and the tab of the address: #/NAME/TAB. */
function readAddress() {
  const [, name = "", tab = ""] = location.hash.split("/");
  try {
    return { name: decodeURIComponent(name), tab };
  } catch {
    return { name: "", tab: "" };
  }
}

function goTo(name, tab) {
  place = { name, tab };
  history.replaceState(null, "", `#/${encodeURIComponent(name)}/${tab}`);
}

function chosenModel() {
  return models.find((model) => model.name === place.name) ?? models[0];
}

function memoryOf(model, view) {
  const key = JSON.stringify([model.name, view.id]);
  if (!memories.has(key)) memories.set(key, {});
  return memories.get(key);
}

function select(label, id, options, selected, onchange) {
  const made = element("select", { id, onchange: () => onchange(made.value) },
    options.map(([value, text]) => element("option", { value, selected: value === selected }, text)));
  return element("div", { class: `control ${id}` }, element("label", { for: id }, label), made);
}

function renderControls() {
  const focused = document.activeElement?.id;
  const themes = THEMES.map((name) => [name, t(`theme.${name}`)]);
  const picker = models?.length ? select(t("model"), "model", models.map((model) => [model.name, model.name]), chosenModel().name, changeModel) : null;
  controls.replaceChildren(...[
    picker,
    select(t("theme"), "theme", themes, theme(), setTheme),
    select(t("language"), "language", Object.entries(LANGUAGES), language(), changeLanguage),
  ].filter(Boolean));
  if (focused) document.getElementById(focused)?.focus();
}

function changeModel(name) {
  goTo(name, place.tab);
  render();
}

function changeLanguage(chosen) {
  setLanguage(chosen);
  render();
}

function facts(model) {
  const compact = { notation: "compact", maximumSignificantDigits: 3 };
  const items = [
    model.family,
    t("facts.parameters", { count: formatNumber(model.parameters, compact) }),
    model.layers ? t("facts.layers", { count: model.layers }) : null,
    model.heads ? t("facts.heads", { count: model.heads }) : null,
    model.labels ? t("facts.labels", { count: model.labels.length }) : null,
    model.max_length ? t("facts.length", { count: formatNumber(model.max_length) }) : null,
  ];
  return element("ul", { class: "facts" }, items.filter(Boolean).map((item) => element("li", {}, item)));
}

function message(title, text) {
  return element("section", { class: "card" }, element("h2", {}, title), element("p", {}, text));
}

function renderModel(model) {
  const views = VIEWS.filter((view) => view.offered(model)).map((view) => {
    const build = () => (view.build ?? ((...args) => createPanel(view, ...args)))(model, memoryOf(model, view));
    return { id: view.id, label: t(`${view.id}.tab`), build };
  });
  if (!views.length) return [facts(model), message(t("nothing.title"), t("nothing.text"))];
  return [facts(model), createTabs(views, { label: t("tabs"), selected: place.tab, onSelect: (tab) => goTo(model.name, tab) })];
}

function render() {
  document.documentElement.lang = language();
  document.getElementById("skip").textContent = t("skip");
  renderControls();
  if (failed) content.replaceChildren(errorNotice(failed, start));
  else if (models === null) content.replaceChildren(element("p", { class: "hint", role: "status" }, t("loading")));
  else if (!models.length) content.replaceChildren(message(t("none.title"), t("none.text")));
  else content.replaceChildren(element("h1", { class: "visually-hidden" }, chosenModel().name), ...renderModel(chosenModel()));
}

async function start() {
  failed = null;
  models = null;
  render();
  try {
    ({ models } = await get("api/models"));
  } catch (error) {
    failed = error;
  }
  render();
}

onUnauthorized(askForToken);
addEventListener("hashchange", () => {
  place = readAddress();
  if (models) render();
});
start();
