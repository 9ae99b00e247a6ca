"""Tests of when pretraining compiles the model."""

from __future__ import annotations

from typing import Any

import pytest

from pretune.models.create_model import make_model
from pretune.training.jobs.pretraining import pays_to_compile
from pretune.training.jobs.pretraining_settings import resolve_pretraining
from pretune.training.recipe_sections import Batching, Budget


@pytest.mark.parametrize(
    ("limits", "tokens", "compiled"),
    [
        ({"flops": 1e15}, 16_384, False),
        ({"flops": 1e17}, 16_384, True),
        ({"tokens": 3e7}, 16_384, False),
        ({"tokens": 3e7}, 512, True),  # many steps
        ({"steps": 10}, 16_384, False),
        ({"steps": 100_000}, 16_384, True),
        ({"steps": 100_000, "tokens": 1e6}, 16_384, False),
        ({"seconds": 10.0}, 16_384, False),
        ({"seconds": 900.0}, 16_384, True),
    ],
)
def test_only_long_trainings_are_compiled(limits: dict[str, Any], tokens: int, compiled: bool) -> None:
    options = {"budget": Budget(**limits), "batch": Batching(tokens=tokens)}
    job = resolve_pretraining("bert-mini", ["texts"], "run", options, 0, None)
    assert pays_to_compile(job, make_model("bert-mini", 8192)) is compiled
