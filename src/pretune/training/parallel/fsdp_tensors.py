"""Tensors whose rows are shared out to processes (FSDP2's): their parts here, and the whole of them.

A tensor of r rows over n processes is cut into pieces of ⌈r / n⌉ rows, in the order of the processes; the last ones may be short
or empty.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def is_shard(tensor: Tensor) -> bool:
    """Whether only some of a tensor's rows are here."""
    return hasattr(tensor, "to_local")


def local(tensor: Any) -> Tensor:
    """The rows that are here, not a copy of them."""
    return tensor.to_local() if is_shard(tensor) else tensor


def first_row(tensor: Any) -> int:
    """The number of the first row that is here."""
    if not is_shard(tensor):
        return 0
    each = -(-tensor.shape[0] // tensor.device_mesh.size())
    return min(tensor.device_mesh.get_local_rank() * each, int(tensor.shape[0]))


def own_rows(whole: Tensor, like: Tensor) -> Tensor:
    """Of a whole tensor, the rows that `like` has here."""
    if not is_shard(like):
        return whole
    start = first_row(like)
    return whole[start : start + local(like).shape[0]]


def gathered(rows: Tensor, like: Any) -> Tensor:
    """The whole of what is cut as `like` is, of which these rows are here; all processes ask for it together."""
    if not is_shard(like):
        return rows
    from torch.distributed.tensor import DTensor

    cut = DTensor.from_local(
        rows, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return cut.full_tensor()


def add_up(values: Tensor, like: Any) -> Tensor:
    """Sums over the processes among which `like` is cut."""
    dist.all_reduce(values, group=like.device_mesh.get_group())
    return values


def whole_number(value: Any) -> Tensor:
    """Return a scalar such as a gradient norm; of shards, the processes compute it together."""
    return value.full_tensor() if is_shard(value) else value


def cut_again(root: nn.Module) -> None:
    """Let go of what a forward without a backward has gathered: what is done to the shards would pass it by."""
    from torch.distributed.fsdp import FSDPModule

    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def make_whole(root: nn.Module) -> None:
    """Give every process the whole of a model that was trained in shards; it is not trained on."""
    from torch.distributed.fsdp import FSDPModule

    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.unshard()


def put_back(place: Tensor, whole: Tensor) -> None:
    """Fill a tensor, or the rows of it that are here."""
    with torch.no_grad():
        local(place).copy_(own_rows(whole, place))
