from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from pretune import PretuneError
from pretune.text.corpus.documents import read_documents

TEXTS = ["One, two.", 'Say "hi"\tthere', "Строка\nс переводом", "끝"]


def texts(*files: Path, **options: object) -> list[str]:
    return [document.text for document in read_documents(files, **options)]  # type: ignore[arg-type]


def test_text_files_are_split_by_line_blank_line_or_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n\na b\nc\n \nd\n\n", encoding="utf-8")
    assert texts(path, split_by="line") == ["a b", "c", "d"]
    assert texts(path, split_by="blank-line") == ["a b\nc", "d"]
    assert texts(path, split_by="auto") == ["a b\nc", "d"]
    assert texts(path, split_by="file") == ["\n\na b\nc\n \nd\n"]
    assert [d.line for d in read_documents([path], split_by="blank-line")] == [3, 6]


def test_auto_layout_uses_lines_without_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\na\nb\n\n", encoding="utf-8")
    assert texts(path) == ["a", "b"]


def test_jsonl_csv_tsv_and_parquet_give_the_same_texts(tmp_path: Path) -> None:
    import csv

    jsonl, comma, parquet = tmp_path / "a.jsonl", tmp_path / "a.csv", tmp_path / "a.parquet"
    jsonl.write_text("".join(json.dumps({"id": 1, "text": t}) + "\n" for t in TEXTS) + "\n", encoding="utf-8")
    with comma.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["id", "text"], *[[1, t] for t in TEXTS]])
    pyarrow.parquet.write_table(pyarrow.table({"id": [1] * 4, "text": TEXTS}), parquet)
    assert texts(jsonl) == texts(comma) == texts(parquet) == TEXTS


def test_quotation_marks_in_tsv_are_text(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('id\ttext\n1\t"unbalanced\n2\tfine\n', encoding="utf-8")
    assert texts(path) == ['"unbalanced', "fine"]


def test_column_is_inferred_or_given(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1, "abstract": "x"}\n', encoding="utf-8")
    assert texts(path) == ["x"]
    path.write_text('{"title": "t", "abstract": "x"}\n', encoding="utf-8")
    assert texts(path, text_field="abstract") == ["x"]
    with pytest.raises(
        PretuneError,
        match=r"line 1: no field named 'text'; the fields are 'title', 'abstract'; choose one with --text-field",
    ):
        texts(path)
    with pytest.raises(PretuneError, match=r"did you mean 'abstract'\?"):
        texts(path, text_field="abstrakt")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"a\.jsonl, line 2: not valid JSON"),
        ("a.jsonl", b'["text"]\n', "line 1: expected a JSON object, not a list"),
        ("a.jsonl", b'{"text": 7}\n', "field 'text' has type int; expected text"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', "lone surrogate"),
        ("a.csv", b"id,text\n1\n", r"a\.csv, line 2: expected 2 fields as in the header, but found 1"),
        ("a.csv", b'id,text\n1,"a\x00b"\n2', "line 3: expected 2 fields as in the header, but found 1"),
        ("a.parquet", b"PAR1 no", "damaged, or not a Parquet file"),
    ],
)
def test_invalid_rows_are_reported(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(PretuneError, match=message):
        texts(path)


def test_lone_surrogates_are_replaced_on_request(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a\\ud800b"}\n', encoding="utf-8")
    assert texts(path, encoding_errors="replace") == ["a�b"]


def test_whitespace_documents_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": ""}\n{"text": " \\n"}\n{"text": null}\n{"text": "x"}\n', encoding="utf-8")
    assert texts(path) == ["x"]
