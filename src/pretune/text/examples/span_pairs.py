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
    """Read rows with two marked spans, one in each of two texts or both in one text.

    In the result, `extra["spans"]` has the two spans of each row, as (start, end) in characters.

    The columns of a span are its character offsets (`start1`, `end1`, `start2`, `end2`) or its words: `word` for both
    spans, or `word1` and `word2`. If the words occur several times in the text, the span is the occurrence nearest to
    the whitespace-separated word with the index `place1` or `place2` or, without such a column, the first occurrence.
    Rows whose spans are not in their texts are listed in an error; with `drop_invalid`, they are left out instead.
    """
    rows = read_labeled(file, columns, errors=errors, labels=labels, roles=ROLES, drop_invalid=drop_invalid and labels)
    for which in (1, 2):
        bounds, words = [f"start{which}", f"end{which}"], ["word", f"word{which}"]
        if not ({*bounds} <= rows.columns.keys() or {*words} & rows.columns.keys()):
            advice = advise_options("choose those with its bounds or its words", [*bounds, words[1]])
            raise PretuneError(f"{rows.file}: no column contains the position or the words of span {which}{advice}")
    spans: dict[int, tuple[CharacterSpan, CharacterSpan]] = {}
    bad = []
    for row in range(len(rows)):
        try:
            spans[row] = find_span(rows, row, 1), find_span(rows, row, 2)
        except ValueError as error:
            bad.append(f"{rows.location(row).removeprefix(f'{rows.file}, ')}: {error}")
    if bad:
        problem = f"{rows.file}: {len(bad)} of {len(rows)} rows have spans that are not in their texts"
        drop_or_raise(problem, bad, drop_invalid if labels else None)
    if not spans:
        raise PretuneError(f"{rows.file}: no row has two spans that occur in its texts; correct the span columns")
    rows = rows.take(spans)
    rows.extra = {"spans": list(spans.values())}
    return rows


def find_span(rows: LabeledRows, row: int, which: int) -> CharacterSpan:
    """Return the character span `which` (1 or 2) of a row; raise a ValueError that says what is wrong with it."""
    text = rows.texts[row] if which == 1 or rows.pairs is None else rows.pairs[row]
    start, end, place = (_read_integer(rows, row, f"{role}{which}") for role in ("start", "end", "place"))
    if start is not None and end is not None:
        if not 0 <= start < end <= len(text):
            names = f"{rows.columns[f'start{which}']!r}, {rows.columns[f'end{which}']!r}"
            raise ValueError(f"characters {start} to {end} are outside the text of {len(text)} characters ({names})")
        return start, end
    role = f"word{which}" if f"word{which}" in rows.columns else "word"
    word = rows.extra.get(role, [None] * len(rows))[row]
    if not isinstance(word, str) or not word.strip():
        roles = [role for role in (f"start{which}", f"end{which}", role) if role in rows.columns]
        raise ValueError(f"span {which} is missing in {', '.join(repr(rows.columns[role]) for role in roles)}")
    spans = find_words(word.strip(), text)
    if not spans:
        raise ValueError(f"the word {word!r} in {rows.columns[role]!r} does not occur in its text")
    if place is not None:
        words = [match.start() for match in re.finditer(r"\S+", text)]
        near = words[min(max(place, 0), len(words) - 1)]
        return min(spans, key=lambda span: abs(span[0] - near))
    return spans[0]


def find_words(words: str, text: str) -> list[CharacterSpan]:
    """Return the spans (start, end) at which a phrase occurs in a text, ignoring case.

    If the phrase occurs as whole words, occurrences inside longer words are left out.

    >>> find_words("art", "Start with Art")
    [(11, 14)]
    """
    pattern = r"\s+".join(map(re.escape, words.split()))
    whole = re.finditer(rf"(?<!\w){pattern}(?!\w)", text, re.IGNORECASE)
    return [m.span() for m in whole] or [m.span() for m in re.finditer(pattern, text, re.IGNORECASE)]


def _read_integer(rows: LabeledRows, row: int, role: str) -> int | None:
    """Return the integer that a row has for a role, such as "start1"; None if the cell or the column does not exist."""
    cell = rows.extra.get(role, [None] * len(rows))[row]
    if cell is None or cell == "":
        return None
    if not re.fullmatch(r"\d+", str(cell).strip()):
        raise ValueError(f"expected a whole number of 0 or more in {rows.columns[role]!r}, but found {cell!r}")
    return int(cell)


def mark_tokens(rows: LabeledRows, starts: Array, total: int, tokenizer: Tokenizer) -> Array:
    """Return an integer per token, (total,): 1 in the first span of its row, 2 in the second, 3 in both, 0 elsewhere.

    `starts` has the index of the first token of each text, (rows, 1) or (rows, 2); `total` is the number of tokens of
    all texts.
    """
    mark = np.zeros(total, dtype=np.int64)
    sides = [rows.texts] if rows.pairs is None else [rows.texts, rows.pairs]
    offsets = [token_offsets(texts, tokenizer) for texts in sides]
    for row, spans in enumerate(rows.extra["spans"]):
        for which, (start, end) in enumerate(spans):
            side = which if len(sides) == 2 else 0
            begins, ends = offsets[side][row].T
            inside = np.flatnonzero((begins < end) & (ends > start))
            if not len(inside):
                text = sides[side][row][start:end]
                raise PretuneError(
                    f"{rows.location(row)}: {text!r} has no tokens; mark characters that are not only whitespace"
                )
            mark[starts[row, side] + inside] |= 1 << which
    return mark


def token_offsets(texts: Sequence[str], tokenizer: Tokenizer) -> list[Array]:
    """Return the start and end character of each token, as one array (tokens, 2) per text."""
    _, lengths, offsets = tokenizer.encode_with_offsets(texts)
    return np.split(offsets, np.cumsum(lengths)[:-1])


def truncate_around_spans(arrangement: Arrangement, rows: LabeledRows, length: int) -> Arrangement:
    """Return an arrangement in which texts that exceed `length` tokens are truncated around their marked spans.

    Its array `tokens["span"]` has a value per token that says which span the token belongs to (see `mark_tokens`).
    """
    source: Any = arrangement.source
    kept = arrangement.spans  # (rows, texts) number of tokens to keep
    mark = mark_tokens(rows, source.starts, len(source.ids), arrangement.tokenizer)
    marked = np.flatnonzero(mark)
    starts = source.starts.T.ravel()  # all first texts, then all second texts
    owner = np.searchsorted(starts, marked, side="right") - 1
    first, last = np.full(len(starts), np.iinfo(np.int64).max), np.full(len(starts), -1)
    np.minimum.at(first, owner, marked - starts[owner])
    np.maximum.at(last, owner, marked - starts[owner])
    first, last = (x.reshape(source.starts.T.shape).T for x in (first, last))  # (rows, texts)
    over = (last - first + 1 > kept).any(1)
    if over.any():
        where = rows.location(int(np.argmax(over)))
        advice = "choose a larger length with --set batch.max_length=…"
        raise PretuneError(f"{where}: the spans do not fit into a sequence of {length} tokens; {advice}")
    middle = (first + last + 1 - kept) // 2
    begin = np.clip(middle, np.maximum(0, last + 1 - kept), np.minimum(first, source.lengths - kept))
    return replace(arrangement, starts=arrangement.starts + begin, tokens={"span": mark})
