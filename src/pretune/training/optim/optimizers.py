"""Optimizers: PyTorch's own ones, LAMB, and a Muon that orthogonalizes matrices of equal shape together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pretune.nn.linear import Linear, OutputLinear
from pretune.runtime.errors import PretuneError, if_option
from pretune.runtime.progress import log_info
from pretune.training.parallel.fsdp_tensors import (
    all_reduce_sum,
    first_row,
    gather_rows,
    is_sharded,
    local_rows,
    take_local_rows,
)
from pretune.training.recipe_sections import AUTO, Optimizer

Groups = list[dict[str, Any]]


def make_optimizers(
    root: nn.Module, settings: Optimizer, starts: Mapping[Tensor, float] | None = None
) -> list[torch.optim.Optimizer]:
    """Return the optimizers of a model's trainable parameters.

    The peak learning rate of each parameter group is its entry `peak`. `starts` maps parameters to the share of the
    budget after which they are trained (default: 0).
    """
    starts = starts or {}
    parameters = [p for p in root.parameters() if p.requires_grad]
    if settings.name == "adafactor" and any(is_sharded(p) for p in parameters):
        raise PretuneError(
            "adafactor needs means over whole rows and columns, which PyTorch cannot compute on sharded parameters; "
            f"choose another optimizer{if_option('parallel', ', or --parallel ddp')}"
        )
    matrices = hidden_matrices(root) if settings.name == "muon" else {}
    plain = [p for p in parameters if p not in matrices]
    factors = lr_factors(root, settings)
    optimizers: list[torch.optim.Optimizer] = []
    if plain:
        groups: dict[tuple[float, bool, float], list[Tensor]] = {}
        for p in plain:
            groups.setdefault((factors.get(p, 1.0), p.dim() > 1, starts.get(p, 0.0)), []).append(p)
        built: Groups = [
            # Norms and biases have no weight decay (Devlin et al., 2019), and LAMB does not scale their updates.
            {
                "params": members,
                "weight_decay": (settings.weight_decay or 0.0) if matrix else 0.0,
                "layer_adaptation": matrix,
                "lr": factor * settings.base_lr,
                "start": start,
            }
            for (factor, matrix, start), members in sorted(groups.items(), key=lambda item: item[0], reverse=True)
        ]
        optimizers.append(build_optimizer(built, settings, root))
    if trained := {p: stacked for p, stacked in matrices.items() if p.requires_grad}:
        rate, momentum, decay = settings.muon_lr or 0.02, settings.momentum or 0.95, settings.weight_decay or 0.0
        optimizers.append(Muon(trained, rate, momentum, decay, factors))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
            group.setdefault("start", 0.0)
    return optimizers


def lr_factors(root: nn.Module, settings: Optimizer) -> dict[Tensor, float]:
    """Return the factors by which learning rates of parameters differ from the base learning rate, by parameter.

    With `layer_decay`, a layer has `layer_decay` times the learning rate of the layer above (Howard and Ruder, 2018).
    """
    factors: dict[Tensor, float] = {}
    if settings.head_lr_factor is not None:
        heads: Any = root.heads
        factors |= dict.fromkeys(heads.parameters(), settings.head_lr_factor)
    if settings.layer_decay is not None:
        backbone: Any = root.backbone
        groups = backbone.groups()
        for depth, (_, modules) in enumerate(groups):
            factor = settings.layer_decay ** (len(groups) - 1 - depth)
            factors |= {parameter: factor for module in modules for parameter in module.parameters()}
    return factors


def build_optimizer(groups: Groups, settings: Optimizer, root: nn.Module) -> torch.optim.Optimizer:
    """Build the optimizer that the settings name, for parameter groups of the model `root`.

    For muon, which updates only hidden matrices, this is the AdamW optimizer of all other parameters.
    """
    lr = settings.base_lr or 1e-2
    moments: dict[str, Any] = {
        "lr": settings.base_lr,
        "betas": settings.betas or (0.9, 0.999),
        "eps": settings.eps or 1e-8,
    }
    fused = bool(groups[0]["params"][0].is_cuda) or None
    match settings.name:
        case "adam":  # Kingma and Ba (2015), with weight decay as part of the gradient
            return torch.optim.Adam(groups, **moments, fused=fused)
        case "radam":  # rectified Adam (Liu et al., 2020), with decoupled weight decay
            return torch.optim.RAdam(groups, **moments, decoupled_weight_decay=True)
        case "adafactor":  # factored second moments, rates relative to the parameters' scale (Shazeer and Stern, 2018)
            return torch.optim.Adafactor(groups, lr=lr)
        case "sgd":
            return torch.optim.SGD(groups, lr=lr, momentum=settings.momentum or 0.0)
        case "asgd":  # averaged SGD (Polyak and Juditsky, 1992), as AWD-LSTM uses it, with the schedule's learning rate
            return torch.optim.ASGD(groups, lr=lr, lambd=0.0, t0=0.0)
        case "lamb":
            stacked = {child.weight: child.stacked for child in root.modules() if isinstance(child, Linear)}
            return Lamb(groups, **moments, stacked=stacked)
        case "adamw" | "muon" | None:  # decoupled weight decay (Loshchilov and Hutter, 2019)
            return torch.optim.AdamW(groups, **moments, fused=fused)


def scale_lr_to_batch(settings: Optimizer, batch: float) -> Optimizer:
    """Return settings with learning rates for the batch size `batch`, scaled from the reference batch size.

    Learning rates are proportional to the batch size (Goyal et al., 2017).

    >>> scale_lr_to_batch(Optimizer(lr=1e-4, reference_batch_size=256), 512).lr
    0.0002
    """
    if settings.reference_batch_size is None or settings.lr == AUTO:  # a range test uses batches of this size
        return settings
    factor = batch / settings.reference_batch_size
    lr, matrix_lr = ((rate * factor if rate is not None else None) for rate in (settings.lr, settings.muon_lr))
    log_info(
        f"the learning rate is scaled by {factor:g} to {lr:g}, because it was set for a batch size of "
        f"{settings.reference_batch_size:,}, and the batch size is {batch:,.0f}"
    )
    return replace(settings, lr=lr, muon_lr=matrix_lr)


EMBEDDINGS = {"embed", "embed_regions"}  # the names of embeddings in backbones


def hidden_matrices(root: nn.Module) -> dict[Tensor, int]:
    """Return the weights of all hidden linear layers, each with the number of matrices that are stacked in the weight.

    All linear layers are hidden, except those in embeddings and those that compute the logits of a head.
    """
    return {
        module.weight: module.stacked
        for name, module in root.named_modules()
        if isinstance(module, Linear)
        and not isinstance(module, OutputLinear)
        and EMBEDDINGS.isdisjoint(name.split("."))
    }


class Muon(torch.optim.Optimizer):
    """Muon, an optimizer whose momentum updates are orthogonalized: all singular values ≈ 1 (Jordan et al., 2024).

    Matrices of equal shape are orthogonalized together, in bf16 on an accelerator. The learning rate is scaled by
    sqrt(max(1, rows / columns)), and by the `factors` of matrices that have one; weight decay is decoupled. For sharded
    parameters, every process gathers the updates, orthogonalizes all of them, and applies its own rows.
    """

    def __init__(
        self,
        matrices: dict[Tensor, int],
        lr: float,
        momentum: float,
        decay: float,
        factors: Mapping[Tensor, float] | None = None,
    ) -> None:
        groups: dict[float, list[Tensor]] = {}
        for matrix in matrices:
            groups.setdefault((factors or {}).get(matrix, 1.0), []).append(matrix)
        super().__init__(
            [{"params": members, "lr": factor * lr} for factor, members in groups.items()],
            {"lr": lr, "momentum": momentum, "weight_decay": decay},
        )
        self.stacked = matrices

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient by one Muon step; `closure` is ignored."""
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = {}
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                gradient = local_rows(parameter.grad)
                momentum = local_rows(state["momentum"]).lerp_(gradient, 1 - group["momentum"])
                update = gradient.lerp(momentum, group["momentum"])  # Nesterov momentum
                if is_sharded(parameter):
                    update = gather_rows(update.to(torch.bfloat16) if update.is_cuda else update, parameter)
                rows = parameter.shape[0] // self.stacked[parameter]
                pieces = update.view(-1, rows, parameter.shape[1])  # (stacked, rows, columns)
                by_shape.setdefault((rows, parameter.shape[1]), []).append((parameter, pieces))
            for (rows, columns), members in by_shape.items():
                together = orthogonalize(torch.cat([pieces for _, pieces in members]))
                rate = group["lr"] * max(1.0, rows / columns) ** 0.5
                parts = torch.split(together, [pieces.shape[0] for _, pieces in members])
                for (parameter, _), piece in zip(members, parts, strict=True):
                    move = take_local_rows(piece.reshape(parameter.shape), parameter).to(parameter.dtype)
                    local_rows(parameter).mul_(1 - group["lr"] * group["weight_decay"]).add_(move, alpha=-rate)


class Lamb(torch.optim.Optimizer):
    """LAMB (You et al., 2020): Adam, with the update of each matrix scaled to the learning rate times the matrix norm.

    Stacked matrices are scaled separately. Biases and parameters of normalization layers, whose parameter groups have
    no `layer_adaptation`, take Adam's update unscaled, as in the authors' code. With sharded parameters, only the norms
    of matrices and of their updates are summed over processes.
    """

    def __init__(
        self, groups: Groups, lr: float, betas: tuple[float, float], eps: float, stacked: dict[Tensor, int]
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0, "layer_adaptation": True}
        super().__init__(groups, defaults)
        self.stacked = stacked

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient by one LAMB step; `closure` is ignored."""
        for group in self.param_groups:
            moving = [p for p in group["params"] if p.grad is not None]
            if not moving:
                continue
            for parameter in moving:
                state = self.state[parameter]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state["first"], state["second"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                state["step"] += 1
            step = float(self.state[moving[0]]["step"])
            rows = [local_rows(p) for p in moving]
            first = [local_rows(self.state[p]["first"]) for p in moving]
            second = [local_rows(self.state[p]["second"]) for p in moving]
            gradients: Any = [local_rows(p.grad) for p in moving]
            beta1, beta2 = group["betas"]
            torch._foreach_lerp_(first, gradients, 1 - beta1)
            torch._foreach_mul_(second, beta2)
            torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
            roots = torch._foreach_sqrt(second)
            torch._foreach_div_(roots, (1 - beta2**step) ** 0.5)
            torch._foreach_add_(roots, group["eps"])
            updates = torch._foreach_div(first, roots)
            torch._foreach_div_(updates, 1 - beta1**step)
            if group["weight_decay"]:
                torch._foreach_add_(updates, rows, alpha=group["weight_decay"])
            if group["layer_adaptation"]:
                if is_sharded(moving[0]):
                    self._trust_rows(moving, updates)
                else:
                    self._trust(moving, updates)
            torch._foreach_add_(rows, updates, alpha=-group["lr"])

    def _trust(self, parameters: list[Tensor], updates: tuple[Tensor, ...]) -> None:
        """Multiply every update in place by LAMB's trust ratio, so that its norm is that of its parameter matrix."""
        pieces: list[Tensor] = []
        moves: list[Tensor] = []
        for parameter, update in zip(parameters, updates, strict=True):
            pieces += parameter.chunk(self.stacked.get(parameter, 1))
            moves += update.chunk(self.stacked.get(parameter, 1))
        ratios = [
            torch.where((size > 0) & (move > 0), size / move, 1.0)
            for size, move in zip(torch._foreach_norm(pieces), torch._foreach_norm(moves), strict=True)
        ]
        torch._foreach_mul_(moves, ratios)  # type: ignore[arg-type]

    def _trust_rows(self, parameters: list[Tensor], updates: tuple[Tensor, ...]) -> None:
        """Multiply every update of a sharded matrix in place by the trust ratio that LAMB has for the whole matrix."""
        owners, squares = [], []
        for parameter, update in zip(parameters, updates, strict=True):
            count = self.stacked.get(parameter, 1)
            numbers = first_row(parameter) + torch.arange(update.shape[0], device=update.device)
            owners.append(numbers // (parameter.shape[0] // count))  # the stacked matrix to which each row belongs
            for x in (local_rows(parameter), update):
                sums = torch.zeros(count, device=update.device)
                squares.append(sums.index_add_(0, owners[-1], x.square().flatten(1).sum(1)))
        lengths = torch.split(all_reduce_sum(torch.cat(squares), parameters[0]).sqrt(), [len(sums) for sums in squares])
        for update, owner, size, move in zip(updates, owners, lengths[::2], lengths[1::2], strict=True):
            ratio = torch.where((size > 0) & (move > 0), size / move, 1.0)[owner]
            update.mul_(ratio.view(-1, *[1] * (update.dim() - 1)))


def orthogonalize(matrices: Tensor, steps: int = 5) -> Tensor:
    """Return nearly orthogonal matrices, (k, rows, columns), computed from k matrices by Newton-Schulz iterations.

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


def set_lr(optimizers: Iterable[torch.optim.Optimizer], factor: float, progress: float = 1.0) -> None:
    """Set each parameter group's learning rate to its peak times `factor`, or to 0 while the group is frozen.

    A group is frozen until the training progress, `progress`, reaches its entry `start`.
    """
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            rate = group["peak"] * factor if progress >= group["start"] else 0.0
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate


def make_capturable(optimizers: Iterable[torch.optim.Optimizer]) -> bool:
    """Prepare optimizers for CUDA graphs, which need learning rates that are read from the device.

    Return False, and change nothing, if one of the optimizers does not support this.
    """
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    if not all(group.get("fused") for group in groups):
        return False
    for group in groups:
        group["capturable"] = True
        group["lr"] = torch.tensor(group["lr"], device=group["params"][0].device)
    return True
