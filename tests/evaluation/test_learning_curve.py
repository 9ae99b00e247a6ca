"""Tests of learning curves: nested subsets, one point per size, and a control."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.evaluation.learning_curve import FILE, FOLDER, stratified_order
from pretune.text.examples.labeled import LabeledRows
from tests.support.one_word_task import share_here, tune


@given(st.lists(st.sampled_from("aab"), min_size=1, max_size=60), st.integers(0, 5))
def test_prefixes_have_every_label_in_proportion(labels: list[str], seed: int) -> None:
    rows = LabeledRows(Path("x.csv"), {}, ["t"] * len(labels), labels=list(labels))
    order = stratified_order(rows, seed)
    assert sorted(order) == list(range(len(labels)))
    for size in range(1, len(labels) + 1):
        for label in set(labels):
            found = sum(labels[row] == label for row in order[:size])
            assert abs(found - size * labels.count(label) / len(labels)) <= 1.5


@pytest.mark.end_to_end
def test_learning_curve_with_control(tmp_path: Path) -> None:
    run = tune(tmp_path / "run", steps=3, learning_curve=[8, 32], scratch_baseline=True, num_seeds=2, report=True)
    points = json.loads((run.folder / FILE).read_text())
    assert [point["examples"] for point in points] == [8, 32, 64]
    for point in points:
        assert {"pretrained", "from scratch", "a bag of words", "always 'no'"} == point.keys() - {"examples"}
        assert len(point["pretrained"]["scores"]) == len(point["from scratch"]["scores"]) == 2
    assert points[-1]["pretrained"]["scores"] == run.results["seeds"]["scores"]
    assert not list((run.folder / FOLDER).rglob("*.safetensors"))
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    assert "Learning curve" in page and "from scratch" in page


@pytest.mark.not_fast
def test_several_devices_give_the_same_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = share_here(monkeypatch)
    options = {"steps": 2, "learning_curve": [8], "scratch_baseline": True, "num_seeds": 2}
    here, there = (tune(tmp_path / str(n), devices=n, **options).folder / FILE for n in (1, 2))
    assert here.read_bytes() == there.read_bytes()
    assert shared == [2, 2]  # the run itself, then the whole curve at once


def test_invalid_sizes_are_rejected_before_training(tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match="--learning-curve 64: sizes must be between 2 and 63"):
        tune(tmp_path / "run", steps=1, learning_curve=[64], num_seeds=1)
    assert not (tmp_path / "run" / "results.json").exists()
