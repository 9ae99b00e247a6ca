"""Tiny translation models, recurrent and Transformer, that have memorized a few sentences."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

import pretune as pt
from pretune.families import FAMILIES
from pretune.models.model import Model, Network
from pretune.objectives import parse_objective

WORDS = {"the": "die", "cat": "Katze", "dog": "Hund", "sees": "sieht", "a": "eine", "bird": "Vogel", "red": "rote"}
SENTENCES = [
    f"the {a} sees a {c} {b}" if c else f"the {a} sees a {b}"
    for a in ("cat", "dog", "bird")
    for b in ("cat", "dog", "bird")
    for c in ("", "red")
]
GERMAN = [" ".join(WORDS[word] for word in line.split()) for line in SENTENCES]
SIZES: dict[str, dict[str, Any]] = {
    "rnn": {"family": "seq2seq", "embedding_size": 24, "hidden_size": 32, "encoder_layers": 1, "decoder_layers": 1,
            "attention": "dot", "reverse_source": False, "initializer_range": 0.3},
    "transformer": {"family": "marian", "d_model": 32, "encoder_layers": 1, "decoder_layers": 2,
                    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 64,
                    "decoder_ffn_dim": 64, "max_position_embeddings": 32, "dropout": 0.0, "init_std": 0.1},
}  # fmt: skip


@cache
def folder() -> Path:
    """Write the sentences of both languages into a folder."""
    made = Path(mkdtemp())
    (made / "text.en.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    (made / "text.de.txt").write_text("\n".join(GERMAN), encoding="utf-8")
    return made


@cache
def trained(kind: str, seed: int = 0) -> Path:
    """Train a model on the sentences and return its run folder."""
    where = folder() / f"{kind}-{seed}"
    tokenizer = pt.train_tokenizer([folder() / "text.en.txt", folder() / "text.de.txt"], kind="words", vocab_size=64)
    sizes = dict(SIZES[kind])
    family = FAMILIES[sizes.pop("family")]
    ids = {"pad_token_id": tokenizer.role("padding"), "eos_token_id": tokenizer.role("end")}
    config = family.read_config(
        {"vocab_size": tokenizer.size, **ids, "decoder_start_token_id": ids["pad_token_id"], **sizes}
    )
    torch.manual_seed(seed)
    start = Model(family, config, Network(family.build(config)), tokenizer, "translate(label_smoothing=0)")
    start.add_heads(parse_objective("translate").objectives)
    start.save(where / "start")
    pt.pretrain(
        where / "start", [folder() / "text.en.txt", folder() / "text.de.txt"], objective="translate(label_smoothing=0)",
        tokenizer=where / "start", out=where / "run", budget=pt.Budget(steps=200), batch=pt.Batching(tokens=256, max_length=16),
        optimizer=pt.Optimizer(lr=1e-2 if kind == "rnn" else 5e-3), monitor=pt.Monitoring(held_out_fraction=0.0), seed=seed,
    )  # fmt: skip
    return where / "run"
