"""The speed of a model's inference on a CPU, beside `transformers` and ONNX Runtime, on the same texts.

Every method gets texts and returns the outputs for each of them, so tokenization is part of the time. Methods run in turn, round
after round, so that other work on the machine slows all of them down alike; the medians count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from pretune.backbones.onnx_runtime import ALL_TOKENS, GRAPH, IDS, LOGITS, MASK, SEGMENTS, STATES, open_session
from pretune.compression.benchmark import BATCH_SIZE
from pretune.compression.onnx_int8 import quantize_graph_dynamic
from pretune.inference.predict import Predictor, predict_texts, texts_as_excerpt
from pretune.models.hf_config import DEFAULT_MAX_LENGTH
from pretune.models.length_bucketing import text_batches
from pretune.models.loading import load
from pretune.models.model import Model
from pretune.models.onnx_export import export_graph
from pretune.models.open_model import OpenModel
from pretune.objectives import Task
from pretune.objectives.tasks.classify import Classify
from pretune.objectives.tasks.regress import Regress
from pretune.objectives.tasks.tag import Tag
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import ProgressBar

CPU = torch.device("cpu")
LEAST_ROUNDS = 3
ALONE = 16  # texts per round that are timed one by one
TRANSFORMERS, PRETUNE, PRETUNE_INT8 = "transformers, fp32", "pretune", "pretune, int8"
PRETUNE_RUNTIME = "pretune, engine onnxruntime"
RUNTIME, RUNTIME_INT8 = "ONNX Runtime, fp32", "ONNX Runtime, int8"


@dataclass
class Method:
    """A way to run a model: a function to time, the outputs for comparison, and the times measured so far."""

    name: str
    run: Callable[[Sequence[str]], Any]  # from texts to answers: what is timed
    outputs: Callable[[Sequence[str]], list[Array]]  # from texts to the logits or hidden states of each
    alone: list[float] = field(default_factory=list)  # seconds for each text that was run alone
    together: list[float] = field(default_factory=list)  # seconds for all texts, one value per round


def task_of_texts(opened: OpenModel) -> Task | None:
    """Return the task of a model if every method can run it: it reads one text and outputs logits or numbers.

    For other models, return None; then only the backbone is measured.
    """
    parts = opened.stored.objectives if opened.stored is not None else ()
    tasks = [part for part in parts if isinstance(part, Task)]
    suitable = len(tasks) == 1 and isinstance(tasks[0].unwrapped, Classify | Regress | Tag)
    return tasks[0] if suitable and not tasks[0].reads_several_layers else None


def pretune_method(name: str, opened: OpenModel, task: Task | None) -> Method:
    """Return the method that runs a model, kept in memory, as `pretune predict` does."""
    if task is None:
        return Method(
            name, lambda texts: hidden_states(opened.core, texts), lambda texts: hidden_states(opened.core, texts)
        )
    model = opened.load(opened.stored)

    def outputs(texts: Sequence[str]) -> list[Array]:
        part = texts_as_excerpt(texts)
        return Predictor(model, task, task.read(part, {"text": "text"}, answered=False)).outputs(CPU)

    return Method(name, lambda texts: predict_texts(opened, texts), outputs)


@torch.no_grad()
def hidden_states(model: Model, texts: Sequence[str]) -> list[Array]:
    """Return the hidden states of each text, (tokens, width)."""
    root, found = model.root.ready(CPU), [np.empty(0)] * len(texts)
    for batch in text_batches(model, texts):
        states = root.backbone(*batch.packed).last.numpy()
        for row, part in zip(batch.rows, np.split(states, np.cumsum(batch.lengths[-1])[:-1]), strict=True):
            found[row] = part
    return found


def transformers_method(model: Model, task: Task | None, folder: Path) -> Method:
    """Return the method that runs a model as users of `transformers` do, in padded batches of 32 texts."""
    if not model.family.in_transformers:
        raise PretuneError(f"`transformers` has no model class for {model.family.name}; compare with the other methods")
    try:
        transformers: Any = import_module("transformers")
    except ImportError as error:
        raise PretuneError("transformers is not installed; install it with: pip install transformers") from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    kind = model.export(folder)
    network = getattr(transformers, kind if task is not None else "AutoModel").from_pretrained(
        folder, dtype=torch.float32
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network.eval()

    @torch.inference_mode()
    def outputs(texts: Sequence[str]) -> list[Array]:
        found: list[Array] = []
        for part in batches(texts):
            feed = tokenizer(part, padding=True, truncation=True, max_length=longest(model), return_tensors="pt")
            made = network(**feed)[0].numpy()
            found += per_text(made, feed["attention_mask"].numpy(), task)
        return found

    return Method(TRANSFORMERS, outputs, outputs)


def runtime_method(name: str, model: Model, task: Task | None, folder: Path) -> Method:
    """Return the method that runs the exported graph in a folder with ONNX Runtime: in padded batches of 32 texts."""
    session, tokenizer = open_session(folder / GRAPH), Tokenizer.from_file(str(folder / "tokenizer.json"))
    names = {entry.name for entry in session.get_inputs()}
    optional = {entry.name for entry in session.get_overridable_initializers()}
    switches = {ALL_TOKENS: np.array(task is None)} if ALL_TOKENS in optional else {}
    tokenizer.enable_truncation(longest(model))
    tokenizer.enable_padding()

    def outputs(texts: Sequence[str]) -> list[Array]:
        found: list[Array] = []
        for part in batches(texts):
            rows = tokenizer.encode_batch(part)
            feed = {
                IDS: np.array([row.ids for row in rows]),
                MASK: np.array([row.attention_mask for row in rows]),
                SEGMENTS: np.array([row.type_ids for row in rows]),
            }
            (made,) = session.run(
                [STATES if task is None else LOGITS], {**switches, **{key: feed[key] for key in names}}
            )
            found += per_text(made, feed[MASK], task)
        return found

    return Method(name, outputs, outputs)


def batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yield texts in batches of 32, in their order."""
    for first in range(0, len(texts), BATCH_SIZE):
        yield list(texts[first : first + BATCH_SIZE])


def longest(model: Model) -> int:
    """Return the number of tokens at which texts are truncated."""
    return model.longest or DEFAULT_MAX_LENGTH


def per_text(rows: Array, mask: Array, task: Task | None) -> list[Array]:
    """Return the outputs of each of b texts, given the padded outputs of a batch (`rows`).

    `rows` is (b, d) for a task with one output per text, and otherwise (b, L, d), for texts padded to L tokens; `mask`,
    (b, L), is 1 for tokens and 0 for padding.
    """
    if task is not None and task.output_per == "sequence":
        return list(rows)
    return [row[real > 0] for row, real in zip(rows, mask, strict=True)]


def list_methods(opened: OpenModel, folder: Path, report: Callable[[str], None]) -> list[Method]:
    """Return the methods to run a model that are available on this machine; the first is the reference for ratios.

    `report` is called with a line of text for each method that is not available. `folder` is an empty folder for
    exported models, which the methods read.
    """
    task, model = task_of_texts(opened), opened.core
    model.require_tokenizer()
    opened.warm_up()
    tasks = [] if task is None else [task]

    def runtime(name: str, quantize: Callable[[Path, Path, bool], None] | None) -> Iterator[Method]:
        place = folder / ("int8" if quantize else "fp32")
        # The graph of the network alone if the outputs of no task are compared.
        export_graph(load(opened.folder, ignore_mismatched=opened.ignore_mismatched), place, tasks, quantize=quantize)
        yield runtime_method(name, model, task, place)
        # A model folder with a graph is computed like a model with the engine onnxruntime.
        yield pretune_method(PRETUNE_INT8 if quantize else PRETUNE_RUNTIME, OpenModel(place), task)

    makers: list[tuple[str, Callable[[], Iterator[Method]]]] = [
        (TRANSFORMERS, lambda: iter([transformers_method(model, task, folder / "transformers")])),
        (PRETUNE, lambda: iter([pretune_method(PRETUNE, opened, task)])),
        (RUNTIME, lambda: runtime(RUNTIME, None)),
        (RUNTIME_INT8, lambda: runtime(RUNTIME_INT8, quantize_graph_dynamic)),
    ]
    found: list[Method] = []
    for name, make in makers:
        try:
            found += make()
        except PretuneError as error:
            if name == PRETUNE:
                raise
            report(f"{name} is left out: {error}")
    return found


def measure(methods: Sequence[Method], texts: Sequence[str], seconds: float, bar: ProgressBar) -> None:
    """Time all methods in turn for some seconds, and at least three rounds: one text at a time, and all texts together."""
    for method in methods:  # a warmup
        method.run(texts[:BATCH_SIZE])
        method.run(texts[:1])
    started, rounds = time.perf_counter(), 0
    while rounds < LEAST_ROUNDS or time.perf_counter() - started < seconds:
        first = rounds * ALONE
        chosen = [texts[place % len(texts)] for place in range(first, first + min(ALONE, len(texts)))]
        for method in methods:
            method.alone += [seconds_of(method, [text]) for text in chosen]
            method.together.append(seconds_of(method, texts))
        rounds += 1
        bar.update(min(seconds, time.perf_counter() - started))


def seconds_of(method: Method, texts: Sequence[str]) -> float:
    """Return the time in seconds that a method takes for some texts."""
    started = time.perf_counter()
    method.run(texts)
    return time.perf_counter() - started


def describe(methods: Sequence[Method], texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return one row per method with its times, their ratios to the first method, and how much its outputs differ."""
    reference = methods[0]
    expected = reference.outputs(texts)
    largest = max(float(np.abs(row).max(initial=0.0)) for row in expected)
    rows = []
    for method in methods:
        found = method.outputs(texts)
        same = [one.shape == other.shape for one, other in zip(found, expected, strict=True)]
        pairs = [(one, other) for one, other, fits in zip(found, expected, same, strict=True) if fits]
        difference = max((float(np.abs(one - other).max(initial=0.0)) for one, other in pairs), default=np.nan)
        rows.append(
            {
                "method": method.name,
                "p50_ms": 1e3 * median(method.alone),
                "p99_ms": 1e3 * float(np.quantile(method.alone, 0.99)),
                "latency_ratio": median(method.alone) / median(reference.alone),
                "texts_per_second": len(texts) / median(method.together),
                "speedup": median(reference.together) / median(method.together),
                "difference": difference / largest if all(same) and largest else None,
                "same_answers": same_answers(found, expected),
            }
        )
    return rows


def same_answers(found: Sequence[Array], expected: Sequence[Array]) -> float | None:
    """Return the share of texts (or tokens) whose largest output has the same index in both results.

    `found` and `expected` have the outputs of each text. The result is None if there is only one output, as in a
    regression, or if the shapes differ.

    >>> same_answers([np.array([0.2, 0.8]), np.array([0.9, 0.1])], [np.array([0.4, 0.6]), np.array([0.3, 0.7])])
    0.5
    """
    ours, theirs = (np.concatenate([np.atleast_2d(row) for row in rows]) for rows in (found, expected))
    if ours.shape != theirs.shape or ours.shape[1] == 1:
        return None
    return float((ours.argmax(1) == theirs.argmax(1)).mean())
