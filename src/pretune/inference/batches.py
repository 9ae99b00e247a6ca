"""Batches for inference: n rows in, n answers out, in order, whatever the batching."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pretune.model import Model
from pretune.packed import Batch
from pretune.progress import say
from pretune.text.labeled import Labeled
from pretune.text.plan import make_plan
from pretune.text.rows import TokenRows, arrange_rows
from pretune.text.sequences import collate, with_global_starts

Array = np.ndarray[Any, np.dtype[Any]]
TOKENS = 8192  # in a batch


def text_batches(
    model: Model,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    length: int | None = None,
    global_starts: bool = False,
) -> Iterator[Batch]:
    """Batches over texts, short ones with short ones; `batch.rows` says which texts its sequences are.

    Texts longer than the model are cut, and it is said how many. With `global_starts`, the first token stands for all
    others, as classifiers learn it.
    """
    tokenizer = model.need_tokenizer()
    rows = Labeled(Path("texts"), {}, list(texts), None if pairs is None else list(pairs))
    tokens = TokenRows.make(rows, tokenizer)
    longest = length or model.backbone.longest or 512
    arrangement = arrange_rows(tokens, tokenizer, model.family.template, longest, {})
    if arrangement.truncated:
        say(f"{arrangement.truncated} of {len(texts)} texts are longer than {longest} tokens and were cut")
    # Sorted by length, so that the dense path pads little; rows keep their numbers.
    order = np.argsort(arrangement.lengths, kind="stable")
    lengths = arrangement.lengths[order]
    plan = make_plan(lengths, tokens=max(TOKENS, longest), sequences=1 << 30, shuffle=False)
    for index in range(len(plan)):
        sequences = arrangement.take(order[plan.pack(index)])
        sequences = with_global_starts(sequences) if global_starts else sequences
        yield collate(sequences, filler=tokenizer.roles.get("padding", 0))
