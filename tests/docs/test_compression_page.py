"""Tests that the commands of docs/reference/compression.md run and that every section names a source."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from pretune.models.loading import load_model
from pretune.objectives import parse_objective
from tests.support.cli import run_line
from tests.support.one_word_task import start, trained
from tests.support.paths import DOCS
from tests.support.tiny_models import random_model
from tests.support.tiny_models import small_tokenizer as tokenizer

pytest.importorskip("onnxruntime")
PAGE = (DOCS / "reference" / "compression.md").read_text(encoding="utf-8")


def test_every_section_names_its_sources() -> None:
    for name, text in re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL):
        assert re.search(r"^Sources?: ", text, re.MULTILINE), name


@pytest.mark.end_to_end
@pytest.mark.usefixtures("briefly")
def test_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained(), "runs/task")
    for name in ("train.csv", "dev.csv"):
        shutil.copy(start() / "train.csv", name)
    shutil.copy(start() / "text.txt", "texts.txt")
    model = load_model(start() / "start", parse_objective("mlm"))
    model.objective = "mlm"
    model.save("runs/language")
    random_model("gpt2", tokenizer("byte-level-bpe"), "lm", n_embd=32, n_head=2).save(Path("runs/writer"))
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    told = "".join(run_line(line).stdout for line in "".join(blocks).splitlines())
    assert "compression" in told and "student without a teacher" in told and "chosen" in told
