"""Compare the peak memory of real training steps on a GPU with the formula of `pretune show PRESET --memory`.

    python perf/memory.py [--presets bert-base gpt2-small electra-base] [--optimizers adamw adafactor lamb sgd muon]
                          [--tokens 16384] [--length 128] [--steps 4] [--checkpointing] [--device cuda] [--out FILE]

A preset is trained on random ids for some steps by pretune's own loop, compiled and in bf16. The first steps compile the model
and create the state of the optimizer; the peak is the largest memory that torch's allocator had handed out in the last step,
without what was there before the model. Sizes are in MB (10^6 bytes). The table shows the parts of the formula, their sum,
the peak, and the ratio of the sum to the peak; `--out` appends a line of JSON with the numbers of bytes for each row, also of
the tensors of parameters, gradients and optimizer states that were found, which the formula must equal. On a CPU, which has no
peak to read, only these are compared.
"""

from __future__ import annotations

import argparse
import gc
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import add_result, machine
from pretraining_speed import VOCABULARY, RandomStore
from torch import Tensor, nn

from pretune.models.create_model import make_model
from pretune.objectives import Data, parse_objective
from pretune.text.corpus.documents import Document
from pretune.text.packing.sequences import Packing
from pretune.text.tokenizers.training import train_on_documents as train_tokenizer
from pretune.training import loop
from pretune.training.callbacks import Callback, Step
from pretune.training.data_streams import make_streams
from pretune.training.memory import FP32, estimate_activations, megabytes, optimizer_state_bytes
from pretune.training.recipe_sections import Batching, Budget, Monitoring, Optimizer, Schedule, resolve_section

OBJECTIVES = {"bert-base": "mlm", "gpt2-small": "lm", "electra-base": "rtd"}  # of others: mlm
OPTIMIZERS = ("adamw", "adafactor", "lamb", "sgd", "muon")
COLUMNS = ("parameters", "gradients", "state", "activations", "total", "peak")


@dataclass(frozen=True)
class Sizes:
    """The sizes of the tensors of a training step, in bytes."""

    parameters: int
    gradients: int
    state: int  # of all optimizers


class SizeRecorder(Callback):
    """A callback that records the sizes of the tensors of the last step, and the peak memory of that step on a GPU."""

    def __init__(
        self, root: nn.Module, optimizers: list[torch.optim.Optimizer], last: int, device: torch.device
    ) -> None:
        self.root, self.optimizers, self.last, self.device = root, optimizers, last, device
        self.gradients = 0
        self.sizes: Sizes | None = None
        self.peak: int | None = None

    def before_step(self, step: Step) -> None:
        if step.number == self.last and self.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()

    def after_backward(self, step: Step) -> None:
        self.gradients = total_bytes(p.grad for p in self.root.parameters())

    def after_step(self, step: Step) -> None:
        if step.number == self.last:
            states = [state for optimizer in self.optimizers for state in optimizer.state.values()]
            state = total_bytes(value for one in states for value in one.values())
            self.sizes = Sizes(total_bytes(self.root.parameters()), self.gradients, state)
            if self.device.type == "cuda":
                torch.cuda.synchronize()
                self.peak = torch.cuda.max_memory_allocated()


def total_bytes(values: Any) -> int:
    """Return the size of the tensors among some values, in bytes."""
    return sum(value.nbytes for value in values if isinstance(value, Tensor))


def measure(preset: str, settings: Optimizer, batch: Batching, steps: int, device: torch.device) -> dict[str, Any]:
    """Train a preset for some steps, and return the sizes by the formula, and the measured ones, in bytes."""
    if device.type == "cuda":
        gc.collect()
        torch._dynamo.reset()
        torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    tokens, length = batch.tokens or 1, batch.max_length or 1
    tokenizer = train_tokenizer([Document(" ".join(f"w{i}" for i in range(200)), None, 1)], "bpe", 200)  # type: ignore[arg-type]
    model = make_model(preset, vocabulary=VOCABULARY + 6)  # a multiple of 64 rows, like `pretune pretrain`
    mixture = parse_objective(OBJECTIVES.get(preset, "mlm"))
    model.add_heads(mixture.objectives)
    root = model.root
    kept = estimate_activations(root, mixture.joints[0], batch)
    parameters = FP32 * sum(p.numel() for p in root.parameters())
    formula = Sizes(parameters, parameters, optimizer_state_bytes(root, settings))
    store: Any = RandomStore(np.full(2 * (steps + 2) * tokens // length, length - 2))  # two special tokens
    data = Data(tokenizer, model.family.template, store=store, documents=np.arange(len(store.lengths)))
    optimizers: list[torch.optim.Optimizer] = []
    recorder = SizeRecorder(root, optimizers, steps, device)
    make_optimizers = loop.make_optimizers

    def make_and_keep(*arguments: Any) -> list[torch.optim.Optimizer]:
        optimizers.extend(make_optimizers(*arguments))
        return optimizers

    loop.make_optimizers = make_and_keep
    try:
        loop.train(
            loop.Training(
                root=root,
                streams=make_streams(mixture, data, tokens=tokens, packing=Packing(tokens, length, fixed=True), seed=0),
                budget=Budget(steps=steps),
                optimizer=settings,
                schedule=resolve_section(Schedule, None),
                monitor=resolve_section(Monitoring, Monitoring(log_every=steps, save_every=0)),
                device=device,
                compiled=device.type == "cuda",
                gradient_checkpointing=bool(batch.gradient_checkpointing),
                callbacks=[recorder],
            )
        )
    finally:
        loop.make_optimizers = make_optimizers
    assert recorder.sizes is not None
    found: dict[str, Any] = {"preset": preset, "optimizer": settings.name, "tokens": tokens, "length": length}
    found |= {
        "checkpointing": bool(batch.gradient_checkpointing),
        **asdict(formula),
        "measured": asdict(recorder.sizes),
    }
    found["activations"] = None if kept is None else kept.total
    found["total"] = None if kept is None else sum(asdict(formula).values()) + kept.total
    found["peak"] = None if recorder.peak is None else recorder.peak - before
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table of measurements, in MB."""
    lines = [
        "| preset | optimizer | " + " | ".join(COLUMNS) + " | ratio |",
        "| --- | --- | " + " | ".join("---:" for _ in COLUMNS) + " | ---: |",
    ]
    for row in rows:
        numbers = ["-" if row[name] is None else f"{megabytes(row[name]):,.1f}" for name in COLUMNS]
        known = row["total"] is not None and row["peak"] is not None
        ratio = f"{row['total'] / row['peak']:.2f}" if known else "-"
        lines.append(f"| {row['preset']} | {row['optimizer']} | {' | '.join(numbers)} | {ratio} |")
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", default=list(OBJECTIVES))
    parser.add_argument("--optimizers", nargs="+", default=list(OPTIMIZERS))
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(given)
    os.environ["PRETUNE_PROGRESS"] = "none"
    batch = Batching(
        tokens=options.tokens, max_length=options.length, gradient_checkpointing=options.checkpointing or None
    )
    rows = []
    for preset in options.presets:
        for name in options.optimizers:
            settings = resolve_section(Optimizer, Optimizer(name, lr=1e-4))
            rows.append(measure(preset, settings, batch, options.steps, torch.device(options.device)))
            if options.out is not None:
                add_result(options.out, rows[-1] | machine())
    print(table(rows))


if __name__ == "__main__":
    main()
