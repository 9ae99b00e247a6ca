"""Small GPT-2 models with random weights, whose greedy texts are far from any tie, and their tokenizer."""

from __future__ import annotations

from typing import Any

import torch

from pretune.families import FAMILIES
from pretune.models.model import Model, Network
from pretune.objectives import parse_objective
from tests.support import tiny_training_cases

POSITIONS = 48
CONFIG = {
    "vocab_size": tiny_training_cases.VOCABULARY, "n_positions": POSITIONS, "n_embd": 32, "n_layer": 2, "n_head": 4,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0,
}  # fmt: skip


def gpt2(seed: int = 0, noise: float = 0.0, **config: Any) -> Model:
    """Return a GPT-2 with random weights; `noise` is the deviation of what is added to the weights of the seed."""
    family = FAMILIES["gpt2"]
    read = family.read_config(CONFIG | config)
    model = Model(family, read, Network(family.build(read)))
    model.add_heads(parse_objective("lm").objectives)
    model.tokenizer = tiny_training_cases.store().tokenizer
    draws, more = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed + 1)
    for name, parameter in model.root.named_parameters():
        mean = float("norm" in name and name.endswith("weight"))
        scale = 0.4 if parameter.dim() > 1 else 0.1
        weights = torch.randn(parameter.shape, generator=draws) * scale + mean
        parameter.data = weights + torch.randn(parameter.shape, generator=more) * scale * noise
    model.root.eval()
    return model
