"""RoBERTa, XLM-RoBERTa and CamemBERT against `transformers`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pretune.families import FAMILIES
from pretune.models.create_model import make_model
from pretune.models.length_bucketing import text_batches
from pretune.models.loading import load_model
from pretune.models.model import Model, Network
from pretune.objectives import parse_objective
from pretune.text.corpus.documents import Document
from pretune.text.tokenizers.training import train_on_documents
from tests.support.family_configs import ROBERTA
from tests.support.parity import (
    Ragged,
    assert_same,
    close,
    compare_classifier,
    compare_export,
    compare_mlm,
    compare_texts,
    save_reference,
)
from tests.support.texts import RUSSIAN, russian_pieces

KINDS = {"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"}
VARIANTS: dict[str, dict[str, Any]] = {
    "as published": {},
    "others": {"pad_token_id": 3, "type_vocab_size": 2, "hidden_act": "relu", "layer_norm_eps": 1e-3},
}


def make_batch(padding: int = 1) -> Ragged:
    return Ragged.make(60, padding=padding, columns={})


def make_reference(name: str, folder: Path, **changes: Any) -> Any:
    import transformers

    config = getattr(transformers, f"{KINDS[name]}Config")(**(ROBERTA | changes))
    return save_reference(getattr(transformers, f"{KINDS[name]}ForMaskedLM"), config, folder)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", KINDS)
def test_hidden_states_logits_loss_and_gradients_match_transformers(name: str, variant: str, tmp_path: Path) -> None:
    changes = VARIANTS[variant]
    reference = make_reference(name, tmp_path, **changes)
    model = compare_mlm(reference, tmp_path, make_batch(changes.get("pad_token_id", 1)))
    assert model.backbone.max_positions == 40 - changes.get("pad_token_id", 1) - 1


@pytest.mark.parametrize("name", KINDS)
def test_export_loads_in_transformers_and_a_second_export_is_identical(name: str, tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    compare_export(
        make_reference(name, tmp_path / "reference"),
        tmp_path / "reference",
        tmp_path,
        make_batch(),
        AutoModelForMaskedLM,
    )


@pytest.mark.parametrize("name", KINDS)
def test_classifier_round_trips_through_transformers(name: str, tmp_path: Path) -> None:
    compare_classifier(FAMILIES[name], ROBERTA, tmp_path, make_batch())


def test_a_model_without_heads_and_with_an_unused_pooler_loads(tmp_path: Path) -> None:
    from transformers import RobertaModel

    reference = make_reference("roberta", tmp_path / "reference")
    bare = RobertaModel(reference.config)
    bare.load_state_dict(reference.roberta.state_dict(), strict=False)
    bare.save_pretrained(tmp_path / "bare")
    assert any("pooler" in name for name in load_file(tmp_path / "bare" / "model.safetensors"))
    assert_same(load_model(tmp_path / "reference").root, load_model(tmp_path / "bare").root)


@pytest.mark.parametrize("files", ["tokenizer.json", "sentencepiece.bpe.model"])
def test_ids_and_states_of_a_camembert_folder_with_tokenizer_match_transformers(files: str, tmp_path: Path) -> None:
    from transformers import CamembertTokenizer

    (tmp_path / "sentencepiece.bpe.model").write_bytes(russian_pieces())
    hf_tokenizer = CamembertTokenizer.from_pretrained(tmp_path)
    reference = make_reference("camembert", tmp_path, vocab_size=len(hf_tokenizer), max_position_embeddings=200)
    if files == "tokenizer.json":
        (tmp_path / "sentencepiece.bpe.model").unlink()
        hf_tokenizer.save_pretrained(tmp_path)
        assert (tmp_path / "tokenizer.json").is_file()
    model = compare_texts(reference.roberta, hf_tokenizer, tmp_path, RUSSIAN, RUSSIAN[::-1])
    assert (
        model.family.name == "camembert"
        and model.require_tokenizer().role("padding") == reference.config.pad_token_id == 1
    )


def test_heads_of_other_tasks_are_accepted(tmp_path: Path) -> None:
    make_reference("roberta", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors |= {"classifier.weight": torch.zeros(9, 32), "qa_outputs.bias": torch.zeros(2)}
    save_file(tensors, tmp_path / "model.safetensors")
    load_model(tmp_path, parse_objective("mlm"))


def test_positions_follow_the_padding_of_the_tokenizer_a_preset_is_trained_with(tmp_path: Path) -> None:
    """pretune's tokenizers give [PAD] the id 0, published ones 1; `transformers` counts positions from it."""
    from transformers import AutoModel, AutoTokenizer

    texts = ["the cat sat on the mat and the dog sat on the log", "a dog and a cat ran"]
    tokenizer = train_on_documents([Document(text, Path("x"), 1) for text in texts], "byte-level-bpe", 300)
    assert tokenizer.role("padding") == 0
    with torch.device("meta"):
        config = make_model("roberta-base", padding=tokenizer.role("padding")).config
    config = replace(config, **(ROBERTA | {"vocab_size": 320}))
    family = FAMILIES["roberta"]
    model = Model(family, config, Network(family.build(config)), tokenizer)
    model.root.eval().requires_grad_(False)
    model.save(tmp_path)
    reference, hf_tokenizer = AutoModel.from_pretrained(tmp_path).eval(), AutoTokenizer.from_pretrained(tmp_path)
    assert reference.config.pad_token_id == 0
    inputs = hf_tokenizer([texts[0]], [texts[1]], return_tensors="pt")
    assert set(inputs) == {"input_ids", "attention_mask"}
    start, separator = tokenizer.role("start"), tokenizer.role("separator")
    expected = [start, *tokenizer.encode(texts[0]), separator, separator, *tokenizer.encode(texts[1]), separator]
    assert inputs["input_ids"].tolist() == [expected]
    (batch,) = text_batches(model, [texts[0]], [texts[1]])
    assert batch.packed[0].ids.tolist() == expected
    with torch.no_grad():
        close(model.backbone(batch.packed[0]).last, reference(**inputs).last_hidden_state[0])
    assert load_model(tmp_path).require_tokenizer().digest == tokenizer.digest
