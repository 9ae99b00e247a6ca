"""Tests that the commands of docs/reference/evaluation.md run, that every suite is listed, and that every section names a source."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from pretune.evaluation import paired_bootstrap
from pretune.evaluation.suites import suite_names
from pretune.models.loading import load_model
from pretune.objectives import parse_objective
from tests.support.cli import run_line
from tests.support.one_word_task import start
from tests.support.paths import DOCS
from tests.support.tiny_models import read, tiny
from tests.support.tiny_training_cases import store

PAGE = (DOCS / "reference" / "evaluation.md").read_text(encoding="utf-8")


def test_every_suite_and_source_is_listed() -> None:
    assert set(suite_names()) == set(re.findall(r"^\| `([\w-]+)` \|", PAGE, re.MULTILINE))
    sections = re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    for name, text in sections:
        assert re.search(r"^Sources?: ", text, re.MULTILINE), name


@pytest.mark.end_to_end
def test_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(paired_bootstrap, "ROUNDS", 10)
    texts = [f"{'good' if i % 2 else 'bad'} stone and water" for i in range(16)]
    files = {
        "glue/CoLA/{}.tsv": "".join(f"x\t{i % 2}\t\t{text}\n" for i, text in enumerate(texts)),
        "glue/RTE/{}.tsv": "index\tsentence1\tsentence2\tlabel\n"
        + "".join(f"{i}\t{text}\tfire\t{'not_' * (i % 2)}entailment\n" for i, text in enumerate(texts)),
    }
    for name, content in files.items():
        for split in ("train", "dev"):
            Path(name.format(split)).parent.mkdir(parents=True, exist_ok=True)
            Path(name.format(split)).write_text(content)
    Path("texts.txt").write_text("\n".join(texts))
    Path("blimp").mkdir()
    pair = {"sentence_good": "good stone", "sentence_bad": "stone good", "UID": "order", "field": "syntax"}
    Path("blimp/order.jsonl").write_text(json.dumps(pair) + "\n")
    Path("store").symlink_to(store().folder)
    model = load_model(start() / "start", parse_objective("mlm"))
    model.objective = "mlm"
    model.save("tiny")
    tiny("gpt2-tiny", read(texts), Path("runs/gpt2"), "lm")
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    told = ""
    for line in "".join(blocks).replace("pretune-small-en", "tiny").splitlines():
        words = shlex.split(line)[1:]
        quick = ["--allow-incomplete"] if "--suite" in words and words[0] == "evaluate" else []
        quick += ["--steps", "1"] if quick and "--shots" not in words else []
        told += run_line(line, *quick).stdout
    assert "BERT-base" in told and "pseudo perplexity" in told and "difference" in told and "too short" in told
    assert "runs/gpt2, zero-shot" in told and "runs/gpt2, 2-shot" in told
