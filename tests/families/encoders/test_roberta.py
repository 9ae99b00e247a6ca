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
from tests.support.parity import (
    Ragged,
    assert_same,
    close,
    compare_classifier,
    compare_export,
    compare_mlm,
    compare_texts,
    save_peer,
)
from tests.support.texts import RUSSIAN, russian_pieces

SMALL = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 40, "type_vocab_size": 1, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
KINDS = {"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"}
VARIANTS: dict[str, dict[str, Any]] = {
    "as published": {},
    "others": {"pad_token_id": 3, "type_vocab_size": 2, "hidden_act": "relu", "layer_norm_eps": 1e-3},
}


def make_batch(padding: int = 1) -> Ragged:
    return Ragged.make(60, padding=padding, columns={})


def make_peer(name: str, folder: Path, **changes: Any) -> Any:
    import transformers

    config = getattr(transformers, f"{KINDS[name]}Config")(**(SMALL | changes))
    return save_peer(getattr(transformers, f"{KINDS[name]}ForMaskedLM"), config, folder)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", KINDS)
def test_hidden_states_logits_loss_and_gradients_are_the_peers(name: str, variant: str, tmp_path: Path) -> None:
    changes = VARIANTS[variant]
    peer = make_peer(name, tmp_path, **changes)
    model = compare_mlm(peer, tmp_path, make_batch(changes.get("pad_token_id", 1)))
    assert model.backbone.max_positions == 40 - changes.get("pad_token_id", 1) - 1


@pytest.mark.parametrize("name", KINDS)
def test_export_is_loaded_by_the_peer_and_export_import_export_is_stable(name: str, tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    compare_export(make_peer(name, tmp_path / "peer"), tmp_path / "peer", tmp_path, make_batch(), AutoModelForMaskedLM)


@pytest.mark.parametrize("name", KINDS)
def test_a_classifier_goes_both_ways(name: str, tmp_path: Path) -> None:
    compare_classifier(FAMILIES[name], SMALL, tmp_path, make_batch())


def test_a_bare_model_with_the_pooler_that_nobody_uses_loads(tmp_path: Path) -> None:
    from transformers import RobertaModel

    peer = make_peer("roberta", tmp_path / "peer")
    bare = RobertaModel(peer.config)
    bare.load_state_dict(peer.roberta.state_dict(), strict=False)
    bare.save_pretrained(tmp_path / "bare")
    assert any("pooler" in name for name in load_file(tmp_path / "bare" / "model.safetensors"))
    assert_same(load_model(tmp_path / "peer").root, load_model(tmp_path / "bare").root)


@pytest.mark.parametrize("files", ["tokenizer.json", "sentencepiece.bpe.model"])
def test_a_folder_of_camembert_with_its_tokenizer_gives_the_same_ids_and_states(files: str, tmp_path: Path) -> None:
    from transformers import CamembertTokenizer

    (tmp_path / "sentencepiece.bpe.model").write_bytes(russian_pieces())
    dress = CamembertTokenizer.from_pretrained(tmp_path)
    peer = make_peer("camembert", tmp_path, vocab_size=len(dress), max_position_embeddings=200)
    if files == "tokenizer.json":
        (tmp_path / "sentencepiece.bpe.model").unlink()
        dress.save_pretrained(tmp_path)
        assert (tmp_path / "tokenizer.json").is_file()
    model = compare_texts(peer.roberta, dress, tmp_path, RUSSIAN, RUSSIAN[::-1])
    assert (
        model.family.name == "camembert" and model.require_tokenizer().role("padding") == peer.config.pad_token_id == 1
    )


def test_heads_of_other_tasks_are_not_refused(tmp_path: Path) -> None:
    make_peer("roberta", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors |= {"classifier.weight": torch.zeros(9, 32), "qa_outputs.bias": torch.zeros(2)}
    save_file(tensors, tmp_path / "model.safetensors")
    load_model(tmp_path, parse_objective("mlm"))


def test_positions_follow_the_padding_of_the_tokenizer_a_preset_is_trained_with(tmp_path: Path) -> None:
    """Our tokenizers number [PAD] 0, published ones 1; the peer counts positions from there."""
    from transformers import AutoModel, AutoTokenizer

    texts = ["the cat sat on the mat and the dog sat on the log", "a dog and a cat ran"]
    tokenizer = train_on_documents([Document(text, Path("x"), 1) for text in texts], "byte-bpe", 300)
    assert tokenizer.role("padding") == 0
    with torch.device("meta"):
        config = make_model("roberta-base", padding=tokenizer.role("padding")).config
    config = replace(config, **(SMALL | {"vocab_size": 320}))
    family = FAMILIES["roberta"]
    model = Model(family, config, Network(family.build(config)), tokenizer)
    model.root.eval().requires_grad_(False)
    model.save(tmp_path)
    peer, dress = AutoModel.from_pretrained(tmp_path).eval(), AutoTokenizer.from_pretrained(tmp_path)
    assert peer.config.pad_token_id == 0
    inputs = dress([texts[0]], [texts[1]], return_tensors="pt")
    assert set(inputs) == {"input_ids", "attention_mask"}
    start, separator = tokenizer.role("start"), tokenizer.role("separator")
    expected = [start, *tokenizer.encode(texts[0]), separator, separator, *tokenizer.encode(texts[1]), separator]
    assert inputs["input_ids"].tolist() == [expected]
    (batch,) = text_batches(model, [texts[0]], [texts[1]])
    assert batch.packed[0].ids.tolist() == expected
    with torch.no_grad():
        close(model.backbone(batch.packed[0]).last, peer(**inputs).last_hidden_state[0])
    assert load_model(tmp_path).require_tokenizer().digest == tokenizer.digest
