"""Steps as CUDA graphs: forward and backward are launched once and replayed for every pack of the same shapes, and so is
the end of a step.

A small model spends its time on launching kernels, not on running them. Packs have fixed shapes, so that nothing but their
numbers changes from step to step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from pretune.objectives import Joint, Loss
from pretune.packed import Batch

WARM = 3  # runs before the recording, in which libraries set themselves up
CAPTURE = "thread_local"  # the feed's thread goes on pinning memory while this one records


@dataclass
class Recording:
    """One graph, with the places its inputs go to and its outputs come from."""

    graph: Any
    batch: Batch
    totals: dict[str, Tensor]
    loss: Loss
    part: Tensor

    def replay(self, batch: Batch, totals: Mapping[str, float]) -> tuple[Loss, Tensor]:
        """The loss of another batch; gradients add up as always."""
        for place, value in zip(tensors_of(self.batch), tensors_of(batch), strict=True):
            place.copy_(value.pin_memory(), non_blocking=True)
        for term, place in self.totals.items():
            place.fill_(totals[term])
        self.graph.replay()
        loss = self.loss
        sums, logs = ({name: value.clone() for name, value in part.items()} for part in (loss.sums, loss.logs))
        return Loss(sums, loss.weights, logs), self.part.clone()


@dataclass
class Graphs:
    """A graph for each stream of packs, recorded when its first pack comes, and one for the end of a step."""

    model: nn.Module
    device: torch.device
    recordings: dict[int, Recording] = field(default_factory=dict)
    ending: tuple[Any, Tensor] | None = None  # the graph, and the gradient's norm in it
    pool: Any = field(default_factory=torch.cuda.graph_pool_handle)  # one memory for all: they run one after the other
    ended: bool = False  # whether a step has ended since the last recording: then optimizers have their state

    def run(self, stream: int, joint: Joint, batch: Batch, totals: Mapping[str, float]) -> tuple[Loss, Tensor]:
        """Forward and backward of a pack."""
        if stream not in self.recordings:
            self.recordings[stream] = self.record(joint, batch, totals)
            self.ending, self.ended = None, False  # there may be gradients that were not there before
        return self.recordings[stream].replay(batch, totals)

    def record(self, joint: Joint, batch: Batch, totals: Mapping[str, float]) -> Recording:
        """Run some times, so that all memory is there, then record."""
        place = batch.to(self.device)
        terms = {term: torch.tensor(float(value), device=self.device) for term, value in totals.items()}
        before = {p: p.grad for p in self.model.parameters()}  # of packs of this step that another graph has run
        aside = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(aside):
            for _ in range(WARM):
                self.model.zero_grad(set_to_none=True)
                self.model(joint, place).over(terms).backward()
        torch.cuda.current_stream(self.device).wait_stream(aside)
        # Gradients stay where they are from now on: replays of this graph, and of those recorded before, add to them.
        for parameter, gradient in before.items():
            if gradient is not None:
                parameter.grad = gradient
            elif parameter.grad is not None:
                parameter.grad.zero_()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, self.pool, capture_error_mode=CAPTURE):
            loss = self.model(joint, place)
            part = loss.over(terms)
            part.backward()
        # Recording runs nothing: gradients are still those from before.
        return Recording(graph, place, terms, loss, part.detach())

    def end(self, finish: Callable[[], Tensor]) -> Tensor:
        """What `finish` does and returns: launched once, recorded the next time, and replayed from then on."""
        if not self.ended:
            self.ended = True
            return finish()
        if self.ending is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, self.pool, capture_error_mode=CAPTURE):
                norm = finish()
            self.ending = graph, norm
        graph, norm = self.ending
        graph.replay()
        return norm.clone()


def tensors_of(batch: Batch) -> list[Tensor]:
    """All tensors of a batch, in order."""
    found: list[Tensor] = []
    for packed in batch.packed:
        found += [packed.ids, packed.offsets, packed.positions, *packed.columns.values()]
    for targets in batch.targets.values():
        found += [targets.at, targets.target, targets.weight]
    return found
