"""Read annotated character spans, such as named entities, from data rows, and locate them among tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError

Spans = tuple[tuple[int, int], ...]


def read_spans(value: Any, length: int, where: str) -> Spans:
    """Return the character spans (start, end) that a data field contains; an empty tuple if its value is None.

    A span is a pair of numbers or an object with `start` and `end`, within a text of `length` characters; `where` names
    the field in errors.

    >>> read_spans([[0, 8], {"start": 16, "end": 22, "label": "place"}], 30, "a.jsonl, line 1, field 'names'")
    ((0, 8), (16, 22))
    """
    if value is None:
        return ()
    if not isinstance(value, list):
        kind = type(value).__name__
        raise PretuneError(f"{where} has type {kind}; expected a list of spans such as [[0, 5], [9, 12]]")
    return tuple(_read_span(entry, length, f"{where}, span {number}") for number, entry in enumerate(value, 1))


def _read_span(entry: Any, length: int, where: str) -> tuple[int, int]:
    ends = [entry.get("start"), entry.get("end")] if isinstance(entry, Mapping) else entry
    if not isinstance(ends, list) or len(ends) != 2 or not all(type(end) is int for end in ends):
        raise PretuneError(f"{where}: {str(ends)[:60]} is not a span; write two integers, start and end, as in [9, 12]")
    start, end = ends
    if not 0 <= start < end <= length:
        raise PretuneError(f"{where}: [{start}, {end}] is outside the text; write 0 ≤ start < end ≤ {length}")
    return start, end


def inside_spans(offsets: Array, spans: Array) -> Array:
    """Return a mask of the tokens that overlap a character span but are not the first token of that span.

    The mask is (tokens,). `offsets` (tokens, 2) has the start and end character of each token, and `spans` (k, 2) the
    start and end character of each of the k spans; ends are exclusive.

    >>> inside_spans(np.array([[0, 3], [3, 8], [9, 12]]), np.array([[0, 8]])).tolist()
    [False, True, False]
    """
    starts, ends = np.maximum.accumulate(offsets).T
    first = np.searchsorted(ends, spans[:, 0], side="right")
    last = np.searchsorted(starts, spans[:, 1]) - 1
    several = last > first
    change = np.zeros(len(offsets) + 1, dtype=np.int64)  # +1 after a span's first token, -1 after its last
    np.add.at(change, first[several] + 1, 1)
    np.add.at(change, last[several] + 1, -1)
    return np.asarray(np.cumsum(change[:-1]) > 0)
