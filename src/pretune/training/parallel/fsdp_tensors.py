"""Tensors sharded over processes by rows (FSDP2): their local rows, and the whole tensors.

A tensor of r rows over n processes is cut into chunks of ⌈r / n⌉ rows, in rank order; the last ones may be short or empty.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is sharded over processes."""
    return hasattr(tensor, "to_local")


def local_rows(tensor: Any) -> Tensor:
    """Return the rows of a tensor that this process holds, without a copy."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def first_row(tensor: Any) -> int:
    """Return the index of the first row that this process holds."""
    if not is_sharded(tensor):
        return 0
    each = -(-tensor.shape[0] // tensor.device_mesh.size())
    return min(tensor.device_mesh.get_local_rank() * each, int(tensor.shape[0]))


def take_local_rows(whole: Tensor, like: Tensor) -> Tensor:
    """Return the rows of a whole tensor that this process holds of `like`."""
    if not is_sharded(like):
        return whole
    start = first_row(like)
    return whole[start : start + local_rows(like).shape[0]]


def gather_rows(rows: Tensor, like: Any) -> Tensor:
    """Return the whole of a tensor sharded like `like`, given the local rows; all processes call this together."""
    if not is_sharded(like):
        return rows
    from torch.distributed.tensor import DTensor

    cut = DTensor.from_local(
        rows, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return cut.full_tensor()


def all_reduce_sum(values: Tensor, like: Any) -> Tensor:
    """Sum values, in place, over the processes among which `like` is sharded, and return them."""
    dist.all_reduce(values, group=like.device_mesh.get_group())
    return values


def full_scalar(value: Any) -> Tensor:
    """Return a scalar such as a gradient norm, computed by all processes together if it is sharded."""
    return value.full_tensor() if is_sharded(value) else value


def reshard_model(root: nn.Module) -> None:
    """Free parameters gathered by a forward pass without a backward pass, which would not see updates of the shards."""
    from torch.distributed.fsdp import FSDPModule

    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def unshard_model(root: nn.Module) -> None:
    """Gather all parameters of a sharded model in every process, after training."""
    from torch.distributed.fsdp import FSDPModule

    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.unshard()


def copy_into(place: Tensor, whole: Tensor) -> None:
    """Copy a whole tensor into `place`, or the local rows of it if that is sharded."""
    with torch.no_grad():
        local_rows(place).copy_(take_local_rows(whole, place))
