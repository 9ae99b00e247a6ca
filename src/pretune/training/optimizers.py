"""Optimizers: AdamW for everything, or Muon for hidden matrices and AdamW for the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from pretune.nn.linear import Linear
from pretune.training.settings import Optimizer


def make_optimizers(root: nn.Module, settings: Optimizer) -> list[torch.optim.Optimizer]:
    """Optimizers for all parameters that require a gradient; every group remembers its peak rate."""
    named = [(name, p) for name, p in root.named_parameters() if p.requires_grad]
    matrices = hidden_matrices(root) if settings.name == "muon" else {}
    plain = [(name, p) for name, p in named if p not in matrices]
    optimizers: list[torch.optim.Optimizer] = []
    if plain:
        # Norms, biases and single vectors are not decayed (Devlin et al., 2019).
        decayed = [p for _, p in plain if p.dim() > 1]
        others = [p for _, p in plain if p.dim() <= 1]
        groups: list[dict[str, Any]] = [
            {"params": decayed, "weight_decay": settings.decay},
            {"params": others, "weight_decay": 0.0},
        ]
        on_gpu = plain[0][1].is_cuda
        optimizers.append(
            torch.optim.AdamW(
                [group for group in groups if group["params"]],
                lr=settings.lr or 0.0,
                betas=settings.betas or (0.9, 0.999),
                eps=settings.eps or 1e-8,
                fused=True if on_gpu else None,
            )
        )
    if matrices:
        moving = {p: stacked for p, stacked in matrices.items() if p.requires_grad}
        optimizers.append(Muon(moving, settings.matrix_lr or 0.02, settings.momentum or 0.95, settings.decay or 0.0))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return optimizers


def hidden_matrices(root: nn.Module) -> dict[Tensor, int]:
    """The weights of all linear maps inside the backbone's layers, and how many matrices each holds stacked."""
    backbone: Any = root.backbone
    layers = [module for name, modules in backbone.groups() if "embed" not in name for module in modules]
    return {child.weight: child.stacked for layer in layers for child in layer.modules() if isinstance(child, Linear)}


class Muon(torch.optim.Optimizer):
    """Momentum made orthogonal (Jordan et al., 2024): every singular value of an update becomes about 1.

    Matrices of equal shape are orthogonalized together, in bf16 on an accelerator and fp32 on a CPU. The rate is scaled by
    sqrt(max(1, rows / columns)); decay is decoupled.
    """

    def __init__(self, matrices: dict[Tensor, int], lr: float, momentum: float, decay: float) -> None:
        super().__init__(list(matrices), {"lr": lr, "momentum": momentum, "weight_decay": decay})
        self.stacked = matrices

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move every matrix."""
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = {}
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                momentum = state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
                update = parameter.grad.lerp(momentum, group["momentum"])  # Nesterov's
                rows = parameter.shape[0] // self.stacked[parameter]
                pieces = update.view(-1, rows, parameter.shape[1])  # (stacked, rows, columns)
                by_shape.setdefault((rows, parameter.shape[1]), []).append((parameter, pieces))
            for (rows, columns), members in by_shape.items():
                together = orthogonalize(torch.cat([pieces for _, pieces in members]))
                rate = group["lr"] * max(1.0, rows / columns) ** 0.5
                parts = torch.split(together, [pieces.shape[0] for _, pieces in members])
                for (parameter, _), piece in zip(members, parts, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(piece.reshape(parameter.shape).to(parameter.dtype), alpha=-rate)


def orthogonalize(matrices: Tensor, steps: int = 5) -> Tensor:
    """(k, rows, columns) → nearly orthogonal ones, by a quintic Newton-Schulz iteration.

    >>> s = torch.linalg.svdvals(orthogonalize(torch.randn(1, 8, 16)))
    >>> bool(((s > 0.5) & (s < 1.5)).all())
    True
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.to(torch.bfloat16 if matrices.is_cuda else torch.float32)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


def set_rates(optimizers: Iterable[torch.optim.Optimizer], factor: float) -> None:
    """Every group's rate is its peak times a factor."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * factor
