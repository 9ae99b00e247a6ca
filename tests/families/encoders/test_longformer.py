"""Longformer against the peer: windows, with tokens that see all and without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.objectives.pretraining.parallel_text import check_attention
from pretune.objectives.tasks.choose import Choose
from pretune.objectives.tasks.classify import Classify
from pretune.text.packing.sequences import Sequences, collate
from tests.support.parity import Ragged, compare_classifier, compare_export, compare_mlm, save_peer

SMALL = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 40, "type_vocab_size": 1, "attention_window": [4, 8, 4], "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
LENGTHS = (7, 30, 1, 15)  # longer than the widest window to both sides


def make_batch(chosen: str = "none") -> Ragged:
    """Sequences of which no token, the first, or some here and there see all."""
    batch = Ragged.make(60, LENGTHS, padding=1, columns={})
    starts = (batch.packed.positions == 0).long()
    some = torch.zeros_like(starts).index_fill(0, torch.tensor([3, 9, 10, 25, 45, 52]), 1)
    return marked(batch, {"none": None, "first": starts, "some": some}[chosen])


def marked(batch: Ragged, column: torch.Tensor | None) -> Ragged:
    if column is None:
        return batch
    mask = torch.zeros_like(batch.input_ids)
    mask[batch.attention_mask.bool()] = column
    packed = replace(batch.packed, columns={"global": column})
    return replace(batch, packed=packed, columns={"global_attention_mask": mask})


def make_peer(folder: Path, **changes: Any) -> Any:
    from transformers import LongformerConfig, LongformerForMaskedLM

    return save_peer(LongformerForMaskedLM, LongformerConfig(**(SMALL | changes)), folder)


@pytest.mark.parametrize("chosen", ["none", "first", "some"])
def test_hidden_states_logits_loss_and_gradients_are_the_peers(chosen: str, tmp_path: Path) -> None:
    compare_mlm(make_peer(tmp_path), tmp_path, make_batch(chosen))


def test_one_window_for_all_layers_and_other_settings(tmp_path: Path) -> None:
    changes = {"attention_window": 4, "hidden_act": "relu", "layer_norm_eps": 1e-3, "type_vocab_size": 2}
    model = compare_mlm(make_peer(tmp_path, **changes), tmp_path, make_batch("some"))
    assert model.backbone.max_positions == 38


def test_export_is_loaded_by_the_peer_and_export_import_export_is_stable(tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    peer = make_peer(tmp_path / "peer")
    compare_export(peer, tmp_path / "peer", tmp_path, make_batch("some"), AutoModelForMaskedLM)


def test_a_classifier_goes_both_ways_and_its_first_token_sees_all(tmp_path: Path) -> None:
    batch = make_batch("first")
    compare_classifier(FAMILIES["longformer"], SMALL, tmp_path / "said", batch)
    # The peer's own default is the first token.
    compare_classifier(FAMILIES["longformer"], SMALL, tmp_path / "unsaid", replace(batch, columns={}))


def test_classify_lets_the_first_token_of_each_text_see_all() -> None:
    texts = Sequences(np.arange(5), np.array([3, 2]), np.arange(2), {"segment": np.zeros(5, dtype=np.int64)})
    batch = collate(Classify(("bad", "good")).corrupt(texts, tokenizer=None, draws=None))  # type: ignore[arg-type]
    assert batch.packed[0].columns["global"].tolist() == [True, False, False, True, False]


def test_choose_lets_the_choice_see_all_or_the_first_token_of_a_single_text() -> None:
    """<s> a </s> </s> b </s>, and <s> a </s>."""
    special = np.array([True, False, True, True, False, True, True, False, True])
    columns = {"segment": np.zeros(9, dtype=np.int64), "special": special}
    texts = Sequences(np.arange(9), np.array([6, 3]), np.arange(2), columns)
    batch = collate(Choose().corrupt(texts, tokenizer=None, draws=None))  # type: ignore[arg-type]
    assert batch.packed[0].columns["global"].nonzero().flatten().tolist() == [4, 5, 6]


def test_windows_that_do_not_fit_are_refused() -> None:
    family = FAMILIES["longformer"]
    for window, message in (([4, 4], "has 2 sizes, but num_hidden_layers is 3"), (5, "even and positive, not 5")):
        with pytest.raises(PretuneError, match=message):
            family.build(family.read_config(SMALL | {"attention_window": window}))


def test_objectives_that_begin_positions_anew_are_refused() -> None:
    family = FAMILIES["longformer"]
    with pytest.raises(PretuneError, match=r"tlm needs .* is window\(2\)"):
        check_attention("tlm", family.build(family.read_config(SMALL)))
