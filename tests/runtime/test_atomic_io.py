"""Tests that writes are atomic: complete or not at all, and never through a planted link."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from pretune.runtime import atomic_io
from pretune.runtime.atomic_io import atomic_file, open_append, remove_temporaries, temporary_folder, write_bytes
from pretune.runtime.errors import PretuneError


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_bytes(path, b"old")
    with pytest.raises(TypeError), atomic_file(path) as file:
        file.write("text")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_planted_link_is_replaced_and_its_target_is_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    path = tmp_path / "out.json"
    path.symlink_to(target)
    write_bytes(path, b"ours")
    assert target.read_text() == "precious" and path.read_bytes() == b"ours" and not path.is_symlink()
    # Even guessing the temporary name has no effect.
    monkeypatch.setattr(secrets, "token_hex", lambda _: "guessed")
    (tmp_path / f"{atomic_io.TEMPORARY}guessed").symlink_to(target)
    with pytest.raises(FileExistsError):
        write_bytes(tmp_path / "other.json", b"ours")
    assert target.read_text() == "precious"


def test_appending_rejects_links(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("precious")
    (tmp_path / "metrics.jsonl").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"):
        open_append(tmp_path / "metrics.jsonl")


def test_temporary_names_are_unpredictable(tmp_path: Path) -> None:
    assert len({temporary_folder(tmp_path / "final").name for _ in range(20)}) == 20


def test_leftovers_are_removed_and_links_are_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / f"{atomic_io.TEMPORARY}link").symlink_to(kept)
    (folder / f"{atomic_io.TEMPORARY}file").touch()
    (folder / f"{atomic_io.TEMPORARY}folder").mkdir()
    remove_temporaries(folder)
    assert list(folder.iterdir()) == [] and (kept / "file").exists()


@pytest.mark.parametrize("name", ["x" * 256, "я" * 128, "a\0b"])
def test_invalid_file_names_are_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(PretuneError, match="not a valid file name"):
        write_bytes(tmp_path / name, b"")
