"""Presets: recipes as data, one YAML file a published system, with its source and where we depart from it."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from pretune.errors import PretuneError, nearest
from pretune.recipe import merge


@cache
def preset_names() -> tuple[str, ...]:
    """The names of all presets."""
    return tuple(sorted(f.name.removesuffix(".yaml") for f in files(__package__).iterdir() if f.name.endswith(".yaml")))


@cache
def find_preset(name: str) -> dict[str, Any]:
    """A preset by name; one that is `like` another has that one's keys unless it says otherwise.

    >>> find_preset("bert-base")["config"]["hidden_size"]
    768
    """
    import yaml

    if name not in preset_names():
        raise PretuneError(f"unknown preset {name!r}; {nearest(name, preset_names())}")
    content = yaml.safe_load((files(__package__) / f"{name}.yaml").read_text(encoding="utf-8"))
    like = content.pop("like", None)
    return merge(find_preset(like), content) if like else dict(content)
