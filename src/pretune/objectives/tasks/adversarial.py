"""Adversarial training on token embeddings (Zhu et al., 2020, FreeLB): a task learns from perturbed embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pretune.backbones.backbone import Backbone, BackboneOutput
from pretune.nn.attention.query_key_layout import token_layout
from pretune.objectives.objective import Loss
from pretune.objectives.task import Task
from pretune.objectives.wrappers import WrappedBackbone, WrappedTask
from pretune.packed import Batch, Packed


class PerturbedBackbone(WrappedBackbone):
    """A wrapper around a backbone that adds the perturbation `shift`, (tokens, width), to its token embeddings."""

    def __init__(self, backbone: Backbone, shift: Tensor) -> None:
        # The cache of a joint would return the states of the unperturbed embeddings.
        self.backbone = backbone.backbone if isinstance(backbone, WrappedBackbone) else backbone
        self.shift = shift

    def __call__(self, *packed: Packed, **options: Any) -> BackboneOutput:
        """Return the backbone's output for packed sequences whose token embeddings are perturbed."""
        embed: Any = self.backbone.embed
        handle = embed.register_forward_hook(lambda module, inputs, out: out + self.shift.to(out.dtype))
        try:
            states: BackboneOutput = self.backbone(*packed, **options)
        finally:
            handle.remove()
        return states


@dataclass(frozen=True)
class AdversarialTask(WrappedTask):
    """A task whose loss is the mean over `steps` adversarial perturbations of the token embeddings (FreeLB).

    The first perturbation is random and has the norm `start`. Each further one results from a step of size `rate` of
    gradient ascent on the loss, and its norm is at most `most`. The norm is taken over all tokens of a sequence.
    """

    task: Task
    steps: int = 3
    rate: float = 0.1
    start: float = 0.05
    most: float = 0.3

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the wrapped task's loss on a batch, averaged over adversarial perturbations of the embeddings."""
        packed = batch.packed[-1]
        owner = token_layout(packed).sequence.long()
        sequences = packed.offsets.shape[0] - 1

        def norms(x: Tensor) -> Tensor:
            """Return the L2 norm of `x` (tokens, width) over each sequence, repeated for its tokens, (tokens, 1)."""
            squares = x.new_zeros(sequences).index_add(0, owner, x.square().sum(-1))
            return squares.sqrt()[owner, None].clamp(min=1e-12)

        shift = torch.rand(len(packed), backbone.embed.width, device=packed.ids.device) * 2 - 1
        shift = shift * self.start / norms(shift)
        total = Loss()
        for step in range(self.steps):
            shift = shift.detach().requires_grad_()
            loss = self.task.loss(head, PerturbedBackbone(backbone, shift), batch)  # type: ignore[arg-type]
            for sums, own in ((total.sums, loss.sums), (total.logs, loss.logs)):
                for name, value in own.items():
                    sums[name] = sums.get(name, 0.0) + value / self.steps
            total.weights |= loss.weights
            if step + 1 < self.steps:
                ascent = sum(loss.weights.get(name, 1.0) * value for name, value in loss.sums.items())
                (gradient,) = torch.autograd.grad(ascent, shift, retain_graph=True)  # type: ignore[arg-type]
                shift = shift + self.rate * gradient / norms(gradient)
                shift = shift * (self.most / norms(shift)).clamp(max=1.0)
        return total
