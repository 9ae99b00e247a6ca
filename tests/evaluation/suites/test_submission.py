"""Tests of submissions: the official files, and a check that finds what a server would reject."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pretune.evaluation.suites.declaration import Suite, find_suite
from pretune.evaluation.suites.submission import check_submission, write_submission
from pretune.runtime.errors import PretuneError


def full_test_set(suite: Suite, name: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return as many rows and predictions as the official test set has."""
    task = suite.tasks[name]
    count = task.counts["test"]
    labels = task.submission.get("labels") or task.submission.get("range", ["some name"])
    key = {"regress": "value", "choose": "choice", "entity": "answer"}.get(task.kind, "label")
    # Predictions use the labels of the training file, where true is not capitalized.
    predicted = [str(label).lower() if isinstance(label, str) and label.istitle() else label for label in labels]
    rows = [{"id": [i // 6, i // 3, i] if task.format == "multirc" else i} for i in range(count)]
    return rows, [{key: predicted[i % len(predicted)]} for i in range(count)]


@pytest.mark.parametrize("name", ["glue", "superglue", "russian-superglue"])
def test_complete_submission_passes(name: str, tmp_path: Path) -> None:
    suite = find_suite(name)
    small = [task for task in suite.tasks if suite.tasks[task].counts["test"] < 4000]
    path = tmp_path / "submission.zip"
    missing = write_submission(path, suite, {task: full_test_set(suite, task) for task in small})
    assert set(missing) == set(suite.tasks) - set(small) and check_submission(path, suite) == missing
    with zipfile.ZipFile(path) as archive:
        assert set(archive.namelist()) == {suite.tasks[task].submission["file"] for task in small}
    first = path.read_bytes()
    write_submission(path, suite, {task: full_test_set(suite, task) for task in small})
    assert path.read_bytes() == first


def content(suite: str, task: str, rows: list[Any], answers: list[Any], path: Path) -> list[str]:
    found = find_suite(suite)
    write_submission(path / "s.zip", found, {task: (rows, answers)})
    with zipfile.ZipFile(path / "s.zip") as archive:
        return archive.read(found.tasks[task].submission["file"]).decode().splitlines()


@pytest.mark.not_fast
def test_files_have_the_official_format(tmp_path: Path) -> None:
    answers: list[Any] = [{"label": "entailment"}, {"label": "not_entailment"}]
    assert content("glue", "rte", [{}, {}], answers, tmp_path) == [
        "index\tprediction", "0\tentailment", "1\tnot_entailment",
    ]  # fmt: skip
    assert content("glue", "sts-b", [{}, {}], [{"value": 2.34567}, {"value": 5.4}], tmp_path)[1:] == [
        "0\t2.346",
        "1\t5.000",
    ]
    rows = [{"id": 7}, {"id": 9}]
    lines = content("superglue", "boolq", rows, [{"label": "true"}, {"label": "false"}], tmp_path)
    assert [json.loads(line) for line in lines] == [{"idx": 7, "label": "true"}, {"idx": 9, "label": "false"}]
    assert json.loads(content("superglue", "wsc", [{"id": 0}], [{"label": "false"}], tmp_path)[0])["label"] == "False"
    assert content("superglue", "copa", [{"id": 0}], [{"choice": 1}], tmp_path) == ['{"idx": 0, "label": 1}']
    lines = content("russian-superglue", "rucos", [{"id": 3}], [{"answer": "Тверь"}], tmp_path)
    assert lines == ['{"idx": 3, "label": "Тверь"}']
    ids = [{"id": [0, 0, 0]}, {"id": [0, 0, 1]}, {"id": [0, 1, 2]}, {"id": [1, 2, 3]}]
    lines = content("superglue", "multirc", ids, [{"label": x} for x in ("1", "0", "0", "1")], tmp_path)
    first = [
        {"idx": 0, "answers": [{"idx": 0, "label": 1}, {"idx": 1, "label": 0}]},
        {"idx": 1, "answers": [{"idx": 2, "label": 0}]},
    ]
    assert json.loads(lines[0]) == {"idx": 0, "passage": {"questions": first}} and len(lines) == 2


@pytest.mark.parametrize(
    ("file", "written", "message"),
    [
        ("RTE.tsv", "index\tprediction\n0\tentailment\n", "1 answers instead of the 3,000 of RTE's test split"),
        ("RTE.tsv", "index\tprediction\n1\tentailment\n", "line 2: the index is '1' instead of 0"),
        ("RTE.tsv", "index\tprediction\n0\tmaybe\n", "line 2: 'maybe' is not a valid label of RTE"),
        ("RTE.tsv", "prediction\n", "the header must be"),
        ("STS-B.tsv", "index\tprediction\n0\t5.1\n", "'5.1' is not a valid label"),
        ("STS-B.tsv", "index\tprediction\n0\thigh\n", "'high' is not a valid label"),
        ("QNLI2.tsv", "", "GLUE does not accept the file QNLI2.tsv"),
    ],
)
def test_invalid_submissions_are_rejected(file: str, written: str, message: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "s.zip", "w") as archive:
        archive.writestr(file, written)
    with pytest.raises(PretuneError, match=message):
        check_submission(tmp_path / "s.zip", find_suite("glue"))


def test_json_submissions_are_checked(tmp_path: Path) -> None:
    for written, message in (
        (
            '{"idx": 0, "label": "entailment"}\n{"idx": 0, "label": "entailment"}\n',
            "duplicate answer for idx 0",
        ),
        ('{"label": "entailment"}\n', "not an answer with idx and label"),
        ('{"idx": 0, "label": 1}\n', "1 is not a valid label of CB"),
    ):
        with zipfile.ZipFile(tmp_path / "s.zip", "w") as archive:
            archive.writestr("CB.jsonl", written)
        with pytest.raises(PretuneError, match=message):
            check_submission(tmp_path / "s.zip", find_suite("superglue"))
    (tmp_path / "s.zip").write_bytes(b"no")
    with pytest.raises(PretuneError, match="not a zip file"):
        check_submission(tmp_path / "s.zip", find_suite("superglue"))
