"""Importance of attention heads and feed-forward units.

By gradient: the absolute gradient of an example's loss with respect to a gate of 1 on the head, averaged over examples (Michel et
al., 2019, *Are Sixteen Heads Really Better than One?*; for units, Molchanov et al., 2017). By magnitude: the norm of the input weights
times the norm of the output weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pretune.nn.attention.multi_head import AttentionContext
from pretune.nn.structured_pruning import Prunable
from pretune.packed import Batch

Named = Mapping[str, Prunable]
LossOf = Callable[[Batch], Tensor]  # sum over the examples of a batch


def gradient_importance(parts: Named, loss_of: LossOf, batches: Iterable[Batch]) -> dict[str, Tensor]:
    """Return the importance of attention heads or feed-forward units, estimated by gradients, (units,) by module path.

    The importance is the mean over examples of |∂loss/∂gate|, where the gate is a factor of 1 on the output of the head
    or unit. `parts` has the attention or feed-forward modules by path, and `loss_of` returns the summed loss of a
    batch.
    """
    sums = {path: torch.zeros(part.units) for path, part in parts.items()}
    device = next(parameter.device for part in parts.values() for parameter in part.parameters())
    examples = 0
    for batch in (batch.to(device) for batch in batches):
        sequences = batch.packed[-1].offsets.shape[0] - 1
        gates = {
            path: torch.ones(sequences, part.units, device=device, requires_grad=True) for path, part in parts.items()
        }
        with gated(parts, gates):
            loss = loss_of(batch)
        gradients = torch.autograd.grad(loss, list(gates.values()))
        for path, gradient in zip(gates, gradients, strict=True):
            sums[path] += gradient.abs().sum(0).cpu()
        examples += sequences
    return {path: values / max(1, examples) for path, values in sums.items()}


@contextmanager
def gated(parts: Named, gates: dict[str, Tensor]) -> Iterator[None]:
    """Multiply the outputs of heads or units by factors while the `with` block runs.

    `parts` has the modules by path, and `gates` the factors of each module, (units,) or (sequences, units).
    """
    hooks = []
    for path, part in parts.items():
        contexts: list[AttentionContext] = []

        def keep_context(module: nn.Module, args: tuple[Any, ...], contexts: list[AttentionContext] = contexts) -> None:
            contexts[:] = [args[1]]

        def multiply(
            module: nn.Module,
            args: tuple[Tensor],
            gate: Tensor = gates[path],
            width: int = part.unit_width,
            contexts: list[AttentionContext] = contexts,
        ) -> tuple[Tensor]:
            rows = gate if gate.dim() == 1 else gate[contexts[0].layout.queries.sequence.long()]
            return (args[0] * rows.repeat_interleave(width, dim=-1).to(args[0].dtype),)

        hooks.append(part.register_forward_pre_hook(keep_context))
        hooks.append(part.output.register_forward_pre_hook(multiply))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def magnitude_importance(parts: Named) -> dict[str, Tensor]:
    """Return the importance of attention heads or feed-forward units, estimated by weights, (units,) by module path.

    The importance is the norm of the input weights of a head or unit times the norm of its output weights.
    """
    importance = {}
    for path, part in parts.items():
        inputs, output, count = part.unit_projections()[-1], part.output, part.units
        rows = inputs.weight.view(inputs.stacked, count, -1).norm(dim=(0, 2))
        columns = output.weight.view(len(output.weight), count, -1).norm(dim=(0, 2))
        importance[path] = rows * columns
    return importance


def heads_to_keep(importance: dict[str, Tensor], share: float) -> dict[str, list[int]]:
    """Return the indices of the heads to keep in each module if the fraction `share` of all heads is pruned.

    The least important heads of the whole model are pruned, after the importance is normalized in each module; every
    module keeps at least one head.
    """
    scaled = {path: values / values.norm().clamp(min=1e-12) for path, values in importance.items()}
    total = sum(len(values) for values in scaled.values())
    ranked = sorted((float(value), path, head) for path, values in scaled.items() for head, value in enumerate(values))
    kept = {path: set(range(len(values))) for path, values in scaled.items()}
    excess = round(share * total)
    for _, path, head in ranked:
        if excess and len(kept[path]) > 1:
            kept[path].discard(head)
            excess -= 1
    return {path: sorted(heads) for path, heads in kept.items()}


def units_to_keep(importance: dict[str, Tensor], share: float) -> dict[str, list[int]]:
    """Return the indices of the units to keep in each module if the fraction `share` of its units is pruned.

    The least important units of each module are pruned; at least one is kept.
    """
    kept = {}
    for path, values in importance.items():
        count = len(values) - round(share * len(values))
        kept[path] = sorted(values.argsort(descending=True, stable=True)[: max(1, count)].tolist())
    return kept
