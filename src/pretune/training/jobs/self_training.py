"""Texts without labels: a teacher labels them, and a student learns from these too.

In self-training (Yarowsky, 1995; Xie et al., 2020) the student learns the labels of texts that the teacher is sure of; in
distillation (Hinton et al., 2015) its probabilities for all of them. The teacher learns from the labeled rows alone and is kept in
OUT/intermediate/teacher; or it is another run, or several together, say of different prompts (Schick and Schütze, 2021, PET). What
the student learns from is kept in OUT/intermediate/student.jsonl.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pretune.inference.teacher_labels import Array, ask, teachers_task
from pretune.objectives.distillation.distill_logits import Teaching
from pretune.runtime.atomic_io import write_bytes
from pretune.runtime.errors import PretuneError, if_option
from pretune.runtime.output_paths import INTERMEDIATE
from pretune.runtime.progress import say
from pretune.text.corpus.files import file_format, find_files, read_lines
from pretune.text.examples.labeled import Labeled
from pretune.training.jobs.finetuning import Material, Plan, read_material
from pretune.training.run_folder import Run, finish_run

Finetune = Callable[[Plan, Material, bool], Run]


def self_train(plan: Plan, finetune: Finetune, resume: bool = False) -> tuple[Run, Material]:
    """Let a teacher label texts as planned, and train a student on all.

    The student, and what it learned from: it is judged by the same examples as its teacher.
    """
    assert plan.unlabeled is not None
    if not 0 < plan.confident <= 1:
        raise PretuneError(f"--confident {plan.confident:g}: how sure a teacher must be is a probability, say 0.9")
    if plan.soft is not None and not plan.soft > 0:
        raise PretuneError(f"--soft {plan.soft:g}: a temperature is above 0; 1 leaves probabilities as they are")
    material = read_material(plan)
    rows, labels = material.rows, list(material.task.labels)
    if material.task.name not in ("classify", "prompt") or material.task.multi:
        raise PretuneError(
            f"{plan.objective}: texts are labeled by tasks whose answers are one label each: classify, prompt"
        )
    if plan.teacher:
        teachers_task(plan.teacher, labels)
    columns = {role: name for role, name in rows.columns.items() if role != "label"}
    texts = read_texts(material.task, plan.unlabeled, columns)
    teacher = None if plan.teacher else train_teacher(plan, material, finetune, resume)
    cache = plan.out / INTERMEDIATE / "teacher-texts.npz"
    given = ask([str(teacher.folder)] if teacher else plan.teacher or (), texts, labels, cache, partial=plan.partial)
    likely = [labels[number] for number in given.argmax(-1)]
    chosen = list(range(len(texts))) if plan.soft is not None else sure_of(plan, given.max(-1), likely)
    file = plan.out / INTERMEDIATE / "student.jsonl"
    both = joined(rows, texts.take(chosen), [likely[row] for row in chosen], file)
    write_bytes(file, ("\n".join(as_lines(both)) + "\n").encode())
    taught = replace(material, rows=both)
    if plan.soft is not None:
        known = np.eye(len(labels))[[labels.index(label) for label in rows.labels or []]]
        taught = replace(taught, teaching=Teaching(np.concatenate([known, given]), len(rows), plan.soft))
    student = finetune(plan, taught, resume)
    results = {**student.results, "labeled": len(rows), "taken": dict(Counter((both.labels or [])[len(rows) :]))}
    if teacher is not None:
        results |= {f"teacher/{name}": value for name, value in teacher.results.items() if name.startswith("dev/")}
    return finish_run(student.folder, results), taught


def train_teacher(plan: Plan, material: Material, finetune: Finetune, resume: bool) -> Run:
    """A run with the labeled rows alone; one that is finished is taken when a student goes on."""
    folder = plan.out / INTERMEDIATE / "teacher"
    if resume and is_finished(folder):
        return Run(folder)
    return finetune(replace(plan, out=folder, unlabeled=None, soft=None), material, resume)


def sure_of(plan: Plan, certainty: Array, labels: Sequence[str]) -> list[int]:
    """The texts of which a teacher is sure enough; says how many."""
    sure: list[int] = np.flatnonzero(certainty >= plan.confident).tolist()
    if not sure:
        raise PretuneError(
            f"{plan.unlabeled}: the teacher is sure of none of {len(labels)} texts ({certainty.max():.2f} at most)"
            f"{if_option('confident', '; lower --confident')}"
        )
    counts = Counter(labels[row] for row in sure)
    say(
        f"{plan.unlabeled}: the teacher is sure of {len(sure)} of {len(labels)} texts: "
        + ", ".join(f"{count} {label}" for label, count in sorted(counts.items()))
    )
    return sure


def read_texts(task: Any, file: str | Path, columns: Mapping[str, str]) -> Any:
    """Examples without labels: a table, or a .txt file with a text a line."""
    (path,) = find_files(file)[:1]
    if file_format(path) != ".txt":
        return task.read(file, columns, answered=False)
    found = [(line, text) for line, text in read_lines(path) if text.strip()]
    if not found:
        raise PretuneError(f"{path}: no texts in it")
    return Labeled(path, {}, [text for _, text in found], lines=[line for line, _ in found])


def joined(rows: Labeled, more: Labeled, labels: list[Any], file: Path) -> Labeled:
    """Labeled rows, or none, then others with these labels, as those of one file."""
    if len(rows) and (rows.pairs is None) != (more.pairs is None):
        raise PretuneError(f"{more.file}: labeled and unlabeled rows must both be single texts, or both pairs")
    pairs = None if more.pairs is None else [*(rows.pairs or []), *more.pairs]
    known, texts = rows.labels or [], rows.texts + more.texts
    return Labeled(file, rows.columns, texts, pairs, known + labels, list(range(1, len(texts) + 1)))


def as_lines(rows: Labeled) -> list[str]:
    """Rows with labels, a JSON object each."""
    cells = {"text": rows.texts, "pair": rows.pairs, "label": rows.labels}
    named = {name: cells[role] or [] for role, name in rows.columns.items()}
    return [
        json.dumps(dict(zip(named, row, strict=True)), ensure_ascii=False) for row in zip(*named.values(), strict=True)
    ]


def is_finished(folder: Path) -> bool:
    """Whether a run came to its end there."""
    try:
        return Run(folder).finished
    except PretuneError:
        return False
