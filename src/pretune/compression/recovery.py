"""Fine-tuning as a part of compression: what was made smaller learns its task again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pretune.training.jobs.finetuning import Plan, make_plan
from pretune.training.settings import Budget


@dataclass(frozen=True)
class Recovery:
    """What to learn from, and how long."""

    train: str
    dev: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    epochs: float = 1.0
    budget: Budget | None = None
    learning: Mapping[str, Any] = field(default_factory=dict)  # sections: optimizer, schedule, batch, watching


def as_recipe(known: Mapping[str, Any], learning: Mapping[str, Any], budget: Budget | None) -> dict[str, Any]:
    """Options of a verb and its sections as a recipe: what was left open is left out."""
    sections = {**learning, "budget": budget}
    told = {
        name: {key: value for key, value in asdict(section).items() if value is not None}
        for name, section in sections.items()
        if section is not None
    }
    return {name: value for name, value in {**known, **told}.items() if value not in (None, "", [], (), {})}


def plan_of(
    model: str | Path,
    out: Path,
    objective: str,
    recovery: Recovery,
    strategy: str = "full",
    seed: int = 0,
    device: str | None = None,
) -> Plan:
    """A fine-tuning of a model in one folder to another."""
    given: dict[str, Any] = {
        "train": recovery.train,
        "dev": recovery.dev,
        "out": out,
        "columns": dict(recovery.columns),
        "objective": objective,
        "strategy": strategy,
        "epochs": recovery.epochs,
        "budget": recovery.budget,
        "seed": seed,
        "seeds": 1,
        "deterministic": False,
        "tokenizer": None,
        "scratch": False,
        "device": device,
        **recovery.learning,
    }
    return make_plan(str(model), given)
