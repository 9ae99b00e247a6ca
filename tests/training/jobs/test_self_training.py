"""Tests of self-training: the student learns from confident predictions of the teacher."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pretune as pt
from pretune.objectives.distillation.distill_task_logits import DistillLogits, TeacherTargets
from pretune.objectives.objective import classification_loss
from pretune.packed import Targets
from tests.support.one_word_task import share_here
from tests.support.tiny_models import read, tiny, tune


@pytest.fixture(scope="module")
def self_training_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("self")
    words = ["film", "book", "song", "play"]
    rows = [
        (f"{'lovely' if i % 2 else 'awful'} {words[i // 2 % 4]} {i % 7}", "yes" if i % 2 else "no") for i in range(40)
    ]
    lines = [f"{text},{label}" for text, label in rows]
    (folder / "train.csv").write_text("\n".join(["sentence,label", *lines]), encoding="utf-8")
    (folder / "more.csv").write_text("\n".join(["sentence", *(f"{t} 8" for t, _ in rows)]), encoding="utf-8")
    (folder / "more.txt").write_text("\n".join(f"{t} 8" for t, _ in rows) + "\n\n", encoding="utf-8")
    tiny("bert-tiny", read(lines * 2), folder / "start")
    tiny("bert-tiny", read([*lines, "it was lovely . it was awful !"] * 2), folder / "masked", "mlm")
    return folder


@pytest.mark.not_fast
@pytest.mark.parametrize("file", ["more.csv", "more.txt"])
def test_student_learns_from_confident_predictions(file: str, self_training_folder: Path, tmp_path: Path) -> None:
    run = tune(
        self_training_folder / "start", self_training_folder / "train.csv", tmp_path / "run", "classify(pooling=mean)", steps=20,
        shots=5, unlabeled=self_training_folder / file, confidence_threshold=0.7,
    )  # fmt: skip
    results = run.results
    assert results["labeled"] == 10 and results["rows"] == 10 + sum(results["pseudo_labeled"].values()) > 30
    assert results["dev/accuracy"] >= 0.75 and results["teacher/dev/accuracy"] >= 0.75  # the chance level is 0.5
    teacher = pt.Run(tmp_path / "run/intermediate/teacher")
    lines = [json.loads(line) for line in (tmp_path / "run/intermediate/student.jsonl").read_text().splitlines()]
    sure = teacher.predict([line["sentence"] for line in lines[10:]])
    assert all(
        a["probability"] >= 0.7 and a["label"] == line["label"] for a, line in zip(sure, lines[10:], strict=True)
    )
    assert run.recipe["unlabeled"] == str(self_training_folder / file) and teacher.results["rows"] == 10


@pytest.mark.not_fast
def test_soft_labels_transfer_the_uncertainty_of_the_teacher(self_training_folder: Path, tmp_path: Path) -> None:
    """All texts are used, with the probabilities of the teacher, which the student approaches."""
    run = tune(
        self_training_folder / "start", self_training_folder / "train.csv", tmp_path / "run", "classify(pooling=mean)", steps=30,
        shots=5, unlabeled=self_training_folder / "more.csv", distill_temperature=2.0, budget=None, epochs=12,
    )  # fmt: skip
    assert run.results["rows"] == 50 and run.recipe["distill_temperature"] == 2.0
    texts = (self_training_folder / "more.txt").read_text().split("\n")[:40]
    ours, theirs = (
        np.array([answer["probabilities"]["yes"] for answer in one.predict(texts)])
        for one in (run, pt.Run(tmp_path / "run/intermediate/teacher"))
    )
    assert np.abs(ours - theirs).mean() < 0.1 and run.results["dev/accuracy"] >= 0.8


@pytest.mark.not_fast
def test_students_on_several_devices_give_the_same_results(
    self_training_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = share_here(monkeypatch)
    here, there = (
        tune(
            self_training_folder / "start", self_training_folder / "train.csv", tmp_path / str(n), "classify", steps=2, num_seeds=2, devices=n,
            shots=5, unlabeled=self_training_folder / "more.csv", distill_temperature=2.0,
        )
        for n in (1, 2)
    )  # fmt: skip
    assert shared == [2, 2] and here.results["seeds"] == there.results["seeds"]


@pytest.mark.end_to_end
def test_several_teachers_are_averaged(self_training_folder: Path, tmp_path: Path) -> None:
    """As in PET, prompts with different clozes teach a classifier."""
    clozes = {"a": "it was [MASK] .", "b": "[MASK] !"}
    teachers = [
        tune(
            self_training_folder / "masked", self_training_folder / "train.csv", tmp_path / name,
            f'prompt(template="{cloze}",verbalizer=no:awful/yes:lovely)', steps=40,
        )
        for name, cloze in clozes.items()
    ]  # fmt: skip
    run = tune(
        self_training_folder / "start", self_training_folder / "train.csv", tmp_path / "run", "classify(pooling=mean)", steps=40, shots=2,
        unlabeled=self_training_folder / "more.txt", distill_temperature=1.0, teacher=teachers, strategy="full+freelb(2)",
    )  # fmt: skip
    assert run.results["dev/accuracy"] >= 0.9 and run.recipe["teacher"] == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert not (tmp_path / "run/intermediate/teacher").exists() and run.results["labeled"] == 4
    (tmp_path / "other.csv").write_text("text,label\na,maybe\nb,no\n")
    with pytest.raises(pt.PretuneError, match="has the labels no, yes, and the rows have maybe, no"):
        tune(
            self_training_folder / "start", tmp_path / "other.csv", tmp_path / "run2", "classify", unlabeled=self_training_folder / "more.txt",
            teacher=str(tmp_path / "a"),
        )  # fmt: skip


@settings(max_examples=20)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.floats(0.5, 4.0), st.integers(0, 6))
def test_soft_targets_equal_labels_if_the_teacher_is_certain(classes: list[int], temperature: float, hard: int) -> None:
    """A labeled row has the ordinary loss; a row of the teacher has that of the softened probabilities."""
    logits = torch.randn(len(classes), 3, generator=torch.Generator().manual_seed(len(classes)))
    shares = (
        np.eye(3)[classes] if hard >= len(classes) else np.random.default_rng(hard).dirichlet(np.ones(3), len(classes))
    )
    targets = Targets(torch.arange(len(classes)), torch.arange(len(classes)), torch.ones(len(classes)))
    task: Any = SimpleNamespace(name="classify", outputs=lambda head, backbone, batch: logits)
    batch: Any = SimpleNamespace(targets={"classify": targets})
    loss = DistillLogits(task, TeacherTargets(shares, min(hard, len(classes)), temperature)).loss(None, None, batch)  # type: ignore[arg-type]
    if hard >= len(classes):
        expected = classification_loss("classify", logits, replace(targets, target=torch.tensor(classes)))
        torch.testing.assert_close(loss.sums, expected.sums)
        torch.testing.assert_close(loss.logs, expected.logs)
        return
    total = 0.0  # the sum of the cross-entropy with labels and the divergence from the teacher
    for row, (x, p) in enumerate(zip(logits.double(), torch.from_numpy(shares), strict=True)):
        heat = 1.0 if row < hard else temperature
        wanted = (p.log() / heat).softmax(-1)
        total -= heat**2 * float((wanted * (x / heat).log_softmax(-1)).sum())
        total += heat**2 * float((wanted * wanted.log()).sum()) if row >= hard else 0.0
    assert float(loss.sums["classify"]) == pytest.approx(total, rel=1e-4)


@pytest.mark.not_fast
def test_invalid_options_are_rejected(self_training_folder: Path, tmp_path: Path) -> None:
    def train(**options: object) -> pt.Run:
        return tune(
            self_training_folder / "start",
            self_training_folder / "train.csv",
            tmp_path / "run",
            "classify",
            steps=1,
            **options,
        )

    with pytest.raises(pt.PretuneError, match="the threshold must be a probability"):
        train(unlabeled=self_training_folder / "more.csv", confidence_threshold=1.5)
    with pytest.raises(
        pt.PretuneError, match=r"confident about none of 40 texts \(at most 0\.\d\d\); lower --confidence-threshold"
    ):
        train(unlabeled=self_training_folder / "more.csv", confidence_threshold=1.0)
    with pytest.raises(pt.PretuneError, match="--distill-temperature 0: the temperature must be above 0"):
        train(unlabeled=self_training_folder / "more.csv", distill_temperature=0.0)
    with pytest.raises(pt.PretuneError, match="--distill-temperature applies only with --unlabeled"):
        train(distill_temperature=1.0)
    with pytest.raises(
        pt.PretuneError,
        match="unlabeled texts need a task with one label per text; choose the task 'classify' or 'prompt'",
    ):
        tune(
            self_training_folder / "start",
            self_training_folder / "train.csv",
            tmp_path / "run",
            "generate",
            unlabeled=self_training_folder / "more.csv",
        )
    assert [path.name for path in (tmp_path / "run").iterdir()] == [
        "intermediate"
    ]  # the teacher that was not confident
