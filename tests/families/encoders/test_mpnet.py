"""MPNet against `transformers`: relative position bias, positions, tokenizer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pretune import PretuneError
from pretune.backbones.onnx_runtime import GRAPH, OnnxBackbone
from pretune.families import FAMILIES
from pretune.inference.embed import embed_texts
from pretune.models.loading import load_model
from pretune.models.onnx_export import write_graph
from pretune.nn.dropout import share_dropout_seed
from pretune.text.corpus.documents import Document
from pretune.text.tokenizers.training import train_on_documents
from tests.support.family_configs import MPNET
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
from tests.support.texts import english_documents

FAMILY = FAMILIES["mpnet"]
PADDING = 1
TEXTS = ["An Assignment is a statement", "x", "the name of a café, 語"]
VARIANTS: dict[str, dict[str, Any]] = {
    "as published": {},
    # Id 1 is still the padding, and there are no segments.
    "others": {"pad_token_id": 3, "type_vocab_size": 2, "hidden_act": "relu", "layer_norm_eps": 1e-3},
}


def make_batch(lengths: tuple[int, ...] = (7, 12, 1, 5), lowest: int = 2) -> Ragged:
    return Ragged.make(60, lengths, lowest=lowest, padding=PADDING, columns={})


def make_reference(folder: Path, **changes: Any) -> Any:
    from transformers import MPNetConfig, MPNetForMaskedLM

    return save_reference(MPNetForMaskedLM, MPNetConfig(**(MPNET | changes)), folder)


@pytest.mark.parametrize("variant", VARIANTS)
def test_hidden_states_logits_loss_and_gradients_match_transformers(variant: str, tmp_path: Path) -> None:
    model = compare_mlm(make_reference(tmp_path, **VARIANTS[variant]), tmp_path, make_batch())
    assert model.backbone.max_positions == 38


def test_relative_position_buckets_match_transformers(tmp_path: Path) -> None:
    """All distances beyond 128 tokens share one bucket."""
    model = compare_mlm(make_reference(tmp_path, max_position_embeddings=160), tmp_path, make_batch((158, 1, 140)))
    used = model.backbone.score.weight.grad.abs().sum(1) > 0
    # A positive distance is never 0, so the first bucket of the second half is unused.
    assert (~used).nonzero().flatten().tolist() == [16]


def test_positions_do_not_count_tokens_with_the_padding_id(tmp_path: Path) -> None:
    """`transformers` derives positions from ids, so padding ids are not counted anywhere in a text."""
    reference = make_reference(tmp_path)
    model = load_model(tmp_path)
    batch = make_batch((9, 4, 6))
    ids = batch.packed.ids.clone()
    ids[torch.tensor([0, 3, 4, 8, 10])] = PADDING
    padded = batch.input_ids.masked_scatter(batch.attention_mask.bool(), ids)
    with torch.no_grad():
        theirs = reference.mpnet(input_ids=padded, attention_mask=batch.attention_mask).last_hidden_state
        close(model.backbone(replace(batch.packed, ids=ids)).last, batch.flat(theirs))


def test_export_loads_in_transformers_and_a_second_export_is_identical(tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    compare_export(
        make_reference(tmp_path / "reference"), tmp_path / "reference", tmp_path, make_batch(), AutoModelForMaskedLM
    )


def test_classifier_round_trips_through_transformers(tmp_path: Path) -> None:
    compare_classifier(FAMILY, MPNET, tmp_path, make_batch())


def test_a_model_without_heads_and_with_an_unused_pooler_loads(tmp_path: Path) -> None:
    from transformers import MPNetModel

    reference = make_reference(tmp_path / "reference")
    bare = MPNetModel(reference.config)
    bare.load_state_dict(reference.mpnet.state_dict(), strict=False)
    bare.save_pretrained(tmp_path / "bare")
    assert any("pooler" in name for name in load_file(tmp_path / "bare" / "model.safetensors"))
    assert_same(load_model(tmp_path / "reference").root, load_model(tmp_path / "bare").root)


def test_a_number_of_buckets_that_transformers_does_not_use_is_refused(tmp_path: Path) -> None:
    make_reference(tmp_path, relative_attention_num_buckets=64)
    with pytest.raises(
        PretuneError,
        match="relative_attention_num_buckets 64 is not supported for mpnet; use a model with relative_attention_num_buckets 32",
    ):
        load_model(tmp_path)


def test_a_checkpoint_without_the_bias_is_refused(tmp_path: Path) -> None:
    make_reference(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["mpnet.encoder.relative_attention_bias.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(PretuneError, match=r"missing: mpnet\.encoder\.relative_attention_bias\.weight"):
        load_model(tmp_path)


def test_all_layers_share_the_relative_position_bias() -> None:
    model = FAMILY.build(FAMILY.read_config(MPNET)).eval()
    assert [name for name, _ in model.named_parameters() if "score" in name] == ["score.weight"]
    seen: list[Any] = []
    for layer in model.layers:
        layer.attention.part.register_forward_hook(lambda module, given, out: seen.append(given[1].score_mod))
    model(make_batch().packed)
    assert len(seen) == 3 and len(set(seen)) == 1 and None not in seen
    assert model.score in dict(model.groups())["embed"]


def test_initialization_matches_transformers() -> None:
    from transformers import MPNetConfig, MPNetForMaskedLM

    wide = MPNET | {"vocab_size": 200, "hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 16}
    torch.manual_seed(0)
    reference = dict(MPNetForMaskedLM(MPNetConfig(**wide)).named_parameters())
    backbone = FAMILY.build(FAMILY.read_config(wide))
    ours, rest = FAMILY.table.write({f"backbone.{name}": tensor for name, tensor in backbone.named_parameters()})
    assert not rest
    for (
        name,
        tensor,
    ) in ours.items():  # truncated at two standard deviations here, which reduces the deviation by an eighth
        assert tensor.std().item() == pytest.approx(reference[name].std().item(), rel=0.25, abs=1e-8), name
        assert tensor.mean().item() == pytest.approx(reference[name].mean().item(), abs=0.01), name


def test_dropout_is_inactive_in_evaluation() -> None:
    model = FAMILY.build(FAMILY.read_config(MPNET | {"hidden_dropout_prob": 0.5}))
    share_dropout_seed(model, torch.device("cpu")).fill_(3)
    batch = make_batch()
    trained, evaluated = model(batch.packed).last, model.eval()(batch.packed).last
    assert not torch.equal(trained, evaluated)
    assert torch.equal(evaluated, model(batch.packed).last)


def with_tokenizer(folder: Path) -> tuple[Any, Any]:
    """Save a model of `transformers` and its vocab.txt, and return the model and the tokenizer."""
    from transformers import MPNetTokenizer

    documents = [Document(text, Path("x"), 1) for text in english_documents()[:3]]
    trained = train_on_documents(documents, "wordpiece", 300, lowercase=True)
    pieces = [piece for piece in trained.vocabulary if not piece.startswith("[")]
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", "[UNK]", *pieces, "<mask>"]
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    return make_reference(folder, vocab_size=len(vocabulary)), MPNetTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("files", ["tokenizer.json", "vocab.txt"])
def test_ids_and_states_of_a_folder_with_tokenizer_match_transformers(files: str, tmp_path: Path) -> None:
    reference, hf_tokenizer = with_tokenizer(tmp_path)
    if files == "tokenizer.json":
        (tmp_path / "vocab.txt").unlink()
        hf_tokenizer.save_pretrained(tmp_path)
        assert (tmp_path / "tokenizer.json").is_file()
    pairs = ["and a second one", "which is longer than the first", "y"]
    roles = compare_texts(reference.mpnet, hf_tokenizer, tmp_path, TEXTS, pairs).require_tokenizer().roles
    mask = reference.config.vocab_size - 1
    assert [roles[name] for name in ("start", "padding", "separator", "mask")] == [0, 1, 2, mask]


def test_vectors_of_a_sentence_transformers_folder_match(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules.normalize import Normalize
    from sentence_transformers.base.modules.transformer import Transformer
    from sentence_transformers.sentence_transformer.modules.pooling import Pooling

    with_tokenizer(tmp_path / "model")
    modules = [Transformer(str(tmp_path / "model"), max_seq_length=12), Pooling(32, "mean"), Normalize()]
    theirs = SentenceTransformer(modules=modules, device="cpu")
    theirs.save(str(tmp_path / "st"), create_model_card=False)
    ours = torch.from_numpy(embed_texts(tmp_path / "st", TEXTS))
    close(ours, theirs.encode(TEXTS, convert_to_tensor=True))
    close(ours.norm(dim=1), torch.ones(len(TEXTS)))


@pytest.mark.not_fast
def test_onnx_states_match(tmp_path: Path) -> None:
    """Texts reach the logarithmic buckets, and contain tokens with the padding id."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    make_reference(tmp_path)
    model = load_model(tmp_path)
    write_graph(model, tmp_path / GRAPH)
    packed = make_batch((38, 5, 21), lowest=0).packed
    assert (packed.ids == PADDING).any()
    with torch.no_grad():
        close(OnnxBackbone(tmp_path / GRAPH, model.backbone)(packed).last, model.root.eval().backbone(packed).last)


def test_every_key_of_a_published_config_is_read(tmp_path: Path) -> None:
    """The keys and values are those of configs on the Hub."""
    published = {
        "architectures": ["MPNetForMaskedLM"], "attention_probs_dropout_prob": 0.1, "bos_token_id": 0, "eos_token_id": 2,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768, "initializer_range": 0.02,
        "intermediate_size": 3072, "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "model_type": "mpnet",
        "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1, "relative_attention_num_buckets": 32,
        "tokenizer_class": "MPNetTokenizer", "transformers_version": "4.8.2", "vocab_size": 30527,
    }  # fmt: skip
    config = FAMILY.read_config(json.loads(json.dumps(published)))
    assert not FAMILY.unknown_keys(published)
    assert (config.max_position_embeddings, config.layer_norm_eps) == (514, 1e-5)
