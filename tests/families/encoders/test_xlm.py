"""XLM against `transformers`, with and without language embeddings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.models.loading import load_model
from tests.support.family_configs import XLM
from tests.support.parity import (
    Ragged,
    assert_same,
    close,
    compare_classifier,
    compare_export,
    compare_mlm,
    save_reference,
)

FAMILY = FAMILIES["xlm"]
VARIANTS: dict[str, dict[str, Any]] = {
    "with languages": {},
    "one language": {"n_langs": 1},
    "languages without vectors": {"use_lang_emb": False},
    "left to right": {"causal": True},
    "relu": {"gelu_activation": False, "layer_norm_eps": 1e-3},
}


def make_batch(**changes: Any) -> Ragged:
    languages = changes.get("n_langs", 3) > 1 and changes.get("use_lang_emb", True)
    return Ragged.make(60, padding=2, columns={"language": ("langs", 3)} if languages else {})


def make_reference(folder: Path, **changes: Any) -> Any:
    from transformers import XLMConfig, XLMWithLMHeadModel

    return save_reference(XLMWithLMHeadModel, XLMConfig(**(XLM | changes)), folder)


@pytest.mark.parametrize("variant", VARIANTS)
def test_hidden_states_logits_loss_and_gradients_match_transformers(variant: str, tmp_path: Path) -> None:
    changes = VARIANTS[variant]
    compare_mlm(make_reference(tmp_path, **changes), tmp_path, make_batch(**changes))


def test_no_language_embedding_is_added_by_default(tmp_path: Path) -> None:
    reference = make_reference(tmp_path)
    batch = Ragged.make(60, padding=2, columns={})
    with torch.no_grad():
        close(
            load_model(tmp_path).backbone(batch.packed).last,
            batch.flat(reference.transformer(**batch.inputs).last_hidden_state),
        )


def test_sinusoidal_positions_match_transformers_and_are_not_trained() -> None:
    from transformers import XLMConfig, XLMModel

    config = XLM | {"sinusoidal_embeddings": True}
    positions = FAMILY.build(FAMILY.read_config(config)).embed.positions
    torch.testing.assert_close(positions.weight, XLMModel(XLMConfig(**config)).position_embeddings.weight)
    assert not positions.weight.requires_grad


def test_export_loads_in_transformers_and_a_second_export_is_identical(tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    names = {"lang2id": {"de": 0, "en": 1, "fr": 2}, "id2lang": {"0": "de", "1": "en", "2": "fr"}}
    reference = make_reference(tmp_path / "reference", **names)
    compare_export(reference, tmp_path / "reference", tmp_path, make_batch(), AutoModelForMaskedLM)
    assert json.loads((tmp_path / "b" / "config.json").read_text())["lang2id"] == names["lang2id"]


def test_classifier_round_trips_through_transformers(tmp_path: Path) -> None:
    compare_classifier(FAMILY, XLM, tmp_path, make_batch())


def test_a_model_without_heads_and_with_older_keys_loads(tmp_path: Path) -> None:
    make_reference(tmp_path / "reference").transformer.save_pretrained(tmp_path / "bare")
    path = tmp_path / "bare" / "config.json"
    config = json.loads(path.read_text())
    config["n_words"], config["pad_index"] = config.pop("vocab_size"), config.pop("pad_token_id")
    path.write_text(json.dumps(config))
    bare = load_model(tmp_path / "bare")
    assert bare.config.vocab_size == 60
    assert_same(load_model(tmp_path / "reference").root, bare.root)


def test_an_adaptive_softmax_is_refused() -> None:
    with pytest.raises(PretuneError, match="asm"):
        FAMILY.build(FAMILY.read_config(XLM | {"asm": True}))
