"""User histories in which the next item follows from the history, and tiny models of such histories."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

from pretune.families.encoders.bert import BERT, BertConfig, build
from pretune.models.model import Model, Network
from pretune.objectives import parse_objective
from pretune.text.corpus.documents import Document
from pretune.text.tokenizers.training import train_on_documents

ITEMS, STRIDES = 30, (1, 4, 7)


def stride_ratings(users: int, seed: int = 0) -> str:
    """Return ratings in the format of MovieLens: each user goes around a ring of items with a stride of their own.

    The next item is certain given two items, but not given one: any of the strides may lead on from it.
    """
    rng = random.Random(seed)
    rows = []
    for user in range(1, users + 1):
        item, stride = rng.randrange(ITEMS), rng.choice(STRIDES)
        for time in range(rng.randint(6, 12)):
            item = (item + stride) % ITEMS
            rows.append(f"{user}::{item}::{rng.randint(1, 5)}::{time}")
    return "\n".join(rows) + "\n"


def item_model(items: str, bias: dict[str, float] | None = None) -> Model:
    """Return a model of histories of `items`, separated by spaces; with `bias`, its logits are these, whatever it reads."""
    torch.manual_seed(0)
    tokenizer = train_on_documents([Document(items, Path("items"), 1)], "items", 500)
    config = BertConfig(
        vocab_size=tokenizer.size + 3, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=40,
    )  # fmt: skip
    model = Model(BERT, config, Network(build(config)), tokenizer)
    model.add_heads(parse_objective("item").objectives)
    if bias is not None:
        head: Any = model.root.heads["item"]
        with torch.no_grad():
            torch.nn.init.zeros_(model.backbone.embed.tokens)  # only the bias matters
            for item, logit in bias.items():
                head.bias[tokenizer.encode(item)[0]] = logit
    return model
