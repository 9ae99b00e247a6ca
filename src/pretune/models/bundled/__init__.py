"""Models that come with the package, each a folder in the Hugging Face layout with a model card."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent


def bundled_names() -> tuple[str, ...]:
    """Return the names of the bundled models, sorted."""
    return tuple(sorted(folder.parent.name for folder in HERE.glob("*/config.json")))


def bundled_folder(name: str) -> Path:
    """Return the folder of a bundled model."""
    return HERE / name
