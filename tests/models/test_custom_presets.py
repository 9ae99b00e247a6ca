"""Custom presets in .yaml files."""

from __future__ import annotations

from pathlib import Path

import pytest

import pretune as pt
from pretune.models.create_model import make_model
from pretune.models.loading import load
from pretune.models.presets import find_preset
from pretune.runtime.errors import PretuneError
from pretune.training.recipe_sections import Budget


def write(folder: Path, text: str) -> str:
    file = folder / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    return str(file)


@pytest.mark.not_fast
def test_a_preset_based_on_another_trains_with_its_own_sizes_and_recipe(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("a cat sat on a mat and a dog sat on a log\n\n" * 40, encoding="utf-8")
    mine = write(
        tmp_path,
        "like: bert-tiny\nobjective: mlm\nconfig: {hidden_size: 32, intermediate_size: 64}\n"
        "tokenizer: {kind: words, vocab_size: 60}\nbatch: {tokens: 256, max_length: 32}\noptimizer: {lr: 3.0e-3}\n",
    )
    run = pt.pretrain(mine, corpus, budget=Budget(steps=2), out=tmp_path / "run")
    assert load(run).backbone.width == 32
    assert run.recipe["optimizer"]["lr"] == 3e-3
    assert find_preset(mine)["family"] == "bert"


def test_a_preset_can_be_based_on_another_file(tmp_path: Path) -> None:
    write(tmp_path, "like: bert-tiny\nconfig: {hidden_size: 64}\n")
    second = tmp_path / "second.yaml"
    second.write_text("like: mine.yaml\nconfig: {num_hidden_layers: 1}\n", encoding="utf-8")
    backbone = make_model(str(second)).backbone
    assert (backbone.width, len(backbone.layers)) == (64, 1)


@pytest.mark.not_fast
def test_a_changed_preset_file_is_read_again(tmp_path: Path) -> None:
    for width in (32, 64):
        mine = write(tmp_path, f"like: bert-tiny\nconfig: {{hidden_size: {width}}}\n")
        assert make_model(mine).backbone.width == width


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("like: bert-tiny\nconfg: {}\n", r"mine.yaml: unknown key 'confg'; did you mean 'config'\?"),
        ("like: bert-tiny\nconfig: 3\n", "mine.yaml: the key `config` must be a mapping"),
        ("config: {hidden_size: 32}\n", "a preset needs either the key `like` or the keys `family` and `config`"),
        ("like: bert-tinny\n", "unknown preset 'bert-tinny'; did you mean"),
        (
            "like: bert-tiny\nconfig: {hiden_size: 32}\n",
            "unknown key 'hiden_size' in config; did you mean 'hidden_size'",
        ),
        ("like: bert-tiny\noptimizer: {rate: 1}\n", "optimizer has no key 'rate'"),
        ("like: [bert-tiny\n", "not valid YAML"),
    ],
)
def test_mistakes_in_preset_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("a cat sat on a mat\n\n" * 40, encoding="utf-8")
    with pytest.raises(PretuneError, match=message):
        pt.pretrain(write(tmp_path, text), corpus, budget=Budget(steps=1), out=tmp_path / "run")


def test_a_missing_preset_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match="no such"):
        pt.pretrain(tmp_path / "none.yaml", "x.txt", out=tmp_path / "run")
