"""Published files of SentEval and RuSentEval."""

from __future__ import annotations

from pathlib import Path

import pytest

from pretune import PretuneError
from pretune.probing.suites import load_suite

LINES = [
    f"{split}\t{label}\tthe {label} is here , {i} ."
    for i in range(20)
    for split in ("tr", "va", "te")
    for label in ("PAST", "PRES")
]


def test_a_folder_has_one_task_per_file_in_the_published_order(tmp_path: Path) -> None:
    for name in ("past_present", "sentence_length", "notes"):
        (tmp_path / f"{name}.txt").write_text("\ufeff" + "\r\n".join(LINES) + "\r\n\r\n", encoding="utf-8")
    tasks = load_suite("senteval", tmp_path)
    assert [(task.name, task.group) for task in tasks] == [
        ("sentence_length", "surface"),
        ("past_present", "semantics"),
    ]
    assert [len(tasks[0].part(split)) for split in ("train", "dev", "test")] == [40, 40, 40]  # type: ignore[arg-type]
    assert tasks[0].examples[0].text == "the PAST is here , 0 ."
    assert tasks[0].labels == ["PAST", "PRES"]


def test_further_columns_before_the_sentence_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "odd_man_out.txt").write_text(
        "\n".join(line.replace("\tthe", "\tmore\tthe") for line in LINES), encoding="utf-8"
    )
    [task] = load_suite("senteval", tmp_path / "odd_man_out.txt")
    assert task.examples[0].text == "the PAST is here , 0 ."


def test_a_missing_dev_set_is_drawn(tmp_path: Path) -> None:
    (tmp_path / "gapping.txt").write_text("\n".join(line for line in LINES if line[:2] != "va"), encoding="utf-8")
    [task] = load_suite("rusenteval", tmp_path)
    assert (task.name, task.group) == ("gapping", "syntax")
    assert (len(task.part("train")), len(task.part("dev")), len(task.part("test"))) == (36, 4, 40)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("tr\tPAST", "line 3: expected split, label and sentence, separated by tabs"),
        ("tr\tPAST\t ", "line 3: expected split, label and sentence"),
        ("train\tPAST\tit was", "line 3: the split is 'train', but must be tr, va or te"),
    ],
)
def test_broken_lines_are_refused(line: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "past_present.txt").write_text("\n".join([LINES[0], "", line, *LINES]), encoding="utf-8")
    with pytest.raises(PretuneError, match=problem):
        load_suite("senteval", tmp_path)


def test_a_task_with_one_label_is_refused(tmp_path: Path) -> None:
    (tmp_path / "past_present.txt").write_text(
        "\n".join(line.replace("PRES", "PAST") for line in LINES), encoding="utf-8"
    )
    with pytest.raises(
        PretuneError,
        match="the task 'past_present' cannot be probed, because all examples have the label 'PAST'",
    ):
        load_suite("senteval", tmp_path)


def test_a_folder_without_the_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("text", encoding="utf-8")
    with pytest.raises(PretuneError, match=r"none of the files of SentEval \(sentence_length\.txt, "):
        load_suite("senteval", tmp_path)
