"""Tests of what the server finds out about a model."""

from __future__ import annotations

from pathlib import Path

import pytest

import pretune as pt
from pretune.models.open_model import OpenModel
from pretune.serving.model_runner import SENTENCES, example_languages


@pytest.mark.parametrize("languages", [["en"], ["ru"], ["en", "ru"]])
def test_examples_are_in_the_languages_of_the_tokenizer(languages: list[str], tmp_path: Path) -> None:
    text = "".join(f"{SENTENCES[name]}\n" * 20 for name in languages)
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    tokenizer = pt.train_tokenizer([tmp_path / "text.txt"], kind="byte-level-bpe", vocab_size=600)
    assert example_languages(tokenizer) == languages


def test_bundled_model_reads_english() -> None:
    assert example_languages(OpenModel("pretune-small-en").core.require_tokenizer()) == ["en"]
