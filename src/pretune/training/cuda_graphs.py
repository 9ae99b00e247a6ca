"""Steps as CUDA graphs: forward and backward are launched once and replayed for every pack of the same shapes, and so is
the end of a step.

A small model spends its time on launching kernels, not on running them. Packs have fixed shapes, so that nothing but their
numbers changes from step to step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
    learned: set[nn.Parameter]  # those that get a gradient of it

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
    pool: Any = field(default_factory=torch.cuda.graph_pool_handle)  # one memory for all: they run one after the other
    recordings: dict[int, Recording] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)  # streams that this step has packs of
    # By the streams of a step: the graph of its end, and the gradient's norm in it. None: it ended once, optimizers have their
    # state.
    endings: dict[frozenset[int], tuple[Any, Tensor] | None] = field(default_factory=dict)
    idle: dict[frozenset[int], list[nn.Parameter]] = field(default_factory=dict)  # which these streams do not learn

    def run(self, stream: int, joint: Joint, batch: Batch, totals: Mapping[str, float]) -> tuple[Loss, Tensor]:
        """Forward and backward of a pack."""
        if stream not in self.recordings:
            self.recordings[stream] = self.record(joint, batch, totals)
            self.idle.clear()  # there may be gradients that were not there before
        self.taken.add(stream)
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
        learned = {parameter for parameter in self.model.parameters() if parameter.grad is not None}
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
        return Recording(graph, place, terms, loss, part.detach(), learned)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The end of a step: heads of streams that it has no packs of have no gradient, not one of zeros, by which optimizers
        would move them all the same."""
        streams = frozenset(self.taken)
        if streams not in self.idle:
            learned = set[nn.Parameter]().union(*(self.recordings[stream].learned for stream in streams))
            given = (parameter for parameter in self.model.parameters() if parameter.grad is not None)
            self.idle[streams] = [parameter for parameter in given if parameter not in learned]
        kept = {parameter: parameter.grad for parameter in self.idle[streams]}
        for parameter in kept:
            parameter.grad = None
        yield
        for parameter, gradient in kept.items():
            parameter.grad = gradient
        self.taken.clear()

    def end(self, finish: Callable[[], Tensor]) -> Tensor:
        """What `finish` does and returns: launched once, recorded the next time, and replayed from then on; inside a `turn`."""
        streams = frozenset(self.taken)
        if streams not in self.endings:
            self.endings[streams] = None
            return finish()
        ending = self.endings[streams]
        if ending is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, self.pool, capture_error_mode=CAPTURE):
                norm = finish()
            ending = self.endings[streams] = graph, norm
        graph, norm = ending
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
