"""What heads and inner units are worth.

By gradient: each gets a factor of 1, and what an example's loss changes with it, whatever the sign, is added up over examples
(Michel et al., 2019, *Are Sixteen Heads Really Better than One?*; of units, Molchanov et al., 2017). By magnitude: the norm
of what leads out of it, times that of what leads into it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pretune.nn.attention.multi_head import Flow
from pretune.nn.structured_pruning import HEADED, size
from pretune.packed import Batch

Named = dict[str, nn.Module]
LossOf = Callable[[Batch], Tensor]  # the sum over the examples of a batch


def by_gradient(parts: Named, loss_of: LossOf, batches: Iterable[Batch]) -> dict[str, Tensor]:
    """Of each head or unit of each part, the mean over examples of |∂loss/∂factor|."""
    found = {path: torch.zeros(size(part)) for path, part in parts.items()}
    device = next(parameter.device for part in parts.values() for parameter in part.parameters())
    examples = 0
    for batch in (batch.to(device) for batch in batches):
        sequences = batch.packed[-1].offsets.shape[0] - 1
        factors = {
            path: torch.ones(sequences, size(part), device=device, requires_grad=True) for path, part in parts.items()
        }
        with multiplied(parts, factors):
            loss = loss_of(batch)
        slopes = torch.autograd.grad(loss, list(factors.values()))
        for path, slope in zip(factors, slopes, strict=True):
            found[path] += slope.abs().sum(0).cpu()
        examples += sequences
    return {path: worth / max(1, examples) for path, worth in found.items()}


@contextmanager
def multiplied(parts: Named, factors: dict[str, Tensor]) -> Iterator[None]:
    """Inside it, what heads and units give is multiplied by factors: (sequences, count), or (count,) for all."""
    hooks = []
    for path, part in parts.items():
        flows: list[Flow] = []

        def note(module: nn.Module, args: tuple[Any, ...], flows: list[Flow] = flows) -> None:
            flows[:] = [args[1]]

        def multiply(
            module: nn.Module,
            args: tuple[Tensor],
            factor: Tensor = factors[path],
            width: int = part.head_width if isinstance(part, HEADED) else 1,
            flows: list[Flow] = flows,
        ) -> tuple[Tensor]:
            rows = factor if factor.dim() == 1 else factor[flows[0].layout.queries.sequence.long()]
            return (args[0] * rows.repeat_interleave(width, dim=-1).to(args[0].dtype),)

        output: Any = part.output
        hooks += [part.register_forward_pre_hook(note), output.register_forward_pre_hook(multiply)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def by_magnitude(parts: Named) -> dict[str, Tensor]:
    """Of each head or unit of each part, the product of the norms of its rows and its columns."""
    found = {}
    for path, part in parts.items():
        names = ("qkv", "key_value", "inner")
        inputs: Any = next(getattr(part, name) for name in names if hasattr(part, name))
        output: Any = part.output
        count = size(part)
        rows = inputs.weight.view(inputs.stacked, count, -1).norm(dim=(0, 2))
        columns = output.weight.view(len(output.weight), count, -1).norm(dim=(0, 2))
        found[path] = rows * columns
    return found


def least_heads(worths: dict[str, Tensor], share: float) -> dict[str, list[int]]:
    """The heads that stay when this share of all goes, the worth of each compared with those beside it; one stays anywhere."""
    scaled = {path: worth / worth.norm().clamp(min=1e-12) for path, worth in worths.items()}
    total = sum(len(worth) for worth in scaled.values())
    ranked = sorted((float(value), path, head) for path, worth in scaled.items() for head, value in enumerate(worth))
    kept = {path: set(range(len(worth))) for path, worth in scaled.items()}
    left = round(share * total)
    for _, path, head in ranked:
        if left and len(kept[path]) > 1:
            kept[path].discard(head)
            left -= 1
    return {path: sorted(heads) for path, heads in kept.items()}


def least_units(worths: dict[str, Tensor], share: float) -> dict[str, list[int]]:
    """The units that stay when this share of each network's goes."""
    kept = {}
    for path, worth in worths.items():
        count = len(worth) - round(share * len(worth))
        kept[path] = sorted(worth.argsort(descending=True, stable=True)[: max(1, count)].tolist())
    return kept
