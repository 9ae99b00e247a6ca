"""Visual question answering: answers and their scores, targets, the head, and models that must see the image."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pretune as pt
from pretune import PretuneError
from pretune.families.encoders.vilbert import VILBERT
from pretune.inference.predict import Predictor
from pretune.models.create_model import make_model
from pretune.objectives import Data, parse_objective
from pretune.objectives.joint import JointObjective
from pretune.objectives.tasks.vqa import VQA, answer_scores, parse_answers, usual_answer
from pretune.packed import Capacity
from pretune.runtime.randomness import EpochRandom
from pretune.text.corpus.documents import Document
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.sequences import Packing, collate
from pretune.text.tokenizers.training import train_on_documents
from tests.support.cli import run_command
from tests.support.drawn_shapes import SMALL, small_model, train, write_captions, write_questions, write_rows


def fitted(rows: LabeledRows, **options: Any) -> tuple[VQA, Data]:
    task = VQA(**options).fit(rows)
    documents = [Document(text, Path("drawn"), 1) for text in rows.texts]
    tokenizer = train_on_documents(documents, "items", 64)
    return task, Data(tokenizer, VILBERT.template, rows=rows)


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=10))
def test_an_answer_of_three_people_is_right(given: list[str]) -> None:
    scores = answer_scores(given)
    assert set(scores) == set(given) and all(0 < score <= 1 for score in scores.values())
    for answer, score in scores.items():
        if len(given) >= 3:
            assert score == pytest.approx(min(given.count(answer) / 3, 1))
        else:
            assert (score == 1) == (given.count(answer) == len(given))
    assert given.count(usual_answer(given)) == max(map(given.count, given))


def test_answers_are_parsed() -> None:
    vqa = [{"answer": "Yes", "answer_id": 1}, {"answer": "no", "answer_id": 2}]
    assert parse_answers(vqa) == ("yes", "no") and parse_answers(["Two", "two", None]) == ("two", "two")
    assert parse_answers("red; Dark Red ;") == ("red", "dark red") and parse_answers(2) == ("2",)
    cells: list[Any] = [[], "", " ; ", None, [{}]]
    for empty in cells:
        with pytest.raises(ValueError, match="no"):
            parse_answers(empty)


def rows_of(answers: Sequence[tuple[str, ...]], tmp_path: Path) -> LabeledRows:
    file = write_questions(tmp_path, len(answers))
    rows = VQA().read(file, {})
    return replace(rows, labels=[*answers])


def test_targets_are_the_accuracies_of_known_answers(tmp_path: Path) -> None:
    answers = [("red", "red", "pink"), ("2",), ("pink", "pink", "pink", "red"), ("2", "2")]
    task, data = fitted(rows_of(answers, tmp_path))
    assert task.labels == ("2", "pink", "red")
    sequences = task.tokenize_examples(data, 16).take(np.arange(4))
    noisy = task.corrupt(sequences, data.tokenizer, EpochRandom(0))
    at, target = noisy.targets["vqa"]
    wanted = [[0, 1 / 3, 2 / 3], [1, 0, 0], [0, 1, 1 / 3], [1, 0, 0]]
    assert at.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(target, np.array(wanted), atol=1e-6)
    assert task.describe_target(at[:1], target[:1], noisy.ids, str) == "pink 0.33, red 0.67"
    assert VQA(min_count=2).fit(data.rows).labels == ("2", "pink", "red")
    with pytest.raises(PretuneError, match="0 of 3 answers occur in min_count=5 or more questions; lower min_count"):
        VQA(min_count=5).fit(data.rows)


def test_metrics_and_baselines(tmp_path: Path) -> None:
    answers = [("red", "red", "pink"), ("2", "2", "2"), ("red", "red", "red")]
    task, data = fitted(rows_of(answers, tmp_path))
    given = [{"answer": "pink"}, {"answer": "2"}, {"answer": "2"}]
    assert task.metrics(given, data.rows) == {"vqa_accuracy": pytest.approx((1 / 3 + 1) / 3), "exact_match": 1 / 3}
    scored = task.judge(given, data.rows)
    assert [one.score for one in scored] == pytest.approx([1 / 3, 1, 0])
    assert [one.expected for one in scored] == ["red", "2", "red"]
    name, usual = task.majority_answers(data.rows, data.rows)
    assert name == "'red'" and task.metrics(usual, data.rows)["vqa_accuracy"] == pytest.approx((2 / 3 + 1) / 3)
    (found,) = task.simple_baselines(data.rows, data.rows).values()
    assert len(found) == 3 and {one["answer"] for one in found} <= {"red", "2"}
    both = [{"answer": "2", "probability": 0.6, "probabilities": {"2": 0.6, "red": 0.5}}, {"answer": "red", "probability": 0.9, "probabilities": {"red": 0.9}}]  # fmt: skip
    assert task.combine(both, data.rows, 0)["answer"] == "red"


def test_padded_shapes_give_the_same_loss(tmp_path: Path) -> None:
    task, data = fitted(VQA().read(write_questions(tmp_path, 10), {}))
    model = small_model(data.tokenizer, [task])
    model.root.eval()
    packing = Packing(200, 16, 14)
    sequences = task.corrupt(task.arrange(data, packing, EpochRandom(0)).pack(0), data.tokenizer, EpochRandom(0))
    capacity = Capacity(240, 30, 16, task.max_targets(packing))
    losses = []
    for batch in (collate(sequences), collate(sequences, capacity)):
        loss = task.loss(model.root.heads["vqa"], model.backbone, batch)
        torch.autograd.backward(loss.sums["vqa"])
        gradient = model.backbone.embed_regions.features.weight.grad.clone()
        model.root.zero_grad()
        losses.append((loss.sums["vqa"].detach(), gradient))
    torch.testing.assert_close(losses[0], losses[1], atol=1e-4, rtol=1e-4)
    assert losses[0][1].abs().sum() > 0


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_model_that_sees_the_image_answers_and_one_that_sees_another_does_not(tmp_path: Path, shuffled: bool) -> None:
    task, data = fitted(VQA().read(write_questions(tmp_path, 400, seed=1, shuffled=shuffled), {}))
    dev = task.read(write_questions(tmp_path, 150, seed=9, shuffled=shuffled, name="dev"), {})
    model = small_model(data.tokenizer, [task])
    train(model, JointObjective(((1.0, task),)), data, 150)
    found = task.metrics(Predictor(model, task, dev, 16)(torch.device("cpu")), dev)["vqa_accuracy"]
    # Of three colors or three shapes, a third is right by chance: 0.33 ± 0.04.
    assert found < 0.5 if shuffled else found > 0.9


def test_wrong_inputs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match="'vqa' reads regions of images, and this model does not; use vilbert"):
        VQA(labels=("a", "b")).head(make_model("bert-tiny").backbone)
    task, data = fitted(VQA().read(write_questions(tmp_path, 6), {}))
    plain = LabeledRows(Path("x"), {}, ["a b"])
    with pytest.raises(PretuneError, match="the task 'vqa' needs images"):
        task.tokenize_examples(replace(data, rows=plain), 16)
    model = make_model("vilbert-tiny", vocabulary=64, regions=(5, None))
    model.add_heads([task])
    model.tokenizer = data.tokenizer
    with pytest.raises(PretuneError, match="the features of a region are 19 numbers, and the model was trained with 5"):
        Predictor(model, task, data.rows, 16)(torch.device("cpu"))
    unanswered = write_rows(tmp_path / "no.jsonl", [{"question": "what ?", "image": "a.npy", "answers": []}] * 2)
    with pytest.raises(PretuneError, match="2 of 2 rows have no label in 'answers'"):
        VQA().read(unanswered, {})


@pytest.mark.end_to_end
def test_pretraining_fine_tuning_and_prediction_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_captions(tmp_path, 40)
    write_questions(tmp_path, 120, seed=2)
    write_questions(tmp_path, 20, seed=3, name="dev")
    config = json.dumps({key: value for key, value in SMALL.items() if key not in ("vocab_size", "initializer_range")})
    Path("small.yaml").write_text(f"like: vilbert-tiny\nconfig: {config}\n")
    few = ["--set", "batch.tokens=256", "--max-length", "16", "--set", "optimizer.lr=0.005"]
    run_command("pretrain", "small.yaml", "--data", "captions.jsonl", "--steps", 6, "--out", "runs/pre", *few)
    logged = pt.Run("runs/pre").metrics()
    assert {"mlm", "mrm", "itm", "dev/mrm", "dev/itm/accuracy"} <= {name for row in logged for name in row}
    saved = json.loads(Path("runs/pre/config.json").read_text())
    assert (saved["v_feature_size"], saved["v_target_size"], saved["model_type"]) == (19, 9, "vilbert")
    tune = ["--objective", "vqa", "--strategy", "full", "--num-seeds", 1, "--set", "optimizer.lr=0.005", "--set", "report=false"]  # fmt: skip
    run_command(
        "finetune", "runs/pre", "questions.jsonl", "--dev", "dev.jsonl", "--epochs", 15, *tune, "--out", "runs/vqa"
    )
    assert pt.Run("runs/vqa").results["dev/vqa_accuracy"] > 0.55
    out = run_command("predict", "runs/vqa", "dev.jsonl", "--out", "answered.jsonl", "--json").json()
    rows = [json.loads(line) for line in Path("answered.jsonl").read_text().splitlines()]
    right = [row["answer"] == row["answers"][0] for row in rows]
    assert len(rows) == 20 and np.mean(right) == pytest.approx(pt.Run("runs/vqa").results["dev/vqa_accuracy"])
    assert out
    refused = run_command("predict", "runs/vqa", "what color is it ?", check=False)
    assert refused.returncode and "no column has the images" in refused.stderr
    broken = Path("dev-regions.tsv").read_bytes().replace(b"\t32\t", b"\t-1\t")
    Path("dev-regions.tsv").write_bytes(broken)
    refused = run_command("predict", "runs/vqa", "dev.jsonl", check=False)
    assert refused.returncode and "dev-regions.tsv, line 1: '-1' in the column image_w" in refused.stderr


def test_objectives_name_the_task() -> None:
    assert parse_objective("vqa(min_count=9)+0.5*mlm").objectives[0] == VQA(min_count=9)
