"""The commands of docs/tasks.md run, and every section is a task that names its source."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import test_choose
import test_contrast
import test_entity
import test_match
import test_rank
import test_regress
import test_several_labels

import pretune as pt
from material import few_words, write
from pretune.cli import main
from pretune.model import make_model
from pretune.objectives import OBJECTIVES
from pretune.text.tokenizer import Tokenizer

PAGE = (Path(__file__).parent.parent / "docs" / "tasks.md").read_text(encoding="utf-8")

TAGGED = "Peter I-PER\nflew O\nto O\nBrussels I-LOC\n\nIt O\nrained O\n"
PASSAGE = "Peter Blackburn flew to Brussels."
ASKED = [
    {"id": "a", "question": "Who flew?", "answers": [{"text": "Peter Blackburn", "answer_start": 0}]},
    {"id": "b", "question": "Who drove?", "answers": [], "is_impossible": True},
]


def test_every_section_is_a_task_in_the_table_and_names_its_source() -> None:
    sections = dict(re.findall(r"^## (\w+): [^\n]*\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
    tasks = {name for name, kind in OBJECTIVES.items() if hasattr(kind, "answers")}
    assert set(sections) == tasks == set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    for name, text in sections.items():
        assert re.search(r"^Sources?: ", text, re.MULTILINE), name


def table(path: str, rows: list[dict[str, object]]) -> None:
    mark = "," if path.endswith("csv") else "\t"
    cells = [[";".join(x) if isinstance(x, list) else str(x) for x in row.values()] for row in rows]
    Path(path).write_text("\n".join(mark.join(row) for row in [list(rows[0]), *cells]), encoding="utf-8")


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    model = make_model("bert-tiny", 200)
    model.tokenizer = Tokenizer.load(few_words())
    model.save("tiny")
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
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in "".join(blocks).replace("pretune-small-en", "tiny").splitlines():
        words = shlex.split(line)[1:]
        with pytest.raises(SystemExit) as stop:
            main([*words, *(["--epochs", "1", "--seeds", "1"] if words[0] == "finetune" else [])])
        assert stop.value.code in (0, None), capsys.readouterr().err
    assert pt.Run("runs/ranked").recipe["columns"] == {"group": "id"}
    with pytest.raises(SystemExit):
        main(["finetune", "--recipe", "runs/ranked/recipe.yaml", "--steps", "1", "--out", "runs/again"])
    assert pt.Run("runs/again").finished
    assert "dev/f1" in pt.Run("runs/record").results
    for name, key in (("tagged", "tags"), ("answers", "answer")):
        rows = [json.loads(row) for row in Path(f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
        assert len(rows) == 2 and all(key in row for row in rows)
