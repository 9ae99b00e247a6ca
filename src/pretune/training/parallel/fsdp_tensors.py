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
    """Return the rows of a tensor that this process holds, without a copy; if the tensor is not sharded, all rows."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def first_row(tensor: Any) -> int:
    """Return the index of the first row that this process holds, counted in the full tensor."""
    if not is_sharded(tensor):
        return 0
    each = -(-tensor.shape[0] // tensor.device_mesh.size())
    return min(tensor.device_mesh.get_local_rank() * each, int(tensor.shape[0]))


def take_local_rows(whole: Tensor, like: Tensor) -> Tensor:
    """Return the rows of the full tensor `whole` that belong to this process if `like` is sharded, else all rows."""
    if not is_sharded(like):
        return whole
    start = first_row(like)
    return whole[start : start + local_rows(like).shape[0]]


def gather_rows(rows: Tensor, like: Any) -> Tensor:
    """Concatenate the local rows of all processes to the full tensor, which is returned in each; all must call this.

    `rows` are this process's rows of a tensor that is sharded like `like`.
    """
    if not is_sharded(like):
        return rows
    from torch.distributed.tensor import DTensor

    layout = {"shape": like.shape, "stride": like.stride()}
    return DTensor.from_local(rows, like.device_mesh, like.placements, run_check=False, **layout).full_tensor()


def all_reduce_sum(values: Tensor, like: Any) -> Tensor:
    """Sum `values` in place over the processes among which the tensor `like` is sharded, and return them."""
    dist.all_reduce(values, group=like.device_mesh.get_group())
    return values


def full_scalar(value: Any) -> Tensor:
    """Return a scalar, such as a gradient norm, as a plain tensor; a sharded scalar is reduced over all processes."""
    return value.full_tensor() if is_sharded(value) else value


def reshard_model(root: nn.Module) -> None:
    """Free the full parameters that FSDP gathered for an evaluation; they would be outdated after the next update."""
    for module in sharded_modules(root):
        module.reshard()


def unshard_model(root: nn.Module) -> None:
    """Gather all parameters of a sharded model in every process, for use after training."""
    for module in sharded_modules(root):
        module.unshard()


def sharded_modules(root: nn.Module) -> list[Any]:
    """Return the modules of a network whose parameters FSDP shards."""
    from torch.distributed.fsdp import FSDPModule

    return [module for module in root.modules() if isinstance(module, FSDPModule)]


def copy_into(target: Tensor, whole: Tensor) -> None:
    """Copy the full tensor `whole` into `target`, or only the local rows if `target` is sharded."""
    with torch.no_grad():
        local_rows(target).copy_(take_local_rows(whole, target))
