"""The commands of docs/tasks.md about texts, few labels and several tasks run, and every section names a source."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pretune.cli import main
from tiny import read, tiny

PAGE = (Path(__file__).parent.parent / "docs" / "tasks.md").read_text(encoding="utf-8")
SECTIONS = [
    "generate",
    "Ways of writing",
    "prompt",
    "Asking without training",
    "Unlabeled texts",
    "Several tasks at once",
]
ROWS = [("a delightful film", "yes"), ("two hours I want back", "no"), ("lovely", "yes"), ("awful", "no")] * 4


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file, header in (("reviews.csv", "text,label"), ("topics.csv", "text,label"), ("articles.csv", "text,summary")):
        Path(file).write_text("\n".join([header, *map(",".join, ROWS)]), encoding="utf-8")
    Path("texts.txt").write_text("a walk\na long day\n", encoding="utf-8")
    known = read([f"{a} It was good bad. {b} summarize : the river was low in august" for a, b in ROWS])
    for name, objective in (("gpt2", ""), ("t5", ""), ("bert", "mlm")):
        tiny(f"{name}-tiny", known, Path("runs") / name, objective)
    sections = dict(re.findall(r"^## ([^\n:]*)[^\n]*\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
    for name in SECTIONS:
        assert re.search(r"^Sources?: ", sections[name], re.MULTILINE), name
        script = "".join(re.findall(r"^```sh\n(.*?)^```", sections[name], re.MULTILINE | re.DOTALL))
        script = script.replace("pretune-small-en", "runs/bert").replace("--confident 0.9", "--confident 0.5")
        for line in script.splitlines():
            with pytest.raises(SystemExit) as end:
                main([*shlex.split(line)[1:], *(["--steps", "1", "--seeds", "1"] if " finetune " in line else [])])
            assert not end.value.code, line
    assert {path.name for path in Path("runs").iterdir()} >= {
        "summaries",
        "prompted",
        "student",
        "student-teacher",
        "distilled",
        "two",
    }
