"""Self-training: what the teacher is sure of, the student learns too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pretune as pt
from tiny import read, tiny, tune


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("self")
    words = ["film", "book", "song", "play"]
    rows = [
        (f"{'lovely' if i % 2 else 'awful'} {words[i // 2 % 4]} {i % 7}", "yes" if i % 2 else "no") for i in range(40)
    ]
    lines = [f"{text},{label}" for text, label in rows]
    (folder / "train.csv").write_text("\n".join(["sentence,label", *lines]), encoding="utf-8")
    (folder / "more.csv").write_text("\n".join(["sentence", *(f"{t} 8" for t, _ in rows)]), encoding="utf-8")
    (folder / "more.txt").write_text("\n".join(f"{t} 8" for t, _ in rows) + "\n\n", encoding="utf-8")
    tiny("bert-tiny", read(lines * 2), folder / "start")
    return folder


@pytest.mark.parametrize("file", ["more.csv", "more.txt"])
def test_a_student_learns_from_what_its_teacher_is_sure_of(file: str, material: Path, tmp_path: Path) -> None:
    run = tune(
        material / "start", material / "train.csv", tmp_path / "run", "classify(pooling=mean)", steps=20,
        shots=5, unlabeled=material / file, confident=0.7,
    )  # fmt: skip
    results = run.results
    assert results["labeled"] == 10 and results["rows"] == 10 + sum(results["taken"].values()) > 30
    assert results["dev/accuracy"] >= 0.9 and results["teacher/dev/accuracy"] > 0.5
    teacher = pt.Run(tmp_path / "run-teacher")
    lines = [json.loads(line) for line in (teacher.folder / "student.jsonl").read_text().splitlines()]
    sure = teacher.predict([line["sentence"] for line in lines[10:]])
    assert all(
        a["probability"] >= 0.7 and a["label"] == line["label"] for a, line in zip(sure, lines[10:], strict=True)
    )
    assert run.recipe["unlabeled"] == str(material / file) and teacher.results["rows"] == 10


def test_what_cannot_be_is_refused(material: Path, tmp_path: Path) -> None:
    def train(**options: object) -> pt.Run:
        return tune(material / "start", material / "train.csv", tmp_path / "run", "classify", steps=1, **options)

    with pytest.raises(pt.PretuneError, match="how sure a teacher must be is a probability"):
        train(unlabeled=material / "more.csv", confident=1.5)
    with pytest.raises(pt.PretuneError, match=r"sure of none of 40 texts \(0\.\d\d at most\); lower --confident"):
        train(unlabeled=material / "more.csv", confident=1.0)
    assert not (tmp_path / "run").exists()
