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
    """The record of one optimizer step, which the loop fills in during the step and callbacks read."""

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
    """A part of training that acts around the steps of the loop, with hooks that do nothing by default."""

    name: ClassVar[str] = ""  # of its entry in a checkpoint; without one it has no state to save
    finished: bool = False  # set to end training after the current step

    def running(self) -> AbstractContextManager[Any]:
        """Return a context manager that is open while the loop takes steps."""
        return nullcontext()

    def before_step(self, step: Step) -> None:
        """Run before the first forward pass of a step."""

    def after_backward(self, step: Step) -> None:
        """Run when all gradients of a step are complete, before they are clipped."""

    def allow_update(self, step: Step) -> bool:
        """Return whether the optimizers may update the parameters in a step, whose gradient norm is known."""
        return True

    def after_update(self, step: Step) -> None:
        """Run after the update of the parameters, before the evaluation that may follow."""

    def evaluating(self) -> AbstractContextManager[Any]:
        """Return a context manager that is open during an evaluation and the `on_evaluate` hooks."""
        return nullcontext()

    def on_evaluate(self, step: Step, metrics: Mapping[str, float]) -> None:
        """Run after an evaluation, with its metrics."""

    def after_step(self, step: Step) -> None:
        """Run at the end of a step, when `step` says whether it is the last one."""

    def on_end(self) -> dict[str, float]:
        """Run after the last step, and return metrics for the results of the training."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return the state of the callback to save in a checkpoint, as JSON data."""
        return {}

    def tensors(self) -> Mapping[str, Tensor]:
        """Return the tensors of the callback to save in a checkpoint, by name."""
        return {}

    def restore(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Restore the callback from the results of `state` and `tensors`, as saved in a checkpoint."""


@contextmanager
def opened(contexts: Iterable[AbstractContextManager[Any]]) -> Iterator[None]:
    """Open several contexts, one after the other, and close them in reverse."""
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield
