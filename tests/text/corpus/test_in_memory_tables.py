"""Tests that tables in memory become files with the same rows, and that bad tables are refused with a clear message."""

from __future__ import annotations

import datetime
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.text.corpus.documents import read_jsonl
from pretune.text.corpus.files import find_files
from pretune.text.corpus.in_memory_tables import FOLDER, save_table, tables_to_files

NAMES = st.text(st.characters(codec="utf-8"), max_size=5)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3))
TABLES = st.lists(NAMES, min_size=1, max_size=3, unique=True).flatmap(
    lambda names: st.lists(st.fixed_dictionaries(dict.fromkeys(names, VALUES)), min_size=1, max_size=4)
)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in read_jsonl(path)]


@pytest.mark.not_fast
@settings(max_examples=100, deadline=None)
@given(TABLES)
def test_any_table_of_json_values_reads_back_the_same(rows: list[dict[str, Any]]) -> None:
    path = tables_to_files(rows, "train")
    assert rows_of(path) == rows
    assert tables_to_files(iter(rows), "dev") == path  # the same data, the same file


def test_a_data_frame_keeps_names_and_values() -> None:
    table = pd.DataFrame(
        {
            "text": ["a", None, "č"],
            "number": [1.5, math.nan, 2.0],
            "count": pd.array([1, None, 3], dtype="Int64"),
            "when": pd.to_datetime(["2024-02-29 12:00", None, "2025-01-01 00:00"]),
            "kind": pd.Categorical(["x", "y", "x"]),
            "words": [["a", "b"], [], ["c"]],
            "vector": [np.array([1, 2]), np.array([3, 4]), np.array([5, 6])],
            0: [True, False, True],
        },
        index=[7, 7, 9],
    )
    first, second, third = rows_of(tables_to_files(table, "train"))
    assert first == {
        "text": "a", "number": 1.5, "count": 1, "when": "2024-02-29T12:00:00", "kind": "x", "words": ["a", "b"],
        "vector": [1, 2], "0": True,
    }  # fmt: skip
    assert [second[name] for name in ("text", "number", "count", "when")] == [None] * 4
    assert third["text"] == "č"


def test_values_of_numpy_pandas_and_datetime_become_json() -> None:
    row = {
        "int": np.int32(3), "float": np.float32(0.5), "bool": np.True_, "str": np.str_("a\ud800"), "nan": np.float64("nan"),
        "na": pd.NA, "nat": pd.NaT, "numpy_nat": np.datetime64("NaT"), "date": datetime.date(2024, 2, 29),
        "numpy_date": np.datetime64("2024-02-29T01:02:03.000000004"), "price": Decimal("1.10"), "tuple": (1, (2,)),
    }  # fmt: skip
    assert rows_of(tables_to_files([row], "train")) == [
        {
            "int": 3, "float": 0.5, "bool": True, "str": "a\ud800", "nan": None, "na": None, "nat": None, "numpy_nat": None,
            "date": "2024-02-29", "numpy_date": "2024-02-29T01:02:03", "price": "1.10", "tuple": [1, [2]],
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    "texts", [pd.Series(["a", None], name="review"), np.array(["a", None], dtype=object)], ids=type
)
def test_an_array_of_texts_is_a_table_with_the_column_text(texts: Any) -> None:
    assert rows_of(tables_to_files(texts, "inputs")) == [{"text": "a"}, {"text": None}]


def test_lists_and_dictionaries_may_hold_tables() -> None:
    table = pd.DataFrame({"text": ["a"]})
    path = save_table(table, "train")
    assert tables_to_files([table, "b.csv"], "data") == [path, "b.csv"]
    assert tables_to_files({"sst": table, "rte": "rte.csv"}, "train") == {"sst": path, "rte": "rte.csv"}
    assert tables_to_files(iter(["a text", "another"]), "inputs") == ["a text", "another"]
    same: Any
    for same in (None, "a.csv", Path("a.csv"), ["a.csv"], 3):
        assert tables_to_files(same, "train") == same


def repeated() -> Iterator[dict[str, Any]]:
    yield from ({"text": str(number)} for number in range(1000))


@pytest.mark.not_fast
def test_an_iterator_is_streamed_to_the_file() -> None:
    path = tables_to_files(repeated(), "data")
    assert "1000-rows" in path.name
    assert rows_of(path)[-1] == {"text": "999"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([{"a": 1}, {"a": 2}, ["a"]], "train: row 3 is a list, not a dict"),
        ([["a", "b"]], "train: row 1 is a list, not a dict"),
        ([], "train: the data has no rows"),
        (iter(()), "train: the data has no rows"),
        (pd.DataFrame({"text": []}), "train: the data has no rows"),
        ([{}], "train: row 1 has no columns"),
        ([{"a": 1}, {"b": 1}], "differ between rows: row 2 has no column 'a', which row 1 has"),
        ([{"a": 1}, {"a": 1, "b": 1}], "differ between rows: row 2 has a column 'b', which row 1 does not have"),
        ([{"a": float("inf")}], "row 1, column 'a': infinite numbers are not supported"),
        ([{"a": {1, 2}}], "row 1, column 'a': values of type set are not supported"),
        ([{"a": b"bytes"}], "row 1, column 'a': values of type bytes are not supported"),
        ([{"a": {1: 2}}], "an object has the key 1, but keys must be texts"),
        ([{"a": 10**5000}], "row 1, column 'a': a value is too large"),
        ([{(1, 2): 3}], r"the column name \(1, 2\) is a tuple"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "several columns are named 'a'"),
        (np.zeros((2, 2)), "one dimension, not 2"),
        (np.zeros(2), "value 1 is a float, not a text"),
        ({"sst": [{"a": 1}, 2]}, "train 'sst': row 2 is a int"),
    ],
)  # fmt: skip
def test_bad_tables_are_refused(data: Any, message: str) -> None:
    with pytest.raises(PretuneError, match=message):
        tables_to_files(data, "train")


def test_a_deeply_nested_value_is_refused() -> None:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(PretuneError, match="too large"):
        tables_to_files([{"a": value}], "train")


def test_a_refused_table_leaves_no_file() -> None:
    folder = save_table([{"a": 1}], "train").parent
    before = set(folder.iterdir())
    with pytest.raises(PretuneError):
        tables_to_files([{"a": 1}, 2], "train")
    assert set(folder.iterdir()) == before


SAVE = """
import sys
from pretune.text.corpus.in_memory_tables import save_table
print(save_table([{"text": "shared by processes"}], "train"), flush=True)
sys.stdin.read()
"""


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SAVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    )  # fmt: skip


def test_the_last_process_removes_the_folder(tmp_path: Path) -> None:
    first, second = start(tmp_path), start(tmp_path)
    assert first.stdout is not None and second.stdout is not None
    path = Path(first.stdout.readline().strip())
    assert Path(second.stdout.readline().strip()) == path  # a resumed run finds its data under the same path
    assert path.parent.stat().st_mode & 0o077 == 0
    first.communicate()
    assert path.is_file()
    second.communicate()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_others_can_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir(mode=0o755)
    process = subprocess.run(
        [sys.executable, "-c", SAVE], env={**os.environ, "TMPDIR": str(tmp_path)}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "others have access to it" in process.stderr


def test_a_missing_table_is_explained() -> None:
    with pytest.raises(PretuneError, match="passed from Python"):
        find_files("/tmp/elsewhere/in-memory-table-3-rows-abc.jsonl")


def test_datasets_give_the_names_of_classes() -> None:
    datasets = pytest.importorskip("datasets")
    label = datasets.ClassLabel(names=["negative", "positive"])
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": label, "tags": datasets.List(label), "inner": {"label": label}}
    )
    rows = [
        {"text": "a", "label": 1, "tags": [0, 1], "inner": {"label": 0}},
        {"text": "b", "label": -1, "tags": [], "inner": {"label": None}},
    ]
    named = [
        {"text": "a", "label": "positive", "tags": ["negative", "positive"], "inner": {"label": "negative"}},
        {"text": "b", "label": None, "tags": [], "inner": {"label": None}},
    ]
    data = datasets.Dataset.from_list(rows, features=features)
    path = tables_to_files(data, "train")
    assert rows_of(path) == named
    assert tables_to_files(data.with_format("numpy"), "train") == path
    assert tables_to_files(data.to_iterable_dataset(), "train") == path
    with pytest.raises(PretuneError, match=r"several splits, train; give one of them, as in data\['train'\]"):
        tables_to_files(datasets.DatasetDict(train=data), "train")


def test_the_file_is_plain_json_lines() -> None:
    path = save_table([{"text": "a\nb"}], "train")
    assert json.loads(path.read_text()) == {"text": "a\nb"}
