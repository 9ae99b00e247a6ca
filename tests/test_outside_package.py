"""Tests of a model family, presets and suites that another installed package adds by entry points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune.evaluation.suites import suite_names
from pretune.evaluation.suites.declaration import find_suite
from pretune.evaluation.suites.published_results import published_results
from pretune.families import FAMILIES, find_family, known_families
from pretune.families.family import Family
from pretune.models.create_model import make_model
from pretune.models.loading import load_model
from pretune.models.name_resolution import family_of
from pretune.models.presets import find_preset, is_preset, preset_names
from pretune.runtime.errors import PretuneError
from tests.support.tiny_models import read, tiny

FAMILY = """
from dataclasses import replace
from pretune.families.encoders.bert import BERT
TOY = replace(BERT, name="toy-bert")
NUMBER = 7
"""
PRESET = """
source: an outside package
family: toy-bert
objective: mlm
config: {vocab_size: 50, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 32,
  max_position_embeddings: 24}
"""
SUITE = """
title: Toys
tasks:
  color: {title: Color, kind: classify, metrics: [accuracy], files: {train: a.tsv, dev: a.tsv}, roles: {text: 1, label: 2}}
"""
REFERENCES = "- {name: Human, split: dev, source: a paper, scores: {color: 99.0}}"


def install(folder: Path, package: str, entry_points: str) -> None:
    """Write a package as an installer does: Python files and a dist-info folder with the entry points."""
    (folder / package / "presets").mkdir(parents=True)
    (folder / package / "__init__.py").write_text("")
    (folder / package / "families.py").write_text(FAMILY)
    (folder / package / "presets" / "__init__.py").write_text("")
    (folder / package / "presets" / "toy-bert-tiny.yaml").write_text(PRESET)
    (folder / package / "presets" / "toy-bert-wide.yaml").write_text("like: toy-bert-tiny\nconfig: {hidden_size: 32}\n")
    (folder / package / "suites" / "references").mkdir(parents=True)
    (folder / package / "suites" / "__init__.py").write_text("")
    (folder / package / "suites" / "toy-suite.yaml").write_text(SUITE)
    (folder / package / "suites" / "references" / "toy-suite.yaml").write_text(REFERENCES)
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


@pytest.fixture(autouse=True)
def only_these_families(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the families that a test registers."""
    monkeypatch.setattr("pretune.families.registry.FAMILIES", dict(FAMILIES))


def test_installed_package_adds_a_family_and_presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("toy-bert-tiny", "toy-bert-wide"):
        assert name not in preset_names() and not is_preset(name)
    with pytest.raises(PretuneError, match="unknown model family 'toy-bert'"):
        find_family("toy-bert", "config.json")
    install(
        tmp_path / "site",
        "toy_package",
        "[pretune.families]\ntoy-bert = toy_package.families:TOY\n[pretune.presets]\ntoy = toy_package.presets\n",
    )
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert "toy-bert" in known_families() and {"toy-bert-tiny", "toy-bert-wide"} < set(preset_names())
    assert is_preset("toy-bert-wide") and family_of("toy-bert-wide").name == "toy-bert"
    assert find_preset("toy-bert-wide")["config"]["num_hidden_layers"] == 1
    model = make_model("toy-bert-wide")
    assert model.backbone.width == 32
    model.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert loaded.family.name == "toy-bert" and loaded.config == model.config


def test_presets_are_found_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "folder_package", "[pretune.presets]\nfolder = folder_package.families:FOLDER\n")
    presets = tmp_path / "folder_package" / "presets"
    (tmp_path / "folder_package" / "families.py").write_text(f"FOLDER = {str(presets)!r}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "toy-bert-tiny" in preset_names()


@pytest.mark.not_fast
def test_a_suite_of_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PretuneError, match="unknown suite 'toy-suite'"):
        find_suite("toy-suite")
    install(tmp_path / "site", "suite_package", "[pretune.suites]\ntoy = suite_package.suites\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert {"toy-suite", "glue"} <= set(suite_names())
    suite = find_suite("toy-suite")
    assert suite.title == "Toys" and [row.name for row in published_results(suite)] == ["Human"]
    (tmp_path / "a.tsv").write_text("a red stone\tred\na blue stone\tblue\n" * 8)
    model = tiny("bert-tiny", read(["a red blue stone"] * 9), tmp_path / "model")
    options: dict[str, Any] = {"data": tmp_path, "out": tmp_path / "out", "budget": pt.Budget(steps=1), "num_seeds": 1}
    result = pt.evaluate(model, suite="toy-suite", **options)
    assert result.table()["Toys"][1]["system"] == "Human"


def test_a_suite_is_registered_in_python_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pretune.evaluation.suites._registered", {})
    file = tmp_path / "toy-suite.yaml"
    file.write_text(SUITE)
    assert pt.register_suite(file) == pt.register_suite(str(file)) and find_suite("toy-suite").title == "Toys"
    (tmp_path / "other").mkdir()
    for name in ("toy-suite", "glue"):
        (tmp_path / "other" / f"{name}.yaml").write_text(SUITE)
        with pytest.raises(PretuneError, match=f"a suite named '{name}' is already registered"):
            pt.register_suite(tmp_path / "other" / f"{name}.yaml")
    for missing in (tmp_path / "missing.yaml", tmp_path):
        with pytest.raises(PretuneError, match=r"must be an existing \.yaml file"):
            pt.register_suite(missing)
    assert find_suite("glue").title == "GLUE"


@pytest.mark.not_fast
@pytest.mark.parametrize(
    "what",
    ["[pretune.families]\ntoy", "[pretune.families]\nbert", "[pretune.presets]\ntoy", "[pretune.suites]\ntoy"],
)
def test_entry_points_of_the_wrong_kind_are_reported(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = f"wrong_package_{len(what)}"
    install(tmp_path, package, f"{what} = {package}.families:NUMBER\n")
    monkeypatch.syspath_prepend(tmp_path)
    name, group = what.split("\n")[1], what.split("\n")[0].strip("[]")
    with pytest.raises(PretuneError, match=rf"(?i:the) entry point '{name}' of the group {group} must be"):
        {"pretune.families": known_families, "pretune.presets": preset_names, "pretune.suites": suite_names}[group]()
    assert find_suite("glue").title == "GLUE"
    assert find_family("bert", "config.json").name == "bert" and make_model("bert-tiny").family.name == "bert"


def test_family_is_registered_once() -> None:
    from dataclasses import replace

    toy = replace(FAMILIES["bert"], name="toy-bert")
    assert isinstance(toy, Family) and pt.register_family(toy) is pt.register_family(toy)
    assert find_family("toy-bert", "config.json") is toy
    with pytest.raises(PretuneError, match="'bert' is already registered"):
        pt.register_family(replace(toy, name="bert"))
