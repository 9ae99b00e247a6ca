"""The encoder of T5 and mT5 without the decoder: T5EncoderModel of `transformers`, and Sentence-T5."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import pretune as pt
from pretune import PretuneError
from pretune.backbones.onnx_runtime import GRAPH, OnnxBackbone
from pretune.backbones.transformer_stack import TransformerStack
from pretune.families import FAMILIES, find_family
from pretune.inference.embed import embed_texts
from pretune.models.create_model import make_model
from pretune.models.loading import load, load_model
from pretune.models.onnx_export import write_graph
from tests.support.config_key_checks import check_config_keys
from tests.support.family_configs import T5, T5_VARIANTS
from tests.support.parity import Ragged, close, compare_gradients, compare_states, compare_texts
from tests.support.seq2seq_parity import randomize
from tests.support.texts import RUSSIAN, T5_IDS, russian_pieces
from tests.support.transformers_cases import Case, edit_config

CLASSES = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel"}


def make_reference(folder: Path, variant: str = "1.0", **others: Any) -> Any:
    import transformers

    name, changes = T5_VARIANTS[variant]
    config = transformers.AutoConfig.for_model(name, **(T5 | changes | others))
    return randomize(getattr(transformers, CLASSES[name])(config), folder)


def with_tokenizer(folder: Path) -> tuple[Any, Any]:
    """Save an encoder and its tokenizer with `transformers`, and return both."""
    from transformers import T5Tokenizer

    folder.mkdir(exist_ok=True)
    (folder / "spiece.model").write_bytes(russian_pieces(**T5_IDS))
    hf_tokenizer = T5Tokenizer.from_pretrained(folder)
    (folder / "spiece.model").unlink()
    hf_tokenizer.save_pretrained(folder)
    return make_reference(folder, vocab_size=len(hf_tokenizer)), hf_tokenizer


@pytest.mark.parametrize("variant", T5_VARIANTS)
def test_hidden_states_and_gradients_match_transformers(variant: str, tmp_path: Path) -> None:
    reference = make_reference(tmp_path, variant)
    model = load(tmp_path)
    assert isinstance(model.backbone, TransformerStack) and not model.untrained and not model.skipped_head_tensors
    model.root.eval()
    batch = Ragged.make(60, columns={})
    theirs = reference(**batch.inputs, output_hidden_states=True)
    states = compare_states(model, theirs.hidden_states, batch)
    states.square().sum().backward()
    batch.flat(theirs.last_hidden_state).square().sum().backward()
    largest = max(parameter.grad.abs().max() for parameter in reference.parameters())
    for parameter in (*reference.parameters(), *model.root.parameters()):  # large enough to be compared
        parameter.grad /= largest
    compare_gradients(model, reference)


@pytest.mark.parametrize("variant", T5_VARIANTS)
def test_export_loads_in_transformers_and_a_second_export_is_identical(variant: str, tmp_path: Path) -> None:
    reference = make_reference(tmp_path / "reference", variant)
    assert load(tmp_path / "reference").export(tmp_path / "a") == type(reference).__name__
    load(tmp_path / "a").export(tmp_path / "b")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    again, report = type(reference).from_pretrained(tmp_path / "a", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    batch = Ragged.make(60, columns={})
    with torch.no_grad():
        close(
            again.eval()(**batch.inputs).last_hidden_state,
            reference(**batch.inputs).last_hidden_state,
            1e-6,
        )


@pytest.mark.parametrize("name", ["t5-small", "t5-v1.1-base", "mt5-small"])
def test_parameter_counts_match_transformers(name: str) -> None:
    import transformers

    with torch.device("meta"):
        whole = make_model(name)
        family = whole.family.variant(CLASSES[whole.family.name])
        config = transformers.AutoConfig.for_model(family.name, **asdict(whole.config))
        theirs = getattr(transformers, CLASSES[family.name])(config)
        ours = family.build(whole.config)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


@dataclass(frozen=True)
class EncoderCase(Case):
    """An encoder without a head, whose hidden states are compared."""

    @property
    def seq2seq(self) -> bool:
        return False

    def theirs(self, reference: Any) -> Tensor:
        (batch,) = self.batches(reference.config)
        with torch.no_grad():
            return batch.flat(reference(**batch.inputs).last_hidden_state)

    def ours(self, folder: Path, config: Any) -> Tensor:
        model = load(folder)
        assert not model.untrained and not model.skipped_head_tensors
        (batch,) = self.batches(config)
        with torch.no_grad():
            return model.root.eval().backbone(batch.packed).last  # type: ignore[no-any-return]


@pytest.mark.not_fast
@pytest.mark.parametrize("name", ["t5", pytest.param("mt5", marks=pytest.mark.slow)])
def test_no_config_key_is_ignored(name: str, tmp_path: Path) -> None:
    check_config_keys(EncoderCase(name, CLASSES[name], ""), tmp_path)


@pytest.mark.parametrize("value", [True, False, None])
def test_configs_with_is_encoder_decoder_are_read(value: bool | None, tmp_path: Path) -> None:
    """Configs on the Hub have this key; the architecture identifies the encoder."""
    reference = make_reference(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["encoder.embed_tokens.weight"] = tensors.pop("shared.weight")  # either name or both
    save_file(tensors, tmp_path / "model.safetensors")
    edit_config(tmp_path, is_encoder_decoder=value)
    batch = Ragged.make(60, columns={})
    with torch.no_grad():
        close(load(tmp_path).root.eval().backbone(batch.packed).last, batch.flat(reference(**batch.inputs)[0]))
    edit_config(tmp_path, model_type=None)  # the architecture is enough
    assert isinstance(load_model(tmp_path).backbone, TransformerStack)


def test_checkpoints_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    make_reference(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    bias = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    save_file({name: x for name, x in tensors.items() if name != bias}, tmp_path / "model.safetensors")
    with pytest.raises(PretuneError, match=f"missing: {bias}"):
        load(tmp_path)
    save_file(tensors | {"decoder.final_layer_norm.weight": torch.ones(32)}, tmp_path / "model.safetensors")
    with pytest.raises(PretuneError, match=r"unknown tensors for t5: decoder\.final_layer_norm\.weight"):
        load(tmp_path)
    save_file(tensors, tmp_path / "model.safetensors")
    edit_config(tmp_path, architectures=["T5Model"], is_encoder_decoder=True)  # a class with a decoder
    with pytest.raises(PretuneError, match=r"layers: 0 in decoder\.block, but 3 in config\.json"):
        load(tmp_path)


def test_the_architecture_selects_the_variant_of_a_family() -> None:
    t5 = FAMILIES["t5"]
    assert find_family("t5", "x", "T5ForConditionalGeneration") is find_family("t5", "x") is t5
    encoder = find_family("t5", "x", "T5EncoderModel")
    assert encoder.name == "t5" and not encoder.template.target and encoder is not t5
    assert find_family("bert", "x", "T5EncoderModel") is FAMILIES["bert"]


@pytest.mark.not_fast
def test_ids_states_and_vectors_of_a_folder_with_tokenizer_match_transformers(tmp_path: Path) -> None:
    reference, hf_tokenizer = with_tokenizer(tmp_path)
    compare_texts(reference, hf_tokenizer, tmp_path, RUSSIAN, RUSSIAN[::-1])
    given = hf_tokenizer(RUSSIAN, padding=True, return_tensors="pt")
    with torch.no_grad():
        states, real = reference(**given).last_hidden_state, given["attention_mask"][:, :, None]
    close(torch.from_numpy(embed_texts(tmp_path, RUSSIAN)), (states * real).sum(1) / real.sum(1))
    vectors = pt.embed(tmp_path, RUSSIAN, out=tmp_path / "vectors.npy")
    assert np.load(tmp_path / "vectors.npy").shape == (len(RUSSIAN), 32) and vectors is not None


@pytest.mark.not_fast
@pytest.mark.parametrize("modules", ["mean", "all"])
def test_sentence_vectors_match_sentence_transformers(modules: str, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules.dense import Dense
    from sentence_transformers.base.modules.normalize import Normalize
    from sentence_transformers.base.modules.transformer import Transformer
    from sentence_transformers.sentence_transformer.modules.pooling import Pooling

    with_tokenizer(tmp_path / "encoder")
    torch.manual_seed(0)
    parts: list[Any] = [Transformer(str(tmp_path / "encoder"), max_seq_length=12), Pooling(32, "mean")]
    if modules == "all":  # as in Sentence-T5
        parts += [Dense(32, 20, bias=False, activation_function=torch.nn.Identity()), Normalize()]
    SentenceTransformer(modules=parts, device="cpu").save(str(tmp_path / "st"), create_model_card=False)
    assert json.loads((tmp_path / "st" / "config.json").read_text())["architectures"] == ["T5EncoderModel"]

    def theirs(folder: Path) -> Tensor:
        return SentenceTransformer(str(folder), device="cpu").encode(RUSSIAN, convert_to_tensor=True)  # type: ignore[return-value]

    expected = theirs(tmp_path / "st")
    assert expected.shape == (len(RUSSIAN), 20 if modules == "all" else 32)
    close(torch.from_numpy(embed_texts(tmp_path / "st", RUSSIAN)), expected)
    facts = pt.export(tmp_path / "st", out=tmp_path / "ours").facts
    assert facts["format"] == "sentence-transformers" and facts["max_length"] == 12
    close(theirs(tmp_path / "ours"), expected)
    close(torch.from_numpy(embed_texts(tmp_path / "ours", RUSSIAN)), expected)


def test_it_can_be_fine_tuned_like_any_encoder(tmp_path: Path) -> None:
    with_tokenizer(tmp_path / "encoder")
    rows = [f"{text},{label}" for text in ("да нет", "вот и все") for label in ("x", "y")]
    (tmp_path / "rows.csv").write_text("text,label\n" + "\n".join(rows * 3), encoding="utf-8")
    run = pt.finetune(tmp_path / "encoder", tmp_path / "rows.csv", out=tmp_path / "run", budget=pt.Budget(steps=2))
    model = load(run)
    assert model.root.heads["classify"].pooling == "mean" and not model.untrained
    assert json.loads((Path(run.folder) / "config.json").read_text())["architectures"] == ["T5EncoderModel"]
    answers = pt.predict(run, ["да нет"])
    assert len(answers) == 1


@pytest.mark.not_fast
@pytest.mark.parametrize("variant", ["1.0", "1.1"])
def test_onnx_states_match(variant: str, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    make_reference(tmp_path, variant)
    model = load_model(tmp_path)
    write_graph(model, tmp_path / GRAPH)
    packed = Ragged.make(60, (38, 5, 21), columns={}).packed
    with torch.no_grad():
        close(
            OnnxBackbone(tmp_path / GRAPH, model.backbone)(packed).last, model.root.eval().backbone(packed).last, 1e-4
        )
