"""Tests of Amazon reviews in their official formats."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from pretune.evaluation.suites.declaration import find_suite
from pretune.runtime.errors import PretuneError


def test_tables_of_label_title_and_text_are_read(tmp_path: Path) -> None:
    for name in ("polarity", "full"):
        folder = tmp_path / f"amazon_review_{name}_csv"
        folder.mkdir()
        (folder / "test.csv").write_text('"2","A ""fine"" book","I liked it, mostly."\n"1","Bad",""\n')
        rows = find_suite("amazon").tasks[name].read("test", tmp_path, allow_incomplete=True).rows
        assert rows == [{"text": 'A "fine" book I liked it, mostly.', "label": "2"}, {"text": "Bad ", "label": "1"}]


def test_books_are_split_by_their_place_in_the_file(tmp_path: Path) -> None:
    lines = [
        json.dumps(
            {"reviewerID": f"A{i}", "asin": "0", "overall": float(i % 5 + 1), "summary": f"s{i}", "reviewText": "t"}
        )
        for i in range(10)
    ]
    with gzip.open(tmp_path / "reviews_Books_5.json.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    task = find_suite("amazon").tasks["books"]
    assert {split: own["rows"] for split, own in task.splits.items()} == {
        "train": [0, 50_000], "dev": [50_000, 60_000], "test": [60_000, 70_000],
    }  # fmt: skip
    assert {split: own["rows"][1] - own["rows"][0] for split, own in task.splits.items()} == task.counts
    splits = {"train": {"rows": [0, 5]}, "dev": {"rows": [5, 8]}, "test": {"rows": [8, 11]}}
    small = replace(task, splits=splits, counts={"train": 5, "dev": 3, "test": 3})
    train, dev = small.read("train", tmp_path), small.read("dev", tmp_path)
    assert train.rows[0] == {"text": "s0 t", "label": "1"} and train.rows[-1] == {"text": "s4 t", "label": "5"}
    assert [row["text"] for row in dev.rows] == ["s5 t", "s6 t", "s7 t"]
    test = small.read("test", tmp_path, allow_incomplete=True)
    assert [row["text"] for row in test.rows] == ["s8 t", "s9 t"] and not test.complete


def test_part_of_a_file_is_declared_by_two_numbers(tmp_path: Path) -> None:
    task = (
        "{title: T, kind: classify, metrics: [accuracy], files: {train: a.tsv, dev: a.tsv}, roles: {text: 1, label: 2}"
    )
    (tmp_path / "a.tsv").write_text("".join(f"text {i}\t{i}\n" for i in range(10)))
    for rows, labels in (("[0, 3]", "012"), ("[3, -2]", "34567"), ("[-2, null]", "89")):
        (tmp_path / "own.yaml").write_text(f"title: Own\ntasks: {{t: {task}, splits: {{dev: {{rows: {rows}}}}}}}}}\n")
        found = find_suite(tmp_path / "own.yaml").tasks["t"].read("dev", tmp_path).rows
        assert "".join(row["label"] for row in found) == labels
    for rows, message in (("[3]", "needs the first row"), ("[null, 3]", "needs the first row"), ("[a, b]", "rows")):
        (tmp_path / "own.yaml").write_text(f"title: Own\ntasks: {{t: {task}, splits: {{dev: {{rows: {rows}}}}}}}}}\n")
        with pytest.raises(PretuneError, match=message):
            find_suite(tmp_path / "own.yaml")
