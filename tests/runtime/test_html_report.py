from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

import pretune
from pretune.runtime.html_report import (
    ChartLine,
    command_block,
    paragraph,
    render_chart,
    render_page,
    render_table,
    section,
)


def test_page_is_well_formed_and_escaped() -> None:
    rows = [{"learner": "<script>alert(1)</script>", "accuracy": 0.51234}, {"learner": "b & c", "accuracy": 2}]
    text = render_page(
        "A < B", section("S & T", paragraph("x < y"), render_table(rows, best=1), command_block("a", "b > c"))
    )
    body = text[text.index("<body>") : text.index("</html>")]
    tree = ElementTree.fromstring(body.replace(" class=number", ' class="number"'))
    assert [cell.text for cell in tree.iter("td")] == ["<script>alert(1)</script>", "0.512", "b & c", "2"]
    assert [row.get("class") for row in tree.iter("tr")] == [None, None, "best"]
    assert tree.find(".//pre").text == "a\nb > c"  # type: ignore[union-attr]
    assert "src=" not in text and "http" not in text


@pytest.mark.not_fast
def test_chart_draws_each_line_and_labels_it_once() -> None:
    lines = [
        ChartLine("tall", [(0, 0), (1, 1)], faint=True), ChartLine("tall", [(0, 1), (1, 2)]), ChartLine("flat", [(0, 0.5)], horizontal=True),
    ]  # fmt: skip
    svg = render_chart(lines, x_label="epochs", y_label="accuracy")
    tree = ElementTree.fromstring(svg)
    drawn = [g for g in tree.iter("{http://www.w3.org/2000/svg}g") if (g.get("id") or "").startswith("line2d")]
    assert len(drawn) > 3
    assert svg.count("tall") == 1 or svg.count("<!-- tall -->") == 1
    assert render_chart(lines, x_label="epochs", y_label="accuracy").count("<path") == svg.count("<path")


def test_wide_content_scrolls_in_its_own_box() -> None:
    rows = [{"text": "a long text that no narrow column should squeeze", "right": 1}]
    drawn = render_chart([ChartLine("one", [(0, 0), (1, 1)])], x_label="x", y_label="y")
    text = render_page("Wide", section("S", render_table(rows), drawn))
    assert text.count("<table") == text.count('<div class="scroll"><table') == 1
    assert text.count("<svg") == text.count('<div class="scroll"><svg') == 1
    assert "width=device-width, initial-scale=1" in text and "<td class=long>" in text and "<td class=number>" in text
    many = render_table([{f"column {number}": number for number in range(12)}])
    assert many.startswith('<div class="scroll"><table class=wide>') and "table.wide" in text
    # No other module of report pages writes these tags; tables in notebooks have the style of the notebook.
    package = Path(pretune.__file__).parent
    others = [path for path in package.rglob("*.py") if path.name not in ("html_report.py", "notebook.py")]
    assert [str(path) for path in others if "<table" in path.read_text() or "<svg" in path.read_text()] == []
