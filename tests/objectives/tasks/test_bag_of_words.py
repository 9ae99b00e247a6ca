"""Tests of the bag of words that is stored with a model and averaged with its predictions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.objectives.tasks.bag_of_words import BAG_FILE, BagOfWords, blend_answers
from pretune.objectives.tasks.classify import Classify
from pretune.objectives.tasks.regress import Regress
from pretune.runtime.checksummed_safetensors import write_tensors
from pretune.text.examples.labeled import LabeledRows
from pretune.training.jobs.bag_of_words import ChosenBag, choose_bag, fit_bag
from pretune.training.jobs.linear_models import CrossValidated, Setting

TEXT = st.text(alphabet=st.characters(codec="utf-8"), max_size=30)


def chosen(*analyzers: str) -> ChosenBag:
    return ChosenBag(analyzers, CrossValidated({Setting(1.0): 0.25, Setting(10.0): 0.75}, np.empty(0), 0.0))


@settings(max_examples=30, deadline=None)
@given(st.lists(TEXT, min_size=2, max_size=6), st.lists(TEXT, min_size=1, max_size=3), st.booleans())
def test_a_saved_bag_predicts_the_same(tmp_path_factory: pytest.TempPathFactory, texts: list[str], new: list[str], pairs: bool) -> None:  # fmt: skip
    rows = LabeledRows(Path("x.csv"), {}, texts, texts[::-1] if pairs else None, ["a", "b"] * len(texts))
    analyzers = ("words", "pair_words") if pairs else ("words", "characters")
    bag = fit_bag(chosen(*analyzers), rows, np.arange(len(texts)) % 2, "classes", 2)
    folder = tmp_path_factory.mktemp("bag")
    bag.save(folder)
    read = BagOfWords.load(folder)
    assert read is not None
    others = new if pairs else None
    np.testing.assert_allclose(read.predict(new, others), bag.predict(new, others), atol=1e-5)


def test_characters_are_chosen_where_words_do_not_repeat() -> None:
    """Endings decide, and every stem is new: words alone know nothing."""
    texts = [f"{chr(97 + i % 26)}{chr(97 + i * 7 % 26)}q{'ing' if i % 2 else 'ness'}" for i in range(60)]
    rows = LabeledRows(Path("x.csv"), {}, texts, None, [str(i % 2) for i in range(60)])
    bag = choose_bag(rows, np.arange(60) % 2, "classes", 2, np.arange(60) // 12)
    assert "characters" in bag.analyzers and (bag.validated.predicted.argmax(1) == np.arange(60) % 2).mean() > 0.9


def test_overlap_decides_on_pairs() -> None:
    texts = [f"w{i} x{i} y{i}" for i in range(60)]
    pairs = [texts[i] if i % 2 else f"q{i} r{i} s{i}" for i in range(60)]
    rows = LabeledRows(Path("x.csv"), {}, texts, pairs, [str(i % 2) for i in range(60)])
    bag = choose_bag(rows, np.arange(60) % 2, "classes", 2, np.arange(60) // 12)
    assert (bag.validated.predicted.argmax(1) == np.arange(60) % 2).all()


def test_averages() -> None:
    task = Classify(labels=("a", "b"))
    answers = [{"label": "a", "probability": 0.8, "probabilities": {"a": 0.8, "b": 0.2}}]
    assert blend_answers(task, answers, np.array([[0.0, 1.0]]), 0.5)[0]["label"] == "b"
    assert blend_answers(task, answers, np.array([[0.0, 1.0]]), 0.0)[0]["probabilities"] == {"a": 0.8, "b": 0.2}
    assert blend_answers(Regress(), [{"value": 2.0}], np.array([4.0]), 0.25) == [{"value": 2.5}]


@pytest.mark.parametrize("change", ["empty", "sizes", "bytes", "share"])
def test_damaged_files_are_refused(tmp_path: Path, change: str) -> None:
    tensors = {"classes.weight": torch.zeros(2, 2), "classes.bias": torch.zeros(2), "share": torch.tensor([0.5])}
    tensors |= {"words.vocabulary": torch.tensor(list(b"a\nb"), dtype=torch.uint8), "words.idf": torch.ones(2)}
    write_tensors(tmp_path / BAG_FILE, tensors)
    assert BagOfWords.load(tmp_path) is not None
    match change:
        case "empty":
            tensors = {"share": torch.tensor([0.5])}
        case "sizes":
            tensors["words.idf"] = torch.ones(3)
        case "bytes":
            tensors["words.vocabulary"] = torch.tensor([0xFF, 0xFE], dtype=torch.uint8)
        case "share":
            tensors["share"] = torch.tensor([2.0])
    write_tensors(tmp_path / BAG_FILE, tensors)
    with pytest.raises(PretuneError, match="restore the original file"):
        BagOfWords.load(tmp_path)
    assert BagOfWords.load(tmp_path / "elsewhere") is None
