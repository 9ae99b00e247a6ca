from __future__ import annotations

from importlib import metadata

import pytest

import pretune as pt
from pretune.inference.fill import MaskFiller
from pretune.runtime import cpu_features, devices
from pretune.verbs.doctor import EXTRAS, _arithmetic, _extras, _resources, extra_requirements
from tests.support.cli import run_command as run


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, str]]:
    return {row["check"]: row for row in pt.doctor()}


def test_every_check_has_a_status_and_whatever_is_not_ok_has_advice(rows: dict[str, dict[str, str]]) -> None:
    assert {"pretune", "Python", "torch", "device", "bf16", "int8", "memory", "disk", "cache"} <= set(rows)
    for row in rows.values():
        assert row["status"] in ("ok", "slow", "missing", "failed") and row["found"], row
        assert row["status"] == "ok" or row["advice"], row
    assert rows["model pretune-small-en"]["status"] == "ok"


def without(*packages: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make some packages look as if they were not installed."""
    version = metadata.version

    def simulated(name: str) -> str:
        if name in packages:
            raise metadata.PackageNotFoundError(name)
        return "1.0" if name in ("optuna", "onnx", "onnxruntime") else version(name)

    requirements = [
        "torch>=2.11",
        "onnx; extra == 'export'",
        "onnxruntime; extra == 'export'",
        "optuna; extra == 'tune'",
    ]
    monkeypatch.setattr(metadata, "version", simulated)
    monkeypatch.setattr(metadata, "requires", lambda name: requirements)


def test_missing_extras_are_reported_with_the_command_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    without("onnxruntime", monkeypatch=monkeypatch)
    answer = run("doctor", "--json")  # exits with 0: extras are optional
    found = {row["check"]: row for row in answer.json()["checks"]}
    assert found["extra export"]["status"] == "missing"
    assert found["extra export"]["advice"] == "pip install 'pretune[export]'"
    assert "onnxruntime" in found["extra export"]["found"] and "onnx," not in found["extra export"]["found"]
    assert found["extra tune"] == {
        "check": "extra tune", "status": "ok", "found": "hyperparameter search: optuna 1.0", "advice": "",
    }  # fmt: skip


def test_a_folder_of_source_code_without_metadata_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    assert [(row["check"], row["status"]) for row in _extras()] == [("extras", "missing")]


def test_a_bundled_model_that_does_not_predict_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MaskFiller, "fill", lambda *_: {"gaps": [[{"token": "x", "probability": float("nan")}]]})
    answer = run("doctor", check=False)
    assert answer.returncode == 1
    assert "failed" in answer.stdout and "ok" in answer.stdout  # the table is printed all the same
    assert answer.stderr.startswith("error: model pretune-small-en failed: ArithmeticError")
    assert "reinstall" in answer.stderr


@pytest.mark.parametrize(("instructions", "status"), [(["AVX-512 VNNI"], "ok"), ([], "slow")])
def test_int8_is_slow_without_dot_product_instructions(
    instructions: list[str], status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_features, "int8_instructions", lambda: instructions)
    row = {row["check"]: row for row in _arithmetic()}["int8"]
    assert row["status"] == status and ", ".join(instructions) in row["found"]


def test_cache_that_cannot_be_written_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    row = {row["check"]: row for row in _resources()}["cache"]
    assert (
        row["status"] == "missing" and str(devices.cache_folder()) in row["found"] and "XDG_CACHE_HOME" in row["advice"]
    )


def test_requirements_of_extras_depend_on_the_version_of_python() -> None:
    requirements = [
        "ray; (python_version < '3.99') and extra == 'cluster'",
        "old; python_version < '3.1' and extra == 'cluster'",
    ]
    assert extra_requirements([*requirements, "ruff; extra == 'dev'"]) == {"cluster": ["ray"]}


def test_extras_of_the_package_have_a_description() -> None:
    assert set(extra_requirements(metadata.requires("pretune") or [])) <= set(EXTRAS)
