"""Tests that the commands of docs/reference/recurrent.md run."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

import pretune as pt
from tests.support.cli import run_line
from tests.support.paths import DOCS
from tests.support.texts import english_documents

PAGE = (DOCS / "reference" / "recurrent.md").read_text(encoding="utf-8")


@pytest.mark.end_to_end
def test_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    texts = [" ".join(text.split())[:800] for text in english_documents()[:12]]
    Path("corpus.txt").write_text("\n\n".join(texts), encoding="utf-8")
    chance = random.Random(0)
    words = ["cat", "dog", "fox", "owl", "pig", "rat", "bee", "cow", "elk", "hen"]
    lines = [" ".join(chance.choices(words, k=6)) + "." for _ in range(60)]
    Path("news.en.txt").write_text("\n".join(lines), encoding="utf-8")
    Path("news.fr.txt").write_text("\n".join(line[::-1] for line in lines), encoding="utf-8")
    rows = [f"{line},{'yes' if 'cat' in line else 'no'}" for line in lines]
    Path("labeled.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    known = [*words, "the", "of", "a", "is", "to", "in", "and"]
    vectors = [f"{word} {' '.join(str(chance.random()) for _ in range(5))}" for word in known]
    Path("glove.txt").write_text("\n".join(vectors), encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in "".join(blocks).replace("--steps 200", "--steps 1").splitlines():
        run_line(line, *(["--set", "batch.tokens=256"] if " pretrain " in line else []))
    assert Path("alignment.png").stat().st_size > 1000
    assert pt.Run("runs/glove").finished and pt.Run("runs/elmo-task").finished
