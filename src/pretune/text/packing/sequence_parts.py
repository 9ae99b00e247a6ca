"""Compose sequences from several texts per row and fixed tokens between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.text.packing.sequences import Arrangement
from pretune.text.packing.token_rows import TokenRows
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.tokenizer import Tokenizer

Part = list[str] | tuple[int, ...]  # one text per row, or token ids that are the same in all rows


def compose_sequences(parts: Sequence[Part], tokenizer: Tokenizer, frame: tuple[str, ...], length: int) -> Arrangement:
    """Return an arrangement with one sequence per row: the parts, concatenated, between special tokens.

    A part is either a list of texts, one per row, or token ids that are the same for all rows. `frame` lists the roles
    of the special tokens, with "A" in place of the parts, such as ("start", "A", "end"). Rows longer than `length`
    tokens are truncated: the longest texts lose tokens at their end, and the fixed token ids stay.
    """
    place = frame.index("A")
    template = Template(single=frame[: place + 1], pair=("B",), segments=False, last=frame[place + 1 :])
    texts = [part for part in parts if isinstance(part, list)]
    count = len(texts[0])
    ids, sizes = tokenizer.encode_many([text for part in texts for text in part])
    words = tokenizer.word_starts(ids)
    begins = np.cumsum(sizes) - sizes
    words[begins[sizes > 0]] = True
    starts, spans = np.zeros((2, count, len(parts)), dtype=np.int64)
    is_text = np.array([isinstance(part, list) for part in parts])
    starts[:, is_text], spans[:, is_text] = (x.reshape(len(texts), count).T for x in (begins, sizes))
    end = len(ids)
    for number, part in enumerate(parts):
        if isinstance(part, tuple):
            starts[:, number], spans[:, number] = end, len(part)
            end += len(part)
    fixed = np.array([token for part in parts if isinstance(part, tuple) for token in part], dtype=ids.dtype)
    room = length - template.num_special_tokens(pair=False) - len(fixed)
    if room < len(texts):
        raise PretuneError(
            f"a maximum length of {length} tokens leaves no room for text; choose a larger maximum length (batch.max_length)"
        )
    whole = spans[:, is_text]
    spans[:, is_text] = truncate_longest(whole, room)
    words = np.concatenate([words, np.ones(len(fixed), dtype=bool)])
    rows = TokenRows(np.concatenate([ids, fixed]), words, starts, spans)
    return Arrangement(rows, tokenizer, template, starts, spans, truncated=int((whole.sum(1) > room).sum()))


def truncate_longest(lengths: Array, room: int) -> Array:
    """Return the number of tokens to keep of each text, (rows, texts), so that each row has at most `room` tokens.

    `lengths` (rows, texts) has the number of tokens of each text. In rows that are too long, the longest texts are cut.

    >>> truncate_longest(np.array([[9, 2], [9, 8], [1, 2]]), 10).tolist()
    [[8, 2], [5, 5], [1, 2]]
    """
    kept = np.zeros_like(lengths)
    left, rows = np.full(len(lengths), room), np.arange(len(lengths))
    for number, text in enumerate(np.argsort(lengths, axis=1, kind="stable").T):
        kept[rows, text] = np.minimum(lengths[rows, text], left // (lengths.shape[1] - number))
        left = left - kept[rows, text]
    return kept
