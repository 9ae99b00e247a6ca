"""Processes that train together. One process is the usual case, and a world of one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from pretune.model import Root

Parallel = Literal["replicate", "shard"]


@dataclass(frozen=True)
class World:
    """This process's place among all."""

    rank: int = 0
    size: int = 1

    @classmethod
    def join(cls, device: torch.device) -> World:
        """Join the processes that `torchrun` started; alone without it."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls()
        if not dist.is_initialized():
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def add_up(self, values: dict[str, float], device: torch.device) -> dict[str, float]:
        """Sums over all processes, which must all name the same things."""
        if self.size == 1:
            return values
        vector = torch.tensor([values[name] for name in sorted(values)], dtype=torch.float64, device=device)
        dist.all_reduce(vector)
        return dict(zip(sorted(values), vector.tolist(), strict=True))

    def wait(self) -> None:
        """Wait for all."""
        if self.size > 1:
            dist.barrier()


def parallelize(root: Root, world: World, how: Parallel) -> nn.Module:
    """The module that steps go through: the root itself, a replica of it, or a shard."""
    if world.size == 1 and how == "replicate":
        return root
    root.touch_all = True
    if how == "replicate":
        from torch.nn.parallel import DistributedDataParallel

        # XLNet has parameters that only some batches need: for queries, for segments.
        idle = any(getattr(module, "idle", False) for module in root.modules())
        return DistributedDataParallel(root, find_unused_parameters=idle)
    from torch.distributed.fsdp import fully_shard

    backbone: Any = root.backbone
    for name, modules in () if getattr(backbone, "whole", False) else backbone.groups():
        if (
            "embed" not in name
        ):  # tied heads read the embedding: it stays with the root, gathered throughout the forward
            for module in modules:
                if any(True for _ in module.parameters()):
                    fully_shard(module)
    fully_shard(root)
    return root


@contextmanager
def synchronized(model: Any, last: bool) -> Iterator[None]:
    """Gradients are exchanged in the last backward of a step alone."""
    if hasattr(model, "no_sync") and not last:
        with model.no_sync():
            yield
    else:
        if hasattr(model, "set_requires_gradient_sync"):
            model.set_requires_gradient_sync(last)
        yield
