"""Words in context, from tables and from the original files of WiC."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pretune import PretuneError
from pretune.probing.suites import load_suite

PAIRS = [(f"a bank {i}", f"the old bank {i}", i % 2 == 0) for i in range(40)]


def write_wic(folder: Path, split: str, rows: list[tuple[str, str, bool]]) -> None:
    lines = [f"bank\tN\t1-2\t{one}\t{two}" for one, two, _ in rows]
    (folder / f"{split}.data.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / f"{split}.gold.txt").write_text("".join("T\n" if same else "F\n" for *_, same in rows), encoding="utf-8")


def marked(example: Any) -> list[str]:
    (begin, end), (begin2, end2) = example.spans
    return [example.text[begin:end], example.pair[begin2:end2]]


def test_tables_are_read(tmp_path: Path) -> None:
    for split, rows in (("train", PAIRS[:30]), ("val", PAIRS[30:])):
        written = [{"word": "bank", "sentence1": one, "sentence2": two, "start1": 2, "end1": 6, "start2": 8, "end2": 12, "label": same} for one, two, same in rows]  # fmt: skip
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, written)), encoding="utf-8")
    [task] = load_suite("words-in-context", tmp_path)
    assert (task.name, task.labels) == ("words_in_context", ["false", "true"])
    assert len(task.part("test")) == 10  # the only held-out file
    assert len(task.part("dev")) + len(task.part("train")) == 30
    assert len(task.part("dev")) > 0
    assert all(marked(example) == ["bank", "bank"] for example in task.examples)


def test_original_files_are_read(tmp_path: Path) -> None:
    for split, rows in (("train", PAIRS[:20]), ("dev", PAIRS[20:30]), ("test", PAIRS[30:])):
        write_wic(tmp_path, split, rows)
    [task] = load_suite("words-in-context", tmp_path)
    assert [len(task.part(split)) for split in ("train", "dev", "test")] == [20, 10, 10]  # type: ignore[arg-type]
    assert all(marked(example) == ["bank", "bank"] for example in task.examples)
    assert {example.text: example.label for example in task.examples} == {
        one: str(same).lower() for one, _, same in PAIRS
    }
    [alone] = load_suite("words-in-context", tmp_path / "train.data.txt")
    assert len(alone.examples) == 20


@pytest.mark.parametrize(
    ("data", "gold", "problem"),
    [
        ("bank\tN\t1-2\ta bank", "T", "line 1: expected word, part of speech, two indices"),
        ("bank\tN\t1-x\ta bank\tthe old bank", "T", "line 1: expected word, part of speech, two indices"),
        ("bank\tN\t1-3\ta bank\tthe old bank", "T", "line 1: the index 3 is not one of the 3 words"),
        ("bank\tN\t1-2\ta bank\tthe old bank", "X", r"gold.txt, line 1: the label is 'X', but must be T or F"),
        ("bank\tN\t1-2\ta bank\tthe old bank", "T\nF", "2 labels for the 1 pairs"),
        ("bank\tN\t1-2\ta bank\tthe old bank", "T", "cannot be probed, because all examples have the label 'true'"),
    ],
)  # fmt: skip
def test_broken_files_are_refused(data: str, gold: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "a.data.txt").write_text(data, encoding="utf-8")
    (tmp_path / "a.gold.txt").write_text(gold, encoding="utf-8")
    with pytest.raises(PretuneError, match=problem):
        load_suite("words-in-context", tmp_path / "a.data.txt")


def test_folders_without_pairs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("text", encoding="utf-8")
    with pytest.raises(PretuneError, match="neither tables nor files that end with"):
        load_suite("words-in-context", tmp_path)
