from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from two_streams import IDS, assert_classifier, assert_parity, assert_round_trip, randomize

# Six buckets a side up to a distance of 8: shorter than the sequences. Heads that do not fill the width.
SMALL = {
    "vocab_size": 60, "d_model": 32, "d_kv": 6, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4,
    "relative_attention_num_buckets": 12, "relative_attention_max_distance": 8, **IDS,
}  # fmt: skip
GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "1.0": ("t5", {}),
    "1.1": ("t5", GATED),
    "mt5": ("mt5", GATED),
    "silu": ("t5", {"feed_forward_proj": "gated-silu"}),
}


def make_peer(folder: Path, variant: str) -> Any:
    from transformers import MT5Config, MT5ForConditionalGeneration, T5Config, T5ForConditionalGeneration

    kind, changes = VARIANTS[variant]
    config, model = {
        "t5": (T5Config, T5ForConditionalGeneration),
        "mt5": (MT5Config, MT5ForConditionalGeneration),
    }[kind]
    peer = model(config(**(SMALL | changes)))
    if not changes.get("tie_word_embeddings", True):  # the peer ties them until a checkpoint says otherwise
        peer.lm_head.weight = torch.nn.Parameter(torch.empty(60, 32))
    return randomize(peer, folder)


@pytest.mark.parametrize("variant", VARIANTS)
def test_states_logits_loss_and_gradients_are_the_peers(variant: str, tmp_path: Path) -> None:
    assert_parity(make_peer(tmp_path, variant), tmp_path)


@pytest.mark.parametrize("variant", VARIANTS)
def test_export_and_import(variant: str, tmp_path: Path) -> None:
    from transformers import AutoModelForSeq2SeqLM

    peer = make_peer(tmp_path / "peer", variant)
    assert_round_trip(peer, tmp_path / "peer", tmp_path, AutoModelForSeq2SeqLM)


@pytest.mark.parametrize("variant", ["1.0", "mt5"])
def test_a_classifier_goes_both_ways(variant: str, tmp_path: Path) -> None:
    family, changes = VARIANTS[variant]
    assert_classifier(family, SMALL | changes, tmp_path)
