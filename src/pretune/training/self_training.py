"""Self-training (Yarowsky, 1995; Xie et al., 2020): a teacher labels texts, and a student learns from those it is sure of too.

The teacher learns from the labeled rows alone and stands in OUT-teacher, beside the rows that the student learns from.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pretune.atomic import write_bytes
from pretune.errors import PretuneError
from pretune.inference.predict import Answerer, load_trained
from pretune.progress import say
from pretune.text.files import file_format, find_files, read_lines
from pretune.text.labeled import Labeled
from pretune.text.shots import draw_shots
from pretune.training.finetuning import Plan
from pretune.training.runs import Run, finish_run

STUDENT = "student.jsonl"  # what the student learns from
Finetune = Callable[[Plan, bool], Run]


def self_train(plan: Plan, unlabeled: str | Path, confident: float, finetune: Finetune, resume: bool = False) -> Run:
    """Train a teacher as planned, label texts of which it is at least so `confident`, and train a student on all."""
    if not 0 < confident <= 1:
        raise PretuneError(f"--confident {confident:g}: how sure a teacher must be is a probability, say 0.9")
    teacher_plan = replace(plan, out=plan.out.with_name(f"{plan.out.name}-teacher"))
    teacher = Run(teacher_plan.out) if resume and is_finished(teacher_plan.out) else finetune(teacher_plan, resume)
    model, task = load_trained(teacher.folder, plan.partial)
    rows = task.read(str(plan.train), plan.columns)
    if plan.shots is not None:
        rows = draw_shots(rows, plan.shots, plan.seed)
    texts = read_texts(task, unlabeled, {role: name for role, name in rows.columns.items() if role != "label"})
    answers = Answerer(model, task, texts)()
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
    chosen = texts.take(sure)
    lines = as_lines(rows, rows.labels, rows.columns)
    lines += as_lines(chosen, [answers[row]["label"] for row in sure], rows.columns)
    write_bytes(teacher.folder / STUDENT, ("\n".join(lines) + "\n").encode())
    student = finetune(replace(plan, train=str(teacher.folder / STUDENT), columns=rows.columns, shots=None), resume)
    judged = {f"teacher/{name}": value for name, value in teacher.results.items() if name.startswith("dev/")}
    return finish_run(student.folder, {**student.results, **judged, "labeled": len(rows), "taken": dict(counts)})


def read_texts(task: Any, file: str | Path, columns: Mapping[str, str]) -> Any:
    """Examples without labels: a table, or a .txt file with a text a line."""
    (path,) = find_files(file)[:1]
    if file_format(path) != ".txt":
        return task.read(file, columns, answered=False)
    found = [(line, text) for line, text in read_lines(path) if text.strip()]
    if not found:
        raise PretuneError(f"{path}: no texts in it")
    return Labeled(path, {}, [text for _, text in found], lines=[line for line, _ in found])


def as_lines(rows: Any, labels: Sequence[str], columns: Mapping[str, str]) -> list[str]:
    """Rows with labels, a JSON object each, in columns of these names."""
    cells = {"text": rows.texts, "pair": rows.pairs, "label": labels}
    named = {name: cells[role] for role, name in columns.items() if cells[role] is not None}
    return [
        json.dumps(dict(zip(named, row, strict=True)), ensure_ascii=False) for row in zip(*named.values(), strict=True)
    ]


def is_finished(folder: Path) -> bool:
    """Whether a run came to its end there."""
    try:
        return Run(folder).finished
    except PretuneError:
        return False
