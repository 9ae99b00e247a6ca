"""Detect the model family of a config.json that has no `model_type`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

from pretune.families.family import Family
from pretune.families.registry import known_families
from pretune.runtime.errors import PretuneError


def detect_family(
    content: Mapping[str, Any], class_name: str, names: Callable[[], Iterable[str]], where: str
) -> tuple[Family, str]:
    """Detect the family of a model, and return it with a description of what identified it.

    The family is that of the `transformers` class `class_name`, if known, otherwise the one that fits best to the
    tensor names, which `names` returns, and to `content`, the entries of config.json. `where` names the file in error
    messages.
    """
    published = [family for family in known_families().values() if family.in_transformers]
    by_class = [found for family in published if (found := family.variant(class_name)).has_class(class_name)]
    if class_name and len(by_class) == 1:
        return by_class[0], f"its class {class_name}"
    tensors = list(names())
    mismatches = {family.name: _count_unknown(family, tensors, content) for family in published}
    fewest = min(mismatches.values())
    fits = [family for family in published if mismatches[family.name] == fewest]
    if fewest[0] == len(tensors):
        raise PretuneError(
            f"{where}: there is no model_type, and the tensor names match no known model family; write the model_type "
            f"into the file {where}"
        )
    prefixes = {prefix for family in fits if (prefix := family.table.prefix)}
    if len(fits) > 1 and not all(any(name.startswith(prefix) for name in tensors) for prefix in prefixes):
        # Without a prefix, the names of BERT, RoBERTa and others are the same.
        could = ", ".join(sorted(family.name for family in fits))
        raise PretuneError(
            f"{where}: there is no model_type, and the model could be {could}; write the model_type into the file"
        )
    return max(fits, key=lambda family: _share_of_keys(family, content)), "the names of its tensors"


def _count_unknown(family: Family, tensors: list[str], content: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many tensor names, and how many keys of `content` (config.json), are unknown to a model family."""
    table = family.table
    names = list(table.current_names(tensors).values())
    if not any(table.depths(names).values()):
        return len(tensors), 0
    return sum(not table.recognizes(name) for name in names), len(family.unknown_keys(content))


def _share_of_keys(family: Family, content: Mapping[str, Any]) -> float:
    """Return which fraction of a family's configuration keys appears in `content`, the entries of a config.json."""
    keys = {field.name for field in fields(family.config)}
    return len(keys & content.keys()) / len(keys)
