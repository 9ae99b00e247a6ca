"""The interface between the training loop and everything that happens around its steps.

Logging, checkpoints, spike detection, weight averaging, and early stopping are callbacks: each implements the hooks it
needs, and the loop calls the hooks of all callbacks, in the order in which they are listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from pretune.objectives import Loss
from pretune.training.data_streams import Pack


@dataclass
class Step:
    """The record of one training step, which the training loop fills in during the step and callbacks read."""

    number: int  # 1 for the first step of a run
    used: dict[str, float]  # what the clock had counted before the step
    progress: float  # share of the budget used before the step
    packs: list[Pack]  # of this process
    totals: dict[str, float] = field(default_factory=dict)  # targets per term, tokens, FLOPs, over all processes
    losses: list[Loss] = field(default_factory=list)  # one per pack, on the device
    objectives: list[Tensor] = field(default_factory=list)  # the scalars that were differentiated, one per pack
    lr_factor: float = 1.0  # of the schedule
    gradient_norm: Tensor | None = None  # before clipping
    updated: bool = True  # whether the optimizers moved the parameters
    evaluates: bool = False  # whether an evaluation follows the update
    last: bool = False  # whether training ends after this step, as far as is known


class Callback:
    """A base class of callbacks for the training loop, with hooks that do nothing by default."""

    name: ClassVar[str] = ""  # of its entry in a checkpoint; without one it has no state to save
    finished: bool = False  # set to end training after the current step

    def running(self) -> AbstractContextManager[Any]:
        """Return a context manager that the training loop keeps open from its first step to its last."""
        return nullcontext()

    def before_step(self, step: Step) -> None:
        """Handle the start of a training step; the training loop calls this before the first forward pass."""

    def after_backward(self, step: Step) -> None:
        """Handle complete gradients; the training loop calls this in each step, before gradient clipping."""

    def allow_update(self, step: Step) -> bool:
        """Return whether a step may update the parameters; the training loop calls this in each step after clipping."""
        return True

    def after_update(self, step: Step) -> None:
        """Handle a parameter update; the training loop calls this after the optimizers, before an evaluation."""

    def evaluating(self) -> AbstractContextManager[Any]:
        """Return a context manager that the training loop keeps open during each evaluation."""
        return nullcontext()

    def on_evaluate(self, step: Step, metrics: Mapping[str, float]) -> None:
        """Handle the metrics of an evaluation; the training loop calls this after each evaluation."""

    def after_step(self, step: Step) -> None:
        """Handle the end of a training step; the training loop calls this when `step.last` is known."""

    def on_end(self) -> dict[str, float]:
        """Handle the end of training, and return metrics to add to the results of the run."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return the state of a training callback as JSON data, to be saved in a checkpoint."""
        return {}

    def tensors(self) -> Mapping[str, Tensor]:
        """Return the tensors of a training callback by name, to be saved in a checkpoint."""
        return {}

    def restore(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Restore a training callback from the state and the tensors that a checkpoint has saved for it."""


@contextmanager
def opened(contexts: Iterable[AbstractContextManager[Any]]) -> Iterator[None]:
    """Enter several context managers in order, and exit them in reverse order at the end of the block."""
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield
