"""Tables of texts and labels become tasks; bad cells are named with their line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pretune.probing.suites.table import load_table
from pretune.runtime.errors import PretuneError


def write(folder: Path, *lines: str, name: str = "case.csv") -> Path:
    file = folder / name
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def test_splits_and_spans_are_read(tmp_path: Path) -> None:
    rows = [
        {"text": "a bat flew", "pair": "a bat and ball", "label": False, "split": "va", "begin": 2, "end": 5, "begin2": 2, "end2": 5},
        {"text": "a bat flew", "pair": "bats fly", "label": True, "split": "Test", "begin": 2, "end": 5, "begin2": 0, "end2": 4},
    ]  # fmt: skip
    [task] = load_table(write(tmp_path, *map(json.dumps, rows), name="wic.jsonl"))
    assert task.name == "wic" and task.labels == ["false", "true"]
    assert [example.split for example in task.examples] == ["dev", "test"]
    assert task.examples[1].spans == ((2, 5), (0, 4)) and task.examples[1].pair == "bats fly"


def test_without_splits_texts_stay_together(tmp_path: Path) -> None:
    lines = [f"text {number % 50},{'ab'[number % 2]},{number // 50},5" for number in range(100)]
    [task] = load_table(write(tmp_path, "text,label,begin,end", *lines), seed=1)
    splits: dict[str, set[str]] = {}
    for example in task.examples:
        splits.setdefault(example.text, set()).add(example.split)
    assert all(len(found) == 1 for found in splits.values())
    assert {"train", "dev", "test"} == set.union(*splits.values())


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["sentence,label", "a,x"], "there is no column 'text'; the columns are 'sentence', 'label'"),
        (["text,class", "a,x"], "there is no column 'label'"),
        (["text,label,begin", "a,x,0"], "there is a column 'begin', but none named 'end'"),
        (["text,label,begin2,end2", "a,x,0,1"], "'begin2', but none named 'begin'"),
        (["text,label,split", "a,x,train", "b,y,tarin"], "line 3: 'tarin' is not a split; write train, dev, or test"),
        (["text,label", "a,x", "b,"], "line 3: the label is empty"),
        (["text,label,begin,end", "abc,x,0,4"], "line 2: the span from 0 to 4 is not inside the text, which has 3 characters"),
        (["text,label,begin,end", "abc,x,2,2"], "line 2: the span from 2 to 2"),
        (["text,label,begin,end", "abc,x,zero,2"], "line 2: 'zero' in 'begin' is not the position of a character"),
        (["text,label,begin,end", "abc,x,inf,2"], "line 2: 'inf' in 'begin'"),
        (["text,label"], "no rows"),
    ],
)  # fmt: skip
def test_bad_tables_are_refused_with_the_place(lines: list[str], words: str, tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match=r"case\.csv") as refused:
        load_table(write(tmp_path, *lines))
    assert words in str(refused.value), refused.value


def test_a_table_is_needed() -> None:
    with pytest.raises(PretuneError, match="needs a table"):
        load_table(None)
