"""From a trained model to a pruned one, trained again or not, in a run folder that says what was gained and lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pretune.compression.pruning import Pruning, prune
from pretune.compression.recovery import Recovery, as_recipe, plan_of
from pretune.compression.task_model import Trained, beside
from pretune.models.weights import stored_type
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import PretuneError
from pretune.runtime.output_paths import intermediate
from pretune.training.jobs.finetuning import finetune
from pretune.training.run_folder import Run, finish_run, rewrite_recipe, start_run
from pretune.training.settings import Budget


@dataclass(frozen=True)
class Order:
    """What is to be pruned, how, and what is learned after that."""

    model: str
    out: Path
    pruning: Pruning
    train: str | None = None
    dev: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    epochs: float = 0.0
    budget: Budget | None = None
    learning: Mapping[str, Any] = field(default_factory=dict)  # sections of a fine-tuning
    seed: int = 0
    device: str | None = None
    partial: bool = False
    vocabulary: list[str] = field(default_factory=list)  # the files behind the pruning's texts
    reading: Mapping[str, Any] = field(default_factory=dict)  # how these are read
    control: bool = False  # whether the whole model is trained as long, too

    @property
    def learns(self) -> bool:
        """Whether what is left is trained again."""
        return bool(self.epochs or self.budget)

    def recipe(self) -> dict[str, Any]:
        """Everything that decides the outcome, under the names of the verb's options."""
        shares = {name: value for name, value in asdict(replace(self.pruning, vocabulary=None)).items() if value}
        known = {"model": self.model, **shares, "train": self.train, "dev": self.dev, **self.columns}
        known |= {"vocabulary": self.vocabulary, **self.reading, "epochs": self.epochs}
        return as_recipe(known, self.learning, self.budget)


def carry_out(order: Order) -> Run:
    """Prune, train again if asked for, and compare."""
    pruning = order.pruning.check()
    if order.learns and order.train is None:
        raise PretuneError("what is left learns from rows of the task; give them with --train")
    before = Trained.load(order.model, order.partial)
    rows, dev = (before.read(file, order.columns) for file in (order.train, order.dev))
    # Weights go slowly while the rest learns, where it does.
    slowly = pruning.weights if order.learns else 0.0
    at_once = replace(pruning, weights=pruning.weights - slowly)
    model, report = prune(before.model, at_once, before.examples(rows), choose_device(order.device))
    folder = intermediate(order.out, "pruned") if order.learns else order.out
    start_run(folder, "prune", order.recipe(), resume=False)
    model.save(folder, stored_type(before.folder))  # else what is left could take more room
    models = {"before": before, "pruned": Trained.load(folder)}
    if order.learns:
        finish_run(folder, {"model": order.model, **report})
        strategy = f"full+sparse({slowly:g})" if slowly else "full"
        learning = Recovery(order.train or "", order.dev, order.columns, order.epochs, order.budget, order.learning)
        run = finetune(plan_of(folder, order.out, before.objective, learning, strategy, order.seed, order.device))
        rewrite_recipe(order.out, "prune", order.recipe())
        report = {**run.results, **report}
        if order.control:
            control = intermediate(order.out, "control")
            finetune(plan_of(order.model, control, before.objective, learning, "full", order.seed, order.device))
            models["trained, not pruned"] = Trained.load(control)
        models["pruned and trained"] = Trained.load(order.out)
    return finish_run(order.out, {"model": order.model, **report, **beside(models, dev)})
