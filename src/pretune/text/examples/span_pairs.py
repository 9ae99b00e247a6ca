"""Read rows with two marked spans, and locate the spans in characters and in tokens (WiC, WSC)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.text.corpus.files import Errors
from pretune.text.examples.labeled import LabeledRows, TableChunk, advise_options, drop_or_raise, read_labeled
from pretune.text.packing.sequences import Arrangement
from pretune.text.tokenizers.tokenizer import Tokenizer

CharacterSpan = tuple[int, int]  # start and end in characters; the end is exclusive

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


def read_span_pairs(
    file: str | Path | TableChunk,
    columns: Mapping[str, str] | None = None,
    *,
    errors: Errors = "strict",
    labels: bool = True,
    drop_invalid: bool = False,
) -> LabeledRows:
    """Read rows with one span in each of two texts, or two in one text; `more["spans"]` has both spans of a row.

    Spans are given by character offsets (`start1`, `end1`, `start2`, `end2`) or by their words: `word` for both, or
    `word1` and `word2`. If the words occur several times, the span is the first occurrence, or the one nearest to the
    whitespace-separated word with the index `place1` or `place2`. Spans that are not in their texts are an error, which
    lists them; with `drop_invalid`, such rows are left out.
    """
    rows = read_labeled(file, columns, errors=errors, labels=labels, roles=ROLES, drop_invalid=drop_invalid and labels)
    for which in (1, 2):
        if not (
            {f"start{which}", f"end{which}"} <= rows.columns.keys() or {"word", f"word{which}"} & rows.columns.keys()
        ):
            raise PretuneError(
                f"{rows.file}: no columns locate span {which}"
                + advise_options(
                    "choose those with its bounds or its words", [f"start{which}", f"end{which}", f"word{which}"]
                )
            )
    spans: dict[int, tuple[CharacterSpan, CharacterSpan]] = {}
    bad = []
    for row in range(len(rows)):
        try:
            spans[row] = find_span(rows, row, 1), find_span(rows, row, 2)
        except ValueError as error:
            bad.append(f"{rows.place(row).removeprefix(f'{rows.file}, ')}: {error}")
    if bad:
        what = f"{rows.file}: {len(bad)} of {len(rows)} rows have spans that are not in their texts"
        drop_or_raise(what, bad, drop_invalid if labels else None)
    if not spans:
        raise PretuneError(f"{rows.file}: no row has both of its spans")
    rows = rows.take(spans)
    rows.more = {"spans": list(spans.values())}
    return rows


def find_span(rows: LabeledRows, row: int, which: int) -> CharacterSpan:
    """Return the first or second span of a row; a ValueError describes what is wrong with it."""
    text = rows.texts[row] if which == 1 or rows.pairs is None else rows.pairs[row]
    start, end, place = (_whole(rows, row, f"{role}{which}") for role in ("start", "end", "place"))
    if start is not None and end is not None:
        if not 0 <= start < end <= len(text):
            raise ValueError(
                f"characters {start} to {end} are outside the text of {len(text)} characters "
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


def find_words(words: str, text: str) -> list[CharacterSpan]:
    """Return the spans of a phrase in a text, ignoring case and whitespace; whole words only, if there are any.

    >>> find_words("art", "Start with Art")
    [(11, 14)]
    """
    pattern = r"\s+".join(map(re.escape, words.split()))
    whole = re.finditer(rf"(?<!\w){pattern}(?!\w)", text, re.IGNORECASE)
    return [m.span() for m in whole] or [m.span() for m in re.finditer(pattern, text, re.IGNORECASE)]


def _whole(rows: LabeledRows, row: int, role: str) -> int | None:
    cell = rows.more.get(role, [None] * len(rows))[row]
    if cell is None or cell == "":
        return None
    if not re.fullmatch(r"\d+", str(cell).strip()):
        raise ValueError(f"{cell!r} in {rows.columns[role]!r} is not a number of characters")
    return int(cell)


def mark_tokens(rows: LabeledRows, starts: Array, total: int, tokenizer: Tokenizer) -> Array:
    """Return a mark per token, (total,): 1 in the first span of its row, 2 in the second, 3 in both.

    `starts` (rows, 1 or 2) is where the tokens of each text begin.
    """
    mark = np.zeros(total, dtype=np.int64)
    sides = [rows.texts] if rows.pairs is None else [rows.texts, rows.pairs]
    offsets = [token_offsets(texts, tokenizer) for texts in sides]
    for row, spans in enumerate(rows.more["spans"]):
        for which, (start, end) in enumerate(spans):
            side = which if len(sides) == 2 else 0
            begins, ends = offsets[side][row].T
            inside = np.flatnonzero((begins < end) & (ends > start))
            if not len(inside):
                raise PretuneError(
                    f"{rows.place(row)}: {sides[side][row][start:end]!r} has no tokens; correct its span"
                )
            mark[starts[row, side] + inside] |= 1 << which
    return mark


def token_offsets(texts: Sequence[str], tokenizer: Tokenizer) -> list[Array]:
    """Return the character offsets of the tokens of each text, (tokens, 2)."""
    _, lengths, offsets = tokenizer.encode_with_offsets(texts)
    return np.split(offsets, np.cumsum(lengths)[:-1])


def truncate_around_spans(laid: Arrangement, rows: LabeledRows, length: int) -> Arrangement:
    """Return the arrangement with a column `span`, where truncated texts are cut around their spans."""
    source: Any = laid.source
    mark = mark_tokens(rows, source.starts, len(source.ids), laid.tokenizer)
    marked = np.flatnonzero(mark)
    starts = source.starts.T.ravel()  # all first texts, then all second texts
    owner = np.searchsorted(starts, marked, side="right") - 1
    first, last = np.full(len(starts), np.iinfo(np.int64).max), np.full(len(starts), -1)
    np.minimum.at(first, owner, marked - starts[owner])
    np.maximum.at(last, owner, marked - starts[owner])
    first, last = (x.reshape(source.starts.T.shape).T for x in (first, last))  # (rows, texts)
    over = (last - first + 1 > laid.spans).any(1)
    if over.any():
        row = int(np.argmax(over))
        raise PretuneError(
            f"{rows.place(row)}: the spans do not fit into a sequence of {length} tokens; choose a larger length "
            "with --set batch.max_length=…"
        )
    middle = (first + last + 1 - laid.spans) // 2
    begin = np.clip(middle, np.maximum(0, last + 1 - laid.spans), np.minimum(first, source.lengths - laid.spans))
    return replace(laid, starts=laid.starts + begin, tokens={"span": mark})
