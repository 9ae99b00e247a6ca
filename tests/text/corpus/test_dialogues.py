from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from pretune import PretuneError
from pretune.text.corpus.dialogues import read_dialogues


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_turns_have_given_or_alternating_roles(tmp_path: Path) -> None:
    turns = [{"role": "Q", "text": "how old are you"}, {"role": "r", "text": "8."}, {"role": "Response", "text": ""}]
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    file = write(tmp_path / "a.jsonl", {"id": 7, "turns": turns}, {"turns": ["a", "b", "c"]}, {"messages": messages})
    found = read_dialogues(file)
    assert found.texts == ["how old are you", "8.", "", "a", "b", "c", "hi", "hello"]
    assert found.roles == [0, 1, 1, 0, 1, 0, 0, 1] and found.counts == [3, 3, 2]
    some = found.take([2, 0])
    assert some.texts == ["hi", "hello", "how old are you", "8.", ""] and some.roles == [0, 1, 0, 1, 1]
    assert some.counts == [2, 3] and len(some) == 2 and found.take([]).texts == []
    both = read_dialogues([file, write(tmp_path / "b.jsonl", {"turns": ["x", "y"]})])
    assert both.counts == [3, 3, 2, 2] and both.distinct.tolist() == list(range(10))
    pyarrow.parquet.write_table(pyarrow.table({"turns": [turns]}), tmp_path / "a.parquet")
    assert read_dialogues(tmp_path / "a.parquet").roles == [0, 1, 1]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"text": "a"},
            r"a\.jsonl, line 1: no list of turns in the fields 'text'; pass a \.jsonl or \.parquet file with one dialogue",
        ),
        ({"turns": "a b"}, "line 1: no list of turns"),
        ({"turns": []}, "line 1: no list of turns"),
        ({"turns": [{"text": "a"}]}, 'line 1, turn 1: the turn has no "role"; set it to Q .* or use plain strings'),
        ({"turns": [{"role": "Q", "text": "a"}, {"text": "b"}]}, "line 1, turn 2: the turn has no"),
        (
            {"turns": ["a", {"role": "R", "text": "b"}]},
            "line 1, turn 2: the turns of a dialogue must be all plain strings, or all objects",
        ),
        ({"turns": ["a", 3]}, "line 1, turn 2: the turns of a dialogue must be all plain strings"),
        ({"turns": [{"role": "narrator", "text": "a"}]}, "turn 1: unknown role 'narrator'; set it to Q .* or R"),
        ({"turns": [{"role": "Q", "text": 5}]}, 'turn 1: the turn has no "text"; add its text as a string'),
    ],
)
def test_unreadable_rows_raise_errors(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(PretuneError, match=message):
        read_dialogues(write(tmp_path / "a.jsonl", row))


def test_files_without_dialogues_raise_errors(tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match="no dialogue files were given; pass"):
        read_dialogues([])
    with pytest.raises(PretuneError, match=r"a\.jsonl: the file contains no dialogues"):
        read_dialogues(write(tmp_path / "a.jsonl"))
    (tmp_path / "a.txt").write_text("a\nb\n", encoding="utf-8")
    with pytest.raises(PretuneError, match=r"a\.txt: this file format cannot hold dialogues; pass"):
        read_dialogues(tmp_path / "a.txt")
