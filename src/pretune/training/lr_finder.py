"""The learning rate range test (Smith, 2017, arXiv:1506.01186), which finds a learning rate before training.

The model is trained for a few steps while the learning rate rises exponentially from very small to very large. The loss first
stays as it is, then falls, and rises again when training diverges. A good rate for training lies well below that point.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pretune.nn.dropout import share_dropout_seed
from pretune.runtime.atomic_io import write_json
from pretune.runtime.errors import PretuneError
from pretune.runtime.parsing import read_mapping, validate_schema
from pretune.runtime.progress import log_info
from pretune.training.callbacks import Step
from pretune.training.loop import Eager, Training, accumulate_gradients, clip, step_optimizers
from pretune.training.optim.optimizers import make_optimizers, set_lr
from pretune.training.parallel.distributed import World
from pretune.training.prefetch import StepBatches
from pretune.training.recipe_sections import AUTO

RANGE_TEST = "lr_range_test.json"  # in the run folder, for a resumed run
BATCHES = 4  # training steps whose batches are used in turn
SMOOTHING = 0.8  # decay of the moving average of the loss
DIVERGED = 0.15  # a smoothed loss this far above its minimum, relative to the loss at the start, ends the test
MARGIN = 5.0  # factor between the rate at which the loss is lowest and the rate to train with
RATES = {"sgd": (1e-4, 10.0), "asgd": (1e-4, 10.0)}  # first and last rate of the test; those of the others follow
ADAPTIVE_RATES = (1e-6, 0.1)


@dataclass(frozen=True)
class RangeTest:
    """The result of a learning rate range test: the suggested rate, and pairs of each rate that was tried and its loss.

    The loss is measured in a step before its update, minus the loss of the same batches at the start of the test.
    """

    suggested: float
    curve: list[tuple[float, float]]  # (learning rate, change of the loss)


def find_lr(training: Training, *, steps: int = 40) -> RangeTest:
    """Find a learning rate with a range test; afterwards, the model and the data streams are as before.

    The test uses the batches of a few steps in turn and compares each with its own loss at the start, because the losses of
    different batches differ by more than a few updates change them.

    Parameters
    ----------
    training
        The model, data, and settings of the training; its learning rate, schedule, and budget are not used.
    steps
        Number of training steps, whose learning rates have a constant ratio. The test ends earlier if the loss diverges.

    Examples
    --------
    >>> find_lr(training).suggested  # doctest: +SKIP
    0.0003
    """
    if training.optimizer.name == "muon":
        raise PretuneError(
            "optimizer.lr=auto: muon has two learning rates (lr and muon_lr), which one range test cannot find; set optimizer.lr to a number"
        )
    t = replace(training, recurrent_states={})
    low, high = RATES.get(t.optimizer.name or "", ADAPTIVE_RATES)
    with unchanged(t):
        run = StepRunner(t)
        start = [run(number) for number in range(BATCHES)]
        curve: list[tuple[float, float]] = []
        for number in range(steps):
            rate = low * (high / low) ** (number / max(1, steps - 1))
            change = run(number, rate) - start[number % BATCHES]
            if not math.isfinite(change):
                break
            curve.append((rate, change))
            smoothed = smooth([value for _, value in curve])
            if smoothed[-1] > min(smoothed) + DIVERGED * sum(start) / BATCHES:
                break
    if not curve:
        raise PretuneError(
            "optimizer.lr=auto: the loss is not a number before the first update; check the data, or set optimizer.lr to a number"
        )
    return RangeTest(suggest_lr(curve), curve)


class StepRunner:
    """A callable that runs the training steps of a range test, which repeat the batches of the first few steps."""

    def __init__(self, t: Training) -> None:
        self.t, self.dropout_seed = t, share_dropout_seed(t.root, t.device)
        self.optimizers = make_optimizers(t.root, replace(t.optimizer, lr=1.0))
        self.parameters, self.execution = list(t.root.parameters()), Eager(t.root, t.device, World())
        self.terms = sorted({term for s in t.streams.streams for term in s.joint.max_targets(s.packing)})
        packs = [t.streams.next_step() for _ in range(BATCHES)]
        self.batches = [StepBatches(step, [t.streams.batch(pack, 0.0) for pack in step]) for step in packs]

    def __call__(self, number: int, rate: float | None = None) -> float:
        """Run step `number` of a range test, and return the loss before its update.

        The parameters are updated with the learning rate `rate`; if it is None, they stay as they are.
        """
        t, batches = self.t, self.batches[number % BATCHES]
        totals = {term: sum(batch.counts.get(term, 0.0) for batch in batches.batches) for term in self.terms}
        step = Step(number % BATCHES + 1, {}, 0.0, batches.packs, totals)  # the same dropout for the same batch
        accumulate_gradients(t, t.root, self.execution, self.dropout_seed, batches, step)
        clip(self.parameters, t.optimizer.max_grad_norm or 0.0)
        set_lr(self.optimizers, rate or 0.0)
        step_optimizers(self.optimizers, updated=rate is not None, keep=False)
        return float(torch.stack(step.objectives).sum())


def suggest_lr(curve: Sequence[tuple[float, float]]) -> float:
    """Return a learning rate to train with, given the (rate, loss) pairs of a range test: a fifth of the best rate.

    The best rate is the one at which the smoothed loss is lowest. It is close to the rates at which training diverges.

    >>> suggest_lr([(1e-5, 0.0), (1e-4, -0.1), (1e-3, -0.9), (1e-2, 9.0)])
    0.0002
    """
    losses = smooth([loss for _, loss in curve])
    best = min(range(len(curve)), key=lambda step: losses[step])
    return float(f"{curve[best][0] / MARGIN:.2g}")


def smooth(values: Sequence[float]) -> list[float]:
    """Return the exponential moving averages of a sequence, with Adam's bias correction for their start at 0.

    >>> [round(average, 3) for average in smooth([1.0, 1.0])]
    [1.0, 1.0]
    """
    averages, average = [], 0.0
    for number, value in enumerate(values, 1):
        average = SMOOTHING * average + (1 - SMOOTHING) * value
        averages.append(average / (1 - SMOOTHING**number))
    return averages


@contextmanager
def unchanged(t: Training) -> Iterator[None]:
    """Return a context manager that restores a training's state when its block ends.

    The state consists of weights, data streams, training mode, and random generators.
    """
    root, mode, positions = t.root.to(t.device), t.root.training, t.streams.state()
    tensors: list[Tensor] = [*(p for p in root.parameters() if p.requires_grad), *root.buffers()]
    copies = [tensor.detach().clone() for tensor in tensors]
    gpus = [torch.cuda.current_device()] if t.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=gpus):
            root.train()
            root.set_activation_dtype(torch.bfloat16 if gpus else torch.float32)
            yield
    finally:
        with torch.no_grad():
            for tensor, copy in zip(tensors, copies, strict=True):
                tensor.copy_(copy)
        root.zero_grad(set_to_none=True)
        root.train(mode)
        t.streams.restore(positions)


def with_found_lr(t: Training) -> Training:
    """Return the training with a number as its learning rate; if the setting is `auto`, a range test finds it.

    The found rate is saved in the run folder, where a resumed run reads it. Several processes use the rate of the
    first.
    """
    if t.optimizer.lr != AUTO:
        return t
    file = None if t.run is None else t.run / RANGE_TEST
    if file is not None and file.is_file():
        rate = validate_schema(read_mapping(file, "a learning rate range test").get("suggested"), float, str(file))
    else:
        test = find_lr(t)
        rate = t.world.add_up({"lr": test.suggested if t.world.first else 0.0})["lr"]
        if t.world.first:
            log_info(f"the learning rate is {rate:g}, found with a range test of {len(test.curve)} steps")
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
                write_json(file, {"suggested": rate, "curve": test.curve})
    return replace(t, optimizer=replace(t.optimizer, lr=rate))
