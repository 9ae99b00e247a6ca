"""Model folders with further files: sentence-transformers, ONNX graphs, separate heads, and learned ranges."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pretune.backbones.onnx_runtime import GRAPH
from pretune.compression.quantization import read_ranges
from pretune.models.loading import load, load_model
from pretune.models.model import Model, Network
from pretune.models.onnx_export import export_graph
from pretune.models.sentence_transformers import read_layout, transformer_folder
from pretune.nn.sentence_embedding import DenseSpec, DropoutSpec, LayerNormSpec, NormalizeSpec, TextEmbedding
from pretune.objectives import parse_objective
from pretune.packed import pack_lists
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.training.jobs.finetuning import RANGES
from tests.support.fuzz_harness import FEW, MANY, Kind, attack
from tests.support.fuzz_models import digest, tiny_model
from tests.support.tiny_models import random_model, small_tokenizer

WIDTH = 16
BATCH = pack_lists([[1, 5, 9, 2], [1, 2]])


@cache
def words() -> Tokenizer:
    return small_tokenizer("wordpiece", 80)


def encoder(objective: str, **options: Any) -> Model:
    """Return a tiny encoder with the head of an objective."""
    base = random_model("bert", words(), "mlm", num_hidden_layers=1)
    model = Model(base.family, base.config, Network(base.backbone), words(), objective)
    model.add_heads(parse_objective(objective, **options).objectives)
    return model


def sentence_transformers(folder: Path) -> None:
    """Write a model with every kind of module after its pooling, and prompts."""
    parts = (DenseSpec(2 * WIDTH, 12), LayerNormSpec(12), DropoutSpec(0.1), NormalizeSpec())
    prompts = {"query": "query: ", "passage": "passage: "}
    embedding = TextEmbedding(("mean", "max"), parts, prompts=prompts, default_prompt_name="query", truncate_dim=8)
    encoder("contrast", embedding=embedding).export(folder)


def read_modules(folder: Path) -> Any:
    """Read all files of sentence-transformers, and the weights of their modules."""
    layout = read_layout(transformer_folder(folder))
    if layout is None:  # another module is named as the Transformer, whose folder then has no model
        return {}
    layout.embedding.width(WIDTH)
    assert isinstance(layout.embedding.prompt, str)
    return layout.tensors("contrast")


def head(folder: Path) -> None:
    """Write a model with a head that the layout of its family lacks, so that it has its own file."""
    tiny_model("bert", "contrast", embedding=TextEmbedding(("mean",), (DenseSpec(WIDTH, 12),))).save(folder)


def graph(folder: Path) -> None:
    """Write an encoder as an ONNX graph."""
    model = tiny_model("bert")
    model.root.eval()
    export_graph(model, folder)


def graph_without_checksum(folder: Path) -> None:
    """Write a graph without a checksum in its config.json."""
    graph(folder)
    path = folder / "config.json"
    content = json.loads(path.read_text())
    del content["pretune"]["graph_sha256"]
    path.write_text(json.dumps(content))


def run_graph(folder: Path) -> list[float]:
    """Compute the states of a few tokens."""
    return load_model(folder).backbone(BATCH).last.flatten().tolist()


def round_numbers(numbers: list[float]) -> list[float]:
    return [round(x, 3) for x in numbers]


def parameters(model: Model) -> str:
    return digest(model.state())


MODULES = [
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
    "2_Dense/config.json",
    "3_LayerNorm/config.json",
    "4_Dropout/config.json",
]
KINDS = [
    Kind("sentence-transformers folder", sentence_transformers, MODULES, read_modules),
    Kind(
        "weights of sentence-transformers modules",
        sentence_transformers,
        ["2_Dense/model.safetensors", "3_LayerNorm/model.safetensors"],
        read_modules,
        digest,
    ),
    Kind("head.safetensors", head, ["head.safetensors"], load, parameters),
    Kind("ONNX graph", graph, [GRAPH], run_graph, round_numbers),
    Kind("ONNX graph without a checksum", graph_without_checksum, [GRAPH], run_graph),
    Kind("config.json of an ONNX graph", graph, ["config.json"], run_graph),
    Kind(
        "activation_ranges.json",
        lambda folder: (folder / RANGES).write_text(
            json.dumps({"layers.0.attention.part.qkv": 3.5, "layers.0.x": 1e-3})
        ),
        [RANGES],
        lambda folder: read_ranges(folder / RANGES),
    ),
]


@pytest.mark.end_to_end
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_damaged_layouts(kind: Kind, tmp_path: Path) -> None:
    report = attack(kind, tmp_path, FEW)
    assert not report.bad, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_damaged_layouts_at_length(kind: Kind, tmp_path: Path) -> None:
    report = attack(kind, tmp_path, MANY, seed=1)
    print(report)
    assert not report.bad, str(report)
