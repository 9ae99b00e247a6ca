"""A classification task that one word decides, and a model that learns it in a second."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.models.create_model import make_model
from pretune.models.model import Model, Network
from pretune.training.jobs import several_seeds


@cache
def start() -> Path:
    """Write a random model, its tokenizer and the task into a folder."""
    folder = Path(mkdtemp())
    words = ["red", "blue", "green", "yellow", "stone", "water", "fire", "cloud", "tree", "bird"]
    lines = ["text,label"]
    for i in range(64):
        rest = " ".join(words[(i * 7 + j * 3) % 10] for j in range(4))
        lines.append(f"{'good' if i % 2 else 'bad'} {rest},{'yes' if i % 2 else 'no'}")
    (folder / "train.csv").write_text("\n".join(lines), encoding="utf-8")
    (folder / "text.txt").write_text("\n".join(line.split(",")[0] for line in lines), encoding="utf-8")
    tiny = make_model("bert-tiny", 128)
    config = replace(tiny.config, hidden_size=64, num_hidden_layers=4, intermediate_size=128)
    torch.manual_seed(0)
    model = Model(tiny.family, config, Network(tiny.family.build(config)))
    model.tokenizer = pt.train_tokenizer(str(folder / "text.txt"), kind="wordpiece", vocab_size=100)
    model.save(folder / "start")
    return folder


def share_here(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Run parallel jobs in this process, with pickled arguments as between processes; return the numbers of devices used."""
    shared: list[int] = []

    def share_out(work: Any, jobs: Any, devices: int) -> list[Any]:
        shared.append(devices)
        return [work(*pickle.loads(pickle.dumps(job))) for job in jobs]

    monkeypatch.setattr(several_seeds, "run_jobs", share_out)
    return shared


def tune(out: Path, strategy: str = "full", objective: str = "classify", steps: int = 40, **settings: object) -> pt.Run:
    """Fine-tune the model on the task for a few steps."""
    folder = start()
    return pt.finetune(
        folder / "start", folder / "train.csv", dev=folder / "train.csv", out=out, strategy=strategy,
        objective=objective, budget=pt.Budget(steps=steps), batch=pt.Batching(size=16),
        **{"num_seeds": 1, "report": False, "optimizer": pt.Optimizer(lr=3e-3), **settings},
    )  # fmt: skip


@cache
def trained() -> Path:
    """Return a run that has learned the task."""
    out = Path(mkdtemp()) / "run"
    assert tune(out, steps=60).results["dev/accuracy"] == 1.0
    return out
