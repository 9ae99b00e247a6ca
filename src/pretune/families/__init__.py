"""Families by name: one file a published model."""

from __future__ import annotations

from pretune.errors import PretuneError, nearest
from pretune.families.bert import BERT
from pretune.families.family import Family
from pretune.families.gpt import GPT
from pretune.families.gpt2 import GPT2
from pretune.families.modernbert import MODERNBERT

FAMILIES: dict[str, Family] = {family.name: family for family in (BERT, MODERNBERT, GPT, GPT2)}


def find_family(name: str, where: str) -> Family:
    """A family by the `model_type` of its configuration."""
    if name not in FAMILIES:
        raise PretuneError(f"{where}: unknown model family {name!r}; {nearest(name, FAMILIES)}")
    return FAMILIES[name]
