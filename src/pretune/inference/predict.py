"""Predictions of a model that was trained for a task: one per example, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from pretune.inference.generation.text_to_text_answers import generate_answers
from pretune.inference.nan_check import check_not_nan
from pretune.models.checkpoint_heads import stored_objectives, unsupported_head
from pretune.models.hf_config import DEFAULT_MAX_LENGTH
from pretune.models.language_embeddings import use_language
from pretune.models.length_bucketing import batches_by_length
from pretune.models.loading import load_model
from pretune.models.model import Model
from pretune.models.name_resolution import ModelReference
from pretune.models.open_model import OpenModel
from pretune.objectives import Data, Mixture, Task
from pretune.objectives.task import Answer
from pretune.runtime.arrays import Array
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import PretuneError, if_option, suggest
from pretune.runtime.progress import log_info
from pretune.runtime.randomness import EpochRandom
from pretune.text.examples.labeled import LabeledRows, TableChunk
from pretune.text.tokenizers.tokenizer import Tokenizer

TEXTS = Path("texts")  # stands for the file of texts that do not come from a file


def find_task(reference: ModelReference, name: str | None = None) -> tuple[Mixture, Task]:
    """Return the objectives that a model was trained for, according to its config.json, and its task.

    `name` is the name of the task, for a model that was trained for several.
    """
    mixture = reference.stored if isinstance(reference, OpenModel) else stored_objectives(reference)
    tasks = [part for part in mixture.objectives if isinstance(part, Task)] if mixture is not None else []
    if mixture is None and (head := unsupported_head(reference)):
        raise PretuneError(
            f"{reference}: {head}, which pretune does not support; fine-tune the model for the task first"
        )
    if mixture is None or not tasks:
        raise PretuneError(f"{reference}: this model was not trained for a task; fine-tune it first")
    names = [task.name for task in tasks]
    if name is None and len(tasks) > 1:
        raise PretuneError(
            f"{reference}: this model was trained for several tasks, {', '.join(names)}"
            f"{if_option('task', '; choose one with --task')}"
        )
    if name is not None and name not in names:
        raise PretuneError(f"{reference}: this model was not trained for a task {name!r}; {suggest(name, names)}")
    return mixture, tasks[0] if name is None else tasks[names.index(name)]


def load_task_model(
    reference: ModelReference, ignore_mismatched: bool = False, name: str | None = None, language: str | None = None
) -> tuple[Model, Task]:
    """Load a model, and return the model and the task that it was trained for.

    `name` is the name of the task, for a model that was trained for several, and `language` the language of the texts,
    for a model with language embeddings (None: the one saved with it).
    """
    mixture, task = find_task(reference, name)
    model = load_model(reference, mixture, ignore_mismatched=ignore_mismatched)
    model.require_trained(task.name, reference, "fine-tune it first")
    use_language(model, language, reference)
    return model, task


class Predictor:
    """A callable that predicts for the same examples at each call, with the parameters that the model has then.

    The examples are tokenized only once.
    """

    def __init__(self, model: Model, task: Task, examples: Any, length: int | None = None) -> None:
        task = task.with_tokenizer(model.require_tokenizer())
        self.model, self.task, self.examples = model, task, examples
        self.length = length or model.longest or DEFAULT_MAX_LENGTH
        self.arrangement = task.tokenize_examples(
            Data(model.require_tokenizer(), model.family.template, rows=examples), self.length
        )

    def report_truncated(self) -> Self:
        """Log how many texts were truncated to the maximum length, if any, and return the predictor itself."""
        if self.arrangement.truncated:
            log_info(
                f"{self.arrangement.truncated} of {len(self.arrangement)} texts are longer than {self.length} tokens and were truncated"
            )
        return self

    def __call__(self, device: torch.device | None = None) -> list[Answer]:
        """Return the model's prediction for each example, in order."""
        return self.task.answers(self.outputs(device), self.arrangement, self.examples)

    @torch.no_grad()
    def outputs(self, device: torch.device | None = None) -> list[Array]:
        """Return the model's outputs for each sequence, in order: those of the task's head, or generated token ids."""
        device = device or choose_device()
        root = self.model.root.ready(device)
        if self.task.output_per == "text":
            return generate_answers(self.model, self.task, self.arrangement)
        found: list[Array] = [np.empty(0)] * len(self.arrangement)
        tokenizer = self.model.require_tokenizer()
        for batch in batches_by_length(
            self.arrangement, lambda sequences: self.task.corrupt(sequences, tokenizer, EpochRandom(0))
        ):
            outputs = self.task.outputs(root.heads[self.task.name], root.backbone, batch.to(device))
            rows = check_not_nan(outputs).float().cpu().numpy()
            ends = np.cumsum(
                batch.lengths[-1] if self.task.output_per == "token" else np.ones(len(batch.rows), dtype=int)
            )
            for place, part in zip(batch.rows, np.split(rows[: ends[-1]], ends[:-1]), strict=True):
                found[place] = part if self.task.output_per == "token" else part[0]
        return found


def rows_without_tokens(examples: Any, tokenizer: Tokenizer) -> list[int]:
    """Return the indices of examples whose texts have no tokens, such as empty texts or white space."""
    if not isinstance(examples, LabeledRows):
        return []
    sides = [examples.texts, *([] if examples.pairs is None else [examples.pairs])]
    joined = [" ".join(texts) for texts in zip(*sides, strict=True)]
    maybe = [row for row, text in enumerate(joined) if not any(map(str.isalnum, text))]
    if not maybe:
        return []
    _, lengths = tokenizer.encode_many([joined[row] for row in maybe])
    return [row for row, length in zip(maybe, lengths, strict=True) if not length]


def blank_predictions(answers: Sequence[Answer], rows: Sequence[int]) -> list[Answer]:
    """Return predictions in which all values of the rows with the given indices are replaced by None.

    >>> blank_predictions([{"label": "a", "probabilities": {"a": 0.6, "b": 0.4}}], [0])
    [{'label': None, 'probabilities': {'a': None, 'b': None}}]
    """
    made = list(answers)
    for row in rows:
        made[row] = {
            name: dict.fromkeys(value) if isinstance(value, Mapping) else None for name, value in made[row].items()
        }
    return made


def report_blank(blank: int, count: int) -> None:
    """Log how many (`blank`) of `count` texts are empty and get no prediction, if any."""
    if blank:
        log_info(
            f"{blank} of {count} texts {'are' if blank > 1 else 'is'} empty and {'have' if blank > 1 else 'has'} no prediction"
        )


def texts_as_excerpt(texts: Sequence[str], pairs: Sequence[str] | None = None) -> TableChunk:
    """Return texts, or pairs of texts, as a chunk of a table with the columns `text` and `pair`."""
    columns = {"text": texts} if pairs is None else {"text": texts, "pair": pairs}
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    return TableChunk(TEXTS, list(enumerate(rows, 1)), rows[0])


def read_excerpt(task: Task, part: TableChunk, columns: Mapping[str, str], answered: bool = False) -> Any:
    """Return the examples of a task in `part`, a chunk of a table.

    `columns` maps roles, such as text, to columns of the table; labels are read only if `answered` is true.
    """
    try:
        return task.read(part, columns, answered=answered)
    except PretuneError as error:
        if part.file != TEXTS:
            raise
        raise PretuneError(
            f"{error} (if an example of the task {task.name} is more than a text, give a file instead of texts)"
        ) from error


def predict_texts(
    reference: ModelReference,
    texts: Sequence[str] | str,
    pairs: Sequence[str] | None = None,
    ignore_mismatched: bool = False,
    task: str | None = None,
) -> list[Answer]:
    """Load a model and return one prediction per text or pair of texts, with None values for texts without tokens."""
    texts = [texts] if isinstance(texts, str) else texts
    if not texts:
        return []
    model, chosen = load_task_model(reference, ignore_mismatched, task)
    part = texts_as_excerpt(texts, pairs)
    examples = read_excerpt(chosen, part, {name: name for name in part.first})
    blank = rows_without_tokens(examples, model.require_tokenizer())
    report_blank(len(blank), len(texts))
    return blank_predictions(Predictor(model, chosen, examples).report_truncated()(), blank)
