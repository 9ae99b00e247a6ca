"""Answers from a model that was trained for a task: as many as there are examples, in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from pretune.devices import choose_device
from pretune.errors import PretuneError, nearest
from pretune.inference.batches import LENGTH, by_length
from pretune.inference.writing import write_answers
from pretune.model import Model, load_model, trained_for
from pretune.objectives import Data, Mixture, Task
from pretune.objectives.task import Answer, knowing
from pretune.progress import say
from pretune.randomness import Draws
from pretune.text.labeled import Labeled

Array = np.ndarray[Any, np.dtype[Any]]


def task_of(reference: str | Path, name: str | None = None) -> tuple[Mixture, Task]:
    """What a model was trained for, and the task in it, of several the one of this name; without reading any weights."""
    mixture = trained_for(reference)
    tasks = [part for part in mixture.objectives if isinstance(part, Task)] if mixture is not None else []
    if mixture is None or not tasks:
        raise PretuneError(f"{reference}: this model was not trained for a task; fine-tune it first")
    names = [task.name for task in tasks]
    if name is None and len(tasks) > 1:
        raise PretuneError(f"{reference}: this model was trained for {', '.join(names)}; choose one with --task")
    if name is not None and name not in names:
        raise PretuneError(f"{reference}: it was not trained for a task {name!r}; {nearest(name, names)}")
    return mixture, tasks[0] if name is None else tasks[names.index(name)]


def load_trained(reference: str | Path, partial: bool = False, name: str | None = None) -> tuple[Model, Task]:
    """A model and the task it was trained for; of several, the one of this name."""
    mixture, task = task_of(reference, name)
    return load_model(reference, mixture, partial=partial), task


class Answerer:
    """Examples made ready for a model once; calling it answers them, with the parameters the model then has."""

    def __init__(self, model: Model, task: Task, examples: Any, length: int | None = None) -> None:
        task = knowing(task, model.need_tokenizer())
        self.model, self.task, self.examples = model, task, examples
        self.length = length or model.backbone.longest or LENGTH
        self.laid = task.lay_out(Data(model.need_tokenizer(), model.family.template, rows=examples), self.length)

    def say_cut(self) -> Self:
        """Say how many texts were too long."""
        if self.laid.truncated:
            say(f"{self.laid.truncated} of {len(self.laid)} texts are longer than {self.length} tokens and were cut")
        return self

    @torch.no_grad()
    def __call__(self, device: torch.device | None = None) -> list[Answer]:
        """An answer an example, in order."""
        device = device or choose_device()
        root = self.model.root.to(device).eval()
        if self.task.each == "text":
            return self.task.answers(write_answers(self.model, self.task, self.laid), self.laid, self.examples)
        found: list[Array] = [np.empty(0)] * len(self.laid)
        tokenizer = self.model.need_tokenizer()
        for batch in by_length(self.laid, lambda sequences: self.task.corrupt(sequences, tokenizer, Draws(0))):
            rows = self.task.outputs(root.heads[self.task.name], root.backbone, batch.to(device)).float().cpu().numpy()
            ends = np.cumsum(batch.lengths[-1] if self.task.each == "token" else np.ones(len(batch.rows), dtype=int))
            for place, part in zip(batch.rows, np.split(rows[: ends[-1]], ends[:-1]), strict=True):
                found[place] = part if self.task.each == "token" else part[0]
        return self.task.answers(found, self.laid, self.examples)


def plain_texts(texts: Sequence[str] | str, pairs: Sequence[str] | None = None) -> Labeled:
    """Texts, or pairs of them, that stand in no file."""
    texts = [texts] if isinstance(texts, str) else list(texts)
    return Labeled(Path("texts"), {}, texts, None if pairs is None else list(pairs))


def predict_texts(
    reference: str | Path,
    texts: Sequence[str] | str,
    pairs: Sequence[str] | None = None,
    partial: bool = False,
    task: str | None = None,
) -> list[Answer]:
    """An answer for each text, or pair of texts."""
    model, chosen = load_trained(reference, partial, task)
    return Answerer(model, chosen, plain_texts(texts, pairs)).say_cut()()
