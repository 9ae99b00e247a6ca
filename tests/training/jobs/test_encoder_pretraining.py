"""Tests of encoder objectives with `pretrain`: interrupted, resumed, evaluated, saved and loaded."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import pretune as pt
from pretune.models.loading import load_model
from pretune.objectives import parse_objective
from tests.support.tiny_training_cases import store

pytestmark = pytest.mark.end_to_end


@pytest.mark.parametrize(
    ("objective", "measured"),
    [
        ("mlm(unit=span,span_boundary=true,static_masks=2)+sop", {"mlm", "sop"}),  # evaluation uses plain mlm
        (
            "rtd(generator_size=0.5)+sop",
            {"rtd", "rtd/precision", "rtd/recall", "rtd/replaced", "generator/accuracy", "sop"},
        ),
        ("0.5*rtd|0.5*item", {"rtd", "generator"}),
    ],
)
def test_training_saves_a_model_that_can_be_loaded(objective: str, measured: set[str], tmp_path: Path) -> None:
    run = pt.pretrain(
        "bert-tiny",
        store(),
        objective=objective,
        budget=pt.Budget(steps=3),
        batch=pt.Batching(tokens=256, max_length=48),
        monitor=pt.Monitoring(eval_every=2, held_out_fraction=0.3),
        out=tmp_path / "run",
    )
    lines = run.metrics()
    found = {name.removeprefix("dev/") for line in lines for name in line if name.startswith("dev/")}
    assert measured <= found and not any(name.endswith("/of") for name in found)
    assert all(math.isfinite(value) for line in lines for value in line.values())
    model = load_model(tmp_path / "run", parse_objective(objective))
    again = load_model(tmp_path / "run", parse_objective(objective), seed=9)  # nothing is initialized at random
    for name, tensor in model.root.tensors().items():
        assert torch.equal(tensor, again.root.tensors()[name])
