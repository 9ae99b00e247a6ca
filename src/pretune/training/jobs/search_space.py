"""The search space of `tune`: which fine-tuning settings are searched, and within which bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pretune.models.hf_config import read_config
from pretune.models.name_resolution import family_of, find_folder
from pretune.models.presets import find_preset, is_preset
from pretune.runtime.errors import PretuneError
from pretune.training.jobs.finetuning_defaults import BATCH, EPOCHS
from pretune.training.jobs.hyperparameter_search import SearchRange, SearchSpace, Settings

# Around the defaults (Devlin et al., 2019): small models need larger learning rates, small data more epochs.
BOUNDS: dict[str, SearchRange | tuple[Any, ...]] = {
    "lr": SearchRange(1e-5, 1e-3, log=True),
    "epochs": SearchRange(1, 10),
    "batch": (8, 16, 32, 64),
    "layer_decay": SearchRange(0.6, 1.0, step=0.05),
}


def make_space(layers: int, options: Mapping[str, Any], lr: float = 5e-5) -> tuple[SearchSpace, Settings]:
    """Return the search ranges and the first values of the hyperparameters that `options` does not set.

    `layers` is the number of layers of the model; `lr` is its default learning rate, with which the search starts.

    >>> make_space(2, {"lr": 1e-4, "epochs": 3, "batch": 8, "layer_decay": 1.0})
    ({'layers': SearchRange(low=1, high=2, step=None, log=False)}, {'layers': 2})
    """
    space = {**BOUNDS, "layers": SearchRange(1, layers)}
    defaults: Settings = {
        "lr": lr,
        "epochs": EPOCHS,
        "batch": BATCH,
        "layer_decay": 1.0,
        "layers": layers,
    }
    fixed = {name for name, value in options.items() if value is not None} | ({"layers"} if layers == 1 else set())
    if not space.keys() - fixed:
        raise PretuneError(f"{', '.join(space)} are all set, so there is nothing to search; remove at least one")
    return {n: r for n, r in space.items() if n not in fixed}, {n: v for n, v in defaults.items() if n not in fixed}


def count_layers(reference: str) -> int:
    """Return the number of layers of a model or preset above its embeddings, without reading weights."""
    is_new = is_preset(reference)
    content = find_preset(reference)["config"] if is_new else read_config(find_folder(reference))[1]
    family = family_of(reference)
    with torch.device("meta"):
        backbone: Any = family.build(family.read_config(content))
    return len(backbone.groups()) - 1
