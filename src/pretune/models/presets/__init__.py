"""Presets: recipes as data, one YAML file a published system, with its source and where we depart from it."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from pretune.runtime.errors import PretuneError, nearest, quote
from pretune.runtime.recipe import merge, read_recipe

SECTIONS = ("config", "tokenizer", "batch", "optimizer", "schedule", "budget", "watching")
KEYS = ("like", "source", "departures", "family", "objective", *SECTIONS)


@cache
def preset_names() -> tuple[str, ...]:
    """The names of all presets."""
    return tuple(sorted(f.name.removesuffix(".yaml") for f in files(__package__).iterdir() if f.name.endswith(".yaml")))


def is_preset(name: str) -> bool:
    """Return whether a model reference means a preset: one of ours, or a .yaml file. A folder with a model goes before.

    >>> is_preset("bert-base"), is_preset("mine.yaml"), is_preset("runs/mine")
    (True, True, False)
    """
    return (name in preset_names() or name.endswith(".yaml")) and not (Path(name) / "config.json").is_file()


def find_preset(name: str, via: tuple[str, ...] = ()) -> dict[str, Any]:
    """A preset by name, or of a .yaml file; one that is `like` another has that one's keys unless it says otherwise.

    >>> find_preset("bert-base")["config"]["hidden_size"]
    768
    """
    content = dict(_own(name) if name in preset_names() else _read(Path(name)))
    like = content.pop("like", None)
    if like is None:
        return content
    if not isinstance(like, str):
        raise PretuneError(f"{name}: like: {quote(like)} is not the name of a preset")
    if like in (name, *via):
        raise PretuneError(f"{' is like '.join([*via, name, like])}: a preset cannot be like itself")
    return merge(find_preset(like, (*via, name)), content)


@cache
def _own(name: str) -> dict[str, Any]:
    import yaml

    content: dict[str, Any] = yaml.safe_load((files(__package__) / f"{name}.yaml").read_text(encoding="utf-8"))
    return content


def _read(file: Path) -> dict[str, Any]:
    """A preset of the user's."""
    if file.suffix != ".yaml":
        raise PretuneError(
            f"unknown preset {str(file)!r}; {nearest(str(file), preset_names(), '`pretune show presets` lists them')}"
        )
    content = read_recipe(file)
    unknown = [key for key in content if key not in KEYS]
    if unknown:
        raise PretuneError(f"{file}: unknown key {unknown[0]!r}; {nearest(unknown[0], KEYS)}")
    for key in ("family", "objective"):
        if not isinstance(content.get(key, ""), str):
            raise PretuneError(f"{file}: {key}: {quote(content[key])} is not a name")
    sections = [key for key in SECTIONS if not isinstance(content.get(key, {}), dict)]
    if sections:
        raise PretuneError(f"{file}: {sections[0]} is not a mapping of keys to values")
    if "like" not in content and not {"family", "config"} <= content.keys():
        raise PretuneError(f"{file}: a preset is `like` another, or has a family and a config")
    if str(like := content.get("like", "")).endswith(".yaml"):
        content["like"] = str(file.parent / like)
    return content
