"""A model with planted attention: one head per layer, the first of which attends to the previous token."""

from __future__ import annotations

import torch

from pretune.models.model import Model
from tests.support.tiny_models import random_model, small_tokenizer

WIDTH = 32


def previous_token_model() -> Model:
    """Return a BERT whose embeddings are one-hot positions, which the only head of layer 1 shifts by one."""
    model = random_model(
        "bert", small_tokenizer("wordpiece"), "mlm", hidden_size=WIDTH, num_attention_heads=1, num_hidden_layers=2
    )
    embed = model.backbone.embed
    attention = model.backbone.layers[0].attention.part
    with torch.no_grad():
        for tensor in (embed.tokens, embed.segments, embed.norm.bias, attention.qkv.bias):
            tensor.zero_()
        embed.norm.weight.fill_(1.0)
        embed.positions.weight.copy_(torch.eye(WIDTH)[: len(embed.positions.weight)])
        shift = torch.diag(torch.ones(WIDTH - 1), 1)  # position i → i - 1
        attention.qkv.weight[:WIDTH] = 10 * shift
        attention.qkv.weight[WIDTH : 2 * WIDTH] = torch.eye(WIDTH)
    return model
