"""The commands of docs/tasks.md run, every task has a section, and every section names its source."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

import pretune as pt
from pretune.cli import main
from pretune.objectives import task_names
from tests.objectives.tasks import test_choose, test_contrast, test_entity, test_match, test_rank, test_regress
from tests.objectives.tasks import test_multi_label as test_several_labels
from tests.support.objective_data import write
from tests.support.paths import DOCS
from tests.support.tiny_models import read, tiny

PAGE = (DOCS / "tasks.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))

TAGGED = "Peter I-PER\nflew O\nto O\nBrussels I-LOC\n\nIt O\nrained O\n"
PASSAGE = "Peter Blackburn flew to Brussels."
ASKED = [
    {"id": "a", "question": "Who flew?", "answers": [{"text": "Peter Blackburn", "answer_start": 0}]},
    {"id": "b", "question": "Who drove?", "answers": [], "is_impossible": True},
]
QUICK = ["--steps", "1", "--num-seeds", "1", "--set", "report=false"]
REVIEWS = [("a delightful film", "yes"), ("two hours I want back", "no"), ("lovely", "yes"), ("awful", "no")] * 4


def test_every_section_is_a_task_in_the_table_or_a_way_and_names_its_source() -> None:
    tasks = set(task_names())
    assert {title.partition(":")[0] for title in SECTIONS if ":" in title} == tasks
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == tasks
    for title, text in SECTIONS.items():
        assert re.search(r"^Sources?: ", text, re.MULTILINE) and "```sh" in text, title


def table(path: str, rows: list[dict[str, object]]) -> None:
    mark = "," if path.endswith("csv") else "\t"
    cells = [[";".join(x) if isinstance(x, list) else str(x) for x in row.values()] for row in rows]
    Path(path).write_text("\n".join(mark.join(row) for row in [list(rows[0]), *cells]), encoding="utf-8")


def make_files() -> None:
    """What the commands read."""
    table("topics.csv", test_several_labels.rows(12))
    table("sts.tsv", test_regress.rows(12))
    write(Path("copa.jsonl"), test_choose.rows(8))
    write(Path("wic.jsonl"), test_match.rows(12))
    table("found.tsv", [{"id": row.pop("qid"), **row} for row in test_rank.rows(6)])
    table("pairs.tsv", test_contrast.pairs(12))
    write(Path("record.jsonl"), test_entity.rows(8))
    for name in ("train", "dev"):
        Path(f"{name}.conll").write_text(TAGGED, encoding="utf-8")
        Path(f"{name}.json").write_text(json.dumps({"data": [{"paragraphs": [{"context": PASSAGE, "qas": ASKED}]}]}))
    for name in ("reviews.csv", "kinds.csv"):
        table(name, [{"text": text, "label": label} for text, label in REVIEWS])
    table("articles.csv", [{"text": text, "summary": label} for text, label in REVIEWS])
    Path("texts.txt").write_text("a walk\na long day\n", encoding="utf-8")


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    make_files()
    known = read([f"{a} It was good bad. {b} summarize : the river was low in august" for a, b in REVIEWS])
    for name, objective in (("gpt2", ""), ("t5", ""), ("bert", "mlm")):
        tiny(f"{name}-tiny", known, Path("runs") / name, objective)
    script = "".join(line for text in SECTIONS.values() for line in re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S))
    script = script.replace("pretune-small-en", "runs/bert").replace("--confident 0.9", "--confident 0.5")
    for line in script.splitlines():
        words = shlex.split(line)[1:]
        with pytest.raises(SystemExit) as stop:
            main([*words, *(QUICK if words[0] == "finetune" else [])])
        assert stop.value.code in (0, None), (line, capsys.readouterr().err)
    assert pt.Run("runs/ranked").recipe["columns"] == {"group": "id"}
    with pytest.raises(SystemExit):
        main(["finetune", "--recipe", "runs/ranked/recipe.yaml", "--out", "runs/again", *QUICK])
    assert pt.Run("runs/again").finished
    assert "dev/f1" in pt.Run("runs/record").results
    for name, key in (("tagged", "tags"), ("answers", "answer")):
        rows = [json.loads(row) for row in Path(f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
        assert len(rows) == 2 and all(key in row for row in rows)
    made = {path.name for path in Path("runs").iterdir()}
    assert made >= {"summaries", "prompted", "student", "distilled", "two"}
