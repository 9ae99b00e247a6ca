"""Tests of text-to-text tasks in suites: summaries, questions and titles in several languages, translations."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

import pretune as pt
from pretune.evaluation import paired_bootstrap
from pretune.evaluation.suites.suite_runner import read_lines
from pretune.metrics.generated_text import bleu, chrf, rouge
from tests.support.tiny_models import read, tiny

WORDS = ["red", "blue", "green", "stone", "water", "fire"]
SOURCES = [" ".join(WORDS[(i + j) % 6] for j in range(6)) for i in range(6)]
TARGETS = [" ".join(text.split()[:4]) for text in SOURCES]


@cache
def model() -> Path:
    folder = Path(mkdtemp())
    return tiny("t5-tiny", read([*SOURCES, "summarize :"] * 9), folder / "t5", "generate")


def write_files(folder: Path, names: list[tuple[str, str]]) -> None:
    """Write two files for each pair of names: sources and targets."""
    for pair in names:
        for name, texts in zip(pair, (SOURCES, TARGETS), strict=True):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("\n".join(texts) + "\n", encoding="utf-8")


SUITES = {
    "summarization": (
        ["cnn-dm"],
        [(f"cnn_dm/{split}.source", f"cnn_dm/{split}.target") for split in ("train", "val", "test")],
        {"cnn-dm": ("test", ["rouge1", "rouge2", "rougeL"])},
    ),
    "translation": (
        ["multi30k-de", "multi30k-de-2017"],
        [(f"multi30k/{split}.en", f"multi30k/{split}.de") for split in ("train", "val", "test_2016_flickr", "test_2017_flickr")],
        {"multi30k-de": ("test", ["bleu", "chrf"]), "multi30k-de-2017": ("test", ["bleu", "chrf"])},
    ),
    "xglue": (
        ["qg", "ntg"],
        [(f"{t.upper()}/xglue.{t}.{part[0]}.src.{part[1]}", f"{t.upper()}/xglue.{t}.{part[0]}.tgt.{part[1]}")
         for t in ("qg", "ntg") for part in (("en", "train"), ("en", "dev"), ("de", "dev"))],
        {f"{task}-{tongue}": ("dev", ["bleu"]) for task in ("qg", "ntg") for tongue in ("en", "de")},
    ),
}  # fmt: skip


@pytest.mark.end_to_end
@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("shots", [None, 1], ids=["fine-tuned", "in-context"])
def test_generated_texts_are_scored(
    suite: str, shots: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paired_bootstrap, "ROUNDS", 10)
    tasks, files, expected = SUITES[suite]
    write_files(tmp_path / "data", files)
    options: dict[str, Any] = {"budget": pt.Budget(steps=1), "batch": pt.Batching(size=8, max_length=32)}
    options = {} if shots else options
    result = pt.evaluate(
        model(), suite=suite, tasks=tasks, data=tmp_path / "data", out=tmp_path / "out", allow_incomplete=True, num_seeds=1,
        shots=shots, **options,
    )  # fmt: skip
    found = result.evaluation.tasks
    assert {name: (summary["split"], list(summary["scores"])) for name, summary in found.items()} == expected
    own = {"bleu": bleu, "chrf": chrf, "rouge1": rouge, "rouge2": rouge, "rougeL": rouge}
    for name, summary in found.items():
        task = result.evaluation.suite.tasks[name]
        answers = read_lines(
            tmp_path / "out" / (task.uses_model_of or name) / f"seeds/0/answers/{name}.{summary['split']}.jsonl"
        )
        assert len(answers) == 6 and all(isinstance(answer["answer"], str) for answer in answers)
        written = [answer["answer"] for answer in answers]
        assert {m: x[0] for m, x in summary["scores"].items()} == {
            m: own[m](TARGETS, written).compute()[m] for m in summary["scores"]
        }
    titles = {result.evaluation.suite.tasks[name].title for name in expected}
    assert titles <= set(result.table()[result.evaluation.suite.title][0])
    assert {row["task"] for row in pt.compare(tmp_path / "out", tmp_path / "out")} == titles


@pytest.mark.not_fast
def test_learnable_task_is_learned(tmp_path: Path) -> None:
    tasks, files, _ = SUITES["translation"]
    write_files(tmp_path / "data", files)
    result = pt.evaluate(
        model(), suite="translation", tasks=tasks[:1], data=tmp_path / "data", out=tmp_path / "out", allow_incomplete=True, num_seeds=1,
        budget=pt.Budget(steps=100), batch=pt.Batching(size=8, max_length=32), optimizer=pt.Optimizer(lr=1e-2),
    )  # fmt: skip
    assert result.evaluation.means["multi30k-de"]["bleu"] > 0.5
