"""Test of a small ULMFiT, in minutes on a CPU: classify docstrings of the standard library by what they document."""

from __future__ import annotations

import ast
import json
import random
import sysconfig
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

import pretune as pt
from pretune.training.jobs.ulmfit import OBJECTIVE, OPTIMIZER

KINDS = {ast.Module: "module", ast.ClassDef: "class", ast.FunctionDef: "function", ast.AsyncFunctionDef: "function"}
LABELS, JUDGED, EACH = 200, 500, 800
RATE = 1e-2  # a small network needs a higher learning rate


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield the docstrings of the standard library and the kind of object each documents."""
    root = Path(sysconfig.get_path("stdlib"))
    for file in sorted(root.rglob("*.py")):
        if {"site-packages", "test", "tests"} & set(file.relative_to(root).parts):
            continue
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, tuple(KINDS)) and (text := ast.get_docstring(node)):  # type: ignore[arg-type]
                yield text, KINDS[type(node)]


def write(file: Path, rows: list[dict[str, str]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ulmfit_beats_plain_finetuning_and_random_initialization(tmp_path: Path) -> None:
    found = dict(docstrings())
    corpus = write(tmp_path / "corpus.jsonl", [{"text": text} for text in sorted(found)])
    firsts = {" ".join(text.split("\n\n")[0].split())[:300]: kind for text, kind in found.items()}
    rows = [{"text": text, "label": kind} for text, kind in sorted(firsts.items()) if len(text) > 20]
    random.Random(0).shuffle(rows)
    rows = [row for kind in sorted(set(KINDS.values())) for row in [r for r in rows if r["label"] == kind][:EACH]]
    random.Random(1).shuffle(rows)
    dev = write(tmp_path / "dev.jsonl", rows[:JUDGED])
    texts = write(tmp_path / "texts.jsonl", [{"text": row["text"]} for row in rows[JUDGED:]])
    lm = pt.pretrain(
        "ulmfit-tiny", corpus, tokenizer={"vocab_size": 8000}, budget=pt.Budget(steps=600), out=tmp_path / "lm"
    )
    scores: dict[str, list[float]] = {"ulmfit": [], "without": [], "scratch": []}
    steady = pt.Schedule(kind="constant", warmup_ratio=0.0)
    same = {"optimizer": replace(OPTIMIZER, lr=RATE, layer_decay=1.0), "schedule": steady}
    others: dict[str, dict[str, Any]] = {
        "without": same,
        "scratch": {"optimizer": pt.Optimizer(lr=4e-3), "from_scratch": True},
    }
    for seed in range(3):
        train = write(tmp_path / f"train-{seed}.jsonl", random.Random(seed).sample(rows[JUDGED:], LABELS))
        fitted = pt.ulmfit(
            lm, train, dev=dev, unlabeled=[texts], out=tmp_path / f"fitted-{seed}", epochs=30, max_length=100, language="lines",
            lr=RATE, seed=seed,
        )  # fmt: skip
        scores["ulmfit"].append(fitted.scores["forward"])
        for name, settings in others.items():
            run = pt.finetune(
                fitted.runs["forward"]["texts"], train, dev=dev, out=tmp_path / f"{name}-{seed}", objective=OBJECTIVE,
                strategy="full", epochs=30, batch=pt.Batching(size=32, max_length=100), seed=seed, num_seeds=1, report=False,
                **settings,
            )  # fmt: skip
            scores[name].append(run.results["dev/accuracy"])
    # Measured: 0.674, 0.648 and 0.630.
    assert mean(scores["ulmfit"]) > mean(scores["without"]) + 0.01, scores
    assert mean(scores["ulmfit"]) > mean(scores["scratch"]) + 0.03, scores
