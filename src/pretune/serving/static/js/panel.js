// A panel: the form of a view above its result. A view declares its fields and examples, makes the request from the
// values, and renders the answer; everything else (running, stopping, errors, shortcuts) is here.

import { address, modelPath, post, postStream } from "./api.js";
import { commandLine } from "./command_line.js";
import { element } from "./dom.js";
import { createField, InputError, readField } from "./fields.js";
import { errorNotice } from "./messages.js";
import { t } from "./strings.js";

/**
 * Return the panel of a view for a model. `memory` keeps what was typed and answered while the interface is rebuilt,
 * as it is when the language changes.
 */
export function createPanel(view, model, memory) {
  const fields = view.fields(model);
  const examples = view.examples(model);
  memory.texts ??= { ...defaults(fields), ...examples[0] };
  const inputs = {};
  const nodes = Object.fromEntries(fields.map((field) => [field.name, makeField(field)]));
  const plain = fields.filter((field) => !field.advanced).map((field) => nodes[field.name]);
  const advanced = fields.filter((field) => field.advanced).map((field) => nodes[field.name]);
  const runButton = element("button", { type: "submit", class: "primary" }, t(`${view.id}.run`));
  const output = element("div", { class: "output" });
  const status = element("p", { class: "status", role: "status" });
  const result = element("section", { class: "card result", "aria-label": t("result") }, output, status);
  let running = null; // the AbortController of the request under way

  const form = element("form", { class: "card", onsubmit: submit, onkeydown: shortcut, novalidate: true },
    element("h2", {}, t(`${view.id}.intro`)),
    examples.length > 1 ? exampleButtons() : null,
    element("div", { class: "fields" }, plain),
    advanced.length ? element("details", {}, element("summary", {}, t("options")), element("div", { class: "fields grid" }, advanced)) : null,
    element("div", { class: "actions" }, runButton, element("small", { class: "hint shortcut" }, t("shortcut"))));

  function makeField(field) {
    const { node, input } = createField(field, memory.texts[field.name]);
    inputs[field.name] = input;
    input.addEventListener("input", () => {
      memory.texts[field.name] = input.value;
      input.removeAttribute("aria-invalid");
    });
    return node;
  }

  function exampleButtons() {
    const buttons = examples.map((example, index) => {
      const text = String(Object.values(example)[0]);
      return element("button", { type: "button", class: "chip", "aria-label": t("example", { number: index + 1, text }), title: text,
                                 onclick: () => useExample(example) }, text);
    });
    return element("div", { class: "chips", role: "group", "aria-label": t("examples") }, buttons);
  }

  function useExample(example) {
    for (const [name, value] of Object.entries(example)) {
      inputs[name].value = value;
      inputs[name].dispatchEvent(new Event("input"));
    }
    run();
  }

  function shortcut(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      run();
    }
  }

  function submit(event) {
    event.preventDefault();
    if (running && view.streams) running.abort();
    else run();
  }

  function setRunning(controller) {
    running = controller;
    output.setAttribute("aria-busy", String(controller !== null));
    form.classList.toggle("running", controller !== null);
    runButton.textContent = controller === null ? t(`${view.id}.run`) : t(view.streams ? "stop" : "running");
  }

  function readValues() {
    const values = {};
    for (const field of fields) values[field.name] = readField(field, inputs[field.name].value);
    view.check?.(values, model);
    return values;
  }

  async function run() {
    running?.abort();
    memory.last = null;
    status.textContent = "";
    try {
      const values = readValues();
      const { route, body } = view.request(values, model);
      const controller = new AbortController();
      setRunning(controller);
      const begin = performance.now();
      const path = modelPath(model.name, route);
      try {
        const answer = view.streams ? await stream(path, body, controller, values) : await post(path, body, controller.signal);
        memory.last = { answer, values, path, body, milliseconds: Math.round(performance.now() - begin) };
        if (running === controller) show(memory.last);
      } finally {
        if (running === controller) setRunning(null);
      }
    } catch (error) {
      if (error.name !== "AbortError") fail(error);
    }
  }

  /** Stream an answer; one that is stopped counts as it is. */
  async function stream(path, body, controller, values) {
    let text = "";
    output.replaceChildren(...view.render({ text, done: false }, values, model));
    try {
      const last = await postStream(path, body, controller.signal, (event) => {
        text = event.done ? event.text : text + event.text;
        if (running === controller) output.replaceChildren(...view.render({ text, done: false }, values, model));
      });
      return { text: last.text, done: true };
    } catch (error) {
      if (error.name === "AbortError" && running === controller) return { text, done: true, stopped: true };
      throw error;
    }
  }

  function show({ answer, values, path, body, milliseconds }) {
    output.replaceChildren(...view.render(answer, values, model), commandLine(address(path), body));
    const time = t("took", { milliseconds });
    status.textContent = `${view.summary(answer, values, model)} · ${time}`;
  }

  function fail(error) {
    output.replaceChildren(errorNotice(error, run));
    if (error instanceof InputError) {
      inputs[error.field].setAttribute("aria-invalid", "true");
      inputs[error.field].focus();
    }
  }

  if (memory.last) show(memory.last);
  else output.append(element("p", { class: "hint waiting" }, t("waiting")));
  return element("div", { class: `panel panel-${view.id}` }, form, result);
}

function defaults(fields) {
  return Object.fromEntries(fields.map((field) => [field.name, String(field.value ?? "")]));
}
