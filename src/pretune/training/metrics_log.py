"""What a training tells: summed up on the device, fetched now and then, a JSON line each time."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pretune.objectives.objective import Loss, means
from pretune.runtime.atomic_io import open_to_append, write_bytes
from pretune.runtime.devices import peak_flops
from pretune.runtime.errors import PretuneError
from pretune.training.budget import Clock
from pretune.training.data_streams import Pack
from pretune.training.parallel.distributed import World

METRICS = "metrics.jsonl"


@dataclass(frozen=True)
class StepLoss:
    """The loss of one step, still on the device."""

    sums: dict[str, Tensor]  # over the targets of each term, and what else is logged
    totals: dict[str, float]  # targets of each term, over all processes
    before: dict[str, float]  # what the training had used before the step


@dataclass
class Waiting:
    """A line whose numbers are on their way from the device."""

    line: dict[str, Any]
    names: list[str]  # of the first values; after them come the gradient norms of `steps`
    values: tuple[Tensor, Any]
    totals: dict[str, float]
    steps: list[tuple[int, list[Pack]]]


def name_packs(packs: Sequence[Pack]) -> str:
    """Packs, for messages: with seed and recipe they say which texts it was."""
    named = [f"stream {p.stream}, epoch {p.epoch}, pack {p.index}" for p in packs]
    return "; ".join([*named[:3], *(["…"] if len(named) > 3 else [])])


def add_up(parts: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the sum of the values of each name, in float32, where they are."""
    sums: dict[str, Tensor] = {}
    for part in parts:
        for name, value in part.items():
            value = value.detach().float()
            sums[name] = sums[name] + value if name in sums else value
    return sums


class Log:
    """Metrics: summed up on the device, fetched and written now and then, a JSON line each time.

    A line has the mean loss of the last `interval` steps, weighted by their targets, whenever it is written: the last one of a
    training too, where few steps have passed since the line before, and one of them may have a batch of a few rows.
    """

    def __init__(self, run: Path | None, world: World, clock: Clock, device: torch.device, interval: int) -> None:
        self.world, self.clock, self.device = world, clock, device
        self.recent: deque[StepLoss] = deque(maxlen=interval)
        self.steps: list[tuple[int, list[Pack]]] = []  # since the last line, and the packs in each
        self.norms: list[Tensor] = []  # their gradient norms
        self.last: dict[str, float] = {}
        self.waiting: Waiting | None = None
        self.peak = peak_flops(device)
        self.note = ""  # the last line in short, for the progress bar
        self.path = run / METRICS if run and world.first else None
        if self.path is not None:
            self._keep_until(int(clock.used["steps"]))

    def _keep_until(self, step: int) -> None:
        """Drop lines of steps that will be done again, and a line cut off by a kill."""
        assert self.path is not None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept = []
        if self.path.is_file():
            for line in self.path.read_bytes().splitlines():
                try:
                    if json.loads(line)["step"] <= step:
                        kept.append(line + b"\n")
                except (ValueError, KeyError, TypeError, RecursionError):  # damaged: the numbers are for reading only
                    continue
        write_bytes(self.path, b"".join(kept))

    def add(self, losses: Sequence[Loss], totals: Mapping[str, float], terms: list[str]) -> None:
        """Add a step that the clock has not counted yet: the sums of its packs, without waiting for the device, and totals."""
        sums = add_up({**loss.sums, **loss.logs} for loss in losses)
        self.recent.append(StepLoss(sums, {term: totals[term] for term in terms}, dict(self.clock.used)))

    def state(self) -> dict[str, Any]:
        """Return the last metrics and the losses of the last steps for a checkpoint.

        Of several processes each has a part of the losses, and none are saved.
        """
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
        """Go on from a checkpoint, so that the results of a training are those of one that was not stopped."""
        self.last = dict(state["last"])
        for step in state["recent"]:
            sums = {name: torch.tensor(value, device=self.device) for name, value in step["sums"].items()}
            self.recent.append(StepLoss(sums, dict(step["totals"]), dict(step["before"])))

    def watch(self, step: int, packs: list[Pack], norm: Tensor) -> None:
        """Remember what was in a step, so that one that goes wrong can be named."""
        self.steps.append((step, packs))
        self.norms.append(norm.detach().float())

    def write(self, rate: float, norm: Tensor, layers: Mapping[str, Tensor] | None = None) -> None:
        """Note what a line needs; `flush` writes it when the device is through, so that nobody waits."""
        clock = self.clock
        sums = add_up(step.sums for step in self.recent)
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
        self.waiting = Waiting(line, names, fetched, totals, self.steps)
        self.steps, self.norms = [], []

    def flush(self) -> None:
        """Write the line that waits, if there is one."""
        if self.waiting is None:
            return
        line, totals = self.waiting.line, self.waiting.totals
        names, steps, (values, event) = self.waiting.names, self.waiting.steps, self.waiting.values
        self.waiting = None
        if event is not None:
            event.synchronize()
        found = values.tolist()
        for (step, packs), norm in zip(steps, found[len(names) :], strict=True):
            if not math.isfinite(norm):
                raise PretuneError(
                    f"step {step}: the gradient is not a number ({name_packs(packs)}); lower the learning rate, or clip"
                )
        sums = dict(zip(names, found, strict=False))
        norms = {name: sums.pop(name) for name in names if name.startswith("gradient_norm")}
        sums = self.world.add_up({name: sums.get(name, 0.0) for name in self._names(sums)})
        averages = means(sums, totals)
        line |= {**averages, **norms}
        self.last |= line
        losses = [f"{name} {value:.3f}" for name, value in averages.items() if "/" not in name]
        speed = f"{line['tokens_per_second']:,.0f} tokens/s"
        peak = [f"{100 * line['mfu']:.0f} % of peak"] if "mfu" in line else []
        self.note = "  ".join([f"step {line['step']}", *losses, speed, *peak])
        self._append(line)

    def _fetch(self, values: Tensor) -> tuple[Tensor, Any]:
        """Start a copy to the host, into pinned memory so that it does not wait, and an event that says when it is there."""
        if self.device.type != "cuda":
            return values, None
        here = torch.empty(values.shape, pin_memory=True).copy_(values, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return here, event

    def _names(self, sums: Mapping[str, float]) -> list[str]:
        """All processes must name the same sums, those included that did not occur here."""
        return list(dict.fromkeys(name for names in self.world.gather(list(sums)) for name in names))

    def write_evaluation(self, metrics: Mapping[str, float]) -> None:
        """A line of what an evaluation found."""
        found = {f"dev/{name}": value for name, value in metrics.items()}
        self.last |= found
        self._append({"step": int(self.clock.used["steps"]), **found})

    def _append(self, line: Mapping[str, float]) -> None:
        if self.path is not None:
            with open_to_append(self.path) as file:
                file.write(json.dumps(line).encode() + b"\n")
