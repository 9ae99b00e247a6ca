"""Tests that the commands of docs/reference/tokenizers.md run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pretune as pt
from tests.support.cli import run_line
from tests.support.paths import DOCS
from tests.support.texts import english_documents

PAGE = (DOCS / "reference" / "tokenizers.md").read_text(encoding="utf-8")


@pytest.mark.end_to_end
def test_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    texts = [" ".join(text.split())[:800] for text in english_documents()[:12]]
    for name in ("corpus", "news.en", "news.sw"):
        Path(f"{name}.txt").write_text("\n\n".join(texts), encoding="utf-8")
    rows = [f"{'fine' if i % 2 else 'poor'} weather in month {i},{'yes' if i % 2 else 'no'}" for i in range(24)]
    Path("labeled.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in "".join(blocks).replace("--steps 20", "--steps 2").splitlines():
        small = ["--set", "batch.tokens=256"] if " pretrain " in line else ["--epochs", "1"]
        run_line(line, *(small if " pretrain " in line or " finetune " in line else []))
    assert pt.Run("runs/dropout-task").recipe["batch"]["bpe_dropout"] == 0.1
