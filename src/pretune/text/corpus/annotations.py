"""Spans that the data themselves annotate, such as the names in a text: read from rows, and found again in tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pretune.runtime.errors import PretuneError

ANNOTATED = (".jsonl", ".parquet")  # files whose rows can hold spans
Array = np.ndarray[Any, np.dtype[Any]]
Spans = tuple[tuple[int, int], ...]


def read_spans(value: Any, length: int, where: str) -> Spans:
    """Spans of characters (start, end) from a field: pairs of numbers, or objects that name them; none where it is null.

    >>> read_spans([[0, 8], {"start": 16, "end": 22, "label": "place"}], 30, "a.jsonl, line 1, field 'names'")
    ((0, 8), (16, 22))
    """
    if value is None:
        return ()
    if not isinstance(value, list):
        raise PretuneError(f"{where} holds {type(value).__name__}, not a list of spans such as [[0, 5], [9, 12]]")
    return tuple(_span(entry, length, f"{where}, span {number}") for number, entry in enumerate(value, 1))


def _span(entry: Any, length: int, where: str) -> tuple[int, int]:
    ends = [entry.get("start"), entry.get("end")] if isinstance(entry, Mapping) else entry
    if not isinstance(ends, list) or len(ends) != 2 or not all(type(end) is int for end in ends):
        raise PretuneError(f"{where}: {str(ends)[:60]} is no start and end; write two whole numbers, as in [9, 12]")
    start, end = ends
    if not 0 <= start < end <= length:
        raise PretuneError(
            f"{where}: [{start}, {end}] is no part of the text; 0 ≤ start < end ≤ {length}, its characters, must hold"
        )
    return start, end


def inside(places: Array, spans: Array) -> Array:
    """(n,) True for the tokens that a span touches, but for the first it touches.

    Tokens lie at `places` (n, 2) of the text, from a character to before another; spans are (k, 2).

    >>> inside(np.array([[0, 3], [3, 8], [9, 12]]), np.array([[0, 8]])).tolist()
    [False, True, False]
    """
    starts, ends = np.maximum.accumulate(places).T
    first = np.searchsorted(ends, spans[:, 0], side="right")
    last = np.searchsorted(starts, spans[:, 1]) - 1
    several = last > first
    change = np.zeros(len(places) + 1, dtype=np.int64)  # +1 where a span's later tokens begin, -1 where they end
    np.add.at(change, first[several] + 1, 1)
    np.add.at(change, last[several] + 1, -1)
    return np.asarray(np.cumsum(change[:-1]) > 0)
