"""Dialogue language modeling (Sun et al., 2019, ERNIE): is a dialogue real, or was one of its turns put in at random?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch import nn

from pretune.nn.attention.patterns import Pattern
from pretune.objectives.objective import Data, LearnsFromRows, Loss
from pretune.objectives.pretraining.sentence_pairs import (
    UNLABELED,
    PairHead,
    judge_at_start,
    match_two_by_two,
    pair_loss,
    source_groups,
)
from pretune.objectives.registry import register_objective
from pretune.packed import Batch
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import Draws
from pretune.text.corpus.dialogues import QUERY, RESPONSE, Dialogues, read_dialogues
from pretune.text.corpus.files import Errors
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, Sequences, plan_epoch
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone

Array = np.ndarray[Any, np.dtype[Any]]


@register_objective
@dataclass(frozen=True)
class DLM(LearnsFromRows):
    """Up to `turns` turns of a dialogue (QRQ, QRR, QQR …), their roles as segments where the model has them.

    One turn of each sequence is drawn. Sequences are matched two by two, at random among those of a source whose drawn turns
    have the same role, are about equally long and say different things; both turns are cut to the shorter one's length; and
    a share `fake` of the matches exchange them. So roles, places and lengths say nothing about the label. Sequences without
    a match are read but not judged. Windows over long dialogues do not overlap, and begin elsewhere in later epochs.
    """

    turns: int = 3
    fake: float = 0.5

    name: ClassVar[str] = "dlm"
    pattern: ClassVar[Pattern | None] = None
    insists: ClassVar[bool] = True
    stateful: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.turns < 2:
            raise PretuneError(f"dlm(turns={self.turns}): a dialogue has two turns or more")
        if not 0 <= self.fake <= 1:
            raise PretuneError(f"dlm(fake={self.fake:g}): a share lies between 0 and 1; give, say, 0.5")

    def read_rows(self, files: Sequence[str | Path], errors: Errors = "strict") -> Dialogues:
        """Dialogues, a row each."""
        return read_dialogues(files, errors)

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """A window of turns to a sequence; where they are too long, the longest lose their ends."""
        if not isinstance(data.rows, Dialogues):
            raise PretuneError("dlm learns from dialogues; give it a .jsonl file of them")
        rows, tokens = data.rows, data.token_rows
        starts, lengths = tokens.starts[:, 0], tokens.lengths[:, 0]
        dialogue = np.repeat(np.arange(len(rows)), rows.counts)
        used = np.flatnonzero(lengths > 0)  # turns without a token are passed over
        window = windows(dialogue[used], self.turns, draws)
        real = window >= 0
        if not real.any():
            raise PretuneError(f"{rows.file}: no dialogue of two turns or more; dlm needs them")
        if not any(can_exchange(rows, dialogue, used, role) for role in (QUERY, RESPONSE)):
            raise PretuneError(
                f"{rows.file}: dlm exchanges turns between dialogues, and found no two of one role that say different "
                "things in different dialogues; give it more dialogues"
            )
        turn = np.where(real, used[window], 0)  # (m, k)
        roles = np.array(rows.roles)[turn]  # those of the places, whoever's words stand there
        spans = np.where(real, lengths[turn], 0)
        label = self._exchange(rows, dialogue, turn, spans, draws)
        template, most = data.template, turn.shape[1]
        room = packing.length - template.overhead(pair=False) - (len(template.pair) - 1) * (most - 1)
        if room < most:
            raise PretuneError(
                f"sequences of {packing.length} tokens leave no room for {most} turns; ask for longer ones"
            )
        cut = fit(spans, room)
        arrangement = Arrangement(
            tokens,
            data.tokenizer,
            template,
            starts[turn],
            cut,
            {self.name: label, "dialogue": dialogue[used[window[:, 0]]]},
            truncated=int((cut < lengths[turn]).any(1, where=real).sum()),
            columns={"segment": roles} if template.segments else {},
        )
        return plan_epoch(arrangement, packing, draws)

    def _exchange(self, rows: Dialogues, dialogue: Array, turn: Array, spans: Array, draws: Draws) -> Array:
        """Exchange a turn between matched sequences (m, k), in place, and return the labels (m,); 0: real, 1: fake."""
        every, first = np.arange(len(turn)), turn[:, 0]
        place = draws.integers((spans > 0).sum(1), "place", first)
        drawn = turn[every, place]
        files = np.array(rows.files or [0] * len(rows))
        groups = source_groups(files, np.zeros_like(files), dialogue[drawn])
        kinds = 2 * groups + np.array(rows.roles)[drawn]
        sizes = spans[every, place]
        partner = match_two_by_two(sizes, kinds, dialogue[drawn], draws, rows.distinct[drawn])
        matched = np.flatnonzero(partner >= 0)
        spans[matched, place[matched]] = np.minimum(sizes[matched], sizes[partner[matched]])
        label = np.full(len(turn), UNLABELED)
        label[matched] = draws.uniform("fake", np.minimum(matched, partner[matched])) < self.fake
        fake = np.flatnonzero(label == 1)
        turn[fake, place[fake]] = drawn[partner[fake]]
        return label

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """Make the label the target at the start of each labeled sequence."""
        return judge_at_start(self.name, sequences)

    def room(self, packing: Packing) -> dict[str, int]:
        """At most one target per sequence."""
        return {self.name: min(packing.sequences, packing.tokens)}

    def head(self, backbone: Backbone) -> nn.Module:
        """Pooler and two classes."""
        return PairHead(backbone)

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy at the start tokens."""
        return pair_loss(self.name, head, backbone, batch)


def windows(dialogue: Array, size: int, draws: Draws) -> Array:
    """(m, size) turns, given the dialogue of each, in windows of up to `size` of one dialogue, -1 where there are fewer.

    Each epoch but the first cuts elsewhere. What is left over as a single turn joins no window.
    """
    _, first, counts = np.unique(dialogue, return_index=True, return_counts=True)
    shift = draws.integers(size, "shift", first) if draws.epoch else np.zeros_like(first)
    shift = np.where(counts > size, shift, 0)  # the first window is so much shorter
    place = np.arange(len(dialogue)) - np.repeat(first, counts) + np.repeat(shift, counts)
    number, column = place // size, place % size
    fresh = np.append(True, (number[1:] != number[:-1]) | (dialogue[1:] != dialogue[:-1]))[: len(dialogue)]
    row = np.cumsum(fresh) - 1
    made = np.full((int(row[-1]) + 1 if len(row) else 0, size), -1)
    made[row, column - column[fresh][row]] = np.arange(len(dialogue))
    return made[made[:, 1] >= 0]


def can_exchange(rows: Dialogues, dialogue: Array, used: Array, role: int) -> bool:
    """Return whether some turns of a role are of different dialogues and say different things."""
    turns = used[np.array(rows.roles)[used] == role]
    return len(np.unique(dialogue[turns])) > 1 and len(np.unique(rows.distinct[turns])) > 1


def fit(spans: Array, room: int) -> Array:
    """Lengths (m, k) cut so that each row has at most `room`: the longest first, down to one length."""
    most = spans.shape[1]
    limit = np.full(len(spans), room // most)
    for _ in range(most):  # what shorter ones leave free is shared out among the longer ones
        free = room - np.minimum(spans, limit[:, None]).sum(1)
        longer = (spans > limit[:, None]).sum(1)
        limit += np.where(longer > 0, free // np.maximum(longer, 1), 0)
    return np.minimum(spans, limit[:, None])
