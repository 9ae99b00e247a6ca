"""Tests of the importance of heads by masking."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pretune import PretuneError
from pretune.inference.example_loss import ExampleLoss
from pretune.models.loading import load
from pretune.nn.attention.multi_head import SelfAttention
from pretune.probing.head_importance import head_importance, heads_per_layer
from tests.support.one_word_task import start, trained
from tests.support.pruning_models import made
from tests.support.tiny_models import random_model, save_random_model, small_tokenizer


def test_only_the_planted_head_is_important(tmp_path: Path) -> None:
    model = load(save_random_model(tmp_path / "model", "bert", "mlm"))
    with torch.no_grad():
        for layer, part in enumerate(part for part in model.backbone.modules() if isinstance(part, SelfAttention)):
            columns = part.output.weight.view(len(part.output.weight), part.heads, -1)
            for head in range(part.heads):
                if (layer, head) != (1, 0):
                    columns[:, head] = 0  # what the head computes is not used
    (tmp_path / "texts.txt").write_text("The train was late.\n\nWe waited for an hour.\n" * 3, encoding="utf-8")
    examples = ExampleLoss.read(model, str(tmp_path / "model"), tmp_path / "texts.txt", None, None, 128)
    whole, rows = head_importance(model, examples.mean)
    assert whole == pytest.approx(examples.mean(), rel=1e-6) and whole > 0
    assert [(row["layer"], row["head"]) for row in rows] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    for row in rows:
        planted = (row["layer"], row["head"]) == (2, 1)
        assert (abs(row["importance"]) > 1e-4) == planted, row
        assert row["loss"] - whole == pytest.approx(row["importance"])


def test_importance_for_a_task_is_the_change_of_its_loss() -> None:
    model = load(trained())
    examples = ExampleLoss.read(model, str(trained()), start() / "train.csv", None, None, 128)
    whole, rows = head_importance(model, examples.mean)
    assert len(rows) == sum(heads_per_layer(model)) and 0 <= whole < 0.5  # it has learned the task
    assert any(row["importance"] != 0 for row in rows)


def test_models_without_heads_to_mask_are_refused() -> None:
    assert heads_per_layer(made("albert")) == [2, 2]
    assert heads_per_layer(random_model("t5", small_tokenizer("byte-level-bpe"), "spans")) == [2, 2]  # of its encoder
    with pytest.raises(PretuneError, match="lstm model does not have one self-attention per layer"):
        heads_per_layer(random_model("lstm", small_tokenizer("wordpiece"), "lm"))
