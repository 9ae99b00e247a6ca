"""Model references: what the name of a model means (a folder, a bundled model, or a preset)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

from pretune.families import find_family
from pretune.families.family import Family
from pretune.models.bundled import bundled_folder, bundled_names
from pretune.models.hf_config import CONFIG_FILE, log_once, read_config
from pretune.models.presets import find_preset, is_preset, preset_names
from pretune.models.sentence_transformers import transformer_folder
from pretune.runtime.errors import PretuneError, suggest

# The name of a bundled model or preset, the path of a folder, or an object that stands for one, such as an open model
ModelReference: TypeAlias = str | os.PathLike[str]


def find_folder(reference: ModelReference) -> Path:
    """Return the folder with a model's config.json and weights, given a path or the name of a bundled model."""
    name = os.fspath(reference)
    folder = transformer_folder(Path(name))
    if (folder / CONFIG_FILE).is_file():
        if name in (*bundled_names(), *preset_names()):
            log_once(f"{reference}: this is a folder and a known model name; the model in the folder is used")
        return folder
    if folder.is_dir():
        raise PretuneError(f"{folder}: there is no model in this folder (no {CONFIG_FILE}); check the path")
    if name in bundled_names():
        return bundled_folder(name)
    if is_preset(name):
        raise PretuneError(f"{name} is a preset without weights; pretrain it first, or give a model folder")
    if len(folder.parts) > 1:
        raise PretuneError(f"{name}: there is no such model folder; check the path")
    instead = f"known: {', '.join(bundled_names())}, and the presets that `pretune show presets` lists"
    hint = suggest(name, [*bundled_names(), *preset_names()], instead)
    raise PretuneError(f"{name}: neither a model folder nor a known model name; {hint}")


def family_of(reference: ModelReference) -> Family:
    """Return the model family of a folder, bundled model, or preset, without reading weights.

    >>> family_of("bert-tiny").name
    'bert'
    """
    if is_preset(name := os.fspath(reference)):
        return find_family(find_preset(name)["family"], name)
    return read_config(find_folder(reference))[0]
