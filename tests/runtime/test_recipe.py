from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.runtime.recipe import (
    RecipeSection,
    merge_recipes,
    parse_settings,
    read_recipe,
    validate_arguments,
    write_recipe,
)


@dataclass(frozen=True)
class Optimizer(RecipeSection):
    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)


@dataclass(frozen=True)
class Budget(RecipeSection):
    flat: ClassVar[bool] = True
    steps: int | None = None


def verb(
    model: str,
    *,
    kind: Literal["small", "large"] = "small",
    optimizer: Optimizer = Optimizer(),
    budget: Budget | None = None,
    out: str | Path | None = None,
) -> None:
    """Accept arguments of the kinds that verbs have."""


def check(values: dict[str, object]) -> dict[str, object]:
    return validate_arguments(verb, values, "verb")


def test_sections_become_objects_and_defaults_are_omitted() -> None:
    assert check({"model": "m", "optimizer": {"lr": 1}}) == {"model": "m", "optimizer": Optimizer(lr=1.0)}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "verb: 'model' is missing: give --model or put it in the recipe"),
        ({"model": "m", "kindd": 1}, "unknown key 'kindd'; did you mean 'kind'?"),
        ({"model": "m", "optimizer": {"learning": 1}}, "unknown key 'optimizer.learning'; known: betas, lr"),
        ({"model": "m", "optimizer": {"lrr": 1}}, "unknown key 'optimizer.lrr'; did you mean 'lr'?"),
        ({"model": "m", "budget": {"step": 1}}, "unknown key 'budget.step'; did you mean 'steps'?"),
        ({"model": "m", "kind": "tiny"}, "'kind': input should be 'small' or 'large', got 'tiny'"),
        ({"model": "m", "optimizer": {"lr": "fast"}}, "'optimizer.lr': input should be a valid number"),
    ],
)
def test_errors_suggest_the_nearest_key(values: dict[str, object], message: str) -> None:
    with pytest.raises(PretuneError) as caught:
        check(values)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_numbers_in_settings_and_recipes_may_have_exponents(tmp_path: Path) -> None:
    values = parse_settings(["optimizer.lr=1e-4", "optimizer.betas=[0.9, 0.98]", "out=", "model=a=b"])
    assert values == {"optimizer": {"lr": 1e-4, "betas": [0.9, 0.98]}, "out": None, "model": "a=b"}
    (tmp_path / "r.yaml").write_text("optimizer:\n  lr: 3e-5\n")
    assert read_recipe(tmp_path / "r.yaml") == {"optimizer": {"lr": 3e-5}}


@pytest.mark.parametrize("setting", ["novalue", "=3", "a=[1,", "a=1 a.b=2"])
def test_invalid_settings_are_rejected(setting: str) -> None:
    with pytest.raises(PretuneError, match="--set"):
        parse_settings(setting.split())


@pytest.mark.parametrize(
    ("content", "message"),
    [("a: [", "line 1: not valid YAML"), ("- a", "must be a mapping"), (b"\xff", "not valid UTF-8")],
)
def test_invalid_recipe_files_are_rejected(tmp_path: Path, content: str | bytes, message: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(PretuneError, match=message):
        read_recipe(path)
    with pytest.raises(PretuneError, match="no such file"):
        read_recipe(tmp_path / "none.yaml")


nested = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8", categories=["L", "N"])),
    lambda inner: st.dictionaries(st.text("abc", min_size=1), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@pytest.mark.not_fast
@given(st.dictionaries(st.text("abc", min_size=1), nested, max_size=4))
def test_recipes_round_trip(tmp_path_factory: pytest.TempPathFactory, values: dict[str, object]) -> None:
    path = tmp_path_factory.mktemp("r") / "r.yaml"
    path.write_text(write_recipe(values), encoding="utf-8")
    assert read_recipe(path) == values


def test_recipes_are_merged_by_section() -> None:
    assert merge_recipes({"a": {"x": 1, "y": 2}, "b": 1}, {"a": {"y": 3}, "c": 4}) == {
        "a": {"x": 1, "y": 3},
        "b": 1,
        "c": 4,
    }
