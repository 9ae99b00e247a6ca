"""Tests of `pretune distill`: students of all kinds, cached labels, and invalid options."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pretune as pt
from pretune import PretuneError
from pretune.compression import distillation
from pretune.compression.parameter_sharing import convert_to_albert
from pretune.inference import teacher_labels
from pretune.models.loading import load
from pretune.objectives import Loss, parse_objective
from pretune.text.examples.augmentation import augment
from pretune.text.examples.labeled import LabeledRows
from pretune.training.jobs.finetuning import TaskData
from tests.support.cli import run_command
from tests.support.one_word_task import start, trained, tune
from tests.support.tiny_models import read, tiny
from tests.support.tiny_models import tune as learn

pytestmark = pytest.mark.usefixtures("briefly")
FAST: dict[str, Any] = {"optimizer": pt.Optimizer(lr=3e-3), "batch": pt.Batching(size=16)}


def texts(folder: Path, count: int = 48) -> Path:
    """Write unlabeled texts of the task."""
    lines = (start() / "text.txt").read_text(encoding="utf-8").splitlines()[1:]
    (folder / "more.txt").write_text(
        "\n".join(" ".join(reversed(line.split())) for line in lines[:count]), encoding="utf-8"
    )
    return folder / "more.txt"


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    ("student", "options"),
    [
        ("layers=2", {"match_layers": "100*hidden(skip)"}),
        ("first=1", {"loss": "mse", "alpha": 1.0}),
        ("bert-tiny", {"match_layers": "attention(1:2/2:4)+embedding+states(last)", "alpha": 0.9}),
        ("modernbert-tiny", {"loss": "mse"}),
        ("bilstm-tiny", {"alpha": 0.9}),
    ],
)
def test_task_distillation_learns(student: str, options: dict[str, Any], tmp_path: Path) -> None:
    data = start() / "train.csv"
    run = pt.distill(
        trained(),
        student=student,
        train=data,
        dev=data,
        out=tmp_path / "student",
        budget=pt.Budget(steps=25),
        **FAST,
        **options,
    )
    rows = {row["model"]: row for row in run.results["models"]}
    assert rows["student"]["accuracy"] > 0.9
    assert run.recipe["teacher"] == [str(trained())] and run.recipe["student"] == student
    assert run.recipe["budget"] == {"steps": 25} and run.recipe["optimizer"] == {"lr": 3e-3}
    assert list(load(tmp_path / "student").root.heads) == ["classify"]
    assert pt.predict(tmp_path / "student", ["good stone"])[0]["label"] in ("yes", "no")
    if student == "bilstm-tiny":
        assert (
            load(tmp_path / "student").root.heads["classify"].pooling == "max"
        )  # the default of its family, not of the teacher


@pytest.mark.not_fast
def test_predictions_for_unlabeled_texts_are_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {
        "student": "layers=2",
        "unlabeled": texts(tmp_path),
        "budget": pt.Budget(steps=60),
        "num_augmentations": 1,
        **FAST,
    }
    run = pt.distill(trained(), out=tmp_path / "student", dev=start() / "train.csv", **asked)  # type: ignore[arg-type]
    assert run.results["texts"] > 48 and run.results["dev/accuracy"] > 0.8
    cache = tmp_path / "student/intermediate/teacher-texts.npz"
    with np.load(cache) as kept:
        assert kept["shares"].shape == (run.results["texts"], 2)
    shutil.copytree(cache.parent, tmp_path / "again/intermediate")  # the files of an interrupted attempt
    monkeypatch.setattr(teacher_labels, "predict_excerpts", None)
    assert pt.distill(trained(), out=tmp_path / "again", **asked).finished  # type: ignore[arg-type]


@pytest.mark.slow
def test_predictions_of_several_processes_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teacher_labels, "EXCERPT_ROWS", 8)
    rows = LabeledRows(Path("texts"), {}, texts(tmp_path).read_text().splitlines(), lines=list(range(1, 49)))
    one, two = (
        teacher_labels.label_with_teachers([str(trained())], rows, ["no", "yes"], tmp_path / f"{n}.npz", n)
        for n in (1, 2)
    )
    np.testing.assert_allclose(one, two, atol=1e-6)
    assert one.shape == (48, 2)


@pytest.mark.end_to_end
def test_several_teachers_and_a_control(tmp_path: Path) -> None:
    data = start() / "train.csv"
    other = tune(tmp_path / "other", steps=40, seed=3)
    run = pt.distill(
        [trained(), other], student="layers=1", train=data, unlabeled=texts(tmp_path, 20), dev=data, baseline=True,
        out=tmp_path / "student", budget=pt.Budget(steps=20), **FAST,
    )  # fmt: skip
    assert [row["model"] for row in run.results["models"]] == ["teacher", "student without a teacher", "student"]
    assert run.results["texts"] == 20 and len(run.results["teachers"]) == 2


@pytest.mark.not_fast
def test_task_agnostic_distillation(tmp_path: Path) -> None:
    folder = start()
    mlm = pt.adapt(folder / "start", folder / "text.txt", out=tmp_path / "mlm", budget=pt.Budget(steps=3))
    run = pt.distill(
        mlm.run.folder, student="layers=2", data=folder / "text.txt", out=tmp_path / "student", budget=pt.Budget(steps=6),
        match_layers="cosine+hidden(skip)", batch=pt.Batching(tokens=512),
    )  # fmt: skip
    model = load(tmp_path / "student")
    assert model.backbone.depth == 2 and list(model.root.heads) == ["mlm"]
    lines = [line for line in run.metrics() if "match_logits" in line]
    assert lines and {"mlm", "match_cosine", "match_hidden"} <= lines[-1].keys()
    assert any("dev/mlm" in line and "dev/match_logits" not in line for line in run.metrics())
    assert run.results["compression_ratio"] > 1.0


def train_masked_lm(folder: Path) -> Path:
    """Train a tiny masked language model."""
    pt.adapt(
        start() / "start", start() / "text.txt", out=folder, budget=pt.Budget(steps=2), batch=pt.Batching(tokens=512)
    )
    return folder


def distill_from_text(teacher: Path, out: Path, **options: Any) -> pt.Run:
    given = {"budget": pt.Budget(steps=2), "batch": pt.Batching(tokens=512)}
    return pt.distill(teacher, student="layers=2", data=start() / "text.txt", out=out, **given, **options)


@pytest.mark.end_to_end
def test_loss_weights_default_to_those_of_distilbert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    teacher, seen = train_masked_lm(tmp_path / "mlm"), list[dict[str, float]]()
    over = Loss.over

    def recorded(self: Loss, totals: Any) -> Any:
        seen.append({term: self.weights.get(term, 1.0) for term in self.sums})
        return over(self, totals)

    monkeypatch.setattr(Loss, "over", recorded)
    run = distill_from_text(teacher, tmp_path / "usual")
    assert seen[-1] == {"mlm": 2.0, "match_logits": 5.0, "match_cosine": 1.0}
    assert "loss_weights" not in run.recipe
    chosen = {"distillation": 3.0, "mlm": 0.0, "cosine": 0.5}
    run = distill_from_text(teacher, tmp_path / "chosen", loss_weights=chosen)
    assert seen[-1] == {"mlm": 0.0, "match_logits": 3.0, "match_cosine": 0.5}
    assert run.recipe["loss_weights"] == chosen
    distill_from_text(teacher, tmp_path / "matched", match_layers="2*cosine+hidden(skip)", loss_weights={"mlm": 1.0})
    assert seen[-1] == {"mlm": 1.0, "match_logits": 5.0, "match_cosine": 2.0, "match_hidden": 1.0}
    run_command(
        "distill", teacher, "--student", "layers=2", "--data", start() / "text.txt", "--steps", 1,
        "--set", "batch.tokens=512", "--loss-weights.distillation", 4, "--out", tmp_path / "typed", "--json",
    )  # fmt: skip
    assert seen[-1] == {"mlm": 2.0, "match_logits": 4.0, "match_cosine": 1.0}
    for weights, words in (
        ({"distilation": 1.0}, "did you mean 'distillation'"),
        ({"lm": 1.0}, "this teacher was trained with mlm"),
        ({"mlm": -1.0}, "the weight of a loss must be 0 or more"),
        (dict.fromkeys(chosen, 0.0), "all weights are 0"),
    ):
        with pytest.raises(PretuneError, match=words):
            distill_from_text(teacher, tmp_path / "never", loss_weights=weights)
    with pytest.raises(PretuneError, match=r"give the weight in --match-layers, as in 2\*cosine"):
        distill_from_text(teacher, tmp_path / "never", match_layers="cosine", loss_weights={"cosine": 2.0})
    assert not (tmp_path / "never").exists()


@pytest.mark.end_to_end
def test_control_of_task_agnostic_distillation(tmp_path: Path) -> None:
    teacher = train_masked_lm(tmp_path / "mlm")
    run = distill_from_text(teacher, tmp_path / "student", baseline=True, monitor=pt.Monitoring(eval_every=1))
    assert [row["model"] for row in run.results["models"]] == ["teacher", "student without a teacher", "student"]
    baseline = pt.Run(tmp_path / "student/intermediate/baseline")
    assert baseline.finished and run.results["baseline/dev/mlm"] == baseline.results["dev/mlm"] > 0
    assert not any("match_logits" in line for line in baseline.metrics())


@pytest.mark.end_to_end
@pytest.mark.parametrize("verb", ["distill", "prune", "quantize", "finetune"])
def test_nothing_is_written_outside_the_run_folder(verb: str, tmp_path: Path) -> None:
    data, more = start() / "train.csv", tmp_path / "inputs"
    more.mkdir()
    options: dict[str, dict[str, Any]] = {
        "distill": {
            "student": "layers=2",
            "unlabeled": texts(more),
            "num_augmentations": 1,
            "baseline": True,
            "dev": data,
        },
        "prune": {"heads": 0.5, "baseline": True},
        "quantize": {"method": "qat"},
        "finetune": {"unlabeled": texts(more), "confidence_threshold": 0.1, "num_seeds": 1, "report": False},
    }
    model = start() / "start" if verb == "finetune" else trained()
    run = getattr(pt, verb)(model, train=data, out=tmp_path / "out", budget=pt.Budget(steps=1), **options[verb])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inputs", "out"]
    assert run.finished and (tmp_path / "out" / "intermediate").is_dir()


@pytest.mark.not_fast
def test_bert_is_converted_to_albert(tmp_path: Path) -> None:
    teacher = load(trained())
    albert = convert_to_albert(teacher, 32)
    assert albert.family.name == "albert" and albert.backbone.depth == 4 and len(albert.backbone.layers) == 1
    wide = convert_to_albert(teacher, 63)
    from pretune.packed import pack_lists

    packed = pack_lists([[5, 9, 12, 40, 7]])
    with torch.no_grad():
        ours, theirs = (x.backbone.eval().embed(packed) for x in (wide, teacher))
    assert float(torch.cosine_similarity(ours, theirs).mean()) > 0.5
    data = start() / "train.csv"
    run = pt.distill(
        trained(), student="shared=32", train=data, dev=data, match_layers="states(last)", out=tmp_path / "albert",
        budget=pt.Budget(steps=25), **FAST,
    )  # fmt: skip
    assert run.results["models"][-1]["accuracy"] > 0.9 and run.results["compression_ratio"] > 1.5


def test_augmentation_is_deterministic_and_uses_known_words(tmp_path: Path) -> None:
    few = ["one two three four five six seven eight nine ten", "a"]
    pairs = augment(few, 3)
    made = [text for _, text in pairs]
    assert made and pairs == augment(few, 3) and not set(made) & set(few) and all(made)
    words = {word for text in few for word in text.split()}
    assert {word for text in made for word in text.split()} <= words
    rows = LabeledRows(Path("rows"), {}, few, ["x", "y"], lines=[1, 2])
    job = distillation.DistillationJob(
        teachers=["teacher"], student="layers=2", out=tmp_path / "out", num_augmentations=3
    )
    varied = distillation.with_variants(None, rows, job)
    assert varied.texts == made and varied.pairs == ["xy"[number] for number, _ in pairs]
    both = distillation.with_variants(rows, rows, job)
    assert both.texts == few + made and both.pairs == ["x", "y", *varied.pairs]


@pytest.mark.not_fast
def test_invalid_options_are_rejected(tmp_path: Path) -> None:
    data = start() / "train.csv"
    other = tmp_path / "other.csv"
    rows = "\n".join(f"red bird {i},{'maybe' if i % 2 else 'no'}" for i in range(4))
    other.write_text(f"text,label\n{rows}\n", encoding="utf-8")
    for options, words in (
        ({"student": "layers=9", "train": data}, "the teacher has 4 layers"),
        ({"student": "layers=2", "train": other}, "give rows with the teacher's labels"),
        ({"student": "layers=2", "train": data, "match_layers": "hidden(1:9)"}, "no pair 1:9"),
        ({"student": "half=2", "train": data}, "unknown student; give layers=N"),
        ({"student": "layers=2"}, "needs data: give"),
        ({"student": "layers=2", "train": data, "temperature": 0.0}, "must be above 0"),
        ({"student": "layers=2", "data": data, "train": data}, "leave out --train"),
        ({"student": "shared=64", "train": data}, "choose an embedding size from 1 to"),
    ):
        with pytest.raises(PretuneError, match=words):
            pt.distill(trained(), out=tmp_path / "never", **options)  # type: ignore[arg-type]
        assert not (tmp_path / "never").exists()
    wrong = tune(tmp_path / "labels", steps=2)
    config = (wrong.folder / "config.json").read_text().replace('"yes"', '"perhaps"')
    (wrong.folder / "config.json").write_text(config)
    with pytest.raises(PretuneError, match=r"the student's labels are no, perhaps"):
        pt.distill(trained(), student=str(wrong.folder), train=data, out=tmp_path / "never")


@pytest.mark.not_fast
def test_distillation_on_generated_text(tmp_path: Path) -> None:
    from tests.support.tiny_models import random_model
    from tests.support.tiny_models import small_tokenizer as tokenizer

    random_model("gpt2", tokenizer("byte-level-bpe"), "lm", n_layer=4).save(tmp_path / "gpt")
    (tmp_path / "text.txt").write_text("An assignment is\nThe value of a name\n" * 6, encoding="utf-8")
    run = pt.distill(
        tmp_path / "gpt", student="layers=2", data=tmp_path / "text.txt", generate_tokens=6, out=tmp_path / "student",
        budget=pt.Budget(steps=2), batch=pt.Batching(tokens=256, max_length=24), monitor=pt.Monitoring(held_out_fraction=0.0),
    )  # fmt: skip
    lines = (tmp_path / "student/intermediate/written.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 12 and all(line.startswith(("An assignment is", "The value of a name")) for line in lines)
    assert run.finished and load(tmp_path / "student").backbone.depth == 2
    with pytest.raises(PretuneError, match="--generate-tokens applies only with --data"):
        pt.distill(tmp_path / "gpt", student="layers=2", train="x.csv", generate_tokens=6, out=tmp_path / "never")


@pytest.mark.not_fast
def test_regression_is_distilled(tmp_path: Path) -> None:
    """The student learns from labels and predictions, or only from predictions for unlabeled texts."""
    rows = [line.split(",") for line in (start() / "train.csv").read_text(encoding="utf-8").splitlines()[1:]]
    data = tmp_path / "numbers.csv"
    data.write_text("text,label\n" + "\n".join(f"{text},{4.0 if y == 'yes' else 2.0}" for text, y in rows))
    fast: dict[str, Any] = {"optimizer": pt.Optimizer(lr=3e-3), "batch": pt.Batching(size=16)}
    teacher = pt.finetune(
        start() / "start", data, dev=data, objective="regress", num_seeds=1, report=False, out=tmp_path / "teacher",
        budget=pt.Budget(steps=30), **fast,
    )  # fmt: skip
    for name, given in {"both": {"train": data, "alpha": 0.5}, "texts": {"unlabeled": texts(tmp_path)}}.items():
        pt.distill(
            teacher, student="layers=2", dev=data, out=tmp_path / name, budget=pt.Budget(steps=20), **fast, **given
        )
        found = [answer["value"] for answer in pt.predict(tmp_path / name, ["good red stone", "bad red stone"])]
        assert found[0] == pytest.approx(4, abs=0.6) and found[1] == pytest.approx(2, abs=0.6)


@pytest.mark.not_fast
def test_sequence_level_distillation(tmp_path: Path) -> None:
    """An encoder-decoder learns from the texts that its teacher generates."""
    words = {"red": "rouge", "water": "eau", "fire": "feu", "tree": "arbre"}
    known = read([f"{word} {other}" for word, other in words.items()] * 9)
    data, more = tmp_path / "train.csv", tmp_path / "more.txt"
    data.write_text("source,target\n" + "\n".join(f"{a},{b}" for a, b in [*words.items()][:3] * 6))
    more.write_text("\n".join([*words] * 6))
    start = tiny("t5-tiny", known, tmp_path / "start")
    everything = tmp_path / "all.csv"
    everything.write_text("source,target\n" + "\n".join([f"{a},{b}" for a, b in words.items()] * 6))
    teacher = learn(start, everything, tmp_path / "teacher", "generate(max_new_tokens=3)", steps=60)
    run = pt.distill(
        teacher, student=str(start), train=data, unlabeled=more, dev=everything, out=tmp_path / "student",
        budget=pt.Budget(steps=60), optimizer=pt.Optimizer(lr=3e-3), batch=pt.Batching(size=8),
    )  # fmt: skip
    assert run.results["rows"] == 18 + 18 + 24 and run.results["models"][-1]["exact_match"] == 1.0
    with pytest.raises(PretuneError, match="give one model"):
        pt.distill([teacher, teacher], student=str(start), train=data, out=tmp_path / "never")


def test_regression_targets_are_mixed_with_predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = LabeledRows(Path("rows"), {}, ["a", "b"], labels=[1.0, 3.0], lines=[1, 2])
    more = LabeledRows(Path("more"), {}, ["c"], lines=[1])
    mixture = parse_objective("regress")
    (task,) = mixture.objectives
    material: Any = TaskData(mixture, task, task, rows, None, [])  # type: ignore[arg-type]
    monkeypatch.setattr(
        distillation, "label_with_teachers", lambda teachers, read, *others: np.full((len(read), 1), 5.0)
    )
    options: dict[str, Any] = {"teachers": ["teacher"], "student": "layers=2", "train": "rows", "alpha": 0.25}
    job = distillation.DistillationJob(out=tmp_path / "out", **options)
    distilled = distillation.add_predictions(job, material, more)
    assert distilled.rows.labels == [2.0, 3.5, 5.0] and distilled.rows.texts == ["a", "b", "c"]
    assert distilled.teacher_targets is None and distilled.task.mean == pytest.approx(3.5)  # type: ignore[attr-defined]
