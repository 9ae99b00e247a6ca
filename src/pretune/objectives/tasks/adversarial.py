"""Adversarial training on embeddings (Zhu et al., 2020, FreeLB): a task is learned from vectors pushed where they hurt most."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from pretune.backbones.backbone import States
from pretune.nn.attention.packed_layout import side_of
from pretune.objectives.objective import Loss
from pretune.objectives.task import Task
from pretune.packed import Batch, Packed

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone


class Pushed:
    """A backbone whose token vectors are moved by `shift`, (n, width)."""

    def __init__(self, backbone: Backbone, shift: Tensor) -> None:
        # A joint's backbone remembers states; these are other ones.
        self.backbone: Any = getattr(backbone, "backbone", backbone)
        self.shift = shift

    def __call__(self, *packed: Packed, **options: Any) -> States:
        embed: Any = self.backbone.embed
        handle = embed.register_forward_hook(lambda module, inputs, out: out + self.shift.to(out.dtype))
        try:
            states: States = self.backbone(*packed, **options)
        finally:
            handle.remove()
        return states

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backbone, name)


@dataclass(frozen=True)
class Adversarial:
    """The mean loss over `steps` pushes, each `rate` long and uphill from the one before; none goes further than `most`.

    Lengths are those of a whole sequence's push. The parameters' gradient is that of all steps together.
    """

    task: Task
    steps: int = 3
    rate: float = 0.1
    start: float = 0.05
    most: float = 0.3

    def __getattr__(self, name: str) -> Any:
        if name == "task":  # while it is being copied
            raise AttributeError(name)
        return getattr(self.task, name)

    def fit(self, examples: Any) -> Self:
        """With what the task must know of some examples."""
        return replace(self, task=self.task.fit(examples))

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """The task's, over all pushes."""
        packed = batch.packed[-1]
        owner = side_of(packed).sequence.long()
        sequences = packed.offsets.shape[0] - 1

        def lengths(x: Tensor) -> Tensor:
            """(n, 1) how long the part of x is that belongs to a token's sequence."""
            squares = x.new_zeros(sequences).index_add(0, owner, x.square().sum(-1))
            return squares.sqrt()[owner, None].clamp(min=1e-12)

        shift = torch.rand(len(packed), backbone.embed.width, device=packed.ids.device) * 2 - 1
        shift = shift * self.start / lengths(shift)
        total = Loss()
        for step in range(self.steps):
            shift = shift.detach().requires_grad_()
            loss = self.task.loss(head, Pushed(backbone, shift), batch)  # type: ignore[arg-type]
            for sums, own in ((total.sums, loss.sums), (total.logs, loss.logs)):
                for name, value in own.items():
                    sums[name] = sums.get(name, 0.0) + value / self.steps
            total.weights |= loss.weights
            if step + 1 < self.steps:
                uphill = sum(loss.weights.get(name, 1.0) * value for name, value in loss.sums.items())
                (slope,) = torch.autograd.grad(uphill, shift, retain_graph=True)  # type: ignore[arg-type]
                shift = shift + self.rate * slope / lengths(slope)
                shift = shift * (self.most / lengths(shift)).clamp(max=1.0)
        return total


Task.register(Adversarial)  # what it lacks, its task has; Python 3.12 would not look there
