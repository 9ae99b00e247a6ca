"""Tests that tables are read with the delimiter and quoting they were written with, and that prose is not split."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.text.corpus.delimiters import CSV, NAMES, TSV, Dialect, choose_dialect
from pretune.text.corpus.documents import read_table
from pretune.text.examples.labeled import read_labeled

CELLS = st.text("ab ,;|\t\"'\n.é한你\u200d👍\ufeff1-", max_size=12)


def write(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8", newline="")
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
@pytest.mark.parametrize("delimiter", NAMES)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=6), quote_all=st.booleans())
@example(rows=[("Well, yes; no|\t", "1,5")], quote_all=False)
def test_written_tables_are_read_back(
    suffix: str, delimiter: str, line_end: str, rows: list[tuple[str, str]], quote_all: bool, tmp_path: Path
) -> None:
    written = io.StringIO(newline="")
    quoting = csv.QUOTE_ALL if quote_all else csv.QUOTE_MINIMAL
    writer = csv.writer(written, delimiter=delimiter, quoting=quoting, lineterminator=line_end)
    writer.writerows([("text", "label"), *rows])
    found = [row for _, row in read_table(write(tmp_path / f"a{suffix}", written.getvalue()))]
    assert found == [{"text": text, "label": label} for text, label in rows]


@pytest.mark.parametrize(("usual", "name"), [(CSV, "a.csv"), (TSV, "a.tsv")])
@given(texts=st.lists(st.text("ab ;|.,", min_size=1, max_size=20), min_size=1, max_size=8))
@example(texts=["a;b", "c;d"])
@example(texts=["a, b", "c, d"])
def test_a_table_with_one_column_stays_one(usual: Dialect, name: str, texts: list[str]) -> None:
    if usual == CSV:
        texts = [text.replace(",", ";") for text in texts]
    assert choose_dialect(["text", *texts], usual) == usual


@pytest.mark.parametrize("usual", [CSV, TSV])
@pytest.mark.parametrize(
    "lines",
    [
        ["I like it; really", "Not bad; not good"],
        ["Hello, world", "Bye, world"],
        ["text"],
        [""],
        [],
        ["text;label"],  # a header without rows
        ["one", "two;three", "four"],
    ],
)
def test_prose_is_not_split(usual: Dialect, lines: list[str]) -> None:
    assert choose_dialect(lines, usual).delimiter == usual.delimiter


def test_the_extension_decides_if_its_delimiter_fits() -> None:
    assert choose_dialect(["text,label;x", "a;b,c;d"], CSV) == CSV
    assert choose_dialect(["text\tlabel", "a, b\t1", "c, d\t0"], TSV) == TSV


def test_quotation_marks_in_tsv_texts_are_kept() -> None:
    for text in ('"No", he said', 'He said "no"', '"quoted"', '"', 'a "" b', '"a" and "b"'):
        assert choose_dialect(["sentence\tlabel", f"{text}\t0", "good\t1"], TSV) == TSV


def test_another_delimiter_than_the_extension_is_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)
    file = write(tmp_path / "a.csv", "\ufefftext;label\r\nGut, sehr gut;1,5\r\nSchlecht;2,5\r\n")
    rows = read_labeled(file)
    assert (rows.texts, rows.labels) == (["Gut, sehr gut", "Schlecht"], ["1,5", "2,5"])
    said = capsys.readouterr().err
    assert said.count("a.csv: columns are separated by semicolons, although the file is .csv") == 1
    read_labeled(write(tmp_path / "b.tsv", 'text\tlabel\n"a ""b""\tc"\tx\nd\ty\n'))
    assert "b.tsv: columns are separated by tabs, and cells are quoted, although" in capsys.readouterr().err
    read_labeled(write(tmp_path / "c.tsv", "text\tlabel\na, b\tx\n"))
    assert "separated" not in capsys.readouterr().err


@pytest.mark.parametrize("delimiter", NAMES)
def test_the_delimiter_that_excel_declares_is_used(delimiter: str, tmp_path: Path) -> None:
    lines = [f"sep={delimiter}", delimiter.join(["text", "label"]), delimiter.join(['"a, b"', "x"])]
    rows = read_labeled(write(tmp_path / "a.csv", "\ufeff" + "\r\n".join(lines)))
    assert (rows.texts, rows.labels, rows.lines) == (["a, b"], ["x"], [3])


def test_a_bad_row_of_a_semicolon_table_is_named(tmp_path: Path) -> None:
    rows = "".join(f"a, {number};x\n" for number in range(20))
    with pytest.raises(
        PretuneError, match=r"a\.csv, line 22: expected 2 fields .* found 3, separated by semicolons; correct this line"
    ):
        read_labeled(write(tmp_path / "a.csv", f"text;label\n{rows}a;b;c\n"))
