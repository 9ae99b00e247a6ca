"""Teacher labels for distillation: predictions of teacher models for texts, computed once and cached on disk."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pretune.inference.ensemble import predict_excerpts, shared_task
from pretune.inference.predict import texts_as_excerpt
from pretune.models.name_resolution import find_folder
from pretune.objectives import OBJECTIVES, Task, task_names
from pretune.runtime.arrays import Array
from pretune.runtime.atomic_io import write_bytes
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import log_info, progress
from pretune.runtime.ray_jobs import Executor
from pretune.text.examples.labeled import LabeledRows

EXCERPT_ROWS = 1024  # texts per excerpt


def teacher_task(teachers: Sequence[str], labels: Sequence[str] | None = None) -> Task:
    """Return the task that all teachers share.

    Raise an error if the task cannot be distilled, or if its labels are not the given `labels`.
    """
    task = shared_task(teachers)
    known = list(task.labels)
    if not task.distillable or task.name != task.kind or task.multi_label:
        known_tasks = ", ".join(name for name in task_names() if OBJECTIVES[name].distillable)
        raise PretuneError(
            f"{teachers[0]}: this teacher's task, {task.name}, cannot be distilled from texts; choose a teacher for "
            f"one of the tasks {known_tasks}, with one label per text"
        )
    if labels is not None and set(known) != set(labels):
        raise PretuneError(
            f"{teachers[0]}: the teacher has the labels {', '.join(known) or '(none)'}, and the rows have "
            f"{', '.join(labels) or '(none)'}; give rows with the teacher's labels"
        )
    return task


def label_with_teachers(
    teachers: Sequence[str],
    rows: LabeledRows,
    labels: Sequence[str],
    cache: Path,
    processes: int = 1,
    executor: Executor = "local",
    ignore_mismatched: bool = False,
) -> Array:
    """Return the predictions of teachers for rows, averaged over the teachers.

    Predictions are probabilities, (rows, labels), or numbers or texts, (rows, 1), if the task has no labels. They are
    read from the file `cache` if it belongs to the same teachers, rows and labels, and otherwise computed and written
    to it.
    """
    digest = teacher_fingerprint(teachers, rows, labels)
    if cache.is_file():
        with np.load(cache) as kept:
            if str(kept["digest"]) == digest:
                log_info(f"{cache}: using the cached teacher predictions for {len(rows)} texts")
                return np.asarray(kept["shares"])
    found: list[list[Any]] = []
    parts = [
        rows.take(range(first, min(first + EXCERPT_ROWS, len(rows)))) for first in range(0, len(rows), EXCERPT_ROWS)
    ]
    excerpts = [texts_as_excerpt(part.texts, part.pairs) for part in parts]
    columns = {"text": "text"} if rows.pairs is None else {"text": "text", "pair": "pair"}
    with progress("asking the teacher", len(rows)) as bar:
        predicted = predict_excerpts(
            teachers,
            excerpts,
            columns,
            processes=processes,
            executor=executor,
            ignore_mismatched=ignore_mismatched,
            quick=True,
        )
        for _, answers in predicted:
            found += [training_target(answer, labels) for answer in answers.combined]
            bar.update(len(found), f"{len(found):,} texts")
    shares = np.array(found)
    written = io.BytesIO()
    np.savez(written, shares=shares, digest=np.array(digest))
    write_bytes(cache, written.getvalue())
    return shares


def training_target(answer: Mapping[str, Any], labels: Sequence[str]) -> list[Any]:
    """Return a teacher's prediction as training target: probabilities in the order of `labels`, a number, or a text."""
    if labels:
        return [answer["probabilities"][label] for label in labels]
    return [answer["value"] if "value" in answer else answer["answer"]]


def teacher_fingerprint(teachers: Sequence[str], rows: LabeledRows, labels: Sequence[str]) -> str:
    """Return a hash of everything that the teachers' predictions depend on: labels, texts, and model files."""
    found = hashlib.sha256(json.dumps([list(labels), rows.texts, rows.pairs]).encode())
    for teacher in teachers:
        for file in sorted(find_folder(teacher).iterdir()):
            if file.is_file() and file.suffix in (".safetensors", ".onnx", ".json") and file.name != "results.json":
                found.update(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}".encode())
    return found.hexdigest()
