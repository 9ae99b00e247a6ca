"""Tests of the comparison of fine-tuning strategies: what wins, what it says, and that it learns nothing from noise."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pretune as pt
from pretune import PretuneError
from pretune.inference.predict import Predictor, load_task_model
from pretune.objectives.tasks.bag_of_words import BAG_FILE
from pretune.text.examples.labeled import LabeledRows, read_labeled
from pretune.text.examples.splits import assign_folds
from pretune.training.jobs.finetuning import DEV_PREDICTIONS, resolve_finetuning
from pretune.training.jobs.strategies import search as strategy_search
from pretune.training.jobs.strategies import trained_encoders, winner
from pretune.training.jobs.strategies.comparison import Attempt, Candidate, Comparison
from pretune.training.jobs.strategies.search import auto_obstacle
from tests.support.one_word_task import start


@pytest.fixture(autouse=True)
def show_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)


WORDS = ["red", "blue", "green", "yellow", "stone", "water", "fire", "cloud", "tree", "bird"]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return path


def one_word_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows whose label one word decides."""
    chance = random.Random(seed)
    rows = []
    for i in range(count):
        rest = " ".join(chance.choices(WORDS, k=4))
        rows.append({"text": f"{'good' if i % 2 else 'bad'} {rest} {i}", "label": "yes" if i % 2 else "no"})
    return rows


def search(train: Path, out: Path, **options: Any) -> pt.Run:
    return pt.finetune(start() / "start", train, out=out, **{"report": False, "effort": "quick", **options})


def test_the_default_finds_the_word_and_its_model_is_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    train = write(tmp_path / "train.csv", one_word_rows(40))
    run = search(train, tmp_path / "run")
    told = capsys.readouterr().err
    assert run.results["dev/accuracy"] >= 0.95 and run.results["cross_validated"]
    assert "comparing strategies" in told and "best: " in told and "trivial baselines: " in told
    assert {"a bag of words"} < run.results["tried"].keys()
    new = one_word_rows(20, seed=1)
    said = [answer["label"] for answer in pt.load(run.folder).predict([row["text"] for row in new])]
    assert np.mean([a == row["label"] for a, row in zip(said, new, strict=True)]) >= 0.9
    assert not (run.folder / "intermediate" / "strategies").exists()


def test_noise_stays_at_chance_and_is_called_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A control: labels that nothing decides. Choosing among strategies must not look like learning."""
    scores = []
    for seed in range(3):
        rows = one_word_rows(60, seed)
        random.Random(seed).shuffle(labels := [row["label"] for row in rows])
        for row, label in zip(rows, labels, strict=True):
            row["text"] = row["text"].split(" ", 1)[1]
            row["label"] = label
        run = search(write(tmp_path / f"{seed}.csv", rows), tmp_path / f"run{seed}")
        scores.append(run.results["dev/accuracy"])
    assert np.mean(scores) < 0.66
    assert "better than" in capsys.readouterr().err


@pytest.mark.not_fast
def test_strategies_that_train_are_compared_and_killed_searches_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(strategy_search, "PERFECT", 2.0)
    monkeypatch.setattr(trained_encoders, "STEPS", {"normal": (4, 4), "thorough": (4, 4)})
    train = write(tmp_path / "train.csv", one_word_rows(64))
    trained: list[str] = []
    finetune = trained_encoders.finetune

    def killed(job: Any, data: Any, resume: bool = False) -> Any:
        if len(trained) == 2 and "killed" not in trained:
            trained.append("killed")
            raise MemoryError("killed")
        trained.append(job.out.name)
        return finetune(job, data, resume)

    monkeypatch.setattr(trained_encoders, "finetune", killed)
    with pytest.raises(MemoryError):
        search(train, tmp_path / "run", effort="normal")
    run = search(train, tmp_path / "run", effort="normal", resume=True)
    parts = [name for name in trained if name not in ("killed", "winner")]
    assert len(parts) == len(set(parts)) == 3, "each part once, although the search was killed"
    assert len(run.results["tried"]) == 3 and run.results["dev/accuracy"] >= 0.95


@pytest.mark.not_fast
def test_an_interrupt_keeps_the_best_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.setattr(strategy_search, "PERFECT", 2.0)

    def interrupted(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(strategy_search, "train_parts", interrupted)
    run = search(write(tmp_path / "train.csv", one_word_rows(40)), tmp_path / "run", effort="normal")
    assert run.results["stopped_early"] and "keeping the best so far" in capsys.readouterr().err
    assert run.results["dev/accuracy"] >= 0.95 and run.predict(["good red stone"])[0]["label"] in ("yes", "no")


@pytest.mark.not_fast
@pytest.mark.parametrize("effort", ["quick", "normal"])
def test_an_interrupt_while_the_winner_is_fitted_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], effort: str) -> None:  # fmt: skip
    monkeypatch.setattr(strategy_search, "PERFECT", 2.0)
    monkeypatch.setattr(trained_encoders, "STEPS", {"normal": (4, 4)})
    if effort == "normal":  # so that a trained encoder wins
        monkeypatch.setattr(strategy_search, "clearly_lower", lambda *losses: False)
    finetune, fitted = winner.finetune, list[Any]()

    def interrupted(job: Any, data: Any) -> Any:
        fitted.append(job)
        if len(fitted) == 1:
            raise KeyboardInterrupt
        return finetune(job, data)

    monkeypatch.setattr(winner, "finetune", interrupted)
    run = search(write(tmp_path / "train.csv", one_word_rows(40)), tmp_path / "run", effort=effort)
    told = capsys.readouterr().err
    assert run.finished and run.predict(["good red stone"])[0]["label"] in ("yes", "no")
    if effort == "quick":  # fitted in seconds, so it is fitted anyway
        assert len(fitted) == 2 and "in seconds" in told and not run.results["stopped_early"]
    else:
        assert len(fitted) == 1 and "of 40 examples" in told and run.results["stopped_early"]
        assert run.results["strategy"].startswith("contrastive tuning")
    assert not (run.folder / "intermediate" / "strategies").exists()


@pytest.mark.not_fast
def test_a_training_that_diverges_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.setattr(strategy_search, "PERFECT", 2.0)
    finetune = trained_encoders.finetune

    def diverging(job: Any, data: Any, resume: bool = False) -> Any:
        if job.strategy == "contrastive":
            raise PretuneError("the loss is not a number")
        return finetune(job, data, resume)

    monkeypatch.setattr(trained_encoders, "finetune", diverging)
    run = search(write(tmp_path / "train.csv", one_word_rows(40)), tmp_path / "run", effort="normal")
    assert run.results["failed"] == ["contrastive tuning"] and "contrastive tuning failed" in capsys.readouterr().err
    assert len(run.results["tried"]) == 2 and run.results["dev/accuracy"] >= 0.95


@pytest.mark.not_fast
@pytest.mark.parametrize("kind", ["pairs", "numbers", "labels", "weighted"])
def test_other_kinds_of_rows(tmp_path: Path, kind: str) -> None:
    chance = random.Random(0)
    rows: list[dict[str, Any]] = []
    for i in range(48):
        text = " ".join(chance.choices(WORDS, k=3)) + f" {i}"
        match kind:
            case "pairs":
                rows.append(
                    {"text": text, "pair": text if i % 2 else f"good bad {i}", "label": "same" if i % 2 else "other"}
                )
            case "numbers":
                rows.append({"text": f"{'good ' * (i % 4)}{text}", "label": i % 4 + 0.5})
            case "labels":
                rows.append({"text": f"{'good' if i % 2 else 'bad'} {text}", "label": "a,b" if i % 2 else "b"})
            case _:
                rows.append(
                    {"text": f"{'good' if i % 6 == 0 else 'bad'} {text}", "label": "rare" if i % 6 == 0 else "usual"}
                )
    objective = {
        "numbers": "regress",
        "labels": "classify(multi_label=true)",
        "weighted": "classify(class_weight=balanced)",
    }
    run = search(write(tmp_path / "train.csv", rows), tmp_path / "run", objective=objective.get(kind, "classify"))
    metric = {"numbers": "spearman", "labels": "micro_f1"}.get(kind, "accuracy")
    assert run.results[f"dev/{metric}"] > 0.85
    asked = tmp_path / "new.csv"
    write(asked, [{name: value for name, value in row.items() if name != "label"} for row in rows[:5]])
    assert len(pt.predict(run.folder, asked)) == 5


@pytest.mark.not_fast
def test_a_dev_file_is_never_learned_from(tmp_path: Path) -> None:
    train, dev = write(tmp_path / "train.csv", one_word_rows(40)), one_word_rows(30, seed=5)
    for row in dev:  # wrong on purpose
        row["label"] = "no" if row["label"] == "yes" else "yes"
    run = search(train, tmp_path / "run", dev=write(tmp_path / "dev.csv", dev))
    assert run.results["dev/accuracy"] <= 0.1 and not run.results["cross_validated"]


@pytest.mark.not_fast
def test_the_saved_model_predicts_what_it_was_evaluated_with(tmp_path: Path) -> None:
    """Calibration, the bag of words and the layers that are read all come back from the folder, also after int8."""
    rows = one_word_rows(40)
    dev = write(tmp_path / "dev.csv", one_word_rows(20, seed=3))
    run = search(write(tmp_path / "train.csv", rows), tmp_path / "run", dev=dev)
    model, task = load_task_model(run.folder)
    again = Predictor(model, task, read_labeled(dev, {}, labels=True), 128)()
    kept = [json.loads(line) for line in (run.folder / DEV_PREDICTIONS).read_text(encoding="utf-8").splitlines()]
    assert [answer["label"] for answer in kept] == [answer["label"] for answer in again]
    np.testing.assert_allclose(*([a["probabilities"]["yes"] for a in some] for some in (kept, again)), atol=1e-6)
    made = pt.quantize(run.folder, out=tmp_path / "int8", backend="torch", dev=dev)
    assert (made.folder / BAG_FILE).is_file() == (run.folder / BAG_FILE).is_file()
    said = [answer["label"] for answer in pt.load(made.folder).predict(["good red 7", "bad blue 8"])]
    assert said == ["yes", "no"]


def test_training_settings_mean_one_strategy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = write(tmp_path / "train.csv", one_word_rows(16))
    run = pt.finetune(start() / "start", train, out=tmp_path / "run", budget=pt.Budget(steps=2), report=False)
    assert "tried" not in run.results and "comparing strategies" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"objective": "tag"}, "the task is tag"),
        ({"objective": "classify+0.5*mlm"}, "several objectives"),
        ({"objective": "classify(hidden_size=8)"}, "hidden layer"),
        ({"from_scratch": True}, "random weights"),
        ({}, ""),
    ],
)
def test_obstacles(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    given = {"objective": "classify", "train": "x.csv", "out": tmp_path, "strategy": "auto", **options}
    plan = resolve_finetuning(str(start() / "start"), given)
    assert reason in auto_obstacle(plan) and bool(reason) == bool(auto_obstacle(plan))


@pytest.mark.parametrize("count", [2, 7])
def test_too_few_rows_train_as_before(tmp_path: Path, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    run = search(write(tmp_path / "train.csv", one_word_rows(count)), tmp_path / "run")
    assert "tried" not in run.results and "because a comparison needs 8" in capsys.readouterr().err


def test_one_class_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    rows = [{**row, "label": "yes"} for row in one_word_rows(20)]
    with pytest.raises(PretuneError, match="every row has the label 'yes'"):
        search(write(tmp_path / "train.csv", rows), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_folds_keep_duplicates_together() -> None:
    texts = [f"text {i % 10}" for i in range(40)]
    rows = LabeledRows(Path("x.csv"), {}, texts, None, [str(i % 2) for i in range(40)])
    folds = assign_folds(rows, 5)
    assert all(len({int(folds[i]) for i in range(40) if texts[i] == text}) == 1 for text in set(texts))


@pytest.mark.parametrize(("gap", "winner"), [(0.002, "network"), (0.5, "words")])
def test_a_bag_of_words_wins_only_if_it_is_clearly_better(gap: float, winner: str) -> None:
    noise = np.random.default_rng(0).uniform(0.3, 0.4, 30)
    targets = np.zeros(30, dtype=int)
    comparison: Any = Comparison(None, None, targets, targets, "classes", 2, None)  # type: ignore[arg-type]

    def attempt(share: float, sure: Any) -> Attempt:
        candidate = Candidate("frozen features", "classify", "features")
        found = Attempt(candidate, np.stack([sure, 1 - sure], 1), 0.0, share=share)
        found.loss = float(comparison.losses(found.predicted).mean())
        return found

    network, words = attempt(0.0, noise), attempt(1.0, np.roll(noise, 1) + gap)
    assert words.loss < network.loss
    assert strategy_search.choose_attempt(comparison, [words, network]) is {"network": network, "words": words}[winner]


@pytest.mark.parametrize("rows", [24, 240])
def test_a_bag_of_words_is_averaged_with_frozen_features_if_rows_are_enough(rows: int) -> None:
    """Both are right in three of four of the rows, independently; the fewer rows, the less the bag of words counts."""
    random = np.random.default_rng(0)
    targets = np.arange(rows) % 2
    table = LabeledRows(Path("x.csv"), {}, ["x"] * rows, None, [str(x) for x in targets])
    material: Any = SimpleNamespace(rows=table)
    comparison: Any = Comparison(None, material, targets, targets, "classes", 2, None)  # type: ignore[arg-type]

    def predictions() -> Any:
        right = np.where(random.uniform(size=rows) < 0.75, 0.8, 0.2)
        return np.where(targets[:, None] == [0, 1], right[:, None], 1 - right[:, None])

    network = Attempt(Candidate("frozen features", "classify", "features"), predictions(), 0.0)
    share = strategy_search.bag_share(comparison, network, predictions())
    assert (share < 0.1) if rows == 24 else (0.2 < share < 0.7)
    wrong = np.where(targets[:, None] == [0, 1], 0.3, 0.7)
    assert strategy_search.bag_share(comparison, network, wrong) < 0.1
    trained = Attempt(Candidate("full fine-tuning", "classify", "full"), network.predicted, 0.0)
    assert strategy_search.bag_share(comparison, trained, wrong) == 0.0


def test_predictions_that_say_nothing_become_the_most_frequent_class(tmp_path: Path) -> None:
    """A control: labels that nothing decides, most of them `no`. The winner must not be worse than always saying so."""
    rows = one_word_rows(60)
    for i, row in enumerate(rows):
        row["text"], row["label"] = row["text"].split(" ", 1)[1], "yes" if i % 5 == 0 else "no"
    random.Random(1).shuffle(labels := [row["label"] for row in rows])
    for row, label in zip(rows, labels, strict=True):
        row["label"] = label
    run = search(write(tmp_path / "train.csv", rows), tmp_path / "run")
    assert run.results["dev/accuracy"] >= 0.75
    new = [row["text"].split(" ", 1)[1] for row in one_word_rows(40, seed=8)]
    assert np.mean([answer["label"] == "no" for answer in pt.load(run.folder).predict(new)]) >= 0.9
