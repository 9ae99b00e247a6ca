"""Tests of several seeds: mean, standard deviation, failures, the best one is kept, and dev splits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pretune as pt
from pretune import PretuneError
from pretune.text.examples.labeled import LabeledRows
from pretune.text.examples.splits import split_examples, warn_of_duplicates
from pretune.training.jobs.finetuning import DEV_PREDICTIONS, SPLIT, read_task_data, resolve_finetuning
from tests.support.one_word_task import share_here, start


def tune(out: Path, **settings: object) -> pt.Run:
    folder = start()
    return pt.finetune(
        folder / "start", folder / "train.csv", out=out, batch=pt.Batching(size=16),
        **{"budget": pt.Budget(steps=25), "optimizer": pt.Optimizer(lr=3e-3), **settings},
    )  # fmt: skip


@pytest.mark.end_to_end
def test_best_of_three_seeds_is_kept_and_all_are_reported(tmp_path: Path) -> None:
    run = tune(tmp_path / "run", num_seeds=3)
    summary = run.results["seeds"]
    each = [pt.Run(tmp_path / "run" / "seeds" / str(seed)).results["dev/accuracy"] for seed in range(3)]
    assert summary["scores"] == each and summary["count"] == 3
    assert summary["dev/accuracy"]["mean"] == pytest.approx(sum(each) / 3)
    assert run.results["dev/accuracy"] == max(each)
    best = (tmp_path / "run" / "seeds" / str(summary["best"]) / "model.safetensors").read_bytes()
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == best
    answers = (tmp_path / "run" / DEV_PREDICTIONS).read_text().splitlines()
    judged = json.loads((tmp_path / "run" / SPLIT).read_text())["dev_rows"]
    assert len(answers) == len(judged)
    assert run.predict(["good red stone"])[0]["label"] in ("yes", "no")


@pytest.mark.not_fast
def test_seeds_on_several_devices_give_the_same_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tune(tmp_path / "here", num_seeds=2, budget=pt.Budget(steps=3))
    shared = share_here(monkeypatch)
    there = tune(tmp_path / "there", num_seeds=2, budget=pt.Budget(steps=3), devices=2)
    assert shared == [2] and there.results["seeds"] == here.results["seeds"]
    first, second = ((run.folder / "model.safetensors").read_bytes() for run in (here, there))
    assert first == second


@pytest.mark.not_fast
def test_failed_runs_are_counted(tmp_path: Path) -> None:
    run = tune(tmp_path / "run", num_seeds=2, optimizer=pt.Optimizer(lr=1e-12), budget=pt.Budget(steps=1))
    assert run.results["seeds"]["failed"] == 2


@pytest.mark.not_fast
def test_finished_seeds_are_not_run_again(tmp_path: Path) -> None:
    tune(tmp_path / "run", num_seeds=2)
    (tmp_path / "run" / "results.json").unlink()
    weights = tmp_path / "run" / "seeds" / "0" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    assert tune(tmp_path / "run", num_seeds=2, resume=True).finished
    assert weights.stat().st_mtime_ns == before


@pytest.mark.not_fast
def test_few_examples_get_five_seeds_and_one_seed_alone_is_identical(tmp_path: Path) -> None:
    run = tune(tmp_path / "run", budget=pt.Budget(steps=2))
    assert run.results["seeds"]["count"] == 5
    alone = tune(tmp_path / "alone", budget=pt.Budget(steps=2), num_seeds=1)
    assert "seeds" not in alone.results
    first = tmp_path / "run" / "seeds" / "0" / "model.safetensors"
    assert (tmp_path / "alone" / "model.safetensors").read_bytes() == first.read_bytes()


def test_several_seeds_need_dev_examples(tmp_path: Path) -> None:
    few = tmp_path / "few.csv"
    few.write_text("text,label\ngood,a\nbad,b\n")
    with pytest.raises(PretuneError, match="comparing 2 seeds needs dev examples"):
        pt.finetune(start() / "start", few, out=tmp_path / "run", num_seeds=2)


texts = st.lists(st.sampled_from("abcdefghijklmnop"), min_size=2, max_size=60)


@settings(max_examples=60)
@given(texts, st.integers(0, 5), st.floats(0.05, 0.6))
def test_splits_keep_duplicates_together_and_every_label_in_training(names: list[str], seed: int, share: float) -> None:
    labels = [str(ord(name) % 3) for name in names]
    rows = LabeledRows(Path("x"), {}, names, labels=labels, lines=list(range(len(names))))
    learn, judge = split_examples(rows, share, seed)
    assert sorted(learn + judge) == list(range(len(names)))
    assert not {names[i] for i in learn} & {names[i] for i in judge}
    assert {labels[i] for i in learn} == set(labels)
    assert (learn, judge) == split_examples(rows, share, seed)


@pytest.mark.parametrize("distinct", [60, 40])
def test_the_size_of_a_split_with_duplicates_is_explained(
    distinct: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    monkeypatch.setattr("pretune.training.jobs.finetuning.log_info", logged.append)
    train = tmp_path / "train.csv"
    rows = (f"text {number % distinct},{'ab'[number % distinct % 2]}\n" for number in range(60))
    train.write_text("text,label\n" + "".join(rows))
    job = {"train": str(train), "out": tmp_path / "run", "objective": "classify"}
    material = read_task_data(resolve_finetuning("pretune-small-en", job))
    together = "" if distinct == 60 else ", where rows with the same text stay together"
    held_out = f"{len(material.dev)} of 60 examples are held out for evaluation"
    assert logged == [f"{train}: {held_out}{together}; to use others, give --dev"]


def test_leaked_examples_are_counted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)
    learn = LabeledRows(Path("train.csv"), {}, ["a", "b "], labels=["x", "y"], lines=[2, 3])
    judge = LabeledRows(Path("dev.csv"), {}, ["B", "c"], labels=["x", "y"], lines=[2, 3])
    assert warn_of_duplicates(learn, judge) == 1
    assert "1 of 2 examples of dev.csv are also in train.csv (dev.csv, line 2" in capsys.readouterr().err
