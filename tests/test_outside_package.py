"""Tests of a model family and presets that another installed package adds by entry points."""

from __future__ import annotations

from pathlib import Path

import pytest

from pretune.families import FAMILIES, find_family, known_families
from pretune.families.family import Family
from pretune.models.create_model import make_model
from pretune.models.loading import load_model
from pretune.models.name_resolution import family_of
from pretune.models.presets import find_preset, is_preset, preset_names
from pretune.runtime.errors import PretuneError

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


def install(folder: Path, package: str, entry_points: str) -> None:
    """Write a package as an installer does: Python files and a dist-info folder with the entry points."""
    (folder / package / "presets").mkdir(parents=True)
    (folder / package / "__init__.py").write_text("")
    (folder / package / "families.py").write_text(FAMILY)
    (folder / package / "presets" / "__init__.py").write_text("")
    (folder / package / "presets" / "toy-bert-tiny.yaml").write_text(PRESET)
    (folder / package / "presets" / "toy-bert-wide.yaml").write_text("like: toy-bert-tiny\nconfig: {hidden_size: 32}\n")
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


@pytest.mark.parametrize("what", ["[pretune.families]\ntoy", "[pretune.families]\nbert", "[pretune.presets]\ntoy"])
def test_entry_points_of_the_wrong_kind_are_reported(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = f"wrong_package_{len(what)}"
    install(tmp_path, package, f"{what} = {package}.families:NUMBER\n")
    monkeypatch.syspath_prepend(tmp_path)
    name, group = what.split("\n")[1], what.split("\n")[0].strip("[]")
    with pytest.raises(PretuneError, match=rf"(?i:the) entry point '{name}' of the group {group} must be"):
        known_families() if group == "pretune.families" else preset_names()
    assert find_family("bert", "config.json").name == "bert" and make_model("bert-tiny").family.name == "bert"


def test_family_is_registered_once() -> None:
    from dataclasses import replace

    from pretune.families import register_family

    toy = replace(FAMILIES["bert"], name="toy-bert")
    assert isinstance(toy, Family) and register_family(toy) is register_family(toy)
    assert find_family("toy-bert", "config.json") is toy
    with pytest.raises(PretuneError, match="'bert' is already registered"):
        register_family(replace(toy, name="bert"))
