"""Models so small that they learn a task in a second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import pretune as pt
from pretune.models.create_model import make_model
from pretune.models.model import Model, Network
from pretune.objectives import parse_objective
from pretune.text.corpus.documents import Document
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import train_on_documents

SIZES: dict[str, dict[str, Any]] = {
    "t5-tiny": {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0},
    "gpt2-tiny": {"n_embd": 32, "n_head": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "bert-tiny": {"hidden_size": 32, "intermediate_size": 64, "hidden_dropout_prob": 0.0},
}


def read(texts: Sequence[str], size: int = 200) -> Tokenizer:
    """A tokenizer of some texts."""
    return train_on_documents([Document(text, Path("texts"), 1) for text in texts], "wordpiece", size)


def tiny(name: str, tokenizer: Tokenizer, folder: Path, objective: str = "") -> Path:
    """A random model in a folder, with the heads of some objectives."""
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
