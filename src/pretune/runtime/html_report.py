"""Render HTML reports: one self-contained file with tables and charts, without scripts or external resources."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

COLORS = ("#2f6fde", "#d9822b", "#3a9a6b", "#8a5ad0", "#c2456b", "#5f7f8f", "#a68a1f", "#1f9fa6")
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1d2330; background: #f4f5f8; margin: 0; }
main { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
section { background: #fff; border-radius: 10px; padding: 1.2rem 1.6rem; margin: 1rem 0; box-shadow: 0 1px 3px #0002; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.15rem; margin: 0 0 .6rem; } p { margin: .4rem 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; color: #667; font-weight: 600; border-bottom: 2px solid #e4e6ec; }
td, th { padding: .35rem .8rem .35rem 0; vertical-align: top; } td { border-bottom: 1px solid #eef0f4; }
td.number, th.number { text-align: right; } tr.best td { font-weight: 700; color: #2f6fde; }
pre { background: #1d2330; color: #e8ecf4; padding: .9rem 1.1rem; border-radius: 8px; overflow-x: auto; }
.scroll { overflow-x: auto; } table.wide { font-size: .85rem; } td.long { min-width: 14rem; }
svg { width: 100%; min-width: 30rem; height: auto; } small { color: #667; }
@media (max-width: 40rem) { main { margin: 1rem auto; padding: 0 .5rem; } section { padding: 1rem; } }
"""
LONG = 40  # characters of a cell that needs a minimum width on small screens
WIDE = 10  # columns of a table that needs small print to fit on a page


@dataclass(frozen=True)
class ChartLine:
    """A line of a chart; lines with the same `name` share a color and an entry in the legend.

    A `faint` line is one of many lines that are drawn behind their mean; a `horizontal` line extends over the whole
    width, at the y value of its only point.
    """

    name: str
    points: Sequence[tuple[float, float]]
    faint: bool = False  # one of many lines, drawn behind their mean
    horizontal: bool = False  # a line over the whole width, at the y value of its only point


def render_page(title: str, *sections: str) -> str:
    """Return a complete HTML page with a title and the given sections, which are HTML.

    >>> render_page("Hello", section("First", paragraph("text"))).startswith("<!doctype html>")
    True
    """
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(title)}</title>'
    body = "\n".join([f"<h1>{escape(title)}</h1>", *sections])
    return f'<!doctype html>\n<html lang="en"><head>{head}<style>{STYLE}</style></head>\n<body><main>{body}</main></body></html>\n'


def section(title: str, *parts: str) -> str:
    """Return a section of an HTML page, with a title and the HTML fragments `parts` as content."""
    return "\n".join([f"<section><h2>{escape(title)}</h2>", *parts, "</section>"])


def paragraph(text: str) -> str:
    """Return an HTML paragraph that contains a plain text; special characters are escaped."""
    return f"<p>{escape(text)}</p>"


def command_block(*lines: str) -> str:
    """Return an HTML code block that shows the given command lines."""
    return f"<pre>{escape(chr(10).join(lines))}</pre>"


def render_table(rows: Sequence[Mapping[str, Any]], best: int | None = None) -> str:
    """Return an HTML table of rows, which are dictionaries with the same keys.

    The row with the index `best`, if given, is highlighted.
    """
    names = list(rows[0]) if rows else []
    numeric = {name: all(isinstance(row[name], int | float) for row in rows) for name in names}

    def cell(kind: str, name: str, value: Any) -> str:
        text = f"{value:.3g}" if isinstance(value, float) else str(value)
        look = "number" if numeric[name] else "long" if len(text) > LONG else ""
        return f"<{kind}{f' class={look}' if look else ''}>{escape(text)}</{kind}>"

    lines = ["<tr>" + "".join(cell("th", name, name) for name in names) + "</tr>"]
    for number, row in enumerate(rows):
        mark = ' class="best"' if number == best else ""
        lines.append(f"<tr{mark}>" + "".join(cell("td", name, row[name]) for name in names) + "</tr>")
    return wrap_table(lines, wide=len(names) >= WIDE)


def wrap_table(rows: Sequence[str], *, wide: bool = False) -> str:
    """Return an HTML table in a container that scrolls sideways on narrow screens; `rows` are its rows as HTML.

    With `wide`, the table is in small print.
    """
    return _scrollable(f"<table{' class=wide' if wide else ''}>\n" + "\n".join(rows) + "\n</table>")


def _scrollable(content: str) -> str:
    return f'<div class="scroll">{content}</div>'


def render_chart(lines: Sequence[ChartLine], *, x_label: str, y_label: str) -> str:
    """Return a line chart of `lines`, with labels of the axes, as an SVG image."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 3.4), layout="constrained")
    axes = figure.subplots()
    names = list(dict.fromkeys(line.name for line in lines))
    named = set()
    for line in lines:
        style: dict[str, Any] = {"color": COLORS[names.index(line.name) % len(COLORS)]}
        style |= {"alpha": 0.3, "linewidth": 1.0} if line.faint else {"linewidth": 2.2}
        if not line.faint and line.name not in named:
            style["label"] = line.name
            named.add(line.name)
        if line.horizontal:
            axes.axhline(line.points[0][1], linestyle="--", **style)
        else:
            axes.plot([x for x, _ in line.points], [y for _, y in line.points], **style)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e4e6ec")
    axes.legend(frameon=False)
    return embed_figure(figure)


def embed_figure(figure: Any) -> str:
    """Return the HTML for a matplotlib figure: an SVG image that can be placed inside a page."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    svg = buffer.getvalue()
    return _scrollable(svg[svg.index("<svg") :])  # without the XML header, which is not allowed inside a page
