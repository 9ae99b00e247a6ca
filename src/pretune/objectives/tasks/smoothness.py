"""SMART (Jiang et al., 2020, arXiv:1911.03437): a task whose predictions must be smooth and change slowly.

Two regularizers are added to the loss. The predictions must hardly change if the token embeddings are perturbed in the
worst direction (smoothness-inducing adversarial regularization). And they must stay close to the predictions of the
moving average of the model, so that an update does not move the model far (Bregman proximal point optimization).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.backbones.backbone import Backbone
from pretune.nn.attention.query_key_layout import token_layout
from pretune.objectives.objective import Loss
from pretune.objectives.task import Task
from pretune.objectives.tasks.adversarial import PerturbedBackbone
from pretune.objectives.wrappers import CachedBackbone, WrappedBackbone, WrappedTask
from pretune.packed import Batch, Packed


@dataclass
class ReferenceModel:
    """Holds `root`, a copy of the model whose parameters are a moving average of those of the trained model.

    The training callback `ProximalPoint` (`training/optim/proximal_point.py`) sets and updates it.
    """

    root: nn.Module | None = None  # with `backbone` and `heads`, in evaluation mode

    @torch.no_grad()
    def outputs(self, task: Task, batch: Batch) -> Tensor:
        """Return the outputs of the averaged model for a batch."""
        assert self.root is not None, "training fills the reference before its first step"
        return task.outputs(self.root.heads[task.name], self.root.backbone, batch)  # type: ignore[union-attr, index, arg-type]


@dataclass(frozen=True)
class SmoothTask(WrappedTask):
    """A task of classification or regression with the two regularizers of SMART, both of weight `weight`.

    A perturbation starts with normal noise of standard deviation `noise`. It makes `steps` steps of size `rate` of
    gradient ascent on the change of the predictions, and none of its coordinates exceeds `radius`.
    """

    task: Task
    reference: ReferenceModel = field(compare=False, repr=False)
    weight: float = 1.0
    steps: int = 1
    noise: float = 1e-5
    rate: float = 1e-3
    radius: float = 1e-5

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the wrapped task's loss on a batch, with the two regularizers added to it."""
        shared = backbone if isinstance(backbone, WrappedBackbone) else CachedBackbone(backbone)
        loss = self.task.loss(head, shared, batch)  # type: ignore[arg-type]
        targets = batch.targets[self.name]
        predicted = self.task.outputs(head, shared, batch)[targets.at]  # type: ignore[arg-type]
        shift = self.perturbation(head, backbone, batch, predicted.detach())
        perturbed = self.perturbed_outputs(head, backbone, batch, shift)
        averaged = self.reference.outputs(self.task, batch)[targets.at]
        for name, others in (("smoothness", perturbed), ("proximity", averaged)):
            total = (self.distance(others, predicted) * targets.weight).sum()
            loss.sums[self.name] = loss.sums[self.name] + self.weight * total
            loss.logs[f"{self.name}/{name}"] = total.detach()
        return loss

    def perturbation(self, head: nn.Module, backbone: Backbone, batch: Batch, predicted: Tensor) -> Tensor:
        """Return the perturbation of the token embeddings, (tokens, width), that changes the predictions most.

        `predicted` are the outputs without perturbation.
        """
        packed = batch.packed[-1]
        shift = self.noise * torch.randn(len(packed), backbone.embed.width, device=packed.ids.device)
        for _ in range(self.steps):
            shift.requires_grad_()
            change = self.distance(self.perturbed_outputs(head, backbone, batch, shift), predicted)
            (gradient,) = torch.autograd.grad((change * batch.targets[self.name].weight).sum(), shift)
            shift = (shift.detach() + self.rate * gradient / largest(gradient, packed)).clamp(-self.radius, self.radius)
        return shift

    def perturbed_outputs(self, head: nn.Module, backbone: Backbone, batch: Batch, shift: Tensor) -> Tensor:
        """Return the outputs at the targets of a batch, with the perturbation `shift` added to the token embeddings."""
        outputs = self.task.outputs(head, PerturbedBackbone(backbone, shift), batch)  # type: ignore[arg-type]
        return outputs[batch.targets[self.name].at]

    def distance(self, a: Tensor, b: Tensor) -> Tensor:
        """Return how much two predictions differ, (rows,).

        This is the symmetrized KL divergence or, for regression, the squared difference.
        """
        a, b = a.float(), b.float()
        if a.dim() == 1:
            return (a - b).square()
        if self.multi_label:  # each label has its own probability
            return ((a.sigmoid() - b.sigmoid()) * (a - b)).mean(-1)
        return symmetrized_divergence(a, b)


def symmetrized_divergence(a: Tensor, b: Tensor) -> Tensor:
    """Return KL(p, q) + KL(q, p), (rows,), for distributions p with logits `a` and q with logits `b`, (rows, classes).

    >>> symmetrized_divergence(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 0.0]])).tolist()
    [0.0]
    """
    a, b = F.log_softmax(a, -1), F.log_softmax(b, -1)
    return ((a.exp() - b.exp()) * (a - b)).sum(-1)


def largest(gradient: Tensor, packed: Packed) -> Tensor:
    """Return, for each token, the largest absolute gradient coordinate in its sequence, (tokens, 1).

    `gradient` is (tokens, width).
    """
    owner = token_layout(packed).sequence.long()
    most = gradient.new_zeros(packed.offsets.shape[0] - 1).scatter_reduce(0, owner, gradient.abs().amax(-1), "amax")
    return most[owner, None].clamp(min=1e-30)
