"""Tests of the loss of models on labeled examples and on texts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pretune import PretuneError
from pretune.inference.example_loss import ExampleLoss
from pretune.models.loading import load
from pretune.nn.attention.patterns import causal
from pretune.packed import pack_lists
from tests.support.one_word_task import start, trained
from tests.support.tiny_models import save_random_model

TEXTS = ["The train was late.", "We waited for an hour."]


def read(folder: Path, file: Path) -> ExampleLoss:
    """Return the loss of the model in a folder on a file."""
    return ExampleLoss.read(load(folder), str(folder), file, None, None, 128)


def test_loss_of_a_language_model_is_the_negative_log_likelihood(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path / "model", "gpt2", "lm")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    examples = read(folder, tmp_path / "texts.txt")
    model = examples.model
    ids = [model.require_tokenizer().encode(text) for text in TEXTS]
    total = 0.0
    with torch.no_grad():
        for own in ids:
            states = model.backbone(pack_lists([own], pattern=causal)).last
            logits = model.root.heads["lm"](states[:-1], model.backbone.embed.tokens)
            total += float(torch.nn.functional.cross_entropy(logits, torch.tensor(own[1:]), reduction="sum"))
    assert examples.mean() == pytest.approx(total / (sum(map(len, ids)) - len(ids)), rel=1e-4)


def test_masks_are_the_same_each_time(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path / "model", "bert", "mlm")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS * 5), encoding="utf-8")
    first, second = (read(folder, tmp_path / "texts.txt").mean() for _ in range(2))
    assert first == second > 0


def test_labeled_examples_and_their_errors(tmp_path: Path) -> None:
    assert read(trained(), start() / "train.csv").mean() < 0.5
    (tmp_path / "other.csv").write_text("text,label\ngood stone,maybe\n", encoding="utf-8")
    with pytest.raises(PretuneError, match="maybe"):
        read(trained(), tmp_path / "other.csv")


def test_models_without_a_loss_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match=r"no trained head.*choose a model that was fine-tuned"):
        read(start() / "start", start() / "text.txt")
    with pytest.raises(PretuneError, match="only heads for spans"):
        read(save_random_model(tmp_path / "t5", "t5", "spans"), start() / "text.txt")
