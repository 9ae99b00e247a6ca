"""Tests of `pretune prune`, from a trained run to a smaller one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import pretune as pt
from pretune import PretuneError
from pretune.models.loading import load
from pretune.models.weight_files import read_weights
from tests.support.cli import run_command
from tests.support.one_word_task import start, trained

pytestmark = pytest.mark.usefixtures("briefly")


@pytest.mark.not_fast
def test_heads_units_and_layers_are_pruned(tmp_path: Path) -> None:
    data = start() / "train.csv"
    run = pt.prune(
        trained(), drop_layers="top(1)", heads=0.25, ffn_units=0.5, train=data, dev=data, out=tmp_path / "small"
    )
    facts = run.results
    assert facts["layers"]["kept"] == [1, 2, 3] and facts["compression_ratio"] > 1.2
    assert [row["model"] for row in facts["models"]] == ["before", "pruned"]
    assert facts["models"][0]["accuracy"] == 1.0 and "relative_quality" in facts
    rows = pt.predict(tmp_path / "small", [data.parent / "train.csv"])
    assert len(rows) == 64 and {row["predicted_label"] for row in rows} <= {"yes", "no"}
    assert len(pt.embed(tmp_path / "small", ["good stone"])[0]["vector"]) == 64
    with pytest.raises(PretuneError, match="cannot describe pruned heads"):
        pt.export(tmp_path / "small", out=tmp_path / "hf")


@pytest.mark.not_fast
def test_weights_are_pruned_gradually(tmp_path: Path) -> None:
    data = start() / "train.csv"
    run = pt.prune(
        trained(), drop_layers="even(2)", sparsity=0.7, train=data, dev=data, budget=pt.Budget(steps=30), out=tmp_path / "small",
        optimizer=pt.Optimizer(lr=3e-3), batch=pt.Batching(size=16), baseline=True,
    )  # fmt: skip
    names = [row["model"] for row in run.results["models"]]
    assert names == ["before", "pruned", "trained, not pruned", "pruned and trained"]
    assert run.results["models"][-1]["accuracy"] > 0.9 and run.results["compression_ratio"] > 2
    assert load(tmp_path / "small").sparse and load(tmp_path / "small/intermediate/pruned").backbone.depth == 2


@pytest.mark.not_fast
def test_half_precision_is_kept(tmp_path: Path) -> None:
    load(trained()).save(tmp_path / "half", torch.bfloat16)
    run = pt.prune(tmp_path / "half", drop_layers="top(1)", out=tmp_path / "small")
    assert run.results["compression_ratio"] > 1.1
    kinds = {tensor.dtype for tensor in read_weights(tmp_path / "small").values()}
    assert kinds == {torch.bfloat16}


@pytest.mark.not_fast
def test_vocabulary_is_pruned(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("good stone water\nbad fire cloud\n", encoding="utf-8")
    asked = ["prune", str(trained()), "--vocabulary-texts", str(tmp_path / "text.txt"), "--out", str(tmp_path / "few")]
    facts = run_command(*asked, "--json").json()
    assert facts["tokens"]["after"] < facts["tokens"]["before"]
    texts = ["good stone water", "bad fire cloud"]
    before, after = (pt.predict(folder, texts) for folder in (trained(), tmp_path / "few"))
    for one, other in zip(before, after, strict=True):
        assert one["label"] == other["label"] and one["probability"] == pytest.approx(other["probability"], abs=1e-5)


def test_invalid_options_are_rejected(tmp_path: Path) -> None:
    for options, words in (
        ({"drop_layers": "top(4)"}, "drop 1 to 3 of them"),
        ({"heads": 1.5}, "must be at least 0 and below 1"),
        ({}, "nothing to prune"),
        ({"heads": 0.5, "epochs": 1.0}, "give them with --train"),
        ({"heads": 0.5, "baseline": True}, "--baseline applies only with --epochs"),
    ):
        with pytest.raises(PretuneError, match=words):
            pt.prune(trained(), out=tmp_path / "never", **options)  # type: ignore[arg-type]
        assert not (tmp_path / "never").exists()
    other = tmp_path / "other.csv"
    other.write_text("text,label\nred bird,maybe\nblue bird,no\n", encoding="utf-8")
    with pytest.raises(PretuneError, match="label 'maybe' was not in training"):
        pt.prune(trained(), heads=0.5, train=other, out=tmp_path / "never")
    with pytest.raises(PretuneError, match="not trained for a task"):
        pt.prune(start() / "start", heads=0.5, train=start() / "train.csv", out=tmp_path / "never")
