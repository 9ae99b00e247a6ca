"""Tests of the reader of lists of candidates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretune import PretuneError
from pretune.text.examples.candidate_lists import CandidateLists, list_rows, read_candidate_lists

TABLE = """request,item,score,age,price,name,label
a,x,0.1,30,5,red,0
b,y,0.5,40,1,red,1
a,z,0.9,30,7,blue,1
"""


def write(path: Path, content: str | list[dict[str, Any]]) -> Path:
    text = content if isinstance(content, str) else "".join(json.dumps(row) + "\n" for row in content)
    path.write_text(text, encoding="utf-8")
    return path


def check(lists: CandidateLists) -> None:
    assert lists.requests == ["a", "b"] and lists.items == [["x", "z"], ["y"]]
    assert lists.texts == ["z x", "y"]  # by score
    assert lists.names == ("score", "age", "price")
    assert lists.features[0].tolist() == [[0.1, 30, 5], [0.9, 30, 7]]
    assert lists.relevances is not None and [x.tolist() for x in lists.relevances] == [[0, 1], [1]]


def test_rows_of_a_request_belong_together_wherever_they_are(tmp_path: Path) -> None:
    lists = read_candidate_lists(write(tmp_path / "a.csv", TABLE))
    check(lists)
    assert lists.lines == [2, 3] and lists.take([1]).items == [["y"]]


def test_a_row_may_be_a_whole_request(tmp_path: Path) -> None:
    rows = [
        {"request": "a", "item": ["x", "z"], "score": [0.1, 0.9], "age": 30, "price": [5, 7], "label": [False, True]},
        {"request": "b", "item": ["y"], "score": [0.5], "age": 40, "price": [1], "label": [True]},
    ]
    check(read_candidate_lists(write(tmp_path / "a.jsonl", rows)))


def test_positions_come_before_scores_and_are_no_feature(tmp_path: Path) -> None:
    rows = "qid,item,score,position,label\n1,x,0.9,2,0\n1,y,0.1,1,1\n"
    lists = read_candidate_lists(write(tmp_path / "a.csv", rows))
    assert lists.texts == ["y x"] and lists.names == ("score",)
    few = read_candidate_lists(write(tmp_path / "b.csv", "qid,item,label\n1,x,0\n1,y,1\n"))
    assert few.texts == ["x y"] and few.names == () and few.features[0].shape == (2, 0)


def test_columns_can_be_named(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", "who,what,old,size,hit\n1,x,3,4,0\n1,y,5,6,1\n2,x,7,8,1\n")
    columns = {"request": "who", "item": "what", "label": "hit", "features": "size,old"}
    lists = read_candidate_lists(file, columns)
    assert lists.requests == ["1", "2"] and lists.names == ("size", "old") and lists.columns["request"] == "who"
    assert [row["what"] for _, row in list_rows(file, "who")] == [["x", "y"], ["x"]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "list,item,label\n1,x,0\n",
            r"line 2: no column 'request' says which candidates belong together; the columns are",
        ),
        ("qid,thing,label\n1,x,0\n", r"cannot infer the item column"),
        ("qid,item,label\n1,two words,0\n", r"line 2: the item 'two words' in 'item' is empty or contains spaces"),
        ("qid,item,label\n1,x,maybe\n", r"line 2, candidate 1: expected a number in 'label', but found 'maybe'"),
        ("qid,item,label\n1,x,-1\n", r"line 2: a label in 'label' is negative; give 0"),
        ("qid,item,position,label\n1,x,,1\n", r"line 2, candidate 1: expected a number in 'position', but found ''"),
        ([{"item": ["x", "y"], "label": [1]}], r"line 1: 'label' has 1 values for 2 candidates; give one number per"),
        ([{"item": [], "label": []}], r"line 1: expected a list of items in 'item'"),
        ("qid,item,label\n", r"the file contains no rows"),
    ],
)
def test_broken_requests_are_named(tmp_path: Path, content: str | list[dict[str, Any]], message: str) -> None:
    name = "a.csv" if isinstance(content, str) else "a.jsonl"
    with pytest.raises(PretuneError, match=message):
        read_candidate_lists(write(tmp_path / name, content))


def test_unknown_features_are_named(tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match="no column 'cost' for the features; the columns are"):
        read_candidate_lists(write(tmp_path / "a.csv", TABLE), features=("cost",))


def test_lists_without_labels_can_be_read(tmp_path: Path) -> None:
    lists = read_candidate_lists(write(tmp_path / "a.csv", TABLE.replace("label", "other")), labels=False)
    assert lists.relevances is None and "other" in lists.names
    again = read_candidate_lists(write(tmp_path / "b.csv", TABLE), labels=False)
    assert again.names == ("score", "age", "price")  # the labels are no feature
    assert np.array_equal(again.features[1], [[0.5, 40, 1]])
