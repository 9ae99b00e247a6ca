"""Tests of baselines that count words."""

from __future__ import annotations

from pathlib import Path

import pytest

from pretune.objectives import word_baselines
from pretune.objectives.word_baselines import classify_pairs, name_or_number, regress_words, sentences, some_rows
from pretune.text.examples.labeled import LabeledRows


def test_rows_without_words_are_no_error() -> None:
    rows = LabeledRows(Path("x"), {}, ["", " "], ["", ""], ["a", "b"])
    assert set(classify_pairs(rows, rows)) <= {"a", "b"}
    assert classify_pairs(LabeledRows(Path("x"), {}, ["a"], ["b"], ["only"]), rows) == ["only", "only"]
    assert regress_words(LabeledRows(Path("x"), {}, ["", " "], None, [1.0, 3.0]), rows) == pytest.approx([2.0, 2.0])
    assert sentences("") == [""] and name_or_number("Who?", "") == ""


def test_only_some_of_many_rows_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = LabeledRows(Path("x"), {}, [str(i) for i in range(100)], labels=["a"] * 100, lines=list(range(100)))
    assert some_rows(rows) is rows
    monkeypatch.setattr(word_baselines, "MAX_ROWS", 30)
    assert some_rows(rows).texts == [str(i) for i in range(0, 100, 4)]
