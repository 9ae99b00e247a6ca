"""Tables of results: slices, data frames, and HTML."""

from __future__ import annotations

import sys

import pytest

from pretune import PretuneError
from pretune.runtime.notebook import MAX_CELL, MAX_ROWS
from pretune.verbs.results import ResultSummary, ResultTable

ROWS = [{"text": f"text {number}", "score": number / 7, "details": {"a": 1}} for number in range(50)]


def test_slices_are_tables() -> None:
    table = ResultTable("scores", ROWS, hidden=("details",), facts={"mean": 1})
    part = table[1:3]
    assert isinstance(part, ResultTable) and part.rows == ROWS[1:3] and part.facts == {"mean": 1}
    assert table[-1] == ROWS[-1] and table[::-1][0] == ROWS[-1]
    assert table.to_dicts() == ROWS and table.to_dicts()[0] is not ROWS[0]


def test_the_repr_shows_the_first_rows() -> None:
    shown = repr(ResultTable("scores", ROWS, hidden=("details",), shown=20, facts={"mean": 0.5, "long": "x" * 1000}))
    first, *rows, last = shown.splitlines()
    assert first.startswith("ResultTable('scores', 50 rows, mean=0.5, long='xxx") and len(first) < 200
    assert rows[1] == f"  {{'text': 'text 1', 'score': {1 / 7}}}" and len(rows) == 5 and last == "  … 45 more"
    assert repr(ResultTable("scores", [])) == "ResultTable('scores', 0 rows)"
    assert len(repr(ResultTable("texts", [{"text": "x" * 1000}]))) < 150


def test_named_values_are_printed_before_many_rows() -> None:
    many = ResultTable("scores", ROWS, shown=20, facts={"mean": 0.5}).table()
    assert list(many) == ["mean", "scores", "rows_left_out"] and len(many["scores"]) == 20
    assert list(ResultTable("scores", ROWS, facts={"mean": 0.5}).table()) == ["scores", "mean"]


def test_data_frames() -> None:
    pandas = pytest.importorskip("pandas")
    frame = ResultTable("scores", ROWS).to_pandas()
    assert isinstance(frame, pandas.DataFrame) and frame["text"].tolist() == [row["text"] for row in ROWS]


def test_without_pandas_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(PretuneError, match="pip install 'pretune\\[pandas\\]'"):
        ResultTable("scores", ROWS).to_pandas()


def test_html_is_escaped_and_shortened() -> None:
    page = ResultTable("scores", ROWS, hidden=("details",))._repr_html_()
    assert page.count("<tr>") == MAX_ROWS + 2 and "50 rows" in page and "details" not in page  # header, and a row of …
    assert "text 9<" in page and "text 10<" not in page and "text 49" in page
    page = ResultTable("<b>", [{"<i>": "<script>" + "x" * 1000}, {"other": None}])._repr_html_()
    assert "<script>" not in page and "<i>" not in page and "<b>" not in page and "x" * MAX_CELL not in page


def test_summaries_are_tables_in_notebooks() -> None:
    page = ResultSummary({"out": "<b>", "megabytes": 1.23456})._repr_html_()
    assert "<tr><td>out</td><td>&lt;b&gt;</td></tr>" in page and "<td>1.235</td>" in page
