"""Measurement of size, latency, throughput, and quality of models, side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from pretune.backbones.encoder_decoder import EncoderDecoder
from pretune.backbones.onnx_runtime import OnnxBackbone
from pretune.inference.predict import Predictor
from pretune.metrics import score
from pretune.models.hf_config import DEFAULT_MAX_LENGTH
from pretune.models.model import Model
from pretune.models.name_resolution import find_folder
from pretune.models.weight_files import HEAD_FILE
from pretune.objectives import Task
from pretune.packed import Batch
from pretune.runtime.devices import choose_device
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.sequences import collate
from pretune.text.packing.token_rows import TokenRows, arrange_rows

BATCH_SIZE = 32  # batch size for throughput
ROUNDS = 5  # timed runs of each model; the median counts
NUM_TEXTS = 64  # number of texts for timing
WEIGHTS = (".safetensors", ".onnx", ".data", ".bin")  # extensions of files with parameters
# Words of made-up texts, for models without examples.
WORDS = "a model of language reads what people wrote and learns from it which words go together and which do not"


@dataclass(frozen=True)
class Costs:
    """Size on disk in bytes, latency of one text in seconds, and throughput of batches in texts per second."""

    bytes: int
    latency: float
    throughput: float

    def describe(self) -> dict[str, float]:
        """Return the costs in megabytes, milliseconds, and texts per second."""
        return {"megabytes": self.bytes / 1e6, "latency_ms": 1e3 * self.latency, "texts_per_second": self.throughput}


def model_bytes(folder: str | Path) -> int:
    """Return the total size of the parameter files in a model folder, in bytes."""
    files = [file for file in find_folder(folder).iterdir() if file.is_file() and file.name.endswith(WEIGHTS)]
    return sum(file.stat().st_size for file in files if file.name != HEAD_FILE or file.stat().st_size)


def synthetic_texts(count: int = 64) -> list[str]:
    """Return made-up texts of different lengths, from a few words to a paragraph."""
    words = WORDS.split()
    return [" ".join((words * 6)[: 4 + (number * 37) % 90]) for number in range(count)]


def unsorted_batches(model: Model, texts: Sequence[str], pairs: Sequence[str] | None, size: int) -> list[Batch]:
    """Return batches of `size` texts in the given order, not sorted by length."""
    tokenizer = model.require_tokenizer()
    rows = LabeledRows(Path("texts"), {}, list(texts), None if pairs is None else list(pairs))
    longest = min(model.backbone.longest or DEFAULT_MAX_LENGTH, DEFAULT_MAX_LENGTH)
    laid = arrange_rows(TokenRows.make(rows, tokenizer), tokenizer, model.family.template, longest, {})
    filler = tokenizer.roles.get("padding", 0)
    places = [np.arange(first, min(first + size, len(laid))) for first in range(0, len(laid), size)]
    return [collate(laid.take(place), filler=filler) for place in places]


def make_timed_call(
    model: Model, task: Task | None, texts: Sequence[str], pairs: Sequence[str] | None, size: int
) -> Callable[[], Any]:
    """Return a function to time: it predicts all texts in batches of `size`."""
    if task is not None and task.output_per == "text":  # generated token by token
        lines = list(range(1, len(texts) + 1))
        rows = LabeledRows(Path("texts"), {}, list(texts), None if pairs is None else list(pairs), lines=lines)
        parts = [rows.take(range(first, min(first + size, len(rows)))) for first in range(0, len(rows), size)]
        predictors = [Predictor(model, task, part) for part in parts]
        return lambda: [predict(torch.device("cpu")) for predict in predictors]
    run, batches = forward_pass(model, task), unsorted_batches(model, texts, pairs, size)
    return lambda: [run(batch) for batch in batches]


def forward_pass(model: Model, task: Task | None) -> Callable[[Batch], Any]:
    """Return the forward pass of a model on CPU: to the outputs of its task, or to hidden states without one."""
    root = model.root.to("cpu").eval()
    if task is not None and task.output_per == "sequence" and task.name in root.heads:
        return lambda batch: task.outputs(root.heads[task.name], root.backbone, batch)
    sides = 2 if isinstance(root.backbone, EncoderDecoder) else 1
    return lambda batch: root.backbone(*batch.packed * sides)


def median_seconds(jobs: Mapping[str, Callable[[], Any]], rounds: int | None = None) -> dict[str, float]:
    """Return the median time of each job in seconds; jobs are interleaved, so that noise of the machine affects all alike."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    with torch.inference_mode():
        for turn in range((rounds or ROUNDS) + 1):
            for name, make_timed_call in jobs.items():
                began = time.perf_counter()
                make_timed_call()
                if turn:  # the first run is a warmup
                    times[name].append(time.perf_counter() - began)
    return {name: median(found) for name, found in times.items()}


def measure_costs(
    models: Mapping[str, tuple[Model, Task | None, Path]],
    examples: Any = None,
    rounds: int | None = None,
) -> dict[str, Costs]:
    """Return the costs of models by name, measured on the texts of some examples, or on made-up texts."""
    some = examples.take(range(min(NUM_TEXTS, len(examples)))) if isinstance(examples, LabeledRows) else None
    rows, pairs = (some.texts, some.pairs) if some is not None else (synthetic_texts(NUM_TEXTS), None)
    jobs: list[dict[str, Callable[[], Any]]] = [{}, {}]
    for name, (model, task, _) in models.items():
        for place, size in enumerate((1, BATCH_SIZE)):
            # A quarter of the texts is enough for latency.
            many = len(rows) if size > 1 else max(1, len(rows) // 4)
            jobs[place][name] = make_timed_call(model, task, rows[:many], None if pairs is None else pairs[:many], size)
    alone, together = (median_seconds(some, rounds) for some in jobs)
    singles = max(1, len(rows) // 4)
    return {
        name: Costs(model_bytes(folder), alone[name] / singles, len(rows) / together[name])
        for name, (_, _, folder) in models.items()
    }


def evaluate_quality(model: Model, task: Task, examples: Any, length: int | None = None) -> dict[str, float]:
    """Return the metrics of a model's predictions; quantized models run on CPU, where their kernels are."""
    quantized = isinstance(model.backbone, OnnxBackbone) or model.shape.linear
    device = torch.device("cpu") if quantized else choose_device()
    return score(task, Predictor(model, task, examples, length)(device), examples)


def summarize_gains(before: Costs, after: Costs) -> dict[str, Any]:
    """Return how much smaller and faster a model became, with a sentence under `but` if it did not."""
    smaller, faster = before.bytes / after.bytes, before.latency / after.latency
    many = after.throughput / before.throughput
    bad = []
    if smaller <= 1.0:
        bad.append("it is not smaller on disk")
    if faster <= 1.0 and many <= 1.0:
        bad.append("it is not faster on this machine")
    facts: dict[str, Any] = {"times_smaller": smaller, "times_faster_alone": faster, "times_faster_in_batches": many}
    return {**facts, **({"but": "; ".join(bad)} if bad else {})}
