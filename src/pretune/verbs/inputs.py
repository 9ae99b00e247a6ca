"""What verbs make of the inputs they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def name_columns(further: Mapping[str, str] | None, **given: str | None) -> dict[str, str]:
    """Role → column, of options of their own and of all others.

    >>> name_columns({"group": "qid"}, text="query", pair=None)
    {'group': 'qid', 'text': 'query'}
    """
    return {**(further or {}), **{role: name for role, name in given.items() if name}}
