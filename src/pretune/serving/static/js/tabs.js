// Tabs as the ARIA Authoring Practices describe them: one Tab stop, arrow keys, Home and End; focus selects.

import { element, newId } from "./dom.js";
import { roving } from "./keyboard.js";

/**
 * Return a tab list with its panels. `views` are {id, label, build}; a panel is built when it is first shown.
 */
export function createTabs(views, { label, selected, onSelect }) {
  const base = newId("tabs");
  const tabs = views.map((view) =>
    element("button", { type: "button", role: "tab", id: `${base}-${view.id}`, "aria-controls": `${base}-${view.id}-panel`,
                        "data-tab": view.id, onclick: () => show(views.indexOf(view)) }, view.label),
  );
  const panels = views.map((view) =>
    element("div", { role: "tabpanel", id: `${base}-${view.id}-panel`, "aria-labelledby": `${base}-${view.id}`, hidden: true }),
  );
  const list = element("div", { role: "tablist", "aria-label": label, class: "tabs" }, tabs);
  const start = Math.max(0, views.findIndex((view) => view.id === selected));
  const focusable = roving(list, tabs, { onMove: show, start });

  function show(index) {
    tabs.forEach((tab, at) => tab.setAttribute("aria-selected", String(at === index)));
    panels.forEach((panel, at) => {
      panel.hidden = at !== index;
    });
    focusable(index);
    if (!panels[index].hasChildNodes()) panels[index].append(views[index].build());
    onSelect(views[index].id);
  }

  show(start);
  return element("div", {}, list, panels);
}
