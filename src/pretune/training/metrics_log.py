"""The metrics of a training: accumulated on the device, fetched at intervals, and appended to metrics.jsonl."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from pretune.models.model import Network
from pretune.objectives.objective import Loss, divide_by_totals
from pretune.runtime.atomic_io import open_append, write_bytes
from pretune.runtime.devices import peak_flops
from pretune.runtime.errors import PretuneError
from pretune.runtime.output_paths import METRICS as METRICS
from pretune.runtime.progress import ProgressBar, SilentProgress, progress
from pretune.training.budget import Clock
from pretune.training.callbacks import Callback, Step
from pretune.training.data_streams import Pack, describe_packs
from pretune.training.experiment_tracking import open_trackers
from pretune.training.parallel.distributed import World
from pretune.training.parallel.fsdp_tensors import full_scalar
from pretune.training.recipe_sections import Monitoring


@dataclass(frozen=True)
class StepLoss:
    """The losses of one training step, summed on the device and not yet copied to the CPU."""

    sums: dict[str, Tensor]  # per loss term, summed over its targets, and per logged value
    totals: dict[str, float]  # number of targets per term, over all processes
    before: dict[str, float]  # what the training had used before the step


@dataclass
class PendingLine:
    """A line of metrics.jsonl whose numbers are still being copied from the device to the CPU."""

    line: dict[str, Any]
    names: list[str]  # of the first values; the gradient norms of `steps` follow them
    values: tuple[Tensor, Any]  # with the event that tells when they have arrived
    totals: dict[str, float]
    steps: list[tuple[int, list[Pack]]]


def sum_by_name(parts: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Add up the tensors that have the same name in several mappings, and return the sums by name, in float32."""
    sums: dict[str, Tensor] = {}
    for part in parts:
        for name, value in part.items():
            value = value.detach().float()
            sums[name] = sums[name] + value if name in sums else value
    return sums


class MetricsLog:
    """The metrics of a run, which are summed on the device and written to metrics.jsonl without making the device wait.

    A line has the mean losses of the last `interval` steps, each step weighted by its number of targets.
    """

    def __init__(
        self,
        run: Path | None,
        world: World,
        clock: Clock,
        device: torch.device,
        interval: int,
        log_to: Sequence[str] = (),
    ) -> None:
        """Prepare the log of a run; `log_to` has the names of experiment trackers that get the same metrics."""
        self.world, self.clock, self.device = world, clock, device
        self.recent: deque[StepLoss] = deque(maxlen=interval)
        self.steps: list[tuple[int, list[Pack]]] = []  # since the last line, each with its packs
        self.norms: list[Tensor] = []  # their gradient norms
        self.last: dict[str, float] = {}
        self.pending: PendingLine | None = None
        self.peak = peak_flops(device)
        self.summary = ""  # of the last line, for the progress bar
        self.path = run / METRICS if run and world.first else None
        if self.path is not None:
            self._truncate(int(clock.used["steps"]))
        self.trackers = open_trackers(log_to, run, int(clock.used["steps"])) if run and world.first else []

    def _truncate(self, step: int) -> None:
        """Remove incomplete lines of metrics.jsonl, and lines after a step, because a resumed run writes them again."""
        assert self.path is not None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept = []
        if self.path.is_file():
            for line in self.path.read_bytes().splitlines():
                try:
                    if json.loads(line)["step"] <= step:
                        kept.append(line + b"\n")
                except (ValueError, KeyError, TypeError, RecursionError):  # damaged, and not needed to resume
                    continue
        write_bytes(self.path, b"".join(kept))

    def add(
        self, losses: Sequence[Loss], totals: Mapping[str, float], terms: list[str], before: Mapping[str, float]
    ) -> None:
        """Add the losses of one training step to the metrics log.

        `totals` has the number of targets of each loss term in `terms`, and `before` is the budget used before the
        step.
        """
        sums = sum_by_name({**loss.sums, **loss.logs} for loss in losses)
        self.recent.append(StepLoss(sums, {term: totals[term] for term in terms}, dict(before)))

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint: the last metrics and, in a single process, the losses of recent steps."""
        self.flush()
        steps = list(self.recent) if self.world.size == 1 else []
        sums = [x for step in steps for x in step.sums.values()]
        values = iter(torch.stack(sums).tolist() if sums else ())
        recent = [
            {"sums": {name: next(values) for name in step.sums}, "totals": step.totals, "before": step.before}
            for step in steps
        ]
        return {"last": dict(self.last), "recent": recent}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the metrics log from a checkpoint, so that a resumed run logs what an uninterrupted one would."""
        self.last = dict(state["last"])
        for step in state["recent"]:
            sums = {name: torch.tensor(value, device=self.device) for name, value in step["sums"].items()}
            self.recent.append(StepLoss(sums, dict(step["totals"]), dict(step["before"])))

    def watch(self, step: int, packs: list[Pack], norm: Tensor) -> None:
        """Record the gradient norm of a step, and the positions of its batches in the data.

        If the norm turns out not to be finite, the error message names these positions.
        """
        self.steps.append((step, packs))
        self.norms.append(norm.detach().float())

    def write(self, rate: float, norm: Tensor, layers: Mapping[str, Tensor] | None = None) -> None:
        """Start a line of metrics.jsonl by copying its losses and norms from the device; `flush` writes the line.

        `rate` is the learning rate, `norm` the gradient norm of the model, and `layers` the gradient norms of its
        layers.
        """
        clock = self.clock
        sums = sum_by_name(step.sums for step in self.recent)
        terms = self.recent[0].totals if self.recent else {}
        totals = {term: sum(step.totals[term] for step in self.recent) for term in terms}
        before = self.recent[0].before if self.recent else clock.used
        seconds = clock.used["seconds"] - before["seconds"]
        speed = (clock.used["tokens"] - before["tokens"]) / seconds if seconds > 0 else 0.0
        facts = {name: clock.used[name] for name in ("tokens", "flops", "seconds")}
        line = {"step": int(clock.used["steps"]), **facts, "lr": rate, "tokens_per_second": speed}
        if self.peak is not None and seconds > 0:
            line["mfu"] = (clock.used["flops"] - before["flops"]) / seconds / self.peak
        norms = {f"gradient_norm/{name}": value for name, value in (layers or {}).items()}
        values = [*sums.values(), norm, *norms.values(), *self.norms]
        self.flush()
        names = [*sums, "gradient_norm", *norms]
        fetched = self._fetch(torch.stack([value.float() for value in values]))
        self.pending = PendingLine(line, names, fetched, totals, self.steps)
        self.steps, self.norms = [], []

    def flush(self) -> None:
        """Write the pending line to metrics.jsonl, if there is one; raise an error if a gradient norm is not finite."""
        if self.pending is None:
            return
        pending, self.pending = self.pending, None
        line, names, (values, event) = pending.line, pending.names, pending.values
        if event is not None:
            event.synchronize()
        numbers = values.tolist()
        for (step, packs), norm in zip(pending.steps, numbers[len(names) :], strict=True):
            if not math.isfinite(norm):
                raise PretuneError(
                    f"step {step}: the gradient is not a number ({describe_packs(packs)}); "
                    "lower optimizer.lr, or clip gradients with optimizer.max_grad_norm=1"
                )
        sums = dict(zip(names, numbers, strict=False))
        norms = {name: sums.pop(name) for name in names if name.startswith("gradient_norm")}
        # A term may have no targets in some processes.
        every = dict.fromkeys(name for own in self.world.gather(list(sums)) for name in own)
        sums = self.world.add_up({name: sums.get(name, 0.0) for name in every})
        averages = divide_by_totals(sums, pending.totals)
        line |= {**averages, **norms}
        self.last |= line
        losses = [f"{name} {value:.3f}" for name, value in averages.items() if "/" not in name]
        speed = f"{line['tokens_per_second']:,.0f} tokens/s"
        peak = [f"{100 * line['mfu']:.0f} % of peak"] if "mfu" in line else []
        self.summary = "  ".join([f"step {line['step']}", *losses, speed, *peak])
        self._append(line)

    def _fetch(self, values: Tensor) -> tuple[Tensor, Any]:
        """Start to copy values to the CPU, and return the copy.

        On a GPU, a CUDA event that tells when the copy is complete is returned too; on the CPU, it is None.
        """
        if self.device.type != "cuda":
            return values, None
        copy = torch.empty(values.shape, pin_memory=True).copy_(values, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return copy, event

    def write_evaluation(self, metrics: Mapping[str, float]) -> None:
        """Write a line with the metrics of an evaluation to metrics.jsonl; their names get the prefix dev/."""
        line = {f"dev/{name}": value for name, value in metrics.items()}
        self.last |= line
        self._append({"step": int(self.clock.used["steps"]), **line})

    def _append(self, line: Mapping[str, float]) -> None:
        if self.path is not None:
            with open_append(self.path) as file:
                file.write(json.dumps(line).encode() + b"\n")
        numbers = {name: value for name, value in line.items() if name != "step"}
        for tracker in self.trackers:
            tracker.log_metrics(int(line["step"]), numbers)

    def close(self) -> None:
        """Close the experiment trackers of the log, so that they send or write their remaining metrics."""
        for tracker in self.trackers:
            tracker.close()


class Logging(Callback):
    """A callback that logs the metrics of each step and evaluation, and shows a progress bar."""

    name: ClassVar[str] = "log"

    def __init__(self, log: MetricsLog, root: Network, terms: list[str], lr: float, settings: Monitoring) -> None:
        self.log, self.root, self.terms, self.lr, self.settings = log, root, terms, lr, settings
        self.layers: dict[str, Tensor] = {}  # gradient norm of each layer
        self.bar: ProgressBar = SilentProgress()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Return a context manager that shows a progress bar, and completes the log when training ends."""
        with progress("training", 1.0) as self.bar:
            try:
                yield
                if self.log.steps:  # a callback has ended the training after them
                    self._write(self.step)
                self.log.flush()
            finally:
                self.log.close()

    def after_backward(self, step: Step) -> None:
        """Compute the gradient norm of each layer if a line of the metrics log is due in this step."""
        due = self.settings.log_layer_grad_norms and self.log.clock.due(self.settings.log_every, ahead=1)
        self.layers = layer_norms(self.root) if due else {}

    def after_update(self, step: Step) -> None:
        """Add the losses of a step to the metrics log, write the pending line, and start a new line if one is due."""
        assert step.gradient_norm is not None
        log, self.step = self.log, step
        if step.updated:
            log.add(step.losses, step.totals, self.terms, step.used)
            log.watch(step.number, step.packs, step.gradient_norm)
        log.flush()
        # An evaluation may end a training with early stopping: then this is its last line.
        if step.last or log.clock.due(self.settings.log_every) or (step.evaluates and self.settings.patience):
            self._write(step)
        self.bar.update(log.clock.progress(), log.summary)
        if step.evaluates:
            log.flush()

    def _write(self, step: Step) -> None:
        assert step.gradient_norm is not None
        self.log.write(step.lr_factor * self.lr, step.gradient_norm, self.layers)

    def on_evaluate(self, step: Step, metrics: Mapping[str, float]) -> None:
        """Write the metrics of an evaluation to metrics.jsonl."""
        self.log.write_evaluation(metrics)

    def on_end(self) -> dict[str, float]:
        """Write the last line of the metrics log, and return the last metrics."""
        self.log.flush()
        return self.log.last

    def state(self) -> dict[str, Any]:
        """Return the state of the metrics log, to be saved in a checkpoint."""
        return self.log.state()

    def restore(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Restore the metrics log from a checkpoint."""
        self.log.restore(state)


def layer_norms(root: Network) -> dict[str, Tensor]:
    """Return the gradient norm of each backbone layer and of each head, by name."""
    groups = [*root.backbone.groups(), *((name, [head]) for name, head in root.heads.items())]
    norms = {}
    for name, modules in groups:
        gradients = [p.grad for module in modules for p in module.parameters() if p.grad is not None]
        if gradients:
            norms[name] = full_scalar(torch.nn.utils.get_total_norm(gradients))
    return norms
