"""Data-parallel training: the process group, collective operations, and model replicas or shards (DDP, FSDP).

Training in one process is a world of size one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from pretune.models.model import Network
from pretune.runtime.errors import PretuneError, if_option
from pretune.training.parallel.rendezvous import new_rendezvous_store

ParallelMode = Literal["ddp", "fsdp"]
ReduceDtype = Literal["fp32", "bf16"]
Result = TypeVar("Result")
SHARDS_REVERSIBLE = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)  # in 2.11, gradients stay 0
LOST = ("Connection", "connection", "gloo", "NCCL", "Broken pipe", "Timed out", "timed out")  # in torch's errors then


@dataclass(frozen=True)
class World:
    """The process group of a training run: this process's rank, and collective operations on numbers and JSON data."""

    rank: int = 0
    size: int = 1
    joined: bool = False  # whether torch's process group is initialized; a single process needs none

    @classmethod
    def join(cls, device: torch.device) -> World:
        """Join the process group that torchrun started; without torchrun, return a group of this process alone."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls()
        if not dist.is_initialized():
            backend = "gloo"
            if device.type == "cuda":
                local = int(os.environ.get("LOCAL_RANK", "0"))
                if local >= torch.cuda.device_count():
                    raise PretuneError(
                        f"process {local} of this machine has no GPU, because the machine has only {torch.cuda.device_count()}; "
                        "start fewer processes with `torchrun --nproc-per-node`"
                    )
                torch.cuda.set_device(local)
                # Host values travel over gloo, so that nothing waits for the kernels queued on the GPUs.
                backend = "cpu:gloo,cuda:nccl"
            store = new_rendezvous_store()
            rank, size = (-1 if store is None else int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
            dist.init_process_group(backend, store=store, rank=rank, world_size=size)
        return cls(dist.get_rank(), dist.get_world_size(), joined=True)

    @property
    def first(self) -> bool:
        """Whether this is the process of rank 0, which writes files."""
        return self.rank == 0

    def add_up(self, values: dict[str, float]) -> dict[str, float]:
        """Return the sum of each named value over all processes, which must all pass the same names."""
        if self.size == 1:
            return values
        vector = torch.tensor([values[name] for name in sorted(values)], dtype=torch.float64)
        dist.all_reduce(vector)
        return dict(zip(sorted(values), vector.tolist(), strict=True))

    def gather(self, value: Any) -> list[Any]:
        """Return the values (JSON data) of all processes, in the order of their ranks."""
        if self.size == 1:
            return [value]
        content = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(content)]))
        longest = max(int(size) for size in sizes)
        places = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(places, nn.functional.pad(content, (0, longest - len(content))))
        return [json.loads(place[: int(size)].numpy().tobytes()) for place, size in zip(places, sizes, strict=True)]

    def wait(self) -> None:
        """Wait until all training processes have called this method."""
        self.gather(None)

    def run_on_first(self, act: Callable[[], Result]) -> Result:
        """Run a function in the first process only, and return its result in all processes; if it fails, all exit."""
        if self.size == 1:
            return act()
        try:
            result = act() if self.first else None
        except BaseException:
            self.gather([False, None])
            raise
        succeeded, result = self.gather([True, result])[0]
        if not succeeded:
            raise SystemExit(1)
        return result

    def run_on_first_then_others(self, act: Callable[[], Result]) -> Result:
        """Run a function in the first process, then in the others, and return each process's own result.

        The other processes can use the files that the function wrote in the first one.
        """
        if self.size == 1:
            return act()
        results: list[Result] = []
        self.run_on_first(lambda: results.append(act()))
        return results[0] if self.first else act()


@contextmanager
def report_lost_process(world: World) -> Iterator[None]:
    """Return a context manager that raises an error with advice if another process is lost during its block."""
    try:
        yield
    except RuntimeError as error:
        if world.size == 1 or not any(word in str(error) for word in LOST):
            raise
        raise PretuneError(
            f"process {world.rank} lost the connection to another process, whose output or machine shows the cause; "
            f"{if_option('resume', 'resume from the last checkpoint with the same command and --resume, or ')}"
            "start with `torchrun --max-restarts` to resume automatically"
        ) from error


def parallelize(root: Network, world: World, how: ParallelMode, reduce_dtype: ReduceDtype = "fp32") -> nn.Module:
    """Return a network for data-parallel training: wrapped in DDP or FSDP under torchrun, unchanged without it.

    `how` chooses between the two; gradients are summed over processes in the type `reduce_dtype`.
    """
    if not world.joined:
        return root
    root.keep_all_gradients = True
    if how == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        # XLNet has parameters that only some batches use: for queries, for segments.
        unused = any(getattr(module, "has_unused_parameters", False) for module in root.modules())
        replica = DistributedDataParallel(root, find_unused_parameters=unused, gradient_as_bucket_view=True)
        if reduce_dtype == "bf16":
            replica.register_comm_hook(world.size, lambda size, bucket: mean_in_bf16(size, bucket))  # type: ignore[misc]
        return replica
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    # Shards are cut from each process's own copy, so the copies must be equal; replicas ensure this themselves.
    for tensor in root.tensors().values():
        dist.broadcast(tensor.detach(), src=0)
    mesh = init_device_mesh(next(root.parameters()).device.type, (world.size,))
    precision = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16 if reduce_dtype == "bf16" else None)
    backbone: Any = root.backbone
    together = getattr(backbone, "sharded_together", False)
    if together and not SHARDS_REVERSIBLE:
        raise PretuneError(
            f"torch {torch.__version__} loses the gradients of reversible models with FSDP; install torch 2.13 or newer"
            f"{if_option('parallel', ', or train with --parallel ddp')}"
        )
    groups = () if together else backbone.groups()
    # Tied heads read the embedding: it stays with the root, gathered during the whole forward pass.
    for module in (module for name, modules in groups if "embed" not in name for module in modules):
        if any(True for _ in module.parameters()):
            fully_shard(module, mesh=mesh, mp_policy=precision)
    fully_shard(root, mesh=mesh, mp_policy=precision)
    return root


def mean_in_bf16(size: int, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """Return the mean of a bucket of gradients over `size` processes, which exchange the gradients as bf16.

    The function is a DDP communication hook; PyTorch's own hook for this needs NCCL.
    """
    buffer = bucket.buffer()
    rounded = buffer.to(torch.bfloat16).div_(size)
    work: Any = dist.all_reduce(rounded, async_op=True)
    return work.get_future().then(lambda done: buffer.copy_(done.value()[0]))  # type: ignore[no-any-return]


@contextmanager
def gradient_sync(model: Any, last: bool) -> Iterator[None]:
    """Return a context manager for a backward pass, which sums gradients over processes only if `last` is true.

    `last` tells whether this is the last backward pass of the step.
    """
    if hasattr(model, "no_sync") and not last:
        with model.no_sync():
            yield
    else:
        if hasattr(model, "set_requires_gradient_sync"):
            model.set_requires_gradient_sync(last)
        yield
