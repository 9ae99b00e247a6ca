"""Train in several processes that are forked from one, so that torch is imported once.

python tests/support/forked_processes.py FOLDER      runs all SCENARIOS and prints their results as JSON
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.utils._python_dispatch import TorchDispatchMode

import pretune
from pretune import PretuneError
from pretune.nn.dropout import Dropout
from pretune.text.store.builder import StoreSettings, build_store
from pretune.training.loop import train
from pretune.training.parallel import distributed, rank_consistency
from pretune.training.parallel.distributed import parallelize
from pretune.training.recipe_sections import Budget, Optimizer, resolve_section
from tests.support.tiny_training_cases import losses, make, store

STEPS = 3


def run_in_processes(size: int, act: Callable[..., Any], folder: Path, *arguments: Any) -> list[Any]:
    """Run a function in several processes, and return their results; None for a process that failed."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    context = get_context("fork")

    def run(rank: int) -> None:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
        os.environ |= {name: str(value) for name, value in place.items()}
        with (folder / f"errors-{rank}").open("w") as errors:
            os.dup2(errors.fileno(), 2)
            (folder / f"result-{rank}").write_text(json.dumps(act(*arguments)))

    processes = [context.Process(target=run, args=(rank,)) for rank in range(size)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    found = [folder / f"result-{rank}" for rank in range(size)]
    return [json.loads(path.read_text()) if path.is_file() else None for path in found]


def dropped(name: str, rate: float, **changes: Any) -> list[float]:
    """Return the losses of a training case, with dropout."""

    def with_dropout(training: Any) -> None:
        for module in training.root.modules():
            if isinstance(module, Dropout):
                module.rate = rate

    return losses(name, STEPS, changed=with_dropout, **changes)


def optimized(name: str, parallel: str, **settings: Any) -> list[float]:
    """Return the losses of a training case with another optimizer."""

    def with_optimizer(training: Any) -> None:
        training.optimizer = resolve_section(Optimizer, Optimizer(name=name, lr=3e-3, max_grad_norm=1.0, **settings))  # type: ignore[arg-type]

    return losses("mlm+nsp", STEPS, parallel, changed=with_optimizer)


def same_everywhere() -> dict[str, list[float]]:
    """Train cases whose losses must not depend on the number of processes; with two packs per step, one of three has none."""
    size = int(os.environ["WORLD_SIZE"])
    found = {
        "dropout": dropped("mlm+nsp", 0.1),
        "uneven": losses("mlm|lm", STEPS, pack=100),  # five packs per step
        "sharded": losses("mlm+nsp", STEPS, "fsdp"),
    }
    if size < 3:
        found["bf16"] = losses("mlm+nsp", STEPS, reduce_dtype="bf16")
        found["bf16 shards"] = losses("mlm+nsp", STEPS, "fsdp", reduce_dtype="bf16")
    for name in ("muon", "lamb"):
        found[name] = optimized(name, "fsdp")
    if size == 2:
        with pytest.raises(PretuneError, match="adafactor needs means over whole rows"):
            optimized("adafactor", "fsdp")
    found["mean"] = optimized("adamw", "fsdp", ema_decay=0.5)
    return found


class Operations(TorchDispatchMode):
    """Count operations by name."""

    def __enter__(self) -> Counter[str]:  # type: ignore[override]
        super().__enter__()
        self.seen: Counter[str] = Counter()
        return self.seen

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        self.seen[str(operation)] += 1
        return operation(*arguments, **(options or {}))


def count_gradient_exchanges() -> dict[str, int]:
    """Return how often gradients are exchanged in two steps of two packs for each of two processes."""
    sums = []

    def summed(group: Any, bucket: Any) -> Any:
        sums.append(bucket.buffer().numel())
        return allreduce_hook(group, bucket)

    def watched(*arguments: Any) -> Any:
        replica: Any = parallelize(*arguments)
        replica.register_comm_hook(None, lambda group, bucket: summed(group, bucket))
        return replica

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "parallelize", watched)
        train(make("mlm+nsp", 2, None, "ddp", pack=128))
    with Operations() as seen:
        train(make("mlm+nsp", 2, None, "fsdp", pack=128))
    return {"ddp": len(sums), "fsdp": sum(count for name, count in seen.items() if "reduce_scatter" in name)}


# -- checkpoints ----------------------------------------------------------------------------------------------------


def start_or_resume(
    name: str, folder: str, steps: int, parallel: str, optimizer: str = "muon", room: int | None = None
) -> str:
    """Start or resume training, and return the error, if any; the last process has a limit on file sizes."""
    training = make(name, steps, Path(folder), parallel, save=2)
    training.optimizer = resolve_section(
        Optimizer, Optimizer(name=optimizer, lr=3e-3, max_grad_norm=1.0, ema_decay=0.5)
    )  # type: ignore[arg-type]
    if room is not None and training.world.rank == training.world.size - 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    try:
        train(training, resume=True)
    except (PretuneError, SystemExit) as error:
        return f"{type(error).__name__}: {error}"
    if training.world.first:
        save_file(
            {n: x.detach().contiguous() for n, x in training.root.tensors().items()}, f"{folder}/final.safetensors"
        )
    return ""


def resumed(folder: Path) -> dict[str, Any]:
    """Resume training with another number of processes."""
    ways = {
        "whole": [(1, "ddp", 6)],
        "two, then one": [(2, "fsdp", 4), (1, "ddp", 6)],
        "one, then three": [(1, "ddp", 2), (3, "fsdp", 6)],
        "replicas, then shards": [(2, "ddp", 4), (2, "fsdp", 6)],
    }
    errors = []
    for way, parts in ways.items():
        for number, (size, parallel, steps) in enumerate(parts):
            place = folder / way / f"part-{number}"
            errors += run_in_processes(
                size, start_or_resume, place, "mlm+nsp", str(folder / way / "run"), steps, parallel
            )
    for number, size in enumerate((2, 1, 2)):  # stateful batches: each process has its own recurrent state
        steps = 2 * (number + 1)
        place = folder / "lanes" / f"part-{number}"
        errors += run_in_processes(
            size, start_or_resume, place, "stateful lstm", str(folder / "lanes" / "run"), steps, "ddp", "adamw"
        )
    errors += run_in_processes(
        1,
        start_or_resume,
        folder / "lane" / "part",
        "stateful lstm",
        str(folder / "lane" / "run"),
        6,
        "ddp",
        "adamw",
    )
    full = folder / "full" / "run"
    errors += run_in_processes(2, start_or_resume, folder / "full" / "part-0", "mlm+nsp", str(full), 2, "fsdp")
    told = run_in_processes(
        2, start_or_resume, folder / "full" / "part-1", "mlm+nsp", str(full), 6, "fsdp", "muon", 2000
    )
    left = sorted(path.name for path in (full / "checkpoints").iterdir())
    errors += run_in_processes(1, start_or_resume, folder / "full" / "part-2", "mlm+nsp", str(full), 6, "ddp")
    return {"errors": errors, "full": told, "left": left}


# -- bad input ------------------------------------------------------------------------------------------------------


def refused(folder: str, **own: list[Any]) -> str:
    """Pretrain with the inputs of this process, and return the error or "done"."""
    rank = int(os.environ["RANK"])
    os.chdir(Path(folder) / f"machine-{rank}")
    given = {"data": "../store", "out": f"{folder}/run", **{name: values[rank] for name, values in own.items()}}
    try:
        pretune.pretrain("bert-small", **given, budget=Budget(steps=1))
    except (PretuneError, SystemExit) as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def inconsistent_inputs(folder: Path) -> dict[str, Any]:
    """Pretrain in two processes whose inputs differ, and return their errors by case."""
    rank_consistency.PATIENCE = 0.5
    for rank in range(2):
        (folder / f"machine-{rank}").mkdir(parents=True)
        shutil.copytree(store().folder, folder / f"machine-{rank}" / "store")
    shutil.copytree(store().folder, folder / "store")
    (folder / "b.txt").write_text("Another text.\nAnd another.\n" * 40)
    shutil.rmtree(folder / "machine-1" / "store")
    build_store(
        [folder / "b.txt"], store().tokenizer, folder / "machine-1" / "store", StoreSettings(split_by="line"), 1
    )
    cases: dict[str, dict[str, list[Any]]] = {
        "first": {"data": ["nothing-here", "nothing-here"], "out": [f"{folder}/none"] * 2},
        "recipe": {"optimizer": [Optimizer(lr=1e-3), Optimizer(lr=1e-4)], "seed": [0, 1]},
        "data": {"data": ["store", "store"]},
        "folder": {"out": ["run", "run"]},
    }
    return {
        name: run_in_processes(2, partial(refused, str(folder), **own), folder / name) for name, own in cases.items()
    }


SCENARIOS: dict[str, Callable[[Path], Any]] = {
    "same": lambda folder: {
        **{n: run_in_processes(n, same_everywhere, folder / str(n))[0] for n in (1, 2, 3)},
        "exchanged": run_in_processes(2, count_gradient_exchanges, folder / "exchanged")[0],
    },
    "resumed": resumed,
    "disagreeing": inconsistent_inputs,
}


def main() -> None:
    torch.set_num_threads(1)
    store()  # the same files for all
    print(json.dumps({name: act(Path(sys.argv[1]) / name) for name, act in SCENARIOS.items()}))


if __name__ == "__main__":
    main()
