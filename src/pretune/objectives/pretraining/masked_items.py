"""Masked item prediction (Sun et al., 2019, BERT4Rec): predict masked items of a user's history from both sides.

A history is a document of one sentence; its tokens are the items in temporal order (tokenizers of kind `items`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pretune.nn.attention.patterns import Pattern, full
from pretune.objectives.objective import Data
from pretune.objectives.pretraining.masking import check_positive_fractions, choose_masked, mask_tokens, max_masked
from pretune.objectives.pretraining.token_prediction import TokenPrediction
from pretune.objectives.registry import register_objective
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, Sequences, plan_epoch
from pretune.text.store.store import Store
from pretune.text.tokenizers.tokenizer import Tokenizer


@register_objective
@dataclass(frozen=True)
class MaskedItem(TokenPrediction):
    """Masked item prediction: a share `mask_rate` of the items in a user's history becomes [MASK] and is predicted.

    In a share `mask_last_rate` of the sequences, only the last item is masked, as when the next item is recommended.
    The last `num_held_out` items of every history are held out for evaluation.
    """

    mask_rate: float = 0.2
    mask_last_rate: float = 0.1
    num_held_out: int = 2

    name: ClassVar[str] = "item"
    pattern: ClassVar[Pattern | None] = full
    owns_arrangement: ClassVar[bool] = True
    corrupts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive_fractions(self.name, mask_rate=self.mask_rate)

    def arrange(self, data: Data, packing: Packing, draws: EpochRandom) -> Epoch:
        """Cut user histories into sequences, from the newest item backward.

        After the first epoch, the positions of the cuts are shifted at random.
        """
        items = packing.length - data.template.num_special_tokens(pair=False)
        if data.store is None:
            raise PretuneError(
                "the objective 'item' reads user histories; give a token store of histories instead of labeled rows"
            )
        if items < 2:
            raise PretuneError(
                f"sequences of {packing.length} tokens leave no room for two items of a user's history; increase batch.max_length"
            )
        begin, end = history_bounds(data.store, data.documents, self.num_held_out)
        if not len(begin):
            raise PretuneError(
                f"the objective 'item' needs histories of at least {self.num_held_out + 2} items, because it holds out "
                f"num_held_out={self.num_held_out} for evaluation, but all histories of the store are shorter; "
                "add longer histories, or lower num_held_out"
            )
        sizes = end - begin
        shift = draws.integers(items // 2 + 1, "shift", begin) if draws.epoch else np.zeros_like(begin)
        shift = np.where(sizes > items, shift, 0)  # the newest window is shorter by this
        windows = -(-(sizes + shift) // items)
        number = np.arange(int(windows.sum())) - np.repeat(np.cumsum(windows) - windows, windows)
        begin, end, shift = (np.repeat(x, windows) for x in (begin, end, shift))
        stop = end - np.maximum(0, number * items - shift)
        start = np.maximum(begin, end - (number + 1) * items + shift)
        arrangement = Arrangement(
            data.store, data.tokenizer, data.template, start[:, None], np.asarray(stop - start)[:, None]
        )
        return plan_epoch(arrangement, packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Mask items of user histories, and set the original items as prediction targets."""
        at = choose_masked(sequences, self.mask_rate, draws)
        only_last = draws.uniform("last", sequences.index) < self.mask_last_rate
        at = np.sort(np.concatenate([at[~only_last[sequences.owner[at]]], last_items(sequences)[only_last]]))
        sequences.targets[self.name] = (at, mask_tokens(sequences, at, tokenizer, draws, masked=1.0, swapped=0.0))
        return sequences

    def max_targets(self, packing: Packing) -> dict[str, int]:
        """Return the maximum number of prediction targets per batch, by loss term: one per masked item."""
        return {self.name: max_masked(packing, self.mask_rate)}


def history_bounds(store: Store, documents: Array, held: int) -> tuple[Array, Array]:
    """Return the first position and the end of each user history in a store, without its last `held` items, (m,) each.

    Positions count the items of the whole store. Histories in which fewer than two items remain are left out.
    """
    bounds = store.sentence_offsets[store.document_offsets]
    begin, end = bounds[documents], bounds[documents + 1] - held
    long_enough = end - begin >= 2
    return begin[long_enough], end[long_enough]


def last_items(sequences: Sequences) -> Array:
    """Return the index of the last item of each sequence, which is its last token that is not special, (b,).

    b is the number of sequences.
    """
    free = np.flatnonzero(~sequences.columns["special"])
    return np.asarray(free[np.searchsorted(free, sequences.offsets[1:]) - 1])
