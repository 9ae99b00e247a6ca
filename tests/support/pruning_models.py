"""Tiny models to prune, and their hidden states on a fixed batch."""

from __future__ import annotations

from typing import Any

import torch

from pretune.models.model import Model
from pretune.packed import Packed, pack_lists
from tests.support.tiny_models import random_model, small_tokenizer

KINDS = {"bert": "wordpiece", "modernbert": "byte-level-bpe", "gpt2": "byte-level-bpe", "roberta": "byte-level-bpe"}


def made(family: str = "bert", **sizes: Any) -> Model:
    """Return a random language model of a family."""
    return random_model(
        family, small_tokenizer(KINDS.get(family, "wordpiece")), "lm" if family == "gpt2" else "mlm", **sizes
    )  # type: ignore[arg-type]


def packed() -> Packed:
    """Return a batch of three sequences."""
    return pack_lists([[5, 9, 12, 40, 7], [3, 8], [11, 30, 31]])


def states(model: Model) -> torch.Tensor:
    """Return the hidden states of a model on the batch."""
    with torch.no_grad():
        return model.backbone.eval()(packed()).last
