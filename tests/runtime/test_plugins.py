"""Tests of entry points of installed packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from pretune.runtime.errors import PretuneError
from pretune.runtime.plugins import entry_point_objects


def install(folder: Path, package: str, module: str, entry_points: str) -> None:
    """Write a package as an installer would: one module and a dist-info folder with its entry points."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / f"{package}.py").write_text(module)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


def test_group_without_entry_points_is_empty() -> None:
    assert entry_point_objects("pretune.tests.nothing") == {}


def test_entry_points_are_loaded_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert entry_point_objects("pretune.tests.things") == {}
    install(tmp_path, "plugin_with_things", "ONE = 1\n", "[pretune.tests.things]\none = plugin_with_things:ONE\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert entry_point_objects("pretune.tests.things") == {"one": 1}


@pytest.mark.parametrize("module", ["import a_module_that_does_not_exist\n", "TWO = 2\n"])
def test_broken_plugin_is_reported(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"broken_plugin_{len(module)}"
    install(tmp_path, name, module, f"[pretune.tests.broken]\none = {name}:ONE\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PretuneError, match=f"the package {name} registers 'one' in the entry-point group") as raised:
        entry_point_objects("pretune.tests.broken")
    assert "cannot be imported" in str(raised.value)


def test_two_packages_cannot_register_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("first_claim", "second_claim"):
        install(tmp_path, package, "X = 1\n", f"[pretune.tests.claims]\none = {package}:X\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PretuneError, match=r"first_claim.*second_claim|second_claim.*first_claim"):
        entry_point_objects("pretune.tests.claims")
