"""Tests of `pretune label`: the dialog in the terminal, the round trip of a table, resuming, and odd input."""

from __future__ import annotations

import csv
import fcntl
import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pretune as pt
from pretune import PretuneError
from pretune.models.open_model import OpenModel
from pretune.runtime.locks import lock_file
from pretune.training.jobs import labeling
from pretune.training.jobs.labeling import LabelingSession, answer_keys, label_in_terminal
from tests.support.cli import COMMAND, run_command
from tests.support.one_word_task import start

LABELS = ["yes", "no"]
WORDS = ["red", "blue", "green", "yellow", "stone", "water", "fire", "cloud", "tree", "bird"]
TEXTS = [f"{'good' if i % 2 else 'bad'} {a} {b}" for i, (a, b) in enumerate((a, b) for a in WORDS for b in WORDS[:4])]


def oracle(text: str) -> str:
    return "yes" if text.startswith("good") else "no"


def options(folder: Path, **more: Any) -> dict[str, Any]:
    return {"labels": LABELS, "model": start() / "start", "out": folder / "labeled.csv", "batch_size": 6, **more}


def session(folder: Path, labels: list[str] = LABELS, texts: list[str] = TEXTS) -> LabelingSession:
    return LabelingSession(texts, labels, folder / "labeled.csv", OpenModel(start() / "start"))


def read_rows(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def write_rows(file: Path, rows: list[dict[str, str]]) -> None:
    with file.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.DictWriter(lines, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def typing(*lines: str) -> Callable[[], str]:
    """Return a function that returns these lines one by one, then "" as at the end of the input."""
    left = iter(lines)
    return lambda: next(left, "")


# -- terminal -----------------------------------------------------------------------------------------------------------


def test_answers_are_typed_skipped_and_undone(tmp_path: Path) -> None:
    shown: list[str] = []
    work = session(tmp_path)
    rows = work.propose(6)
    label_in_terminal(
        work, 6, typing("1\n", "NO\n", "what\n", "s\n", "u\n", "2\n", "u\n", "u\n", "2\n", "q\n"), shown.append
    )
    # 1: yes; NO: no; what: refused; s and u: nothing; 2: no; u, u: the last two are taken back; 2: no
    assert work.answers == {rows[0]: "yes", rows[1]: "no"} and work.skipped == []
    assert [row["label"] for row in read_rows(tmp_path / "labeled.csv")] == ["yes", "no"]
    assert any("'what' is not an answer; type 1, 2, s, u or q." in line for line in shown)
    assert any("1 yes  2 no" in line and "suggestion: " in line for line in shown)


def test_undo_of_everything_leaves_no_table(tmp_path: Path) -> None:
    shown: list[str] = []
    label_in_terminal(session(tmp_path), 3, typing("1\n", "u\n", "u\n"), shown.append)
    assert not (tmp_path / "labeled.csv").exists() and "There is no answer to undo." in shown
    assert session(tmp_path).answers == {}


def test_labeling_ends_with_the_texts_and_shows_the_curve(tmp_path: Path) -> None:
    shown: list[str] = []
    work = session(tmp_path)

    def type_the_truth() -> str:
        (text,) = [line.partition("]  ")[2] for line in shown if line.startswith("\n[")][-1:]
        return oracle(text) + "\n"

    label_in_terminal(work, 10, type_the_truth, shown.append)
    assert work.answers == {row: oracle(text) for row, text in enumerate(TEXTS)}
    assert shown[-1] == "All texts are labeled or skipped." and any("±" in line and "█" in line for line in shown)
    saved = json.loads((tmp_path / "labeled.json").read_text())
    assert saved["labels"] == LABELS and saved["learning_curve"][-1]["tested"] >= 5
    assert work.summary()["next"].startswith("pretune finetune ") and work.summary()["remaining"] == 0


def test_numeric_labels_are_typed_as_they_are() -> None:
    assert answer_keys(["0", "1"]) == {"0": "0", "1": "1"}
    assert answer_keys(["s", "q"]) == {"1": "s", "2": "q"}


def test_terminal_shows_no_control_characters(tmp_path: Path) -> None:
    shown: list[str] = []
    label_in_terminal(session(tmp_path, texts=["a \x1b[31m text", "b"]), 2, typing(), shown.append)
    assert "\x1b" not in "".join(shown)


@pytest.mark.end_to_end
def test_a_killed_session_loses_no_answer(tmp_path: Path) -> None:
    """The command in a real terminal is killed while it waits for the fourth answer; the next session goes on."""
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    out, progress = tmp_path / "labeled.csv", tmp_path / "labeled.json"
    ours, theirs = pty.openpty()
    words = ["label", tmp_path / "texts.txt", "--model", start() / "start", "--out", out, "--labels", *LABELS]
    with subprocess.Popen([*COMMAND, *map(str, words)], stdin=theirs, stderr=subprocess.DEVNULL) as process:
        os.write(ours, b"1\n2\ns\n")
        while not progress.is_file() or not json.loads(progress.read_text())["skipped"]:
            assert process.poll() is None, "the command ended before it was killed"
            time.sleep(0.1)
        process.kill()
    os.close(ours)
    os.close(theirs)
    work = session(tmp_path)
    assert list(work.answers.values()) == ["yes", "no"] and len(work.skipped) == 1
    assert not {*work.propose(6)} & {*work.answers, *work.skipped}


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that sets what is typed in the terminal."""

    def set_lines(*lines: str | type[BaseException]) -> None:
        left: Iterator[Any] = iter(lines)

        def readline() -> str:
            line = next(left, "")
            if isinstance(line, str):
                return line
            raise line

        monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True, readline=readline))

    return set_lines


def test_command_asks_in_the_terminal_and_resumes(
    tmp_path: Path, terminal: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    words = ["label", tmp_path / "texts.txt", "--model", start() / "start", "--out", tmp_path / "labeled.csv", "--json"]
    terminal("yes\n", "no\n", KeyboardInterrupt)  # Ctrl-C keeps the answers
    assert run_command(*words, "--labels", *LABELS).json()["labeled"] == 2
    embedded: list[int] = []
    monkeypatch.setattr(labeling, "embed_texts", lambda *a, **k: embedded.append(1))
    terminal("1\n", "q\n")
    result = run_command(*words)  # with the labels of the last session
    assert result.json()["labeled"] == 3 and result.json()["per_label"] == {"yes": 2, "no": 1}
    assert not embedded, "embeddings are read from the file"
    assert "2 labeled" in result.stderr
    assert result.json()["next"].startswith("pretune finetune ")


# -- table --------------------------------------------------------------------------------------------------------------


def test_round_trip_of_a_table(tmp_path: Path) -> None:
    ask = tmp_path / "ask.csv"
    found = pt.label(TEXTS, **options(tmp_path), to=ask)
    rows = read_rows(ask)
    assert list(rows[0]) == ["text", "label", "suggestion", "probability"] and not any(row["label"] for row in rows)
    assert [row["text"] for row in rows] == [row["text"] for row in found] and len(rows) == 6
    for row in rows[:5]:
        row |= {"label": oracle(row["text"]), "text": f" {row['text']}\r\n"}  # as spreadsheets do
    write_rows(ask, rows)
    with pytest.raises(PretuneError, match=r"ask.csv: the file has 5 labels that were not read \(line .*--answers"):
        pt.label(TEXTS, **options(tmp_path), to=ask)
    following = pt.label(TEXTS, **options(tmp_path), answers=ask, to=ask)
    labeled = read_rows(tmp_path / "labeled.csv")
    assert [(row["text"], row["label"]) for row in labeled] == [(row["text"], oracle(row["text"])) for row in found[:5]]
    assert not {row["text"] for row in following} & {row["text"] for row in labeled}
    assert following.facts["labeled"] == 5 and following.facts["remaining"] == len(TEXTS) - 5


def test_python_loop_reaches_the_end(tmp_path: Path) -> None:
    answers = None
    for _ in range(10):
        asked = pt.label(TEXTS, **options(tmp_path), answers=answers, to=tmp_path / "ask.csv")
        answers = [{"text": row["text"], "label": oracle(row["text"])} for row in asked]
        if not answers:
            break
    assert asked.facts["labeled"] == len(TEXTS) and asked.facts["learning_curve"][-1]["accuracy"] > 0.5
    assert len(asked) == 0


def test_a_later_answer_replaces_an_earlier_one(tmp_path: Path) -> None:
    pt.label(TEXTS, **options(tmp_path), answers=[{"text": TEXTS[0], "label": "yes"}])
    found = pt.label(TEXTS, **options(tmp_path), answers=[{"text": TEXTS[0], "label": "no"}])
    assert found.facts["labeled"] == 1 and found.facts["per_label"] == {"yes": 0, "no": 1}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": TEXTS[0], "label": "yess"}], r"line 2: 'yess' is not one of the labels; did you mean 'yes'\?"),
        ([{"text": "changed", "label": "no"}], r"line 2: the text 'changed' is not among the texts to label; restore"),
        (
            [{"text": TEXTS[0], "label": ""}] * 2,
            r"no row has a label; fill in the column \"label\" with one of: yes, no",
        ),
        ([{"text": TEXTS[0], "label": label} for label in LABELS], r"line 3: the text has two labels, yes and no"),
        ([{"text": TEXTS[0], "other": "x"}], r"no column 'label' for the label"),
    ],
)
def test_bad_answers_are_one_clear_line_and_change_nothing(
    tmp_path: Path, rows: list[dict[str, str]], message: str
) -> None:
    pt.label(TEXTS, **options(tmp_path), answers=[{"text": TEXTS[1], "label": "yes"}])
    before = (tmp_path / "labeled.csv").read_bytes()
    write_rows(tmp_path / "ask.csv", rows)
    with pytest.raises(PretuneError, match=message):
        pt.label(TEXTS, **options(tmp_path), answers=tmp_path / "ask.csv")
    assert (tmp_path / "labeled.csv").read_bytes() == before


def test_labels_from_elsewhere_count(tmp_path: Path) -> None:
    """Rows that --out already has are examples, also those whose texts are not in the input."""
    write_rows(tmp_path / "labeled.csv", [{"text": "a good one", "label": "yes"}, {"text": TEXTS[0], "label": "no"}])
    work = session(tmp_path)
    assert len(work.texts) == len(TEXTS) + 1 and sorted(work.answers.values()) == LABELS[::-1]
    with pytest.raises(PretuneError, match=r"labeled.csv, line 3: 'no' is not one of --labels; known: maybe, yes"):
        session(tmp_path, ["yes", "maybe"])


def test_two_sessions_cannot_write_to_one_table(tmp_path: Path) -> None:
    """Each would overwrite the labels of the other."""
    lock = lock_file(tmp_path / "labeled.csv")
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(PretuneError, match=r"labeled.csv: another process is writing here; wait until it ends"):
            pt.label(TEXTS, **options(tmp_path), to=tmp_path / "ask.csv")


# -- odd input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "change", "message"),
    [
        (TEXTS, {"labels": ["yes"]}, "there is only one label, 'yes'; name two or more"),
        (TEXTS, {"labels": []}, "there are no labels to choose from; name two or more"),
        (TEXTS, {"labels": ["yes", "yes"]}, "the label 'yes' is given twice"),
        (TEXTS, {"labels": ["yes", " "]}, "a label is blank"),
        (TEXTS, {"batch_size": 0}, "--batch-size 0: at least one text"),
        ([" ", ""], {}, "all texts are blank; give a file with texts"),
        (TEXTS, {"out": "labeled.txt"}, "unsupported output format"),
        (TEXTS, {"to": "labeled.csv", "out": "labeled.csv"}, "--to and --out are the same file"),
    ],
)
def test_odd_options_are_refused(
    texts: list[str], change: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PretuneError, match=message):
        pt.label(texts, **{**options(tmp_path, to="ask.csv"), **change})


def test_odd_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(PretuneError, match="the file is empty"):
        pt.label(tmp_path / "empty.txt", **options(tmp_path), to=tmp_path / "ask.csv")
    (tmp_path / "texts.csv").write_text("text\na\nb\n")
    with pytest.raises(PretuneError, match="an input file cannot also be an output"):
        pt.label(tmp_path / "texts.csv", **options(tmp_path), to=tmp_path / "texts.csv")
    (tmp_path / "labeled.json").write_text('{"labels": 3}')
    with pytest.raises(PretuneError, match=r"labeled.json: .*; delete this file to continue"):
        pt.label(tmp_path / "texts.csv", **options(tmp_path), to=tmp_path / "ask.csv")


def test_input_that_is_not_a_terminal_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: False))
    with pytest.raises(PretuneError, match="the input is not a terminal; write texts to a table with --to"):
        pt.label(TEXTS, **options(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("texts", [["one text"] * 5, ["?", "?!", "…"]], ids=["equal", "no words"])
def test_few_different_texts_are_proposed_once(texts: list[str], tmp_path: Path) -> None:
    asked = pt.label(texts, **options(tmp_path), to=tmp_path / "ask.csv")
    assert sorted(row["text"] for row in asked) == sorted(set(texts))
    done = pt.label(texts, **options(tmp_path), answers=[{"text": texts[0], "label": "no"}])
    assert done.facts["labeled"] == 1 and "next" not in done.facts


def test_damaged_embeddings_are_computed_again(tmp_path: Path) -> None:
    first = pt.label(TEXTS, **options(tmp_path), to=tmp_path / "ask.csv")
    file = tmp_path / "labeled.embeddings.safetensors"
    good = file.read_bytes()
    file.write_bytes(good[:-5])
    assert pt.label(TEXTS, **options(tmp_path), to=tmp_path / "ask.csv").rows == first.rows
    assert file.read_bytes() == good
