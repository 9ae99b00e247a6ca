"""What verbs make of the inputs they share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pretune.text.store import Store


def store_and_paths(
    data: Store | Sequence[str | Path] | str | Path | None,
) -> tuple[Store | None, Sequence[str | Path]]:
    """The store, where one is given, and the paths that a recipe names."""
    from pretune.text.store import Store

    if isinstance(data, Store):
        return data, [data.folder]
    return None, [data] if isinstance(data, str | Path) else list(data or [])
