"""BART, mBART and Marian: one wiring, three layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from two_streams import assert_classifier, assert_parity, assert_round_trip, randomize

SMALL = {
    "vocab_size": 60, "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_layers": 3, "decoder_attention_heads": 2, "decoder_ffn_dim": 40, "max_position_embeddings": 20,
    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "bart": ("bart", {}),
    "bart scaled": ("bart", {"scale_embedding": True, "activation_function": "relu"}),
    "mbart": ("mbart", {"scale_embedding": True}),
    "marian": ("marian", {"scale_embedding": True, "activation_function": "swish"}),
    "transformer": ("marian", {"scale_embedding": True, "activation_function": "relu"}),
}


def make_peer(folder: Path, variant: str) -> Any:
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    kind, changes = VARIANTS[variant]
    return randomize(AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(kind, **(SMALL | changes))), folder)


@pytest.mark.parametrize("variant", VARIANTS)
def test_states_logits_loss_and_gradients_are_the_peers(variant: str, tmp_path: Path) -> None:
    assert_parity(make_peer(tmp_path, variant), tmp_path)


@pytest.mark.parametrize("variant", VARIANTS)
def test_export_and_import(variant: str, tmp_path: Path) -> None:
    from transformers import AutoModelForSeq2SeqLM

    peer = make_peer(tmp_path / "peer", variant)
    assert_round_trip(peer, tmp_path / "peer", tmp_path, AutoModelForSeq2SeqLM)


def test_a_classifier_goes_both_ways(tmp_path: Path) -> None:
    assert_classifier("bart", SMALL, tmp_path)
