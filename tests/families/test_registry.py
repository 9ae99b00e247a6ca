"""The registry of families: declared names lead to the families of that name, which are imported when they are first read."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pretune.families import BUILT_IN, FAMILIES
from pretune.families.family import Family
from pretune.families.registry import Families


@pytest.mark.parametrize("name", BUILT_IN)
def test_declared_names_are_those_of_the_families(name: str) -> None:
    assert isinstance(FAMILIES[name], Family) and FAMILIES[name].name == name


def test_a_family_is_imported_when_it_is_first_read() -> None:
    code = (
        "import sys; from pretune.families import FAMILIES, find_family; assert 'xlnet' in FAMILIES; "
        "find_family('bert', 'config.json'); "
        "print(*(name for name in ('bert', 'xlnet') if f'pretune.families.encoders.{name}' in sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["bert"]


def test_families_can_be_added_and_removed() -> None:
    families = Families()
    families["own"] = FAMILIES["bert"]
    families.declare("late", "pretune.families.decoders.gpt2:GPT2")
    assert list(families) == ["own", "late"] and families["late"] is FAMILIES["gpt2"]
    del families["own"]
    assert "own" not in families and len(families) == 1
    with pytest.raises(KeyError):
        families["own"]
