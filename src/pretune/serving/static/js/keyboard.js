// Roving focus: a group of items is one stop of the Tab key, and arrow keys move within it.

const STEPS = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };

/**
 * Let arrow keys, Home and End move the focus among `items`, laid out in rows of `columns`.
 * In a single row or column, all four arrows move by one item and wrap around.
 */
export function roving(container, items, { columns = null, onMove = () => {}, start = 0 } = {}) {
  const select = (index) => items.forEach((item, at) => item.setAttribute("tabindex", at === index ? "0" : "-1"));
  select(start);
  container.addEventListener("keydown", (event) => {
    const from = items.indexOf(event.target);
    if (from < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const to = target(event.key, from, items.length, columns);
    if (to === null) return;
    event.preventDefault();
    select(to);
    items[to].focus();
    onMove(to);
  });
  return select;
}

function target(key, from, count, columns) {
  if (key === "Home") return 0;
  if (key === "End") return count - 1;
  const step = STEPS[key];
  if (!step) return null;
  if (columns === null) return (from + step[0] + step[1] + count) % count;
  const to = from + step[0] * columns + step[1];
  return to < 0 || to >= count ? from : to;
}
