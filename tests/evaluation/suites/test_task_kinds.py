"""Tests that every kind of task works in a suite: learned from official files, predicted, scored and submitted."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from tests.support.one_word_task import start
from tests.support.superglue_rows import SUPERGLUE, WORDS, lines

OPTIONS: dict[str, Any] = {
    "num_seeds": 1, "allow_incomplete": True, "budget": pt.Budget(steps=2), "batch": pt.Batching(size=8, max_length=32),
}  # fmt: skip


@pytest.mark.not_fast
def test_superglue_tasks_are_evaluated(tmp_path: Path) -> None:
    for name, rows in SUPERGLUE.items():
        (tmp_path / name).mkdir()
        for split in ("train", "val", "test"):
            (tmp_path / name / f"{split}.jsonl").write_text(lines(rows, hide=split == "test"))
    result = pt.evaluate(start() / "start", data=tmp_path, out=tmp_path / "out", suite="superglue", **OPTIONS)
    found = result.evaluation.means
    assert set(found) == {"copa", "multirc", "record", "wic", "wsc"}
    assert set(found["record"]) == {"gap_f1", "gap_exact"} and set(found["multirc"]) == {"f1a", "exact_questions"}
    assert all(0 <= value <= 1 for scores in found.values() for value in scores.values())
    with zipfile.ZipFile(tmp_path / "out" / "submission.zip") as archive:
        written = {name: archive.read(name).decode().splitlines() for name in archive.namelist()}
    assert set(written) == {f"{name}.jsonl" for name in SUPERGLUE}
    assert json.loads(written["WSC.jsonl"][0])["label"] in ("True", "False")
    assert json.loads(written["COPA.jsonl"][0])["label"] in (0, 1)
    assert json.loads(written["ReCoRD.jsonl"][0])["label"] in ("red", "blue")
    assert len(json.loads(written["MultiRC.jsonl"][0])["passage"]["questions"][0]["answers"]) == 2


def table(header: str, rows: list[str]) -> str:
    return "\n".join([header, *rows]) + "\n"


@pytest.mark.not_fast
@pytest.mark.parametrize(
    ("suite", "task", "files", "metric"),
    [
        (
            "glue",
            "sts-b",
            {
                f"STS-B/{split}.tsv": table("sentence1\tsentence2\tscore", [f"{w}\tstone\t{i}.5" for i, w in enumerate(WORDS[:5])])
                for split in ("train", "dev")
            },
            "spearman",
        ),
        (
            "text",
            "conll-2003",
            {f"CoNLL-2003/eng.{s}": "-DOCSTART- -X- O O\n\nred X Y I-PER\nstone X Y O\n\n" * 3 for s in ("train", "testa", "testb")},
            "entity_f1",
        ),
        (
            "squad",
            "squad-1.1",
            {
                f"{split}-v1.1.json": json.dumps(
                    {"data": [{"paragraphs": [{"context": "red stone", "qas": [
                        {"id": str(i), "question": "stone", "answers": [{"text": "red", "answer_start": 0}]} for i in range(4)
                    ]}]}]}
                )
                for split in ("train", "dev")
            },
            "answer_f1",
        ),
        (
            "xglue",
            "wpr",
            {
                f"WPR/xglue.wpr.{split}": "".join(f"q{q}\t{w}\tstone\t{i}\n" for q in "ab" for i, w in enumerate(WORDS[:4]))
                for split in ("en.train", "en.dev", "de.dev")
            },
            "ndcg",
        ),
    ],
    ids=["regress", "tag", "answer", "rank"],
)  # fmt: skip
def test_other_kinds_of_tasks_are_evaluated(
    suite: str, task: str, files: dict[str, str], metric: str, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    result = pt.evaluate(start() / "start", data=tmp_path, out=tmp_path / "out", suite=suite, tasks=[task], **OPTIONS)
    found = result.evaluation.means
    assert found and all(metric in scores for scores in found.values())
    if suite == "xglue":
        assert set(found) == {"wpr-en", "wpr-de"}  # trained in one language, evaluated in both
