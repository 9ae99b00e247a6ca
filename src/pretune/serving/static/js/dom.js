// Elements are built from text nodes only: nothing that a model or a user wrote is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** Return an HTML element: element("p", {class: "hint", onclick: run}, "some text", other). */
export function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** Return an SVG element. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

/** Set a CSS custom property of an element (allowed by the content security policy, unlike style attributes). */
export function withProperty(node, name, value) {
  node.style.setProperty(name, value);
  return node;
}

/** Return a meter that fills `share` (0 to 1) of its width; its number is written beside it. */
export function bar(share, kind = "") {
  const made = element("span", { class: `bar ${kind}`, "aria-hidden": "true" }, element("span"));
  return withProperty(made, "--share", String(Math.max(0, Math.min(1, share))));
}

let counter = 0;

/** Return an id that no other element has. */
export function newId(prefix) {
  counter += 1;
  return `${prefix}-${counter}`;
}
