"""Compare how training cost grows with theory: speed against sequence length, width, depth and tokens per step, with a plot.

    python perf/scaling.py [--device cuda] [--out docs/measurements/scaling.png] [--steps 30]

Each point trains a BERT for some steps with the whole loop. On a GPU, all of them are compiled first, several at a time.
In theory, seconds per token are proportional to its FLOPs (6 · weights + 12 · layers · width · length, see
pretune/training/flops.py), so that FLOPs per second are constant; where they are not, something other than arithmetic
takes time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import machine
from pretraining_speed import VOCABULARY, RandomStore

from pretune.families.encoders.bert import BERT, BertConfig
from pretune.models.model import Network
from pretune.objectives import Data, parse_objective
from pretune.text.corpus.documents import Document
from pretune.text.packing.sequences import Packing
from pretune.text.tokenizers.training import train_on_documents as train_tokenizer
from pretune.training.data_streams import make_streams
from pretune.training.loop import Training, train
from pretune.training.metrics_log import METRICS
from pretune.training.recipe_sections import Budget, Monitoring, Optimizer, Schedule, resolve_section

WARM = 4  # steps that are not timed
AT_ONCE = 5  # points that are compiled in parallel
BASE = {"cpu": {"length": 128, "width": 256, "depth": 4, "tokens": 2048},
        "cuda": {"length": 128, "width": 768, "depth": 12, "tokens": 131072}}  # fmt: skip
AXES = {
    "cpu": {"length": (32, 64, 128, 256, 512), "width": (128, 256, 512), "depth": (2, 4, 8), "tokens": (512, 1024, 2048, 4096)},
    "cuda": {"length": (64, 128, 256, 512, 1024), "width": (256, 512, 768, 1024), "depth": (6, 12, 24), "tokens": (8192, 16384, 32768, 65536, 131072)},
}  # fmt: skip


def point(length: int, width: int, depth: int, tokens: int, device: torch.device, steps: int) -> tuple[float, float]:
    """Return tokens and FLOPs per second."""
    config = BertConfig(
        vocab_size=VOCABULARY + 6, hidden_size=width, num_hidden_layers=depth, num_attention_heads=width // 64,
        intermediate_size=4 * width, max_position_embeddings=max(512, length),
    )  # fmt: skip
    root = Network(BERT.build(config))
    mixture = parse_objective("mlm")
    root.heads["mlm"] = mixture.objectives[0].head(root.backbone)
    store: Any = RandomStore(np.full(48 * tokens // length, length - 2))
    tokenizer = train_tokenizer([Document("a b c", None, 1)], "bpe", 200)  # type: ignore[arg-type]
    data = Data(tokenizer, BERT.template, store=store, documents=np.arange(len(store.lengths)))
    fixed = device.type == "cuda"
    packing = Packing(max(tokens, length), length, fixed=fixed)
    with tempfile.TemporaryDirectory() as folder:
        training = Training(
            root=root,
            streams=make_streams(mixture, data, tokens=tokens, packing=packing, seed=0),
            budget=Budget(steps=steps + WARM),
            optimizer=resolve_section(Optimizer, None),
            schedule=resolve_section(Schedule, None),
            monitor=resolve_section(Monitoring, Monitoring(log_every=WARM, save_every=0)),
            device=device,
            compiled=fixed,
            cuda_graphs=fixed,
            run=Path(folder),
        )
        train(training)
        lines = [json.loads(line) for line in (Path(folder) / METRICS).read_text().splitlines()]
    first, last = lines[0], lines[-1]
    elapsed = last["seconds"] - first["seconds"]
    return (last["tokens"] - first["tokens"]) / elapsed, (last["flops"] - first["flops"]) / elapsed


def draw(found: dict[str, list[dict[str, float]]], title: str, out: str) -> None:
    """Plot one panel per axis: measured tokens per second, and theory from the first point."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.4), layout="constrained")
    figure.suptitle(title)
    for axes, (name, points) in zip(figure.subplots(1, len(found)), found.items(), strict=True):
        places = [p[name] for p in points]
        axes.plot(places, [p["speed"] for p in points], "o-", color="#2f6fde", label="measured")
        level = max(p["flops"] for p in points)
        axes.plot(places, [level / (p["flops"] / p["speed"]) for p in points], "--", color="#667", label="theory")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(places, [f"{int(p)}" if p < 8192 else f"{int(p) >> 10}k" for p in places])
        axes.yaxis.set_major_formatter(lambda y, _: f"{y / 1e3:,.0f}")
        axes.yaxis.set_minor_formatter(lambda y, _: f"{y / 1e3:,.0f}")
        axes.tick_params(axis="y", which="both", labelsize=8)
        axes.set_xlabel({"tokens": "tokens a step"}.get(name, name))
        axes.set_ylabel("thousand tokens a second")
        axes.grid(color="#e4e6ec")
        axes.legend(frameon=False)
    figure.savefig(out, dpi=110)


def compile_all(shapes: list[dict[str, int]], device: torch.device) -> None:
    """Run a step of each, so that the compiled code is on disk; this is not timed."""
    with ProcessPoolExecutor(AT_ONCE, multiprocessing.get_context("spawn")) as workers:
        for work in [workers.submit(point, **shape, device=device, steps=1) for shape in shapes]:
            work.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", default="scaling.png")
    parser.add_argument("--steps", type=int)
    options = parser.parse_args()
    os.environ["PRETUNE_PROGRESS"] = "none"
    device = torch.device(options.device)
    gpu = device.type == "cuda"
    base, axes = BASE[device.type], AXES[device.type]
    shapes = {(name, value): {**base, name: value} for name, values in axes.items() for value in values}
    distinct = [shape for number, shape in enumerate(shapes.values()) if shape not in [*shapes.values()][:number]]
    if gpu:
        compile_all(distinct, device)
    speeds = []
    for shape in distinct:
        speed, flops = point(**shape, device=device, steps=options.steps or (30 if gpu else 6))
        speeds.append({"speed": speed, "flops": flops})
        size = f"{shape['depth']}x{shape['width']}, {shape['length']} tokens, {shape['tokens']:,} a step"
        print(f"{size}: {speed:,.0f} tokens/s, {flops / 1e12:.4g} TFLOP/s", flush=True)
    found: dict[str, list[dict[str, float]]] = {}
    for (name, value), shape in shapes.items():
        found.setdefault(name, []).append({name: value, **speeds[distinct.index(shape)]})
    about = machine()
    draw(found, ", ".join(v if k in ("date", "machine", "gpu") else f"{k} {v}" for k, v in about.items()), options.out)
    print(json.dumps({**found, **about}))


if __name__ == "__main__":
    main()
