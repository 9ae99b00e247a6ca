"""The family of a model whose config.json does not say it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

from pretune.families import FAMILIES
from pretune.families.family import Family
from pretune.runtime.errors import PretuneError

PUBLISHED = [family for family in FAMILIES.values() if family.elsewhere]


def recognize_family(
    content: Mapping[str, Any], kind: str, names: Callable[[], Iterable[str]], where: str
) -> tuple[Family, str]:
    """Return the family of a config.json without `model_type`, and what tells it: its class, or the names of its tensors.

    `kind` is the class that it names, `names` gives those of its tensors.
    """
    by_class = [found for family in PUBLISHED if (found := family.variant(kind)).has_class(kind)]
    if kind and len(by_class) == 1:
        return by_class[0], f"its class {kind}"
    published = list(names())
    misfits = {family.name: _misfit(family, published, content) for family in PUBLISHED}
    fewest = min(misfits.values())
    fits = [family for family in PUBLISHED if misfits[family.name] == fewest]
    if fewest[0] == len(published):
        raise PretuneError(
            f"{where}: no model_type, and no family has such tensors; write the model_type into the file"
        )
    if len(fits) > 1 and any(family.table.prefix and not _has_prefix(family, published) for family in fits):
        # Without a prefix, the names of BERT, RoBERTa and others are the same.
        could = ", ".join(sorted(family.name for family in fits))
        raise PretuneError(f"{where}: no model_type, and it could be {could}; write the model_type into the file")
    return max(fits, key=lambda family: _said(family, content)), "the names of its tensors"


def _misfit(family: Family, published: list[str], content: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many tensors, and how many keys, a family has no place for; without layers, all tensors."""
    table = family.table
    modern = list(table.names(published).values())
    if not any(table.depths(modern).values()):
        return len(published), 0
    return sum(not table.knows(name) for name in modern), len(family.unknown_keys(content))


def _has_prefix(family: Family, published: list[str]) -> bool:
    return any(name.startswith(family.table.prefix) for name in published)


def _said(family: Family, content: Mapping[str, Any]) -> float:
    """Return which share of a family's keys a config.json has."""
    keys = {field.name for field in fields(family.config)}
    return len(keys & content.keys()) / len(keys)
