"""Submissions to the servers of suites: a zip archive with one file per task, validated after it is written.

GLUE takes tables of index and prediction; SuperGLUE and Russian SuperGLUE take one JSON object per line, nested by question for
MultiRC and MuSeRC.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from pretune.evaluation.suites.declaration import Suite, SuiteTask
from pretune.runtime.atomic_io import write_bytes
from pretune.runtime.errors import PretuneError

Rows = Sequence[Mapping[str, Any]]
Answers = Sequence[Mapping[str, Any]]
DATE = (1980, 1, 1, 0, 0, 0)  # the same answers make the same zip
HEADER = "index\tprediction"


def write_submission(path: Path, suite: Suite, answered: Mapping[str, tuple[Rows, Answers]]) -> list[str]:
    """Write a submission archive to `path`, check it, and return the names of the tasks that it lacks.

    `answered` maps each task to the rows of its test split and the answers to them.
    """
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (rows, answers) in answered.items():
            task = suite.tasks[name]
            if not task.submission:
                raise PretuneError(
                    f"{suite.title} does not accept submissions of {task.title}; remove this task from the submission"
                )
            archive.writestr(zipfile.ZipInfo(task.submission["file"], DATE), submission_file(task, rows, answers))
    write_bytes(path, written.getvalue())
    missing = check_submission(path, suite, {name: len(rows) for name, (rows, _) in answered.items()})
    return missing


def submission_file(task: SuiteTask, rows: Rows, answers: Answers) -> str:
    """Return the text of a task's file in a submission: a .tsv table, or one JSON object per line."""
    if task.submission["file"].endswith(".tsv"):
        lines = [f"{number}\t{_cell(task, answer)}" for number, answer in enumerate(answers)]
        return "\n".join([HEADER, *lines]) + "\n"
    if task.format == "multirc":
        made = _nested(rows, answers)
    else:
        pairs = zip(rows, answers, strict=True)
        made = [{"idx": row.get("id", i), "label": _value(task, answer)} for i, (row, answer) in enumerate(pairs)]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in made)


def _cell(task: SuiteTask, answer: Mapping[str, Any]) -> str:
    """Return an answer as text for a submitted table: a label, or a number clipped to the range of the task."""
    if "value" not in answer:
        return str(answer["label"])
    low, high = task.submission.get("range", (-inf, inf))
    return f"{min(high, max(low, answer['value'])):.3f}"


def _value(task: SuiteTask, answer: Mapping[str, Any]) -> Any:
    """Return the answer to a row as a label in the spelling of the suite, for example True for "true"."""
    given = next(answer[key] for key in ("label", "choice", "answer") if key in answer)
    spelled = {str(label).lower(): label for label in task.submission.get("labels", ())}
    return spelled.get(str(given).lower(), given)


def _nested(rows: Rows, answers: Answers) -> list[dict[str, Any]]:
    """Return the answers to MultiRC as objects that are nested by passage and question, as its server expects."""
    passages: dict[Any, dict[Any, list[dict[str, Any]]]] = {}
    for row, answer in zip(rows, answers, strict=True):
        passage, question, number = row["id"]
        found = {"idx": number, "label": int(answer["label"])}
        passages.setdefault(passage, {}).setdefault(question, []).append(found)
    return [
        {"idx": p, "passage": {"questions": [{"idx": q, "answers": told} for q, told in questions.items()]}}
        for p, questions in passages.items()
    ]


# -- checking -------------------------------------------------------------------------------------------------------


def check_submission(path: str | Path, suite: Suite, counts: Mapping[str, int] | None = None) -> list[str]:
    """Check a submission archive: raise an error if it is invalid, and return the names of the tasks that it lacks.

    `counts` has the expected number of answers by task; by default, it is the number that the suite declares.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            inside = {name: archive.read(name) for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile) as error:
        raise PretuneError(f"{path}: the file is not a valid zip archive ({error}); write it again") from error
    expected = {task.submission["file"]: task for task in suite.tasks.values() if task.submission}
    for name in inside:
        if name not in expected:
            raise PretuneError(
                f"{path}: {suite.title} does not accept the file {name}; remove this file, or rename it to one of {', '.join(expected)}"
            )
    for name, content in inside.items():
        _check_file(f"{path}, {name}", expected[name], content, (counts or {}).get(expected[name].name))
    return [task.name for name, task in expected.items() if name not in inside]


def _check_file(where: str, task: SuiteTask, content: bytes, count: int | None) -> None:
    """Raise an error if a file of a submission has invalid lines or the wrong number of answers.

    `where` names the archive and the file in error messages. `count` is the expected number of answers; None stands for
    the number that the suite declares.
    """
    try:
        lines = content.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise PretuneError(f"{where}: the file is not valid UTF-8 ({error}); save it as UTF-8") from error
    check = _check_table if task.submission["file"].endswith(".tsv") else _check_objects
    found = check(where, task, lines)
    known = task.counts.get("test")
    wanted = [count] if count is not None else [known] if isinstance(known, int) else list(known or [])
    if wanted and found not in wanted:
        raise PretuneError(
            f"{where}: {found:,} answers instead of the {wanted[0]:,} of {task.title}'s test split; submit one answer per row"
        )


def _check_table(where: str, task: SuiteTask, lines: list[str]) -> int:
    """Raise an error if a line of a submitted table is invalid; return the number of answers.

    `where` names the archive and the file in error messages.
    """
    if not lines or lines[0] != HEADER:
        raise PretuneError(f"{where}, line 1: the header must be {HEADER!r}; write it as the first line")
    for number, line in enumerate(lines[1:]):
        index, _, label = line.partition("\t")
        if index != str(number):
            raise PretuneError(
                f"{where}, line {number + 2}: the index is {index!r} instead of {number}; number the rows from 0"
            )
        _check_label(f"{where}, line {number + 2}", task, label)
    return len(lines) - 1


def _check_objects(where: str, task: SuiteTask, lines: list[str]) -> int:
    """Raise an error if a submitted line is not a valid JSON object; return the number of answers.

    `where` names the archive and the file in error messages.
    """
    found = 0
    seen = set()
    for number, line in enumerate(lines, 1):
        place = f"{where}, line {number}"
        try:
            row = json.loads(line)
            if row["idx"] in seen:
                raise PretuneError(f"{place}: duplicate answer for idx {row['idx']}; keep only one answer")
            seen.add(row["idx"])
            if task.format == "multirc":
                labels = [a["label"] for question in row["passage"]["questions"] for a in question["answers"]]
            else:
                labels = [row["label"]]
        except (ValueError, KeyError, TypeError) as error:
            raise PretuneError(
                f"{place}: the line is not an answer with idx and label ({error!r}); correct the line"
            ) from error
        for label in labels:
            _check_label(place, task, label)
        found += len(labels)
    return found


def _check_label(where: str, task: SuiteTask, label: Any) -> None:
    """Raise an error if a submitted label is not in the range or list that the task declares.

    For a task that declares neither, any text is valid. `where` names the archive, the file and the line.
    """
    limits, labels = task.submission.get("range"), task.submission.get("labels")
    if limits:
        valid = _is_between(label, *limits)
    else:
        valid = label in labels if labels else isinstance(label, str) and bool(label.strip())
    if not valid:
        allowed = (
            f"a number from {limits[0]:g} to {limits[1]:g}" if limits else ", ".join(map(str, labels or ["any text"]))
        )
        raise PretuneError(f"{where}: {label!r} is not a valid label of {task.title}; give {allowed}")


def _is_between(label: Any, low: float, high: float) -> bool:
    try:
        return low <= float(label) <= high
    except ValueError:
        return False
