"""Tests that tables are read back unchanged, or that writing raises an error."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from pretune import PretuneError
from pretune.text.corpus.table_writer import KINDS, table_writer
from pretune.text.examples.labeled import read_chunks

ROWS: list[dict[str, Any]] = [
    {"id": "1", "text": 'say "hi", you', "score": 0.125},
    {"id": "2", "text": "", "score": 1.0},
    {"id": "3", "text": " Поезд  \u2028 пришёл ", "score": 1e-7},
]


def write(path: Path, *parts: list[dict[str, Any]]) -> Path:
    with table_writer(path) as add:
        for part in parts:
            add(part)
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [row for part in read_chunks(path, 2) for _, row in part.rows]


@pytest.mark.parametrize("suffix", [kind for kind in KINDS if kind != ".conll"])
def test_tables_written_in_parts_are_read_back(suffix: str, tmp_path: Path) -> None:
    found = read(write(tmp_path / f"a{suffix}", ROWS[:2], ROWS[2:]))
    typed = suffix in (".jsonl", ".parquet")
    assert found == (ROWS if typed else [{**row, "score": str(row["score"])} for row in ROWS])


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_line_breaks_and_tabs_are_kept_in_cells(suffix: str, tmp_path: Path) -> None:
    rows = [{"text": "two\nlines", "tab": "a\tb"}, {"text": '"', "tab": "c"}]
    assert read(write(tmp_path / f"a{suffix}", rows)) == rows


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_values_keep_their_types(suffix: str, tmp_path: Path) -> None:
    rows = [{"n": 3, "yes": True, "list": ["a", "b"], "none": None}, {"n": 4, "yes": False, "list": [], "none": "now"}]
    assert read(write(tmp_path / f"a{suffix}", rows[:1], rows[1:])) == rows


@pytest.mark.parametrize(
    ("name", "parts", "message"),
    [
        ("a.tsv", [[{"text": "a"}], [{"text": "a\tb"}]], "row 2: a .tsv file cannot contain cells with a tab or a line break"),
        ("a.csv", [[{"text": "a"}], [{"text": "a", "more": "b"}]], "row 2 has a column 'more', which the first rows do not"),
        ("a.csv", [[{"text": "\ud800"}]], "row 1 contains a lone surrogate"),
        ("a.parquet", [[{"n": 1}], [{"n": "x"}]], "rows 2 to 2: the values of 'n' do not all have the same type"),
        ("a.xlsx", [[{"n": 1}]], "unsupported output format; expected one of .csv, .tsv, .jsonl, .parquet"),
    ],
)  # fmt: skip
def test_unwritable_rows_raise_errors_and_leave_no_file(
    name: str, parts: list[list[dict[str, Any]]], message: str, tmp_path: Path
) -> None:
    with pytest.raises(PretuneError, match=message):
        write(tmp_path / name, *parts)
    assert not list(tmp_path.iterdir())


def test_rows_of_jsonl_may_have_different_fields(tmp_path: Path) -> None:
    rows = [{"a": 1}, {"b": "\ud800"}, {}]
    assert read(write(tmp_path / "a.jsonl", rows)) == rows


def test_empty_text_in_a_one_column_table_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("text\nfirst\n\nthird\n")
    (tmp_path / "a.csv").write_text('text\nfirst\n""\nthird\n')
    for name in ("a.tsv", "a.csv"):
        assert [row["text"] for row in read(tmp_path / name)] == ["first", "", "third"]


def test_conll_files_have_the_columns_with_one_value_per_word(tmp_path: Path) -> None:
    rows = [
        {"text": "Anna flew", "id": 7, "tags": ["B-PER", "O"], "entities": [{"label": "PER"}]},
        {"text": "it rained", "id": 8, "tags": ["O", "O"], "entities": []},
    ]
    with table_writer(tmp_path / "a.conll") as write:
        write(rows)
    assert (tmp_path / "a.conll").read_text() == "Anna\tB-PER\nflew\tO\n\nit\tO\nrained\tO\n\n"
    message = "row 1 lacks two columns with a value per word"
    with pytest.raises(PretuneError, match=message), table_writer(tmp_path / "b.conll") as write:
        write([{"text": "a b c", "label": "x"}])


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_safe_tables_have_no_formulas(tmp_path: Path, suffix: str) -> None:
    cells = ["=1+1", "+1", "-1", "@SUM(A1)", "＝1", "plain", "a=b", "", "'quoted"]
    cells += ["\tx", "\r=1", "\n=1"] if suffix == ".csv" else []  # a .tsv file cannot contain these
    path = tmp_path / f"rows{suffix}"
    with table_writer(path, safe=True) as write:
        write([{"=text": cell, "number": -0.5} for cell in cells])
    delimiter = "," if suffix == ".csv" else "\t"
    with path.open(newline="") as file:
        header, *rows = list(csv.reader(file, delimiter=delimiter))
    assert header == ["'=text", "number"]
    assert [row[0] for row in rows] == [
        f"'{cell}" if cell[:1] in tuple("=+-@＝\t\r\n") and cell else cell for cell in cells
    ]
    assert {row[1] for row in rows} == {"'-0.5"}
    with table_writer(path) as write:
        write([{"text": "=1+1"}])
    assert path.read_text() == "text\n=1+1\n"


def test_safe_tables_with_types_are_unchanged(tmp_path: Path) -> None:
    with table_writer(tmp_path / "rows.jsonl", safe=True) as write:
        write([{"text": "=1+1"}])
    assert (tmp_path / "rows.jsonl").read_text() == '{"text": "=1+1"}\n'
