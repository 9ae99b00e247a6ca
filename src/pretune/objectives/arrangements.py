"""Arrangements that several objectives share."""

from __future__ import annotations

from pretune.errors import PretuneError
from pretune.objectives.objective import Data
from pretune.randomness import Draws
from pretune.text.arranging import cut_documents
from pretune.text.sequences import Arrangement, Epoch, Packing, plan_epoch


def spans_arrangement(data: Data, length: int, draws: Draws) -> Arrangement:
    """Documents in spans of whole sentences, one to a sequence; with the template they have at most `length` tokens."""
    if data.store is None:
        raise PretuneError("this objective reads raw text; give it a corpus or a store, not labeled rows")
    template = data.template.for_documents
    room = length - template.overhead(pair=False)
    if room < 1:
        raise PretuneError(f"sequences of {length} tokens leave no room for text; ask for longer ones")
    starts, lengths, _ = cut_documents(data.store, data.documents, room, draws)
    return Arrangement(data.store, data.tokenizer, template, starts[:, None], lengths[:, None])


def spans_epoch(data: Data, packing: Packing, draws: Draws) -> Epoch:
    """The same, shuffled into packs."""
    return plan_epoch(spans_arrangement(data, packing.length, draws), packing, draws)
