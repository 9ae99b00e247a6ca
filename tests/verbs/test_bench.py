"""Tests of `pretune bench`: every method runs the same model, and what is not installed is left out with a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune import PretuneError
from pretune.compression import speed_comparison
from pretune.models.loading import load_model
from tests.support.one_word_task import trained
from tests.support.tiny_models import save_random_model

TEXTS = ["good stone water", "bad fire", "good", "tree bird cloud bad red blue green"]


@pytest.mark.not_fast
def test_methods_are_compared_on_the_same_texts() -> None:
    pytest.importorskip("onnxruntime")
    table = pt.bench(trained(), TEXTS, seconds=0.01, threads=1)
    rows = {row["method"]: row for row in table}
    assert list(rows) == [
        "transformers, fp32", "pretune", "ONNX Runtime, fp32", "pretune, engine onnxruntime", "ONNX Runtime, int8", "pretune, int8",
    ]  # fmt: skip
    for row in table:
        assert 0 < row["p50_ms"] <= row["p99_ms"] and row["texts_per_second"] > 0
        assert row["difference"] < (0.5 if "int8" in row["method"] else 1e-5)
        assert row["same_answers"] == 1.0
    first = table[0]
    assert first["latency_ratio"] == first["speedup"] == 1.0 and first["difference"] == 0.0
    assert table.facts["texts"] == 4 and table.facts["rounds"] == 3 and table.facts["threads"] == 1


@pytest.mark.not_fast
def test_hidden_states_are_compared_without_a_task(tmp_path: Path) -> None:
    run = save_random_model(tmp_path / "run", "bert", "mlm")
    table = pt.bench(run, TEXTS, seconds=0.01)
    assert table[1]["method"] == "pretune" and table[1]["difference"] < 1e-5


@pytest.mark.not_fast
def test_methods_that_are_not_there_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, *rest: Any) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(speed_comparison, "import_module", missing)
    monkeypatch.setattr("pretune.runtime.optional_imports.import_module", missing)
    table = pt.bench(trained(), seconds=0.01, max_texts=3)
    assert [row["method"] for row in table] == ["pretune"] and table[0]["speedup"] == 1.0
    transformers, runtime, int8 = table.facts["left_out"]
    assert transformers.endswith(
        " is left out: transformers is not installed; install it with: pip install transformers"
    )
    for name, line in (("ONNX Runtime, fp32", runtime), ("ONNX Runtime, int8", int8)):
        assert line.startswith(f"{name} is left out: ") and line.endswith("pip install 'pretune[export]'")


def test_settings_without_a_measurement_are_refused() -> None:
    for name in ("seconds", "max_texts", "threads"):
        with pytest.raises(PretuneError, match=f"--{name.replace('_', '-')} 0: the value must be greater than 0"):
            pt.bench(trained(), TEXTS, **{name: 0})  # type: ignore[arg-type]
    with pytest.raises(PretuneError, match="all texts are empty"):
        pt.bench(trained(), ["  "])
    with pytest.raises(PretuneError, match="--text applies only to tables"):
        pt.bench(trained(), text="sentence")


@pytest.mark.not_fast
def test_a_family_that_transformers_does_not_have_is_left_out_of_the_comparison(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path / "model", "performer", "mlm", num_random_features=8)
    model = load_model(folder)
    with pytest.raises(PretuneError, match="`transformers` has no model class for performer; compare with the other"):
        speed_comparison.transformers_method(model, None, tmp_path)
