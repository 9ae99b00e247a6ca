"""Ensembles: the averaged predictions of several models for tables of any size, in processes or on a cluster."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pretune.inference.predict import Predictor, find_task, load_task_model, read_excerpt, rows_without_tokens
from pretune.models.name_resolution import ModelReference
from pretune.objectives import Task
from pretune.objectives.task import Answer
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import PretuneError, if_option
from pretune.runtime.process_pool import start_worker
from pretune.runtime.ray_jobs import Executor, absolute_if_exists, check_visible, run_on_ray
from pretune.text.examples.labeled import TableChunk


@dataclass(frozen=True)
class Predictions:
    """The predictions of one or several models for the examples in a chunk of a table."""

    by_model: list[list[Answer]]  # of each model, one per example
    combined: list[Answer]  # of the ensemble, one per example
    columns: Mapping[str, str]  # role → column of the table
    truncated: int  # examples whose texts were truncated, for the model with the shortest sequences
    lines: list[int] | None = None  # line number of each example, if a row may have several
    blank: Sequence[int] = ()  # examples whose texts have no token and therefore get no prediction


class Ensemble:
    """One or several models for the same task, whose predictions are averaged."""

    def __init__(
        self,
        references: Sequence[ModelReference],
        ignore_mismatched: bool = False,
        device: torch.device | None = None,
        name: str | None = None,
        quick: bool = False,
        language: str | None = None,
    ) -> None:
        """Load the models of an ensemble, given their folders or names; with `quick`, a GPU computes in bfloat16.

        `language` is the language of the texts, for models with language embeddings.
        """
        self.task = shared_task(references, name)
        self.members = [load_task_model(reference, ignore_mismatched, name, language) for reference in references]
        self.device = device or choose_device()
        if quick and self.device.type == "cuda":
            for model, _ in self.members:
                model.root.set_activation_dtype(torch.bfloat16)

    def __call__(self, part: TableChunk, columns: Mapping[str, str], answered: bool = False) -> Predictions:
        """Return the predictions of all models for `part`, a chunk of a table.

        `columns` maps roles, such as text, to columns of the table, and `answered` tells whether it has gold labels.
        """
        examples = read_excerpt(self.task, part, columns, answered)
        answerers = [Predictor(model, task, examples) for model, task in self.members]
        by_model = [answer(self.device) for answer in answerers]
        combined = by_model[0] if len(by_model) == 1 else combine_predictions(self.task, by_model, examples)
        truncated = max(answer.arrangement.truncated for answer in answerers)
        lines = examples.lines if getattr(examples, "nested", False) else None
        blank = rows_without_tokens(examples, self.members[0][0].require_tokenizer())
        return Predictions(by_model, combined, columns, truncated, lines, blank)


def shared_task(references: Sequence[ModelReference], name: str | None = None) -> Task:
    """Return the task that all models were trained for, or raise an error if their tasks or labels differ.

    `name` is the name of the task, for models that were trained for several.
    """
    _, first = find_task(references[0], name)
    labels = first.labels
    for reference in references[1:]:
        _, task = find_task(reference, name)
        if task.name != first.name:
            raise PretuneError(
                f"{reference} was trained for the task {task.name}, and {references[0]} for {first.name}; "
                "an ensemble needs models for the same task"
            )
        if set(others := task.labels) != set(labels):
            raise PretuneError(
                f"{reference} has the labels {', '.join(others)}, and {references[0]} has {', '.join(labels)}; "
                "an ensemble needs models with the same labels"
            )
    if len(references) > 1 and not first.combinable:
        raise PretuneError(f"predictions for the task {first.name} cannot be averaged over models; give one model")
    return first


def combine_predictions(task: Task, by_model: Sequence[Sequence[Answer]], examples: Any) -> list[Answer]:
    """Combine the predictions of several models for the same examples as the task defines it, usually by averaging.

    `by_model` has one list of predictions per model; the result has one prediction per example.
    """
    return [task.combine(answers, examples, row) for row, answers in enumerate(zip(*by_model, strict=True))]


def with_threshold(task: Task, predictions: Predictions, threshold: float) -> Predictions:
    """Return predictions in which the labels are chosen from the probabilities again, with another `threshold`."""
    chosen = replace(task.unwrapped, threshold=threshold)

    def choose(answers: Sequence[Answer]) -> list[Answer]:
        return [
            chosen.answer_from(np.array([answer["probabilities"][label] for label in chosen.labels]))
            for answer in answers
        ]

    by_model = [choose(answers) for answers in predictions.by_model]
    return replace(predictions, by_model=by_model, combined=choose(predictions.combined))


def predict_excerpts(
    references: Sequence[ModelReference],
    parts: Iterable[TableChunk],
    columns: Mapping[str, str],
    *,
    answered: bool = False,
    processes: int = 1,
    ignore_mismatched: bool = False,
    name: str | None = None,
    executor: Executor = "local",
    quick: bool = False,
    language: str | None = None,
) -> Iterator[tuple[TableChunk, Predictions]]:
    """Yield chunks of a table (`parts`) with the predictions of one or several models (`references`), in order.

    `columns` maps roles, such as text, to columns of the table; `answered` tells whether the table has gold labels;
    `name` is the name of the task, for models with several tasks. With `quick`, a GPU computes in bfloat16. If there
    are several `processes`, they run on the CPU; with the executor "ray", each job uses a GPU if there is one.
    `language` is the language of the texts, for models with language embeddings.
    """
    jobs = resolve_columns(shared_task(references, name), parts, columns, answered)
    if executor == "ray":
        models = tuple(absolute_if_exists(str(reference)) for reference in references)
        calls = ((models, ignore_mismatched, name, language, part, named, answered) for part, named in jobs)
        yield from ((job[4], answers) for job, answers in run_on_ray(predict_on_ray, calls, on_gpu=True))
        return
    if processes == 1:
        ensemble = Ensemble(references, ignore_mismatched, name=name, quick=quick, language=language)
        yield from ((part, ensemble(part, named, answered)) for part, named in jobs)
        return
    names = tuple(map(str, references))  # the processes read the models themselves
    threads = max(1, torch.get_num_threads() // processes)
    pool = ProcessPoolExecutor(processes, get_context("spawn"), initializer=start_worker, initargs=(threads,))
    waiting: deque[tuple[TableChunk, Future[Predictions]]] = deque()
    try:
        for part, named in jobs:
            job = (names, ignore_mismatched, name, language, part, named, answered)
            waiting.append((part, pool.submit(predict_on_cpu, *job)))
            if len(waiting) > 2 * processes:
                first, future = waiting.popleft()
                yield first, future.result()
        for first, future in waiting:
            yield first, future.result()
    except BrokenProcessPool as error:
        raise PretuneError(
            f"a prediction process ended unexpectedly, perhaps for lack of memory; {if_option('processes', 'try fewer --processes; ')}"
            'a script must call predict under `if __name__ == "__main__":` to use several processes'
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def resolve_columns(
    task: Task, parts: Iterable[TableChunk], columns: Mapping[str, str], answered: bool
) -> Iterator[tuple[TableChunk, Mapping[str, str]]]:
    """Yield each chunk of a table with a mapping from roles, such as text, to the columns of its file.

    The mapping is inferred from the first chunk of each file; `columns` has the roles that the user has set.
    """
    file, named = None, columns
    for part in parts:
        if part.file != file:
            file, named = part.file, getattr(read_excerpt(task, part, columns, answered), "columns", columns)
        yield part, named


# -- worker processes -----------------------------------------------------------------------------------------------


_ensemble = cache(Ensemble)


def predict_on_ray(
    references: tuple[str, ...], ignore_mismatched: bool, name: str | None, language: str | None, *job: Any
) -> Predictions:
    """Load an ensemble inside a Ray job, and return its predictions.

    The first four parameters describe the ensemble. `job` has the arguments of `Ensemble.__call__`: a chunk of a table,
    its columns, and whether it has gold labels.
    """
    for reference in references:
        if os.path.isabs(reference):
            check_visible(Path(reference))
    return _ensemble(references, ignore_mismatched, choose_device(), name, language=language)(*job)


def predict_on_cpu(
    references: tuple[str, ...], ignore_mismatched: bool, name: str | None, language: str | None, *job: Any
) -> Predictions:
    """Load an ensemble in a process that computes on the CPU, and return its predictions.

    The parameters are those of `predict_on_ray`.
    """
    return _ensemble(references, ignore_mismatched, torch.device("cpu"), name, language=language)(*job)
