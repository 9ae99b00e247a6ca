"""Models that come with the package: a folder each, in the Hugging Face layout, with a card (README.md)."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent


def boxed_names() -> tuple[str, ...]:
    """The names of the models that come with the package."""
    return tuple(sorted(folder.parent.name for folder in HERE.glob("*/config.json")))


def boxed_folder(name: str) -> Path:
    """Where one of them is."""
    return HERE / name
