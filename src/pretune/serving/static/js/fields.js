// The fields of a form, declared by the views: {kind, name, label, …}, where kind is area, line, number or choice.

import { element, newId } from "./dom.js";
import { t } from "./strings.js";

/** An input that cannot be sent; `name` is the field's. */
export class InputError extends Error {
  constructor(name, message) {
    super(message);
    this.name = "InputError";
    this.field = name;
  }
}

function control(field, id, value) {
  const shared = { id, name: field.name, "data-field": field.name, autocomplete: "off" };
  if (field.kind === "area") {
    const made = element("textarea", { ...shared, rows: field.rows ?? 4, spellcheck: "false", dir: "auto" });
    made.value = value;
    return made;
  }
  if (field.kind === "choice") {
    const options = field.options.map(({ value: key, label }) => element("option", { value: key, selected: key === value }, label));
    return element("select", shared, options);
  }
  const kind = field.kind === "number" ? { type: "number", min: field.min, max: field.max, step: field.step ?? 1, inputmode: "decimal" }
                                       : { type: "text", spellcheck: "false", dir: "auto" };
  const made = element("input", { ...shared, ...kind });
  made.value = value;
  return made;
}

/** Return {node, input}: a labeled field that shows `value`. */
export function createField(field, value) {
  const id = newId(field.name);
  const input = control(field, id, value);
  const hint = field.hint ? element("small", { id: `${id}-hint`, class: "hint" }, field.hint) : null;
  if (hint) input.setAttribute("aria-describedby", hint.id);
  const label = element("label", { for: id }, field.label, field.optional ? element("span", { class: "hint" }, ` (${t("optional")})`) : null);
  const action = field.action ? element("button", { type: "button", class: "small", onclick: () => field.action.run(input) }, field.action.label) : null;
  const heading = action ? element("div", { class: "field-heading" }, label, action) : label;
  return { node: element("div", { class: `field ${field.kind}` }, heading, input, hint), input };
}

/** Return the value of a field as requests need it: text, a number, or undefined for an optional one that is empty. */
export function readField(field, text) {
  if (!text.trim() && field.kind !== "choice") {
    if (field.optional) return undefined;
    throw new InputError(field.name, t("error.empty", { field: field.label }));
  }
  if (field.kind !== "number") return text;
  const number = Number(text);
  if (!(number >= field.min && number <= field.max))
    throw new InputError(field.name, t("error.number", { field: field.label, min: field.min, max: field.max }));
  return number;
}

/** Return the lines of a text that are not blank. */
export function linesOf(text) {
  return text.split("\n").map((line) => line.trim()).filter(Boolean);
}
