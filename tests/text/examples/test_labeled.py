from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from pretune import PretuneError
from pretune.text.examples.labeled import read_labeled


def write(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("a.csv", "label,text\npos,good\nneg,bad\n", {"text": "text", "label": "label"}),
        ("a.tsv", "sentence\tlabel\ngood\t1\nbad\t0\n", {"text": "sentence", "label": "label"}),
        ("a.tsv", "Quality\t#1 ID\t#1 String\t#2 String\n1\t7\ta\tb\n", {"text": "#1 String", "pair": "#2 String", "label": "Quality"}),
        ("a.tsv", "premise\thypothesis\tgold_label\na\tb\tneutral\n", {"text": "premise", "pair": "hypothesis", "label": "gold_label"}),
        ("a.tsv", "gj04\t1\t\tOur friends won't buy it.\ngj04\t0\t*\tThem ran away home.\ngj04\t1\t\tIt rained all day.\n", {"text": "4", "label": "2"}),
        ("a.csv", '3,"Wall St., again","Short, long words here"\n3,x,y z\n4,"a",b\n', {"text": "3", "label": "1"}),
        ("a.csv", "utt,kind\nhow are you,greet\nhello you,greet\nbye now,leave\nsee you,leave\n", {"text": "utt", "label": "kind"}),
    ],
)  # fmt: skip
def test_columns_are_inferred(tmp_path: Path, name: str, content: str, columns: dict[str, str]) -> None:
    assert read_labeled(write(tmp_path / name, content)).columns == columns


def test_rows_keep_their_order_values_and_lines(tmp_path: Path) -> None:
    table = read_labeled(write(tmp_path / "a.csv", 'text,label\n"two\nlines",x\n"say ""hi""",y\n'))
    assert table.texts == ["two\nlines", 'say "hi"']
    assert table.labels == ["x", "y"]
    assert table.location(1).endswith("a.csv, line 4")


def test_jsonl_and_parquet_are_read(tmp_path: Path) -> None:
    rows = [{"text": "a", "label": True}, {"text": "b", "label": False}]
    jsonl = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert read_labeled(jsonl).labels == read_labeled(tmp_path / "a.parquet").labels == ["true", "false"]


def test_a_txt_file_with_tabs_is_a_table(tmp_path: Path) -> None:
    file = tmp_path / "ratings.txt"
    file.write_text('id\tdocument\tlabel\n1\t좋아요, 정말\t1\n2\t"so-so" at best\t0\n', encoding="utf-8")
    rows = read_labeled(file, {}, labels=True)
    assert rows.texts == ["좋아요, 정말", '"so-so" at best'] and rows.labels == ["1", "0"]
    for content in ("one text\nanother\n", "a\tb\nno tab\n", "a\tb\n"):
        file.write_text(content, encoding="utf-8")
        with pytest.raises(PretuneError, match="only if tabs separate"):
            read_labeled(file, {}, labels=True)


def test_given_columns_take_precedence(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,other,label,kind\na,b,c,d\n")
    table = read_labeled(path, {"text": "other", "label": "kind"})
    assert (table.texts, table.labels) == (["b"], ["d"])


def test_labels_are_optional(tmp_path: Path) -> None:
    table = read_labeled(write(tmp_path / "a.csv", "id,text\n1,a\n2,b\n"), labels=False)
    assert table.labels is None
    assert table.texts == ["a", "b"]


def test_inferred_columns_are_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)
    read_labeled(write(tmp_path / "a.csv", "sentence,label\na,b\n"))
    assert "text = 'sentence', label = 'label'; override with --text, --pair, --label" in capsys.readouterr().err


def test_additional_roles_and_nested_fields_are_read(tmp_path: Path) -> None:
    rows = [
        {"text": "a b", "label": "x", "target": {"span": "b", "at": 2}, "qid": 7},
        {"text": "c", "label": "y", "qid": 8},
    ]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    roles = {"span": ["target.span"], "group": ["query_id", "qid"], "odd": ["odd"]}
    table = read_labeled(path, roles=roles)
    assert table.columns == {"text": "text", "label": "label", "span": "target.span", "group": "qid"}
    assert table.extra == {"span": ["b", None], "group": [7, 8]}
    assert table.take([1]).extra == {"span": [None], "group": [8]}
    assert read_labeled(path, {"group": "target.at"}, roles=roles).extra["group"] == [2, None]
    with pytest.raises(PretuneError, match=r"no column 'qd' for the group; .* did you mean 'qid'"):
        read_labeled(path, {"group": "qd"}, roles=roles)
    with pytest.raises(PretuneError, match="unknown column role 'grop'; did you mean 'group'"):
        read_labeled(path, {"grop": "qid"}, roles=roles)


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        ("", {}, "the file contains no rows"),
        ("text,label\n", {}, "no rows"),
        ("text,label\na,x\n", {"label": "lable"}, "no column 'lable' for the label; .* did you mean 'label'"),
        ("text,label\na,x\n", {"labels": "label"}, "unknown column role 'labels'"),
        ("text,a,b\nx,1,2\ny,3,4\n", {}, "cannot infer the label column; the columns are 'text', 'a', 'b'; choose one with --label"),
        ("text,label\na,x\nb,\n", {}, "1 of 2 rows have no label in 'label': line 3; correct them, or leave them out with --drop-invalid"),
        ("text,label\na,x,y\n", {}, "line 2: expected 2 fields as in the header, but found 3"),
    ],
)  # fmt: skip
def test_invalid_files_are_rejected_with_line_and_advice(
    tmp_path: Path, content: str, columns: dict[str, str], message: str
) -> None:
    with pytest.raises(PretuneError, match=message):
        read_labeled(write(tmp_path / "a.csv", content), columns)


def test_columns_named_by_their_roles_are_found(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"text": "a", "pair": "b", "label": "x"}\n{"text": "c", "pair": "d", "label": "y"}\n')
    assert read_labeled(file, {}).pairs == ["b", "d"]


def test_carriage_return_in_the_header_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_bytes(b"te\rxt\tlabel\ngood\tyes\n")
    with pytest.raises(PretuneError, match=r"train\.tsv, line 1: the file is not a valid table"):
        read_labeled(tmp_path / "train.tsv")
