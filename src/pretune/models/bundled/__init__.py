"""Models that come with the package, each a folder in the Hugging Face layout with a model card."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent


def bundled_names() -> tuple[str, ...]:
    """Return the sorted names of the models that come with pretune."""
    return tuple(sorted(folder.parent.name for folder in HERE.glob("*/config.json")))


def bundled_folder(name: str) -> Path:
    """Return the folder of a model that comes with pretune, given a name from `bundled_names`."""
    return HERE / name
