"""Self-training (Yarowsky, 1995; Xie et al., 2020): a teacher labels texts, and a student learns from those it is sure of too.

The teacher learns from the labeled rows alone and stands in OUT-teacher, beside the rows that the student learns from.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pretune.atomic import write_bytes
from pretune.errors import PretuneError
from pretune.inference.predict import Answerer, load_trained
from pretune.progress import say
from pretune.text.files import file_format, find_files, read_lines
from pretune.text.labeled import Labeled
from pretune.training.finetuning import Material, Plan, read_material
from pretune.training.runs import Run, finish_run

STUDENT = "student.jsonl"  # what the student learns from
Finetune = Callable[[Plan, Material, bool], Run]


def self_train(plan: Plan, finetune: Finetune, resume: bool = False) -> tuple[Run, Material]:
    """Train a teacher as planned, label the texts of which it is confident, and train a student on all.

    The student, and what it learned from: it is judged by the same examples.
    """
    unlabeled, confident = plan.unlabeled, plan.confident
    assert unlabeled is not None
    if not 0 < confident <= 1:
        raise PretuneError(f"--confident {confident:g}: how sure a teacher must be is a probability, say 0.9")
    material = read_material(plan)
    folder = plan.out.with_name(f"{plan.out.name}-teacher")
    teacher = (
        Run(folder)
        if resume and is_finished(folder)
        else finetune(replace(plan, out=folder, unlabeled=None), material, resume)
    )
    model, task = load_trained(teacher.folder, plan.partial)
    rows = material.rows
    texts = read_texts(task, unlabeled, {role: name for role, name in rows.columns.items() if role != "label"})
    answers = Answerer(model, task, texts).say_cut()()
    if not {"label", "probability"} <= answers[0].keys():
        raise PretuneError(f"{task.name}: self-training takes a task whose answers are labels with probabilities")
    sure = [row for row, answer in enumerate(answers) if answer["probability"] >= confident]
    counts = Counter(answers[row]["label"] for row in sure)
    if not sure:
        best = max(answer["probability"] for answer in answers)
        raise PretuneError(
            f"{unlabeled}: the teacher is sure of none of {len(texts)} texts ({best:.2f} at most); lower --confident"
        )
    say(
        f"{unlabeled}: the teacher is sure of {len(sure)} of {len(texts)} texts: "
        + ", ".join(f"{count} {label}" for label, count in sorted(counts.items()))
    )
    both = joined(rows, texts.take(sure), [answers[row]["label"] for row in sure], teacher.folder / STUDENT)
    write_bytes(both.file, ("\n".join(as_lines(both)) + "\n").encode())
    student = finetune(plan, replace(material, rows=both), resume)
    judged = {f"teacher/{name}": value for name, value in teacher.results.items() if name.startswith("dev/")}
    results = {**student.results, **judged, "labeled": len(rows), "taken": dict(counts)}
    return finish_run(student.folder, results), replace(material, rows=both)


def read_texts(task: Any, file: str | Path, columns: Mapping[str, str]) -> Any:
    """Examples without labels: a table, or a .txt file with a text a line."""
    (path,) = find_files(file)[:1]
    if file_format(path) != ".txt":
        return task.read(file, columns, answered=False)
    found = [(line, text) for line, text in read_lines(path) if text.strip()]
    if not found:
        raise PretuneError(f"{path}: no texts in it")
    return Labeled(path, {}, [text for _, text in found], lines=[line for line, _ in found])


def joined(rows: Labeled, more: Labeled, labels: list[str], file: Path) -> Labeled:
    """Labeled rows, then others with these labels, as those of one file."""
    if (rows.pairs is None) != (more.pairs is None):
        raise PretuneError(f"{more.file}: labeled and unlabeled rows must both be single texts, or both pairs")
    pairs = None if rows.pairs is None or more.pairs is None else rows.pairs + more.pairs
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
