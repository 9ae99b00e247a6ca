"""Tests that the commands of docs/reference/objectives.md and docs/reference/presets.md run and that every section names a source."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

import pretune as pt
from pretune.models.presets import preset_names
from pretune.objectives import OBJECTIVES
from tests.support.cli import run_line
from tests.support.drawn_shapes import write_captions
from tests.support.paths import DOCS
from tests.support.texts import english_documents
from tests.support.tiny_training_cases import store

PAGE, PRESETS = ((DOCS / "reference" / name).read_text(encoding="utf-8") for name in ("objectives.md", "presets.md"))


def small(line: str) -> list[str]:
    """Return options for small batches, where a command pretrains."""
    return ["--set", "batch.tokens=256"] if line.startswith("pretune pretrain ") else []


def test_every_section_is_an_objective_and_names_its_source() -> None:
    sections = dict(re.findall(r"^## (\w+): [^\n]*\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
    known = {
        "lm",
        "bilm",
        "plm",
        "mlm",
        "tlm",
        "nsp",
        "sop",
        "sso",
        "dlm",
        "rtd",
        "trtd",
        "mrm",
        "itm",
        "item",
        "classify",
    }
    assert known <= set(sections) <= set(OBJECTIVES)
    for name, text in sections.items():
        assert re.search(r"^Sources?: ", text, re.MULTILINE), name


@pytest.mark.end_to_end
def test_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("store").symlink_to(store().folder)
    chance = random.Random(0)
    rows = [f"{user},{chance.randrange(30)},{time}" for user in range(40) for time in range(chance.randint(3, 9))]
    Path("ratings.csv").write_text("\n".join(["user,item,timestamp", *rows]), encoding="utf-8")
    words = ["cat", "dog", "fox", "owl", "pig", "rat", "bee", "cow", "elk", "hen"]
    lines = [" ".join(chance.choices(words, k=6)) + "." for _ in range(60)]
    for kind in ("news", "pairs"):
        Path(f"{kind}.en.txt").write_text("\n".join(lines), encoding="utf-8")
        Path(f"{kind}.fr.txt").write_text("\n".join(line[::-1] for line in lines), encoding="utf-8")
    for name in ("web", "books"):
        Path(f"{name}.txt").write_text("\n\n".join(lines), encoding="utf-8")
    chats = [json.dumps({"turns": chance.sample(lines, 4)}) for _ in range(20)]
    Path("chats.jsonl").write_text("\n".join(chats), encoding="utf-8")
    names = [json.dumps({"text": line, "names": [[0, 7], {"start": 8, "end": 11}]}) for line in lines]
    Path("names.jsonl").write_text("\n".join(names), encoding="utf-8")
    write_captions(Path(), 60)
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in "".join(blocks).replace("--steps 200", "--steps 1").splitlines():
        run_line(line, *small(line))
    assert pt.Run("runs/items").metrics()


@pytest.mark.not_fast
def test_commands_about_presets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    texts = [" ".join(text.split())[:1500] for text in english_documents()[:30]]
    Path("corpus.txt").write_text("\n\n".join(texts), encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", PRESETS, re.MULTILINE | re.DOTALL)
    script = "".join(blocks).replace("--steps 200", "--steps 1").replace("3e5tokens", "1steps")
    for line in script.splitlines():
        run_line(line, *small(line))
    assert pt.Run("runs/short").recipe["budget"] == {"steps": 1}


def test_every_tiny_preset_is_listed() -> None:
    assert {name for name in preset_names() if name.endswith("-tiny")} <= set(re.findall(r"`([\w.-]+-tiny)`", PRESETS))
