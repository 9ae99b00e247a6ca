"""The interface between the training loop and everything that happens around its steps.

Logging, checkpoints, spike detection, weight averaging, and early stopping are callbacks: each implements the hooks it
needs, and the loop calls the hooks of all callbacks, in the order in which they are listed. Those of the user come after
them, and before checkpoints.

A package adds a callback for the command line (`--callbacks NAME`) with an entry point, a class or a function without
parameters that returns a callback:

    [project.entry-points."pretune.callbacks"]
    my-callback = "my_package.my_callback:MyCallback"
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from pretune.objectives import Loss
from pretune.runtime.errors import PretuneError, suggest
from pretune.runtime.plugins import entry_point_objects
from pretune.training.data_streams import Pack

if TYPE_CHECKING:
    from pretune.training.loop import Training

PLUGINS = "pretune.callbacks"  # group of entry points


@dataclass
class Step:
    """The record of one training step: the training loop fills it in during the step, and callbacks read it."""

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
    """A base class of callbacks for the training loop, with hooks that do nothing by default.

    This callback ends training as soon as the loss of a step is below a limit:

    >>> class StopAtLoss(Callback):
    ...     def after_step(self, step):
    ...         self.finished = sum(loss.item() for loss in step.objectives) < 0.1
    >>> pretune.finetune("english-small", "train.csv", out="runs/task", callbacks=[StopAtLoss()])  # doctest: +SKIP

    With several seeds, the same callback is used in all trainings, one after the other, each from `on_start` to
    `on_end`.
    """

    name: ClassVar[str] = ""  # of its entry in a checkpoint; without one it has no state to save
    finished: bool = False  # set to end training after the current step

    def on_start(self, training: Training) -> None:
        """Handle the start of a training; `training` holds the model (`training.root`), the data, and the settings."""

    def running(self) -> AbstractContextManager[Any]:
        """Return a context manager that the training loop holds open from its first step to its last."""
        return nullcontext()

    def before_step(self, step: Step) -> None:
        """Handle the start of a training step; the training loop calls this before the first forward pass."""

    def after_backward(self, step: Step) -> None:
        """Handle the complete gradients of a step; the training loop calls this before gradient clipping."""

    def allow_update(self, step: Step) -> bool:
        """Return whether the optimizers may update the parameters; the training loop asks this after clipping."""
        return True

    def after_update(self, step: Step) -> None:
        """Handle a parameter update; the training loop calls this after the optimizers, before an evaluation."""

    def evaluating(self) -> AbstractContextManager[Any]:
        """Return a context manager that the training loop keeps open during each evaluation."""
        return nullcontext()

    def on_evaluate(self, step: Step, metrics: Mapping[str, float]) -> None:
        """Handle the metrics of an evaluation; the training loop calls this after each evaluation."""

    def after_step(self, step: Step) -> None:
        """Handle the end of a training step; at this time, `step.last` tells whether training ends after the step."""

    def on_end(self) -> dict[str, float]:
        """Handle the end of training, and return metrics by name, which are added to the results of the run."""
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
    """Return a context manager that enters several context managers in order, and exits them in reverse order."""
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


def find_callbacks(given: Sequence[str | Callback]) -> tuple[Callback, ...]:
    """Return the given callbacks, with each name of an entry point replaced by a new instance of its callback.

    >>> find_callbacks([Callback()])  # doctest: +ELLIPSIS
    (<...Callback object at ...>,)
    """
    found = []
    for callback in given:
        if isinstance(callback, str):
            known = entry_point_objects(PLUGINS)
            if callback not in known:
                installed = suggest(callback, known) if known else "no installed package registers one"
                raise PretuneError(
                    f"There is no callback {callback!r}: {installed}. Register it as an entry point of the group {PLUGINS}, "
                    "or pass the callback itself in Python."
                )
            make: Any = known[callback]
            callback = make()
        if not isinstance(callback, Callback):
            raise PretuneError(
                f"{callback!r} is not a callback of the training loop; derive its class from pretune.Callback, and pass an "
                "instance of it."
            )
        found.append(callback)
    return tuple(found)
