"""Self-training and distillation with unlabeled texts: a teacher labels them, and a student trains on them too.

In self-training (Yarowsky, 1995; Xie et al., 2020) the student learns the labels of texts about which the teacher is
confident; in distillation (Hinton et al., 2015) its probabilities for all texts. The teacher is trained on the labeled rows
and saved in OUT/intermediate/teacher; or it is another run, or an ensemble, for example of different prompts (Schick and
Schütze, 2021, PET). The student's training data is saved in OUT/intermediate/student.jsonl.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pretune.inference.teacher_labels import label_with_teachers, teacher_task
from pretune.objectives.distillation.distill_task_logits import TeacherTargets
from pretune.runtime.arrays import Array
from pretune.runtime.atomic_io import write_bytes
from pretune.runtime.errors import PretuneError, if_option
from pretune.runtime.output_paths import INTERMEDIATE
from pretune.runtime.progress import log_info
from pretune.text.corpus.files import file_format, find_files, read_lines
from pretune.text.examples.labeled import LabeledRows
from pretune.training.jobs.finetuning import FinetuningJob, TaskData, read_task_data
from pretune.training.run_folder import Run, finish_run, finished_run

Finetune = Callable[[FinetuningJob, TaskData, bool], Run]


def self_train(plan: FinetuningJob, finetune: Finetune, resume: bool = False) -> tuple[Run, TaskData]:
    """Label texts with a teacher, train a student on them by calling `finetune`, and return its run and examples."""
    assert plan.unlabeled is not None
    if not 0 < plan.confidence_threshold <= 1:
        raise PretuneError(
            f"--confidence-threshold {plan.confidence_threshold:g}: the threshold must be a probability between 0 and 1, for example 0.9"
        )
    if plan.distill_temperature is not None and not plan.distill_temperature > 0:
        raise PretuneError(
            f"--distill-temperature {plan.distill_temperature:g}: the temperature must be above 0; 1 leaves probabilities unchanged"
        )
    material = read_task_data(plan)
    rows, labels = material.rows, list(material.task.labels)
    if not material.task.classifies_texts or material.task.name != material.task.kind:
        raise PretuneError(
            f"{plan.objective}: unlabeled texts need a task with one label per text; choose the task 'classify' or 'prompt'"
        )
    if plan.teacher:
        teacher_task(plan.teacher, labels)
    columns = {role: name for role, name in rows.columns.items() if role != "label"}
    texts = read_texts(material.task, plan.unlabeled, columns)
    teacher = None if plan.teacher else train_teacher(plan, material, finetune, resume)
    cache = plan.out / INTERMEDIATE / "teacher-texts.npz"
    teachers = [str(teacher.folder)] if teacher else plan.teacher or ()
    probabilities = label_with_teachers(teachers, texts, labels, cache, ignore_mismatched=plan.ignore_mismatched)
    likely = [labels[number] for number in probabilities.argmax(-1)]
    soft = plan.distill_temperature is not None
    chosen = list(range(len(texts))) if soft else select_confident(plan, probabilities.max(-1), likely)
    file = plan.out / INTERMEDIATE / "student.jsonl"
    both = append_rows(rows, texts.take(chosen), [likely[row] for row in chosen], file)
    write_bytes(file, to_json_lines(both).encode())
    data = replace(material, rows=both)
    if plan.distill_temperature is not None:
        targets = np.concatenate([one_hot(rows.labels or [], labels), probabilities])
        data = replace(data, teacher_targets=TeacherTargets(targets, len(rows), plan.distill_temperature))
    student = finetune(plan, data, resume)
    counts = dict(Counter((both.labels or [])[len(rows) :]))
    results = {**student.results, "labeled": len(rows), "pseudo_labeled": counts}
    if teacher is not None:
        results |= {f"teacher/{name}": value for name, value in teacher.results.items() if name.startswith("dev/")}
    return finish_run(student.folder, results), data


def one_hot(labels: Sequence[str], classes: Sequence[str]) -> Array:
    """Return labels as one-hot vectors, (labels, classes), whose columns are the names in `classes`."""
    return np.eye(len(classes))[[classes.index(label) for label in labels]].reshape(-1, len(classes))


def train_teacher(plan: FinetuningJob, material: TaskData, finetune: Finetune, resume: bool) -> Run:
    """Train a teacher on the labeled examples `material` by calling `finetune`, and return its run.

    With `resume`, a teacher that is already trained is loaded instead.
    """
    folder = plan.out / INTERMEDIATE / "teacher"
    finished = finished_run(folder) if resume else None
    return finished or finetune(replace(plan, out=folder, unlabeled=None, distill_temperature=None), material, resume)


def select_confident(plan: FinetuningJob, certainty: Array, labels: Sequence[str]) -> list[int]:
    """Return the indices of the texts about whose label the teacher is confident, and log how many there are.

    `certainty`, (texts,), is the probability of each label; it must reach the job's --confidence-threshold.
    """
    chosen: list[int] = np.flatnonzero(certainty >= plan.confidence_threshold).tolist()
    if not chosen:
        raise PretuneError(
            f"{plan.unlabeled}: the teacher is confident about none of {len(labels)} texts (at most {certainty.max():.2f})"
            f"{if_option('confidence-threshold', '; lower --confidence-threshold')}"
        )
    counts = Counter(labels[row] for row in chosen)
    listed = ", ".join(f"{count} {label}" for label, count in sorted(counts.items()))
    log_info(f"{plan.unlabeled}: the teacher is confident about {len(chosen)} of {len(labels)} texts: {listed}")
    return chosen


def read_texts(task: Any, file: str | Path, columns: Mapping[str, str]) -> Any:
    """Read examples without labels from a table, or from a .txt file with one text per line."""
    (path,) = find_files(file)[:1]
    if file_format(path) != ".txt":
        return task.read(file, columns, answered=False)
    texts = {line: text for line, text in read_lines(path) if text.strip()}
    if not texts:
        raise PretuneError(f"{path}: there are no texts in this file; give a file with one text per line")
    return LabeledRows(path, {}, list(texts.values()), lines=list(texts))


def append_rows(rows: LabeledRows, more: LabeledRows, labels: list[Any], file: Path) -> LabeledRows:
    """Return labeled rows, followed by the rows `more` with the given labels; all get `file` as their file."""
    if len(rows) and (rows.pairs is None) != (more.pairs is None):
        raise PretuneError(
            f"{more.file}: labeled and unlabeled rows must both be single texts, or both pairs; give one kind"
        )
    pairs = None if more.pairs is None else [*(rows.pairs or []), *more.pairs]
    known, texts = rows.labels or [], rows.texts + more.texts
    return LabeledRows(file, rows.columns, texts, pairs, known + labels, lines=list(range(1, len(texts) + 1)))


def to_json_lines(rows: LabeledRows) -> str:
    """Return labeled rows as JSON lines, one line per row."""
    cells = {"text": rows.texts, "pair": rows.pairs, "label": rows.labels}
    named = {name: cells[role] or [] for role, name in rows.columns.items()}
    records = [dict(zip(named, row, strict=True)) for row in zip(*named.values(), strict=True)]
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
