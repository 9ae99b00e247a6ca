// Line charts in SVG, with a cursor that reads their values.

import { element, svg } from "./dom.js";
import { formatNumber, t } from "./strings.js";

const WIDTH = 420;
const HEIGHT = 220;
const LEFT = 52;
const RIGHT = 24;
const TOP = 12;
const BOTTOM = 26;

/** Return about `count` round numbers from `low` to `high`. */
export function niceTicks(low, high, count = 5) {
  const span = high - low || Math.abs(high) || 1;
  const power = 10 ** Math.floor(Math.log10(span / count));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => span / size <= count);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, at) => (first + at) * step);
}

function scale(values, from, to) {
  const low = Math.min(...values);
  const high = Math.max(...values);
  const flat = high === low;
  return { low, high, place: (value) => (flat ? (from + to) / 2 : from + ((value - low) / (high - low)) * (to - from)) };
}

/** Return a figure with the chart of a series of [step, value]. */
export function createChart(name, points) {
  const x = scale(points.map(([step]) => step), LEFT, WIDTH - RIGHT);
  const y = scale(points.map(([, value]) => value), HEIGHT - BOTTOM, TOP);
  const places = points.map(([step, value]) => [x.place(step), y.place(value)]);
  const path = places.map(([px, py], at) => `${at ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("");
  const cursor = svg("g", { class: "cursor", visibility: "hidden" }, svg("line", { y1: TOP, y2: HEIGHT - BOTTOM }), svg("circle", { r: 4 }));
  const readout = element("span", { class: "readout", "aria-live": "polite" });
  let chosen = -1;

  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", tabindex: "0", "aria-label": description(name, points),
                               onpointermove: follow, onpointerleave: clear, onkeydown: step, onblur: clear },
    niceTicks(y.low, y.high).map((value) => [
      svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y.place(value), y2: y.place(value) }),
      svg("text", { x: LEFT - 8, y: y.place(value), class: "y" }, formatNumber(value))]),
    niceTicks(x.low, x.high).map((value) => svg("text", { x: x.place(value), y: HEIGHT - 6, class: "x" }, formatNumber(value))),
    svg("path", { d: path }), places.length === 1 ? svg("circle", { cx: places[0][0], cy: places[0][1], r: 4 }) : null, cursor);

  function follow(event) {
    const box = drawing.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * WIDTH;
    const distances = places.map(([px]) => Math.abs(px - at));
    read(distances.indexOf(Math.min(...distances)));
  }

  function step(event) {
    const moves = { ArrowLeft: chosen - 1, ArrowRight: chosen + 1, Home: 0, End: points.length - 1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    read(Math.max(0, Math.min(points.length - 1, moves[event.key])));
  }

  function read(at) {
    chosen = at;
    const [px, py] = places[at];
    cursor.setAttribute("visibility", "visible");
    cursor.firstChild.setAttribute("x1", px);
    cursor.firstChild.setAttribute("x2", px);
    cursor.lastChild.setAttribute("cx", px);
    cursor.lastChild.setAttribute("cy", py);
    readout.textContent = t("training.at", { name, value: formatNumber(points[at][1]), step: formatNumber(points[at][0]) });
  }

  function clear() {
    chosen = -1;
    cursor.setAttribute("visibility", "hidden");
    readout.textContent = "";
  }

  return element("figure", { class: "chart" }, element("figcaption", {}, element("strong", {}, name), readout), drawing);
}

function description(name, points) {
  const [from, first] = points[0];
  const [to, last] = points.at(-1);
  return t("training.range", { name, first: formatNumber(first), from: formatNumber(from), last: formatNumber(last), to: formatNumber(to) });
}
