"""Model folders whose config.json is damaged or malicious."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch

from pretune import PretuneError
from pretune.backbones.pruned_shape import PrunedShape
from pretune.families import FAMILIES
from pretune.families.config_bounds import BOUNDS
from pretune.models.create_model import make_model
from pretune.models.loading import load
from pretune.models.model import Model, Network
from pretune.nn.initialization import SkipInitialization
from pretune.nn.quantized.int8 import replace_linears
from pretune.nn.sentence_embedding import DenseSpec, DropoutSpec, LayerNormSpec, NormalizeSpec, TextEmbedding
from pretune.objectives import parse_objective
from pretune.runtime.parsing import read_mapping
from tests.support.fuzz_harness import FEW, MANY, Kind, attack, limits
from tests.support.fuzz_models import PRESETS, VOCABULARY, tiny_model

# -- folders that are loaded whole ----------------------------------------------------------------------------------


def folder_of(family: str, objective: str = "", labels: tuple[str, ...] = ()) -> Callable[[Path], None]:
    """Return a function that writes a model of a family into a folder."""
    options = {"labels": labels} if labels else {}
    return lambda folder: tiny_model(family, objective, **options).save(folder)


def pruned(folder: Path) -> None:
    """Write a model with a layer, a head and some units pruned."""
    model = tiny_model("bert", "mlm")
    model.config = replace(model.config, num_hidden_layers=2)
    shape = PrunedShape((1,), {"layers.0.attention.part": 1}, {"layers.0.feed_forward.part": 10})
    model.shape, model.root = shape, Network(shape.apply(model.family.build(model.config)))
    model.save(folder)


def quantized(folder: Path) -> None:
    """Write a model with int8 weights."""
    model = tiny_model("bert")
    model.shape = PrunedShape(linear="weight-only")
    replace_linears(model.backbone, "weight-only")
    model.save(folder)


def with_text_embeddings(folder: Path) -> None:
    """Write a model with settings of its text embeddings, options of its task and a maximum length."""
    parts = (DenseSpec(16, 12), LayerNormSpec(12), DropoutSpec(0.1), NormalizeSpec())
    embedding = TextEmbedding(
        ("mean",), parts, prompts={"query": "query: "}, default_prompt_name="query", truncate_dim=8
    )
    model = tiny_model("bert", "contrast", embedding=embedding)
    model.max_length, model.options = 64, {"temperature": 0.05}
    model.save(folder)


def several_tasks(folder: Path) -> None:
    """Write a model with two tasks, each with its own labels."""
    tasks = {"mood": {"labels": ["bad", "good"]}, "topic": {"labels": ["a", "b", "c"]}}
    model = tiny_model("bert")
    model.objective, model.tasks = "mood: classify|topic: classify", tasks
    model.add_heads(parse_objective(model.objective, tasks).objectives)
    model.save(folder)


LOADED = [
    Kind("config.json of a pruned model", pruned, ["config.json"], load),
    Kind("config.json of an int8 model", quantized, ["config.json"], load),
    Kind("config.json of a model for vectors", with_text_embeddings, ["config.json"], load),
    Kind("config.json of several tasks", several_tasks, ["config.json"], load),
] + [
    Kind(f"config.json of {family}", folder_of(family, objective, labels), ["config.json"], load)
    for family, objective, labels in (
        ("bert", "classify", ("no", "yes", "perhaps")),
        ("gpt2", "lm", ()),
        ("t5", "spans", ()),
        ("xlnet", "plm", ()),
        ("modernbert", "mlm", ()),
        ("word-vectors", "", ()),
        ("lstm", "lm", ()),
    )
]


@pytest.mark.end_to_end
@pytest.mark.parametrize("kind", LOADED, ids=lambda kind: kind.name)
def test_damaged_configs(kind: Kind, tmp_path: Path) -> None:
    report = attack(kind, tmp_path, FEW // len(LOADED))
    assert not report.bad, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOADED, ids=lambda kind: kind.name)
def test_damaged_configs_at_length(kind: Kind, tmp_path: Path) -> None:
    report = attack(kind, tmp_path, MANY // len(LOADED), seed=1)
    print(report)
    assert not report.bad, str(report)


# -- every family, built without memory -----------------------------------------------------------------------------


def family_config(family: str) -> dict[str, Any]:
    """Return the config keys of a tiny model of a family that describe its network."""
    if family in PRESETS:
        return asdict(make_model_of_shapes(family).config)
    return asdict(FAMILIES[family].config())


def make_model_of_shapes(family: str) -> Model:
    with torch.device("meta"), SkipInitialization():
        return make_model(PRESETS[family], vocabulary=VOCABULARY)


def build_on_meta(family: str) -> Callable[[Path], Any]:
    """Return a function that reads the configuration of a family and builds its network on the meta device."""

    def read(folder: Path) -> Any:
        path = folder / "config.json"
        config = FAMILIES[family].read_config(read_mapping(path, "a configuration"), str(path))
        with torch.device("meta"), SkipInitialization():
            return FAMILIES[family].build(config)

    return read


def write_config(family: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / "config.json").write_text(json.dumps(family_config(family)))


BUILT = [
    Kind(f"config.json of {family}, built", write_config(family), ["config.json"], build_on_meta(family))
    for family in FAMILIES
]


@pytest.mark.end_to_end
@pytest.mark.parametrize("kind", BUILT, ids=lambda kind: kind.name)
def test_extreme_config_values_are_refused_or_loaded(kind: Kind, tmp_path: Path) -> None:
    report = attack(kind, tmp_path, FEW // 10)
    assert not report.bad, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("kind", BUILT, ids=lambda kind: kind.name)
def test_extreme_config_values_at_length(kind: Kind, tmp_path: Path) -> None:
    report = attack(kind, tmp_path, MANY // 10, seed=1)
    print(report)
    assert not report.bad, str(report)


# -- single cases ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_every_number_in_a_config_has_bounds(family: str) -> None:
    hints = get_type_hints(FAMILIES[family].config)
    numeric = {key for key, kind in hints.items() if {int, float} & {kind, *inner_types(kind)}}
    assert not numeric - BOUNDS.keys(), "give these bounds in families/config_bounds.py"


def inner_types(kind: Any) -> set[Any]:
    """Return the types inside a type."""
    return {inner for part in get_args(kind) for inner in (part, *inner_types(part))}


def refusal(folder: Path, **changes: Any) -> str:
    """Return the error message for a folder whose config.json is changed."""
    path = folder / "config.json"
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(content))
    with limits(), pytest.raises(PretuneError, match=r"config\.json") as caught:
        load(folder)
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("initializer_range", -1, "initializer_range is -1.0; it must be from 0 to 1,000"),
        ("initializer_range", float("nan"), "initializer_range is nan; it must be from 0 to 1,000"),
        ("num_hidden_layers", 10**30, "num_hidden_layers is 1000"),
        ("num_hidden_layers", 999, "describes 999 layers, but the weights have"),
        ("hidden_size", 1 << 40, "hidden_size is 1099511627776"),
        ("intermediate_size", 1 << 20, "describes a network of"),
        ("vocab_size", 1 << 25, "describes a network of"),
        ("max_position_embeddings", 0, "max_position_embeddings is 0; it must be from 1"),
        ("num_attention_heads", 3, "a width of 16 cannot be divided evenly among 3 attention heads"),
        ("num_attention_heads", True, "num_attention_heads: input should be a valid integer, not True"),
        ("hidden_dropout_prob", 1.5, "hidden_dropout_prob is 1.5; it must be from 0 to 1"),
        ("layer_norm_eps", 0.0, "layer_norm_eps is 0.0; it must be from 1e-30 to 1"),
        ("type_vocab_size", -1, "type_vocab_size is -1"),
        ("num_labels", 10**12, "num_labels: input should be less than or equal to 1000000"),
        ("id2label", {"9" * 5000: "x"}, "id2label must map class numbers to names"),
        ("id2label", {"²": "x"}, "id2label must map class numbers to names"),
        ("pretune", 7, "pretune: input should be a valid dictionary, not 7"),
        ("pretune", {"objective": ["mlm"]}, "pretune: objective: input should be a valid string"),
        ("pretune", {"max_length": -5}, "pretune: max_length: input should be greater than or equal to 1, not -5"),
        ("pretune", {"shape": {"layers": "01"}}, "pretune: shape.layers: input should be a valid list"),
        ("pretune", {"tasks": {"a": 1}}, "pretune: tasks.a: input should be a valid dictionary"),
    ],
)
def test_numbers_and_types_are_refused_by_name(key: str, value: Any, words: str, tmp_path: Path) -> None:
    tiny_model("bert", "classify", labels=("no", "yes", "perhaps")).save(tmp_path)
    assert words in refusal(tmp_path, **{key: value})


def test_weights_are_not_initialized_before_a_checkpoint_is_loaded(tmp_path: Path) -> None:
    model = tiny_model("bert", "mlm")
    model.save(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"initializer_range": 0.0}))
    with limits():
        read = load(tmp_path)
    assert torch.equal(read.backbone.embed.tokens, model.backbone.embed.tokens)
