"""Tasks whose answers are texts go through a suite: summaries, questions and titles in several languages, translations."""

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


def lay(folder: Path, names: list[tuple[str, str]]) -> None:
    """Two files for each name: what is read, and what is to be written."""
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


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("shots", [None, 1], ids=["learned", "asked"])
def test_texts_are_written_and_scored(
    suite: str, shots: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paired_bootstrap, "ROUNDS", 10)
    tasks, files, expected = SUITES[suite]
    lay(tmp_path / "data", files)
    options: dict[str, Any] = {"budget": pt.Budget(steps=1), "batch": pt.Batching(sequences=8, length=32)}
    options = {} if shots else options
    result = pt.evaluate(
        model(), suite=suite, tasks=tasks, data=tmp_path / "data", out=tmp_path / "out", subsets=True, seeds=1,
        shots=shots, **options,
    )  # fmt: skip
    found = result.evaluation.tasks
    assert {name: (told["split"], list(told["scores"])) for name, told in found.items()} == expected
    own = {"bleu": bleu, "chrf": chrf, "rouge1": rouge, "rouge2": rouge, "rougeL": rouge}
    for name, told in found.items():
        task = result.evaluation.suite.tasks[name]
        answers = read_lines(
            tmp_path / "out" / (task.taught_by or name) / f"seeds/0/answers/{name}.{told['split']}.jsonl"
        )
        assert len(answers) == 6 and all(isinstance(answer["answer"], str) for answer in answers)
        written = [answer["answer"] for answer in answers]
        assert {m: x[0] for m, x in told["scores"].items()} == {
            m: own[m](TARGETS, written).compute()[m] for m in told["scores"]
        }
    titles = {result.evaluation.suite.tasks[name].title for name in expected}
    assert titles <= set(result.table()[result.evaluation.suite.title][0])
    assert {row["task"] for row in pt.compare(tmp_path / "out", tmp_path / "out")} == titles


def test_what_can_be_learned_is(tmp_path: Path) -> None:
    tasks, files, _ = SUITES["translation"]
    lay(tmp_path / "data", files)
    result = pt.evaluate(
        model(), suite="translation", tasks=tasks[:1], data=tmp_path / "data", out=tmp_path / "out", subsets=True, seeds=1,
        budget=pt.Budget(steps=100), batch=pt.Batching(sequences=8, length=32), optimizer=pt.Optimizer(lr=1e-2),
    )  # fmt: skip
    assert result.evaluation.means["multi30k-de"]["bleu"] > 0.5
