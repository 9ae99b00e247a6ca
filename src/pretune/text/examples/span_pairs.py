"""Rows with two marked places: where they stand in characters, and in tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pretune.runtime.errors import PretuneError
from pretune.text.corpus.files import Errors
from pretune.text.examples.labeled import Excerpt, Labeled, drop_or_refuse, read_labeled, with_options
from pretune.text.packing.sequences import Arrangement
from pretune.text.tokenizers.tokenizer import Tokenizer

Array = np.ndarray[Any, np.dtype[Any]]
Span = tuple[int, int]  # characters, the second not included

ROLES: dict[str, Sequence[str]] = {
    "start1": ("start1",),
    "end1": ("end1",),
    "start2": ("start2",),
    "end2": ("end2",),
    "word": ("word",),
    "word1": ("word1", "span1", "span1_text", "target.span1_text"),
    "word2": ("word2", "span2", "span2_text", "target.span2_text"),
    "place1": ("span1_index", "target.span1_index"),
    "place2": ("span2_index", "target.span2_index"),
}


def read_marked(
    file: str | Path | Excerpt,
    columns: Mapping[str, str] | None = None,
    *,
    errors: Errors = "strict",
    labels: bool = True,
    drop_bad: bool = False,
) -> Labeled:
    """Rows with a span in each of two texts, or two in one; `more["spans"]` has both of a row, in characters.

    Spans are given by offsets (`start1`, `end1`, `start2`, `end2`), or by their words: `word` for both, or `word1` and
    `word2`. Of several places where the words stand, it is the first, or the one nearest to the word of number `place1`,
    `place2` (from 0, words are what stands between spaces). Spans that are not in their texts are refused with a list; with
    `drop_bad`, rows that have such are left out.
    """
    rows = read_labeled(file, columns, errors=errors, labels=labels, roles=ROLES, drop_bad=drop_bad and labels)
    for which in (1, 2):
        if not (
            {f"start{which}", f"end{which}"} <= rows.columns.keys() or {"word", f"word{which}"} & rows.columns.keys()
        ):
            raise PretuneError(
                f"{rows.file}: cannot tell where span {which} is"
                + with_options("name its bounds, or its words,", [f"start{which}", f"end{which}", f"word{which}"])
            )
    spans: dict[int, tuple[Span, Span]] = {}
    bad = []
    for row in range(len(rows)):
        try:
            spans[row] = find_span(rows, row, 1), find_span(rows, row, 2)
        except ValueError as error:
            bad.append(f"{rows.place(row).removeprefix(f'{rows.file}, ')}: {error}")
    if bad:
        what = f"{rows.file}: the spans of {len(bad)} of {len(rows)} rows are not in their texts"
        drop_or_refuse(what, bad, drop_bad if labels else None)
    if not spans:
        raise PretuneError(f"{rows.file}: no row has its spans")
    rows = rows.take(spans)
    rows.more = {"spans": list(spans.values())}
    return rows


def find_span(rows: Labeled, row: int, which: int) -> Span:
    """The first or second span of a row; a ValueError says what is wrong with it."""
    text = rows.texts[row] if which == 1 or rows.pairs is None else rows.pairs[row]
    start, end, place = (_whole(rows, row, f"{role}{which}") for role in ("start", "end", "place"))
    if start is not None and end is not None:
        if not 0 <= start < end <= len(text):
            raise ValueError(
                f"no characters {start} to {end} in a text of {len(text)} "
                f"({rows.columns[f'start{which}']!r}, {rows.columns[f'end{which}']!r})"
            )
        return start, end
    role = f"word{which}" if f"word{which}" in rows.columns else "word"
    word = rows.more.get(role, [None] * len(rows))[row]
    if not isinstance(word, str) or not word.strip():
        roles = [role for role in (f"start{which}", f"end{which}", role) if role in rows.columns]
        raise ValueError(f"no span {which} in {', '.join(repr(rows.columns[role]) for role in roles)}")
    found = find_words(word.strip(), text)
    if not found:
        raise ValueError(f"{word!r} ({rows.columns[role]!r}) is not in its text")
    if place is not None:
        words = [match.start() for match in re.finditer(r"\S+", text)]
        near = words[min(max(place, 0), len(words) - 1)]
        return min(found, key=lambda span: abs(span[0] - near))
    return found[0]


def find_words(words: str, text: str) -> list[Span]:
    """Where words stand in a text, whole ones if there are any, whatever their case and the white space between them.

    >>> find_words("art", "Start with Art")
    [(11, 14)]
    """
    pattern = r"\s+".join(map(re.escape, words.split()))
    whole = re.finditer(rf"(?<!\w){pattern}(?!\w)", text, re.IGNORECASE)
    return [m.span() for m in whole] or [m.span() for m in re.finditer(pattern, text, re.IGNORECASE)]


def _whole(rows: Labeled, row: int, role: str) -> int | None:
    cell = rows.more.get(role, [None] * len(rows))[row]
    if cell is None or cell == "":
        return None
    if not re.fullmatch(r"\d+", str(cell).strip()):
        raise ValueError(f"{cell!r} is not a number of characters in {rows.columns[role]!r}")
    return int(cell)


def mark_tokens(rows: Labeled, starts: Array, total: int, tokenizer: Tokenizer) -> Array:
    """(total,) for the tokens of the rows' texts, which begin at `starts` (rows, 1 or 2): 1 in the first span, 2 in the
    second, 3 in both."""
    mark = np.zeros(total, dtype=np.int64)
    sides = [rows.texts] if rows.pairs is None else [rows.texts, rows.pairs]
    offsets = [token_offsets(texts, tokenizer) for texts in sides]
    for row, spans in enumerate(rows.more["spans"]):
        for which, (start, end) in enumerate(spans):
            side = which if len(sides) == 2 else 0
            begins, ends = offsets[side][row].T
            inside = np.flatnonzero((begins < end) & (ends > start))
            if not len(inside):
                raise PretuneError(f"{rows.place(row)}: {sides[side][row][start:end]!r} has no token of its own")
            mark[starts[row, side] + inside] |= 1 << which
    return mark


def token_offsets(texts: Sequence[str], tokenizer: Tokenizer) -> list[Array]:
    """For each text, (tokens, 2) the characters that each token stands for."""
    _, lengths, offsets = tokenizer.encode_with_offsets(texts)
    return np.split(offsets, np.cumsum(lengths)[:-1])


def keep_spans(laid: Arrangement, rows: Labeled, length: int) -> Arrangement:
    """The same with a column `span`; of texts that are cut, those tokens are left that have their spans in the middle."""
    source: Any = laid.source
    mark = mark_tokens(rows, source.starts, len(source.ids), laid.tokenizer)
    marked = np.flatnonzero(mark)
    starts = source.starts.T.ravel()  # texts lie end to end, the second ones after all the first
    owner = np.searchsorted(starts, marked, side="right") - 1
    first, last = np.full(len(starts), np.iinfo(np.int64).max), np.full(len(starts), -1)
    np.minimum.at(first, owner, marked - starts[owner])
    np.maximum.at(last, owner, marked - starts[owner])
    first, last = (x.reshape(source.starts.T.shape).T for x in (first, last))  # (rows, texts)
    over = (last - first + 1 > laid.spans).any(1)
    if over.any():
        row = int(np.argmax(over))
        raise PretuneError(
            f"{rows.place(row)}: its spans do not fit into a sequence of {length} tokens; ask for longer ones "
            "with --set batch.length=…"
        )
    middle = (first + last + 1 - laid.spans) // 2
    begin = np.clip(middle, np.maximum(0, last + 1 - laid.spans), np.minimum(first, source.lengths - laid.spans))
    return replace(laid, starts=laid.starts + begin, tokens={"span": mark})
