"""Tiny models: presets that learn a task in a second, and models of any family with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

import pretune as pt
from pretune.families import FAMILIES
from pretune.models.create_model import make_model
from pretune.models.model import Model, Network
from pretune.objectives import parse_objective
from pretune.text.corpus.documents import Document
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import Kind, train_on_documents
from tests.support.texts import RUSSIAN, english_documents

SIZES: dict[str, dict[str, Any]] = {
    "t5-tiny": {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0},
    "gpt2-tiny": {"n_embd": 32, "n_head": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "bert-tiny": {"hidden_size": 32, "intermediate_size": 64, "hidden_dropout_prob": 0.0},
}


def read(texts: Sequence[str], size: int = 200) -> Tokenizer:
    """Train a tokenizer on texts."""
    return train_on_documents([Document(text, Path("texts"), 1) for text in texts], "wordpiece", size)


def tiny(name: str, tokenizer: Tokenizer, folder: Path, objective: str = "") -> Path:
    """Save a randomly initialized tiny preset with the heads of an objective, and return its folder."""
    preset = make_model(name, max(256, tokenizer.size), padding=tokenizer.roles["padding"])
    config = replace(preset.config, **SIZES[name])
    torch.manual_seed(0)
    model = Model(preset.family, config, Network(preset.family.build(config)), tokenizer, objective)
    if objective:
        model.add_heads(parse_objective(objective).objectives)
    model.save(folder)
    return folder


def tune(model: Path, train: Any, out: Path, objective: str, steps: int = 60, **options: Any) -> pt.Run:
    """Fine-tune and evaluate on the same rows."""
    settings: dict[str, Any] = {
        "dev": train, "budget": pt.Budget(steps=steps), "optimizer": pt.Optimizer(lr=5e-3),
        "batch": pt.Batching(size=16, max_length=32), "num_seeds": 1, "report": False,
    }  # fmt: skip
    return pt.finetune(model, train, out=out, objective=objective, **settings | options)


# Sizes for all families, under the keys of their configurations.
WIDTHS = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 24, "hidden_dropout_prob": 0.0,
    "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 24, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
    "d_model": 16, "d_ff": 32, "d_kv": 8, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0, "dropout": 0.0,
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "embedding_dropout": 0.0, "mlp_dropout": 0.0,
}  # fmt: skip


@cache
def small_tokenizer(kind: Kind, size: int = 350, russian: bool = False) -> Tokenizer:
    """Train a tokenizer on a few English (or Russian) texts."""
    texts = RUSSIAN if russian else english_documents()[:2]
    return train_on_documents([Document(text, Path("x"), 1) for text in texts], kind, size, fit=True)


def random_model(family: str, words: Tokenizer, objective: str, **sizes: Any) -> Model:
    """Return a tiny model of a family with normally distributed weights, norms and biases included."""
    found = FAMILIES[family]
    ids = {
        "pad_token_id": words.role("padding"),
        "vocab_size": words.size + 3,
    }  # more rows than tokens, as in vocabularies padded to a multiple
    keys = {field.name for field in fields(found.config)}  # WIDTHS has the keys of all families
    config = found.read_config({key: value for key, value in (WIDTHS | ids | sizes).items() if key in keys})
    torch.manual_seed(0)
    model = Model(found, config, Network(found.build(config)), words, objective)
    model.add_heads(parse_objective(objective).objectives)
    for tensor in model.root.tensors().values():
        torch.nn.init.normal_(tensor.detach(), std=0.2)
    model.root.eval().requires_grad_(False)
    return model


def save_random_model(folder: Path, family: str, objective: str, **sizes: Any) -> Path:
    """Save a tiny random model in a folder, as a run does."""
    kind = "wordpiece" if family == "bert" else "byte-level-bpe"
    random_model(family, small_tokenizer(kind), objective, **sizes).save(folder)  # type: ignore[arg-type]
    return folder
