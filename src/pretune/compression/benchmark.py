"""Measurement of size, latency, throughput, and quality of models."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
from pretune.models.length_bucketing import arrange_texts
from pretune.models.model import Model
from pretune.models.name_resolution import find_folder
from pretune.models.weight_files import HEAD_FILE
from pretune.objectives import Task
from pretune.packed import Batch
from pretune.runtime.devices import choose_device
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.sequences import collate

BATCH_SIZE = 32  # batch size for throughput
ROUNDS = 5  # timed runs of each model; the median counts
NUM_TEXTS = 64  # number of texts for timing
WEIGHTS = (".safetensors", ".onnx", ".data", ".bin")  # extensions of files with parameters
# Words of made-up texts, for models without examples.
WORDS = "a model of language reads what people wrote and learns from it which words go together and which do not"


@dataclass(frozen=True)
class Costs:
    """The costs of a model: size on disk in bytes, latency of one text in seconds, and texts per second."""

    bytes: int
    latency: float
    throughput: float

    def describe(self) -> dict[str, float]:
        """Return the costs of a model by name: megabytes, milliseconds, and texts per second."""
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
    """Tokenize texts, or pairs of `texts` and `pairs`, and return them in batches of `size`, in the given order."""
    longest = min(model.backbone.max_positions or DEFAULT_MAX_LENGTH, DEFAULT_MAX_LENGTH)
    sequences = arrange_texts(model, texts, pairs, longest)
    filler = sequences.tokenizer.roles.get("padding", 0)
    places = [np.arange(first, min(first + size, len(texts))) for first in range(0, len(texts), size)]
    return [collate(sequences.take(place), filler=filler) for place in places]


def make_timed_call(
    model: Model, task: Task | None, texts: Sequence[str], pairs: Sequence[str] | None, size: int
) -> Callable[[], Any]:
    """Return a function that runs a model on texts, or pairs of texts, in batches of `size`, for the caller to time."""
    if task is not None and task.output_per == "text":  # generated token by token
        lines = list(range(1, len(texts) + 1))
        rows = LabeledRows(Path("texts"), {}, list(texts), None if pairs is None else list(pairs), lines=lines)
        parts = [rows.take(range(first, min(first + size, len(rows)))) for first in range(0, len(rows), size)]
        predictors = [Predictor(model, task, part) for part in parts]
        return lambda: [predict(torch.device("cpu")) for predict in predictors]
    run, batches = forward_pass(model, task), unsorted_batches(model, texts, pairs, size)
    return lambda: [run(batch) for batch in batches]


def forward_pass(model: Model, task: Task | None) -> Callable[[Batch], Any]:
    """Return a function that computes the outputs of a task for a batch on the CPU, or hidden states without a task."""
    root = model.root.to("cpu").eval()
    if task is not None and task.output_per == "sequence" and task.name in root.heads:
        return lambda batch: task.outputs(root.heads[task.name], root.backbone, batch)
    inputs = 2 if isinstance(root.backbone, EncoderDecoder) else 1  # source and target
    return lambda batch: root.backbone(*batch.packed * inputs).last


def median_seconds(jobs: Mapping[str, Callable[[], Any]], rounds: int | None = None) -> dict[str, float]:
    """Return the median run time of each function in seconds.

    Functions are called in turn for a number of `rounds`, so that noise on the machine affects all of them alike.
    """
    times: dict[str, list[float]] = {name: [] for name in jobs}
    with torch.inference_mode():
        for turn in range((rounds or ROUNDS) + 1):
            for name, call in jobs.items():
                started = time.perf_counter()
                call()
                if turn:  # the first run is a warmup
                    times[name].append(time.perf_counter() - started)
    return {name: median(seconds) for name, seconds in times.items()}


def measure_costs(
    models: Mapping[str, tuple[Model, Task | None, Path]], examples: Any = None, rounds: int | None = None
) -> dict[str, Costs]:
    """Return the costs of each model by name, measured on the texts of `examples` or, if None, on made-up texts.

    `models` has the model, its task if any, and its folder by name; every time is a median over `rounds`.
    """
    some = examples.take(range(min(NUM_TEXTS, len(examples)))) if isinstance(examples, LabeledRows) else None
    texts, pairs = (some.texts, some.pairs) if some is not None else (synthetic_texts(NUM_TEXTS), None)

    def time_models(size: int, count: int) -> dict[str, float]:
        """Return the median time of each model for the first `count` texts, in batches of `size`."""
        own = texts[:count], None if pairs is None else pairs[:count]
        calls = {name: make_timed_call(model, task, *own, size) for name, (model, task, _) in models.items()}
        return median_seconds(calls, rounds)

    few = max(1, len(texts) // 4)  # a quarter of the texts is enough for latency
    single, batched = time_models(1, few), time_models(BATCH_SIZE, len(texts))
    return {
        name: Costs(model_bytes(folder), single[name] / few, len(texts) / batched[name])
        for name, (_, _, folder) in models.items()
    }


def measure_speed(models: Mapping[str, Model], length: int, rounds: int | None = None) -> dict[str, float]:
    """Return the tokens per second of each model on single sequences of `length` tokens, on the CPU.

    Models that cannot read as many tokens are left out.
    """
    able = {name: model for name, model in models.items() if (model.backbone.max_positions or length) >= length}
    calls = {}
    for name, model in able.items():
        run = forward_pass(model, None)
        batch = collate(arrange_texts(model, [" ".join(WORDS.split() * length)], None, length).take(np.arange(1)))
        calls[name] = partial(run, batch)
    return {name: length / seconds for name, seconds in median_seconds(calls, rounds).items()} if calls else {}


def evaluate_quality(model: Model, task: Task, examples: Any, length: int | None = None) -> dict[str, float]:
    """Return the metrics of a model's predictions for labeled examples, truncated to `length` tokens.

    Quantized models run on the CPU.
    """
    quantized = isinstance(model.backbone, OnnxBackbone) or model.shape.linear
    device = torch.device("cpu") if quantized else choose_device()
    return score(task, Predictor(model, task, examples, length)(device), examples)


def summarize_gains(before: Costs, after: Costs) -> dict[str, Any]:
    """Return the factors by which a model became smaller and faster, given its costs before and after compression.

    If it did not become smaller, or not faster, the key `warning` of the result says so.
    """
    smaller, faster = before.bytes / after.bytes, before.latency / after.latency
    batched = after.throughput / before.throughput
    problems = ["it is not smaller on disk"] if smaller <= 1.0 else []
    problems += ["it is not faster on this machine"] if faster <= 1.0 and batched <= 1.0 else []
    facts: dict[str, Any] = {"compression_ratio": smaller, "latency_speedup": faster, "throughput_speedup": batched}
    return facts | ({"warning": "; ".join(problems)} if problems else {})
