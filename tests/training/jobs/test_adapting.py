"""Tests of what domain adaptation says and records about itself."""

from __future__ import annotations

from pathlib import Path

import pytest

import pretune as pt
from pretune.runtime.recipe import read_recipe, validate_arguments
from pretune.training.run_folder import RECIPE
from tests.support.tiny_models import save_random_model


@pytest.mark.not_fast
def test_adapt_is_named_in_the_card_and_in_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PRETUNE_PROGRESS", "plain")
    model, out = save_random_model(tmp_path / "model", "bert", "mlm"), tmp_path / "run"
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"The train number {number} was late. We waited for hours." for number in range(40)))
    pt.adapt(model, text, budget=pt.Budget(steps=1), batch=pt.Batching(tokens=96, max_length=24), out=out)
    assert "already prepared" not in capsys.readouterr().err
    assert "Made by `pretune adapt` from `model`" in (out / "README.md").read_text()
    assert (out / RECIPE).read_text().startswith("# pretune adapt --recipe")
    recipe = {**read_recipe(out / RECIPE), "out": "again"}
    assert validate_arguments(pt.adapt, recipe, RECIPE)["model"] == str(model)
