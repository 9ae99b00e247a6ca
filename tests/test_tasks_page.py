"""The commands of docs/tasks.md run, and every section is a task and names its source."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from pretune.cli import main
from pretune.objectives import OBJECTIVES

PAGE = (Path(__file__).parent.parent / "docs" / "tasks.md").read_text(encoding="utf-8")
TAGGED = "Peter I-PER\nflew O\nto O\nBrussels I-LOC\n\nIt O\nrained O\n"
PASSAGE = "Peter Blackburn flew to Brussels."


def test_every_section_is_a_task_and_names_its_source() -> None:
    sections = dict(re.findall(r"^## (\w+): [^\n]*\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
    assert {"tag", "answer"} <= set(sections) <= set(OBJECTIVES)
    for name, text in sections.items():
        assert hasattr(OBJECTIVES[name], "answers")
        assert re.search(r"^Sources?: ", text, re.MULTILINE), name


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = [
        {"id": "a", "question": "Who flew?", "answers": [{"text": "Peter Blackburn", "answer_start": 0}]},
        {"id": "b", "question": "Who drove?", "answers": [], "is_impossible": True},
    ]
    for name in ("train", "dev"):
        Path(f"{name}.conll").write_text(TAGGED, encoding="utf-8")
        Path(f"{name}.json").write_text(json.dumps({"data": [{"paragraphs": [{"context": PASSAGE, "qas": asked}]}]}))
    for line in "".join(re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)).splitlines():
        with pytest.raises(SystemExit) as end:
            main([*shlex.split(line)[1:], *(["--steps", "1"] if " finetune " in line else [])])
        assert not end.value.code
    for name, key, count in (("tagged", "tags", 2), ("answers", "answer", 2)):
        rows = [json.loads(row) for row in Path(f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
        assert len(rows) == count and all(key in row for row in rows)
