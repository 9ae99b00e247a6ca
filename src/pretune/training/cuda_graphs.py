"""Steps as CUDA graphs: the kernels of a step are recorded once and replayed for every pack of the same shape.

A small model spends more time launching kernels than running them. Packs have fixed shapes, so only the values of the inputs
change from step to step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from pretune.objectives import JointObjective, Loss
from pretune.packed import Batch

WARMUP = 3  # runs before recording, in which libraries initialize themselves
CAPTURE = "thread_local"  # the prefetching thread pins memory while this one records


@dataclass
class Recording:
    """The recorded CUDA graph of one forward and backward pass, with the tensors that it reads and writes."""

    graph: Any
    batch: Batch
    totals: dict[str, Tensor]
    loss: Loss
    objective: Tensor  # the scalar that is differentiated
    trained: set[nn.Parameter]  # parameters that receive a gradient

    def replay(self, batch: Batch, totals: Mapping[str, float]) -> tuple[Loss, Tensor]:
        """Replay the recorded forward and backward pass on a batch; return its loss terms, and the total loss.

        The total is the sum of the loss terms, each divided by its number of targets in the whole step,
        `totals[term]`.
        """
        for place, value in zip(batch_tensors(self.batch), batch_tensors(batch), strict=True):
            place.copy_(value.pin_memory(), non_blocking=True)
        for term, place in self.totals.items():
            place.fill_(totals[term])
        self.graph.replay()
        loss = self.loss
        sums, logs = ({name: value.clone() for name, value in part.items()} for part in (loss.sums, loss.logs))
        return Loss(sums, loss.weights, logs), self.objective.clone()


@dataclass
class CudaGraphs:
    """An executor that records training steps as CUDA graphs and replays them.

    It keeps one graph of the forward and backward pass per data stream, and one graph of the parameter update.
    """

    model: nn.Module
    device: torch.device
    compiling: Callable[[], AbstractContextManager[None]] = nullcontext  # entered while a graph is recorded
    pool: Any = field(default_factory=torch.cuda.graph_pool_handle)  # shared: the graphs run one after the other
    replays_update: bool = False  # record the update too, not only the forward and backward passes
    recordings: dict[int, Recording] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)  # streams that have packs in the current step
    # By the streams of a step: the graph of its update and the gradient norm in it. None: it has run once, so that
    # optimizers have initialized their state, and can be recorded the next time.
    updates: dict[frozenset[int], tuple[Any, Tensor] | None] = field(default_factory=dict)
    untrained: dict[frozenset[int], list[nn.Parameter]] = field(default_factory=dict)  # by the streams of a step

    def run(self, stream: int, joint: JointObjective, batch: Batch, totals: Mapping[str, float]) -> tuple[Loss, Tensor]:
        """Run the forward and backward pass of a batch by replaying the CUDA graph of its data stream.

        `stream` is the index of the data stream; its graph is recorded at the first use. Return the loss
        terms of the objectives `joint`, as sums over targets, and the total loss: the sum over the terms of each term
        divided by its number of targets, `totals[term]`.
        """
        if stream not in self.recordings:
            with self.compiling():  # the first run of a compiled model compiles it
                self.recordings[stream] = self.record(joint, batch, totals)
            self.untrained.clear()  # the new stream may train parameters that had no gradient before
        self.taken.add(stream)
        return self.recordings[stream].replay(batch, totals)

    def record(self, joint: JointObjective, batch: Batch, totals: Mapping[str, float]) -> Recording:
        """Record the forward and backward pass of the objectives `joint` on a batch as a CUDA graph, and return it.

        `totals` maps each loss term to its number of targets in the step.
        """
        inputs = batch.to(self.device)
        terms = {term: torch.tensor(float(value), device=self.device) for term, value in totals.items()}
        before = {p: p.grad for p in self.model.parameters()}  # of this step's packs of other streams
        aside = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(aside):
            for _ in range(WARMUP):
                self.model.zero_grad(set_to_none=True)
                self.model(joint, inputs).over(terms).backward()
        torch.cuda.current_stream(self.device).wait_stream(aside)
        trained = {parameter for parameter in self.model.parameters() if parameter.grad is not None}
        # Gradients keep their memory from now on: replays of this graph, and of earlier ones, add to them.
        for parameter, gradient in before.items():
            if gradient is not None:
                parameter.grad = gradient
            elif parameter.grad is not None:
                parameter.grad.zero_()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, self.pool, capture_error_mode=CAPTURE):
            loss = self.model(joint, inputs)
            objective = loss.over(terms)
            objective.backward()
        # Recording computes nothing: the gradients are unchanged.
        return Recording(graph, inputs, terms, loss, objective.detach(), trained)

    def update(self, function: Callable[[], Tensor]) -> Tensor:
        """Run `function`, which updates the parameters and returns the gradient norm, or replay its CUDA graph."""
        with self.without_idle_gradients():
            return self._record_or_replay(function) if self.replays_update else function()

    def forget(self) -> None:
        """Discard the recorded CUDA graphs of forward and backward passes, because the model has changed."""
        self.recordings.clear()

    @contextmanager
    def without_idle_gradients(self) -> Iterator[None]:
        """Hide the gradients of parameters that the current step does not train: set them to None inside the block.

        Optimizers skip such parameters. The gradient tensors are put back after the block.
        """
        streams = frozenset(self.taken)
        if streams not in self.untrained:
            trained = set[nn.Parameter]().union(*(self.recordings[stream].trained for stream in streams))
            with_gradient = (parameter for parameter in self.model.parameters() if parameter.grad is not None)
            self.untrained[streams] = [parameter for parameter in with_gradient if parameter not in trained]
        gradients = {parameter: parameter.grad for parameter in self.untrained[streams]}
        for parameter in gradients:
            parameter.grad = None
        yield
        for parameter, gradient in gradients.items():
            parameter.grad = gradient
        self.taken.clear()

    def _record_or_replay(self, function: Callable[[], Tensor]) -> Tensor:
        """Run an update function the first time, record it as a CUDA graph the second time, then replay the graph.

        There is one graph for each set of data streams that a step can have. The result is the gradient norm.
        """
        streams = frozenset(self.taken)
        if streams not in self.updates:
            self.updates[streams] = None
            return function()
        recorded = self.updates[streams]
        if recorded is None:
            graph = torch.cuda.CUDAGraph()
            with self.compiling(), torch.cuda.graph(graph, self.pool, capture_error_mode=CAPTURE):
                norm = function()
            recorded = self.updates[streams] = graph, norm
        graph, norm = recorded
        graph.replay()
        return norm.clone()


def batch_tensors(batch: Batch) -> list[Tensor]:
    """Return all tensors of a batch as a list, in a fixed order."""
    tensors: list[Tensor] = []
    for packed in batch.packed:
        tensors += [packed.ids, packed.offsets, packed.positions, *packed.columns.values()]
    for targets in batch.targets.values():
        tensors += [targets.at, targets.target, targets.weight]
    return tensors
