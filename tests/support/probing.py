"""Probing tasks on random texts, vectors in which a layer carries the label, and a model with such a layer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pretune.models.model import Model
from pretune.probing.probing_task import ProbingExample, ProbingTask, Split
from pretune.probing.representation_cache import Passage, RepresentationCache
from pretune.probing.representations import TaskVectors
from tests.support.tiny_models import random_model, small_tokenizer

WORDS = ["value", "name", "class", "object", "method", "module", "string", "list", "number", "type", "index", "file"]
SPLIT: list[Split] = ["train"] * 6 + ["dev"] * 2 + ["test"] * 2


def random_texts(count: int, words: int = 6, seed: int = 0) -> list[str]:
    """Return different texts of random words."""
    rng = np.random.default_rng(seed)
    texts: dict[str, None] = {}
    while len(texts) < count:
        texts[" ".join(rng.choice(WORDS, words))] = None
    return list(texts)


def random_task(name: str = "noise", count: int = 400, labels: str = "xy", seed: int = 0) -> ProbingTask:
    """Return a task with random labels."""
    rng = np.random.default_rng(seed + 1)
    examples = [
        ProbingExample(text, str(rng.choice(list(labels))), SPLIT[place % len(SPLIT)])
        for place, text in enumerate(random_texts(count, seed=seed))
    ]
    return ProbingTask(name, "random", examples)


def planted_vectors(
    task: ProbingTask, folder: Path, layers: int, planted: Sequence[int], width: int = 12
) -> TaskVectors:
    """Return random vectors of a task of which only the planted layers carry the label."""
    rng = np.random.default_rng(0)
    labels = np.array([task.labels.index(example.label) for example in task.examples])
    states = []
    for layer in range(layers):
        state = rng.normal(size=(len(labels), width))
        if layer in planted:
            state[:, 0] = 4.0 * labels - 2.0 + 0.3 * state[:, 0]
        states.append(torch.from_numpy(state.astype(np.float32)))
    cache = RepresentationCache(folder)
    cache.add([Passage(example.text) for example in task.examples], states)
    return TaskVectors(task, cache)


def planted_model(task: ProbingTask, layer: int, layers: int = 4) -> Model:
    """Return a random BERT that adds the label of a text to the states of its layer number `layer` (from 1 on)."""
    model = random_model("bert", small_tokenizer("wordpiece"), "mlm", num_hidden_layers=layers)
    tokenizer = model.require_tokenizer()
    sign = {tuple(tokenizer.encode(x.text)): 2.0 * task.labels.index(x.label) - 1 for x in task.examples}
    direction = torch.randn(model.backbone.width, generator=torch.Generator().manual_seed(0))
    current: list[Any] = []

    def remember(_: Any, inputs: tuple[Any, ...]) -> None:
        current[:] = [inputs[0]]

    def plant(_: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        packed = current[0]
        ids, offsets = packed.ids.tolist(), packed.offsets.tolist()
        added = torch.zeros(len(ids))
        for begin, end in pairwise(offsets):
            added[begin:end] = sign[tuple(ids[begin + 1 : end - 1])]  # between [CLS] and [SEP]
        return output + 5 * added[:, None] * direction

    model.backbone.register_forward_pre_hook(remember)
    model.backbone.layers[layer - 1].register_forward_hook(plant)
    return model
