// Small heat maps of matrices, one pixel per number, scaled by the style sheet.

import { element } from "./dom.js";

const DARKEST = 255;

/** Return a canvas with a map of weights from 0 to 1; the color is that of the page's accent. */
export function drawMap(map) {
  const canvas = element("canvas", { width: map[0].length, height: map.length, "aria-hidden": "true" });
  const context = canvas.getContext("2d");
  const image = context.createImageData(map[0].length, map.length);
  const [red, green, blue] = [96, 140, 235]; // legible on a light and on a dark ground
  map.flat().forEach((weight, at) => {
    image.data.set([red, green, blue, Math.round(Math.sqrt(weight) * DARKEST)], at * 4);
  });
  context.putImageData(image, 0, 0);
  return canvas;
}
