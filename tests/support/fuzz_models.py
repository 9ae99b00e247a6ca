"""Tiny models for tests that damage model folders."""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace
from typing import Any

from torch import Tensor

from pretune.families import FAMILIES
from pretune.models.create_model import make_model
from pretune.models.model import Model, Network
from pretune.models.presets import find_preset, preset_names
from pretune.objectives import parse_objective

VOCABULARY = 40
# Sizes of networks that are fast to build.
SMALL = dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers"), 1) | dict.fromkeys(
    ("hidden_size", "d_model", "n_embd", "embedding_size", "intermediate_size", "d_ff", "d_inner"), 16
)


def tiny_presets() -> dict[str, str]:
    """Return a tiny preset of each family that has one, by family."""
    tiny = [name for name in preset_names() if name.endswith("-tiny")]
    return {find_preset(name)["family"]: name for name in reversed(tiny)}


PRESETS = tiny_presets()


def tiny_model(family: str, objective: str = "", **options: Any) -> Model:
    """Return a model of a family with tiny matrices and the head of an objective, which gets the options."""
    if family in PRESETS:
        config = make_model(PRESETS[family], vocabulary=VOCABULARY).config
    else:
        config = replace(FAMILIES[family].config(), vocab_size=VOCABULARY)
    known = {field.name for field in fields(config)}
    config = replace(config, **{key: size for key, size in SMALL.items() if key in known})
    model = Model(FAMILIES[family], config, Network(FAMILIES[family].build(config)))
    model.labels = list(options.get("labels", ()))
    if objective:
        model.objective = objective
        model.add_heads(parse_objective(objective, **options).objectives)
    return model


def digest(tensors: dict[str, Tensor]) -> str:
    """Return a hash of the names, types, shapes and values of tensors."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode() + tensor.numpy().tobytes())
    return found.hexdigest()
