"""Tests that the commands of docs/reference/tasks.md run, that every task has a section, and that every section names its source."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import pretune as pt
from pretune.objectives import task_names
from tests.support.cli import run_command, run_line
from tests.support.drawn_shapes import write_captions, write_questions
from tests.support.objective_data import write
from tests.support.paths import DOCS
from tests.support.task_rows import (
    choose_rows,
    coref_rows,
    entity_rows,
    match_rows,
    multi_label_rows,
    positive_pairs,
    rank_rows,
    regress_rows,
    rerank_rows,
)
from tests.support.tiny_models import read, tiny

PAGE = (DOCS / "reference" / "tasks.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))

TAGGED = "Peter I-PER\nflew O\nto O\nBrussels I-LOC\n\nIt O\nrained O\n"
PASSAGE = "Peter Blackburn flew to Brussels."
QUESTIONS = [
    {"id": "a", "question": "Who flew?", "answers": [{"text": "Peter Blackburn", "answer_start": 0}]},
    {"id": "b", "question": "Who drove?", "answers": [], "is_impossible": True},
]
QUICK = ["--steps", "1", "--num-seeds", "1", "--set", "report=false"]
REVIEWS = [("a delightful film", "yes"), ("two hours I want back", "no"), ("lovely", "yes"), ("awful", "no")] * 4


def test_every_section_is_a_task_or_a_strategy_and_names_its_source() -> None:
    tasks = set(task_names())
    assert {title.partition(":")[0] for title in SECTIONS if ":" in title} == tasks
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == tasks
    for title, text in SECTIONS.items():
        if title == "Trivial baselines":
            continue
        assert re.search(r"^Sources?: ", text, re.MULTILINE) and "```sh" in text, title


def table(path: str, rows: list[dict[str, object]]) -> None:
    mark = "," if path.endswith("csv") else "\t"
    cells = [[";".join(x) if isinstance(x, list) else str(x) for x in row.values()] for row in rows]
    Path(path).write_text("\n".join(mark.join(row) for row in [list(rows[0]), *cells]), encoding="utf-8")


def make_files() -> None:
    """What the commands read."""
    table("topics.csv", multi_label_rows(12))
    table("sts.tsv", regress_rows(12))
    write(Path("copa.jsonl"), choose_rows(8))
    write(Path("wic.jsonl"), match_rows(12))
    write(Path("mentions.jsonl"), coref_rows(12))
    table("found.tsv", [{"id": row.pop("qid"), **row} for row in rank_rows(6)])
    table("pairs.tsv", positive_pairs(12))
    Path("catalog.txt").write_text("cat dog fox owl\n", encoding="utf-8")
    lists = [
        {"request": row["request"], "item": item, "price": price, "label": label}
        for row in rerank_rows(12)
        for item, price, label in zip(row["items"], row["price"], row["label"], strict=True)  # type: ignore[call-overload]
    ]
    table("lists.csv", lists)
    write_captions(Path(), 60)
    write_questions(Path(), 40)
    write(Path("record.jsonl"), entity_rows(8))
    for name in ("train", "dev"):
        Path(f"{name}.conll").write_text(TAGGED, encoding="utf-8")
        Path(f"{name}.json").write_text(
            json.dumps({"data": [{"paragraphs": [{"context": PASSAGE, "qas": QUESTIONS}]}]})
        )
    for name in ("reviews.csv", "kinds.csv"):
        table(name, [{"text": text, "label": label} for text, label in REVIEWS])
    table("articles.csv", [{"text": text, "summary": label} for text, label in REVIEWS])
    Path("texts.txt").write_text("a walk\na long day\n", encoding="utf-8")


@pytest.mark.end_to_end
def test_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_files()
    known = read([f"{a} It was good bad. {b} summarize : the river was low in august" for a, b in REVIEWS])
    for name, objective in (("gpt2", ""), ("t5", ""), ("bert", "mlm")):
        tiny(f"{name}-tiny", known, Path("runs") / name, objective)
    script = "".join(line for text in SECTIONS.values() for line in re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S))
    script = script.replace("pretune-small-en", "runs/bert").replace(
        "--confidence-threshold 0.9", "--confidence-threshold 0.5"
    )
    for line in script.splitlines():
        if line.startswith("pretune pretrain "):
            line = line.replace("--steps 200", "--steps 1") + " --set batch.tokens=256"
        run_line(line, *(QUICK if line.startswith("pretune finetune ") else []))
    assert pt.Run("runs/ranked").recipe["columns"] == {"group": "id"}
    run_command("finetune", "--recipe", "runs/ranked/recipe.yaml", "--out", "runs/again", *QUICK)
    assert pt.Run("runs/again").finished
    assert "dev/f1" in pt.Run("runs/record").results
    for name, key in (("tagged", "tags"), ("answers", "answer")):
        rows = [json.loads(row) for row in Path(f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
        assert len(rows) == 2 and all(key in row for row in rows)
    made = {path.name for path in Path("runs").iterdir()}
    assert made >= {"summaries", "prompted", "student", "distilled", "two"}
