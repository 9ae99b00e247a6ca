"""Tests of pretraining on pairs of texts: from a table to a model, with some rows held out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pretune import PretuneError, pretrain
from pretune.families import FAMILIES
from pretune.families.family import Family
from pretune.families.parameter_names import NameTable
from pretune.models.loading import load_model
from pretune.models.model import Model, Network
from pretune.objectives import parse_objective
from pretune.training.held_out import split_rows
from pretune.training.jobs import pretraining, pretraining_data, pretraining_model, pretraining_settings
from pretune.training.recipe_sections import Batching, Budget, Monitoring
from tests.support.objective_data import TEMPLATES, encoder_decoder

WORDS = ["cat", "dog", "fox", "owl", "pig", "rat", "bee", "cow", "elk", "hen"]


@dataclass(frozen=True)
class TinyConfig:
    vocab_size: int = 64


TINY = Family(
    name="tiny",
    config=TinyConfig,
    build=lambda config: encoder_decoder(config.vocab_size, layers=1),
    template=TEMPLATES["t5"],
    table=NameTable(),
    classes={frozenset(): "Tiny"},
)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register a preset of a small encoder-decoder."""
    monkeypatch.setitem(FAMILIES, "tiny", TINY)

    def make(name: str, vocabulary: int | None = None, seed: int = 0, **others: Any) -> Model:
        config = TinyConfig(vocabulary or 64)
        return Model(TINY, config, Network(TINY.build(config)))

    monkeypatch.setattr(pretraining_model, "make_model", make)
    for module in (pretraining, pretraining_model, pretraining_settings):
        monkeypatch.setattr(module, "is_preset", lambda name: name == "tiny-pairs")
    monkeypatch.setattr(
        pretraining_settings, "find_preset", lambda name: {"tokenizer": {"kind": "wordpiece", "vocab_size": 90}}
    )


def write_pairs(path: Path, count: int = 60) -> Path:
    rows = [
        f"the {WORDS[i % 10]} and the {WORDS[i * 3 % 10]}\tle {WORDS[i % 10][::-1]} et le {WORDS[i * 3 % 10][::-1]}"
        for i in range(count)
    ]
    path.write_text("en\tfr\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


SETTINGS = {
    "budget": Budget(steps=6),
    "batch": Batching(tokens=256, max_length=32),
    "monitor": Monitoring(eval_every=3, log_every=2),
}


def test_pretraining_on_a_table_holds_out_rows(tmp_path: Path) -> None:
    table = write_pairs(tmp_path / "pairs.tsv")
    run = pretrain("tiny-pairs", str(table), objective="translate", out=tmp_path / "run", **SETTINGS)
    evaluations = [line for line in run.metrics() if "dev/translate" in line]
    assert (
        len(evaluations) >= 2 and evaluations[-1]["dev/translate/plain"] < evaluations[0]["dev/translate/plain"] + 0.1
    )
    assert run.results["translate"] > 0
    model = load_model(run, parse_objective("translate"))
    assert model.objective == "translate" and model.tokenizer is not None
    # Some rows are held out, the same ones for every seed, and no row is in both parts.
    rows = pretraining_data.read_rows(
        pretraining_settings.resolve_pretraining(
            "tiny-pairs", [table], tmp_path / "x", {"objective": "translate"}, 0, None
        ),
        parse_objective("translate"),
    )
    assert rows is not None and len(rows) == 60
    learned, held_out = split_rows(len(rows), 0.01)
    assert len(held_out) == 6 and sorted([*learned, *held_out]) == list(range(60))


def test_two_aligned_files_are_accepted(tmp_path: Path) -> None:
    table = [line.split("\t") for line in write_pairs(tmp_path / "pairs.tsv").read_text().splitlines()[1:]]
    files = [tmp_path / "z.txt", tmp_path / "a.txt"]
    for side, file in enumerate(files):
        file.write_text("\n".join(row[side] for row in table), encoding="utf-8")
    run = pretrain("tiny-pairs", files, objective="translate(bidirectional=true)", out=tmp_path / "run", **SETTINGS)
    assert run.results["objective"] == "translate(bidirectional=true)" and "dev/translate" in run.results
    files[1].write_text("un\ndeux", encoding="utf-8")
    with pytest.raises(PretuneError, match=r"has 60 lines and .*a\.txt has 2"):
        pretrain("tiny-pairs", files, objective="translate", out=tmp_path / "other", **SETTINGS)
    assert not (tmp_path / "other").exists()  # rejected before anything is written


def test_rows_and_running_text_cannot_be_mixed(tmp_path: Path) -> None:
    with pytest.raises(
        PretuneError, match=r"some of the objectives train on rows \(translate\), and some on running text"
    ):
        pretrain("tiny-pairs", str(write_pairs(tmp_path / "a.tsv")), objective="translate|lm", out=tmp_path / "run")
    with pytest.raises(PretuneError, match="no parallel texts were given"):
        pretrain("tiny-pairs", objective="translate", out=tmp_path / "run", budget=Budget(steps=1))
    assert not (tmp_path / "run").exists()


@pytest.mark.not_fast
@pytest.mark.parametrize("objective", ["spans", "skip_thought"])
def test_running_text_uses_the_same_pipeline(tmp_path: Path, objective: str) -> None:
    text = [f"The {a} sees the {b}. The {b} sees the {a}. It rains. The {a} sleeps." for a in WORDS for b in WORDS]
    (tmp_path / "a.txt").write_text("\n".join(text), encoding="utf-8")
    tokenizer = {"kind": "wordpiece", "vocab_size": 90, "extra_ids": 8}
    run = pretrain(
        "tiny-pairs",
        str(tmp_path / "a.txt"),
        objective=objective,
        tokenizer=tokenizer,
        out=tmp_path / "run",
        **SETTINGS,
    )
    assert f"dev/{objective}" in run.results
    if objective == "spans":
        with pytest.raises(PretuneError, match="need 3 sentinels, and this tokenizer has 0"):
            pretrain("tiny-pairs", str(tmp_path / "a.txt"), objective="spans", out=tmp_path / "poor", **SETTINGS)
