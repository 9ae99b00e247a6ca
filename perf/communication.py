"""Count the bytes that processes exchange per training step on the CPU, and compare with the formulas of docs/measurements/scaling.md.

    python perf/communication.py [--model bert-mini] [--processes 2]

The profiler of torch records every collective operation with the shapes of its inputs. The count is what a process
passes to them in a step, elements times the bytes of the setting; the traffic then depends on the algorithm (a ring
sends 2 (n - 1) / n of what is reduced, and (n - 1) / n of what is gathered or scattered). The bytes are the same on
GPUs, the speed is not.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import tempfile
from collections import Counter
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import machine
from pretraining_speed import VOCABULARY, RandomStore

from pretune.models.create_model import make_model
from pretune.objectives import Data, parse_objective
from pretune.text.corpus.documents import Document
from pretune.text.packing.sequences import Packing
from pretune.text.tokenizers.training import train_on_documents as train_tokenizer
from pretune.training.data_streams import make_streams
from pretune.training.loop import Training, train
from pretune.training.optim.optimizers import hidden_matrices
from pretune.training.parallel.distributed import World
from pretune.training.recipe_sections import Budget, Monitoring, Optimizer, Schedule, resolve_section

STEPS = 2
LENGTH, PACK = 64, 128
SMALL = 100  # elements; smaller tensors are counts and norms


@dataclass(frozen=True)
class Setup:
    """Describe how a training is distributed, and the packs per process and step."""

    parallel: str
    reduce: str = "fp32"
    packs: int = 1
    optimizer: str = "adamw"

    def expected(self, sizes: dict[str, int]) -> dict[str, float]:
        """Return the bytes per step by the formulas: P parameters, R of them outside layers, H in hidden matrices, k
        packs.
        """
        sent = 2 if self.reduce == "bf16" else 4
        reduced: float = sent * sizes["all"]
        gathered = 0.0
        if self.parallel == "fsdp":
            gathered = self.packs * 4.0 * (2 * (sizes["all"] - sizes["root"]) + sizes["root"])
            gathered += 4.0 * sizes["hidden"] if self.optimizer == "muon" else 0.0
        return {"reduced": reduced, "gathered": gathered}


SETUPS = [
    Setup("ddp"),
    Setup("ddp", packs=4),
    Setup("ddp", reduce="bf16"),
    Setup("fsdp"),
    Setup("fsdp", packs=4),
    Setup("fsdp", reduce="bf16"),
    Setup("fsdp", optimizer="muon"),
    Setup("fsdp", optimizer="lamb"),
]


def make(model: str, setup: Setup, world: World) -> Training:
    """Return a training of a few steps on random ids."""
    document = Document("a few words to learn from " * 20, Path("x"), 1)
    tokenizer = train_tokenizer([document], "wordpiece", 40)
    made = make_model(model, VOCABULARY)
    mixture = parse_objective("mlm")
    made.add_heads(mixture.objectives)
    store: Any = RandomStore(np.full(2000, LENGTH - 2))
    data = Data(tokenizer, made.family.template, store=store, documents=np.arange(2000))
    tokens = PACK * setup.packs * world.size
    return Training(
        root=made.root,
        streams=make_streams(mixture, data, tokens=tokens, packing=Packing(PACK, LENGTH), seed=0),
        budget=Budget(steps=STEPS),
        optimizer=resolve_section(Optimizer, Optimizer(name=setup.optimizer)),  # type: ignore[arg-type]
        schedule=resolve_section(Schedule, None),
        monitor=resolve_section(Monitoring, Monitoring(log_every=10_000, save_every=0)),
        world=world,
        parallel=setup.parallel,  # type: ignore[arg-type]
        reduce_dtype=setup.reduce,  # type: ignore[arg-type]
    )


def count(model: str, setup: Setup) -> dict[str, Any]:
    """Return the bytes per step that this process passes on, and the sizes for the formulas."""
    training = make(model, setup, World.join(torch.device("cpu")))
    layers = [m for name, group in training.root.backbone.groups() if "embed" not in name for m in group]
    total = sum(p.numel() for p in training.root.parameters())
    inside = {p for layer in layers for p in layer.parameters()}
    sizes = {
        "all": total,
        "root": total - sum(p.numel() for p in inside),
        "hidden": sum(p.numel() for p in hidden_matrices(training.root)),
    }
    whole = 4 * total if setup.parallel == "fsdp" else 0  # at the end, every process gets the whole model once
    with torch.profiler.profile(record_shapes=True) as profile:
        train(training)
    found: Counter[str] = Counter()
    for event in profile.events():
        shapes = event.input_shapes
        if event.name == "gloo:all_reduce" and setup.parallel == "ddp" and np.prod(shapes[0]) > SMALL:
            found["reduced"] += int(np.prod(shapes[0])) * (2 if setup.reduce == "bf16" else 4)
            found["reductions"] += 1
        elif event.name == "gloo:all_reduce" and np.prod(shapes[0]) <= SMALL:
            found["counts and norms"] += 8 * int(np.prod(shapes[0]))
        elif event.name == "c10d::_reduce_scatter_base_":
            found["reduced"] += int(np.prod(shapes[1])) * (2 if setup.reduce == "bf16" else 4)
            found["reductions"] += 1
        elif event.name in ("c10d::_allgather_base_", "_c10d_functional::all_gather_into_tensor"):
            parts = training.world.size if event.name.startswith("_") else 1
            found["gathered"] += 4 * int(np.prod(shapes[0])) * parts
    found["gathered"] -= whole
    return {"sizes": sizes, "found": {name: value / STEPS for name, value in found.items()}}


def count_in_processes(size: int, model: str, setup: Setup) -> dict[str, Any]:
    """Return the count of the first of several processes."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:

        def run(rank: int) -> None:
            place = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
            os.environ |= {name: str(value) for name, value in place.items()}
            (Path(folder) / str(rank)).write_text(json.dumps(count(model, setup)))

        processes = [get_context("fork").Process(target=run, args=(rank,)) for rank in range(size)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        return json.loads((Path(folder) / "0").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bert-mini")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    os.environ |= {"PRETUNE_PROGRESS": "none", "KINETO_LOG_LEVEL": "5"}
    torch.set_num_threads(1)
    print(json.dumps(machine()))
    for setup in SETUPS:
        counts = count_in_processes(given.processes, given.model, setup)
        found, expected = counts["found"], setup.expected(counts["sizes"])
        counted, formula = (sum(x.get(name, 0.0) for name in ("reduced", "gathered")) for x in (found, expected))
        how = (
            f"{setup.parallel}, {setup.reduce}, {setup.packs} pack{'s' * (setup.packs > 1)} per step, {setup.optimizer}"
        )
        print(
            f"{how:42} reduced {found['reduced'] / 1e6:7.2f} MB in {found['reductions']:.0f}  "
            f"gathered {found.get('gathered', 0.0) / 1e6:7.2f} MB  counts and norms {found.get('counts and norms', 0):.0f} B  "
            f"formula {formula / 1e6:7.2f} MB  counted / formula {counted / formula:.3f}"
        )
    print(f"parameters: {counts['sizes']}")


if __name__ == "__main__":
    main()
