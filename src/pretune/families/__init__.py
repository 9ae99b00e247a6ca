"""Families by name: one file a published model."""

from __future__ import annotations

from pretune.errors import PretuneError, nearest
from pretune.families.bart import BART
from pretune.families.bert import BERT
from pretune.families.family import Family
from pretune.families.marian import MARIAN
from pretune.families.mbart import MBART
from pretune.families.modernbert import MODERNBERT
from pretune.families.t5 import MT5, T5

FAMILIES: dict[str, Family] = {family.name: family for family in (BERT, MODERNBERT, T5, MT5, BART, MBART, MARIAN)}


def find_family(name: str, where: str) -> Family:
    """A family by the `model_type` of its configuration."""
    if name not in FAMILIES:
        raise PretuneError(f"{where}: unknown model family {name!r}; {nearest(name, FAMILIES)}")
    return FAMILIES[name]
