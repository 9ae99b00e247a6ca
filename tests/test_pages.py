from __future__ import annotations

from xml.etree import ElementTree

from pretune.pages import Line, chart, commands, page, paragraph, section, table


def test_a_page_is_well_formed_and_harmless() -> None:
    rows = [{"learner": "<script>alert(1)</script>", "accuracy": 0.51234}, {"learner": "b & c", "accuracy": 2}]
    text = page("A < B", section("S & T", paragraph("x < y"), table(rows, best=1), commands("a", "b > c")))
    body = text[text.index("<body>") : text.index("</html>")]
    tree = ElementTree.fromstring(body.replace(" class=number", ' class="number"'))
    assert [cell.text for cell in tree.iter("td")] == ["<script>alert(1)</script>", "0.512", "b & c", "2"]
    assert [row.get("class") for row in tree.iter("tr")] == [None, None, "best"]
    assert tree.find(".//pre").text == "a\nb > c"  # type: ignore[union-attr]
    assert "src=" not in text and "http" not in text


def test_a_chart_draws_each_line_and_names_it_once() -> None:
    lines = [
        Line("tall", [(0, 0), (1, 1)], faint=True), Line("tall", [(0, 1), (1, 2)]), Line("flat", [(0, 0.5)], level=True),
    ]  # fmt: skip
    svg = chart(lines, across="epochs", up="accuracy")
    tree = ElementTree.fromstring(svg)
    drawn = [g for g in tree.iter("{http://www.w3.org/2000/svg}g") if (g.get("id") or "").startswith("line2d")]
    assert len(drawn) > 3
    assert svg.count("tall") == 1 or svg.count("<!-- tall -->") == 1
    assert chart(lines, across="epochs", up="accuracy").count("<path") == svg.count("<path")
