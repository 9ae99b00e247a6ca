"""NaN: weights that contain it are refused by name, and a model that computes it refuses to predict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune import PretuneError
from pretune.models.loading import load
from pretune.models.model import Model, Network
from pretune.models.weight_files import PICKLE_FILE, WEIGHTS_FILE, read_weights, write_weights
from pretune.nn.sentence_embedding import DenseSpec, TextEmbedding
from pretune.objectives import parse_objective
from pretune.runtime.checksummed_safetensors import read_tensors, write_tensors
from pretune.text.tokenizers.tokenizer import Tokenizer
from tests.support.tiny_models import random_model, small_tokenizer

WIDTH = 16
TEXT = "Names refer to objects"


@cache
def tokenizer(kind: Any) -> Tokenizer:
    return small_tokenizer(kind)


def with_head(objective: str, **options: Any) -> Model:
    """Return a tiny encoder with the head of an objective."""
    base = random_model("bert", tokenizer("wordpiece"), "mlm", num_hidden_layers=1)
    model = Model(base.family, base.config, Network(base.backbone), base.tokenizer, objective)
    model.labels = list(options.get("labels", ()))
    model.add_heads(parse_objective(objective, **options).objectives)
    return model


def with_dense() -> Model:
    return with_head("contrast", embedding=TextEmbedding(("mean",), (DenseSpec(WIDTH, 12),)))


def with_value(tensors: Mapping[str, torch.Tensor], name: str, value: float) -> dict[str, torch.Tensor]:
    """Return tensors of which one contains NaN."""
    changed = {key: tensor.clone() for key, tensor in tensors.items()}
    changed[name].view(-1)[3] = value
    return changed


# -- weights --------------------------------------------------------------------------------------------------------

BIAS = "bert.encoder.layer.0.output.dense.bias"


def in_one_file(folder: Path, value: float) -> str:
    write_weights(folder, with_value(read_weights(folder), BIAS, value))
    return BIAS


def in_shards(folder: Path, value: float) -> str:
    write_weights(folder, with_value(read_weights(folder), BIAS, value), shard=2000)
    assert not (folder / WEIGHTS_FILE).exists()
    return BIAS


def pickled(folder: Path, value: float) -> str:
    torch.save(with_value(read_weights(folder), BIAS, value), folder / PICKLE_FILE)
    (folder / WEIGHTS_FILE).unlink()
    return BIAS


def in_head(folder: Path, value: float) -> str:
    path, name = folder / "head.safetensors", "heads.contrast.transforms.0.linear.weight"
    write_tensors(path, with_value(read_tensors(path), name, value))
    return name


def in_module(folder: Path, value: float) -> str:
    path = folder / "2_Dense" / WEIGHTS_FILE
    write_tensors(path, with_value(read_tensors(path), "linear.weight", value))
    return "linear.weight"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "change", [in_one_file, in_shards, pickled, in_head, in_module], ids=lambda change: change.__name__
)
def test_weights_of_any_origin_with_nan_are_refused_by_name(
    change: Callable[[Path, float], str], value: float, tmp_path: Path
) -> None:
    """The checksum is right, as after training that diverged."""
    model = with_dense()
    model.export(tmp_path) if change is in_module else model.save(tmp_path)
    name = change(tmp_path, value)
    with pytest.raises(PretuneError, match=f"NaN or infinity in {name},"):
        load(tmp_path)


# -- predictions ----------------------------------------------------------------------------------------------------


def overflow(model: Model, folder: Path) -> None:
    """Save a model whose weights are finite, but so large that its outputs are not."""
    with torch.no_grad():
        for name, parameter in model.backbone.named_parameters():
            if name.endswith("norm.weight"):
                parameter.fill_(1e38)
    model.save(folder)
    check = read_weights(folder)
    assert all(torch.isfinite(tensor).all() for tensor in check.values())


def decoder() -> Model:
    return random_model("gpt2", tokenizer("byte-level-bpe"), "lm", num_hidden_layers=1)


def encoder_decoder() -> Model:
    return random_model("bart", tokenizer("byte-level-bpe"), "denoise")


ANSWERS: dict[str, tuple[Callable[[], Model], Callable[[Path], Any]]] = {
    "predict": (lambda: with_head("classify", labels=("no", "yes")), lambda folder: pt.predict(folder, [TEXT])),
    "embed": (with_dense, lambda folder: pt.embed(folder, [TEXT])),
    "embed by the mean": (lambda: with_head("mlm"), lambda folder: pt.embed(folder, [TEXT], pooling="mean")),
    "fill": (lambda: with_head("mlm"), lambda folder: pt.fill(folder, [f"{TEXT} [MASK]"])),
    "generate": (decoder, lambda folder: pt.generate(folder, [TEXT], max_new_tokens=3)),
    "generate by sampling": (decoder, lambda folder: pt.generate(folder, [TEXT], max_new_tokens=3, temperature=1.0)),
    "generate by beam search": (decoder, lambda folder: pt.generate(folder, [TEXT], max_new_tokens=3, num_beams=2)),
    "generate with an encoder-decoder": (encoder_decoder, lambda folder: pt.generate(folder, [TEXT], max_new_tokens=3)),
    "evaluate a decoder": (decoder, lambda folder: pt.evaluate(folder, data=folder.parent / "text.txt")),
    "evaluate an encoder": (
        lambda: with_head("mlm"),
        lambda folder: pt.evaluate(folder, data=folder.parent / "text.txt"),
    ),
}


@pytest.mark.parametrize("verb", ANSWERS)
def test_a_model_that_computes_nan_refuses_to_predict(verb: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(f"{TEXT}.\n" * 3, encoding="utf-8")
    make, answer = ANSWERS[verb]
    overflow(make(), tmp_path / "model")
    with pytest.raises(PretuneError, match="computes NaN instead of numbers"):
        answer(tmp_path / "model")
