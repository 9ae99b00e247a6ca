"""Longformer against `transformers`: sliding windows, with and without global attention."""

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
from tests.support.family_configs import LONGFORMER
from tests.support.parity import Ragged, compare_classifier, compare_export, compare_mlm, save_reference

LENGTHS = (7, 30, 1, 15)  # longer than the widest window


def make_batch(chosen: str = "none") -> Ragged:
    """Return sequences in which no token, the first one, or random ones have global attention."""
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


def make_reference(folder: Path, **changes: Any) -> Any:
    from transformers import LongformerConfig, LongformerForMaskedLM

    return save_reference(LongformerForMaskedLM, LongformerConfig(**(LONGFORMER | changes)), folder)


@pytest.mark.parametrize("chosen", ["none", "first", "some"])
def test_hidden_states_logits_loss_and_gradients_match_transformers(chosen: str, tmp_path: Path) -> None:
    compare_mlm(make_reference(tmp_path), tmp_path, make_batch(chosen))


def test_a_single_window_size_for_all_layers(tmp_path: Path) -> None:
    changes = {"attention_window": 4, "hidden_act": "relu", "layer_norm_eps": 1e-3, "type_vocab_size": 2}
    model = compare_mlm(make_reference(tmp_path, **changes), tmp_path, make_batch("some"))
    assert model.backbone.max_positions == 38


def test_export_loads_in_transformers_and_a_second_export_is_identical(tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    reference = make_reference(tmp_path / "reference")
    compare_export(reference, tmp_path / "reference", tmp_path, make_batch("some"), AutoModelForMaskedLM)


def test_classifier_round_trips_and_its_first_token_has_global_attention(tmp_path: Path) -> None:
    batch = make_batch("first")
    compare_classifier(FAMILIES["longformer"], LONGFORMER, tmp_path / "export", batch)
    # The default of `transformers` is the first token.
    compare_classifier(FAMILIES["longformer"], LONGFORMER, tmp_path / "unsaid", replace(batch, columns={}))


def test_classify_gives_the_first_token_global_attention() -> None:
    texts = Sequences(np.arange(5), np.array([3, 2]), np.arange(2), {"segment": np.zeros(5, dtype=np.int64)})
    batch = collate(Classify(("bad", "good")).corrupt(texts, tokenizer=None, draws=None))  # type: ignore[arg-type]
    assert batch.packed[0].columns["global"].tolist() == [True, False, False, True, False]


def test_choose_gives_the_choice_or_the_first_token_global_attention() -> None:
    """<s> a </s> </s> b </s>, and <s> a </s>."""
    special = np.array([True, False, True, True, False, True, True, False, True])
    columns = {"segment": np.zeros(9, dtype=np.int64), "special": special}
    texts = Sequences(np.arange(9), np.array([6, 3]), np.arange(2), columns)
    batch = collate(Choose().corrupt(texts, tokenizer=None, draws=None))  # type: ignore[arg-type]
    assert batch.packed[0].columns["global"].nonzero().flatten().tolist() == [4, 5, 6]


def test_invalid_attention_windows_are_refused() -> None:
    family = FAMILIES["longformer"]
    for window, message in (([4, 4], "has 2 sizes, but num_hidden_layers is 3"), (5, "even and positive, not 5")):
        with pytest.raises(PretuneError, match=message):
            family.build(family.read_config(LONGFORMER | {"attention_window": window}))


def test_objectives_that_restart_positions_are_refused() -> None:
    family = FAMILIES["longformer"]
    with pytest.raises(PretuneError, match=r"'tlm' needs .* is window\(2\)"):
        check_attention("tlm", family.build(family.read_config(LONGFORMER)))
