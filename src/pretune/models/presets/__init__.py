"""Presets: pretraining recipes as YAML files, one per published system, with its source and the differences from it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pretune.runtime.errors import PretuneError, quote, suggest
from pretune.runtime.plugins import entry_point_files, yaml_files
from pretune.runtime.recipe import merge_recipes, read_recipe

GROUP = "pretune.presets"
SECTIONS = ("config", "tokenizer", "batch", "optimizer", "schedule", "budget", "monitor", "finetuning")
KEYS = ("like", "source", "departures", "family", "objective", *SECTIONS)


def preset_names() -> tuple[str, ...]:
    """Return the names of all presets, sorted, including those that installed packages add with entry points."""
    return tuple(sorted({**entry_point_files(GROUP), **_built_in()}))


@cache
def _built_in() -> Mapping[str, Path]:
    """Return the YAML files of the presets that come with pretune, by preset name."""
    return yaml_files(Path(__file__).parent)


def is_preset(name: str) -> bool:
    """Return whether a name is that of a preset or of a .yaml file, and there is no model folder of that name.

    >>> is_preset("bert-base"), is_preset("mine.yaml"), is_preset("runs/mine")
    (True, True, False)
    """
    if (Path(name) / "config.json").is_file():
        return False
    return name in _built_in() or name.endswith(".yaml") or name in entry_point_files(GROUP)


def find_preset(name: str, via: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a preset by name or from a .yaml file, merged with the preset that its key `like` names, if any.

    `via` has the names of the presets through which this one was reached, to detect cycles.

    >>> find_preset("bert-base")["config"]["hidden_size"]
    768
    """
    content = dict(_read_built_in(name)) if name in _built_in() else _read(_file_of(name))
    like = content.pop("like", None)
    if like is None:
        return content
    if not isinstance(like, str):
        raise PretuneError(f"{name}: the key `like` must be the name of a preset, not {quote(like)}")
    if like in (name, *via):
        raise PretuneError(
            f"{' is like '.join([*via, name, like])}: a preset cannot inherit from itself; change `like`"
        )
    return merge_recipes(find_preset(like, (*via, name)), content)


@cache
def _read_built_in(name: str) -> dict[str, Any]:
    """Return the content of a preset that comes with the package, without checks."""
    import yaml

    content: dict[str, Any] = yaml.safe_load(_built_in()[name].read_text(encoding="utf-8"))
    return content


def _file_of(name: str) -> Path:
    """Return the file of a preset that does not come with the package; raise an error if the name is unknown."""
    if name.endswith(".yaml"):
        return Path(name)
    if (file := entry_point_files(GROUP).get(name)) is not None:
        return file
    hint = suggest(name, preset_names(), "`pretune show presets` lists them")
    raise PretuneError(f"unknown preset {name!r}; {hint}")


def _read(file: Path) -> dict[str, Any]:
    """Return the content of a preset file that is not part of pretune, after a check of its keys."""
    content = read_recipe(file)
    if unknown := [key for key in content if key not in KEYS]:
        raise PretuneError(f"{file}: unknown key {unknown[0]!r}; {suggest(unknown[0], KEYS)}")
    for key in ("family", "objective"):
        if not isinstance(content.get(key, ""), str):
            raise PretuneError(f"{file}: the key `{key}` must be a name, not {quote(content[key])}")
    if invalid := [key for key in SECTIONS if not isinstance(content.get(key, {}), dict)]:
        raise PretuneError(f"{file}: the key `{invalid[0]}` must be a mapping; write `key: value` pairs under it")
    if "like" not in content and not {"family", "config"} <= content.keys():
        raise PretuneError(f"{file}: a preset needs either the key `like` or the keys `family` and `config`; add them")
    if str(like := content.get("like", "")).endswith(".yaml"):
        content["like"] = str(file.parent / like)
    return content
