"""Dialogue language modeling (Sun et al., 2019, ERNIE): is a dialogue real, or was one of its turns put in at random?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch import nn

from pretune.errors import PretuneError
from pretune.nn.patterns import Pattern
from pretune.objectives.objective import Data, Loss
from pretune.objectives.pairs import PairHead, judge_at_start, pair_loss
from pretune.packed import Batch
from pretune.randomness import Draws
from pretune.text.dialogues import Dialogues, read_dialogues
from pretune.text.files import Errors
from pretune.text.sequences import Arrangement, Epoch, Packing, Sequences, plan_epoch
from pretune.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.states import Backbone

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class DLM:
    """Up to `turns` turns of a dialogue (QRQ, QRR, QQR …), their roles as segments where the model has them.

    In a share `fake` of the sequences one turn gives way to a turn of another dialogue, one of the same role where there
    is any. Windows over long dialogues do not overlap, and begin elsewhere in later epochs.
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
        turn = np.where(real, used[window], 0)  # (m, k)
        fake, place, put = self._fakes(rows, dialogue, used, turn, real, draws)
        turn[fake, place] = put
        template, (count, most) = data.template, turn.shape
        room = packing.length - template.overhead(pair=False) - (len(template.pair) - 1) * (most - 1)
        if room < most:
            raise PretuneError(
                f"sequences of {packing.length} tokens leave no room for {most} turns; ask for longer ones"
            )
        spans = np.where(real, lengths[turn], 0)
        cut = fit(spans, room)
        roles = np.array(rows.roles)[
            np.where(real, used[window], 0)
        ]  # those of the places, whoever's words stand there
        label = np.zeros(count, dtype=np.int64)  # 0: real
        label[fake] = 1
        arrangement = Arrangement(
            tokens,
            data.tokenizer,
            template,
            starts[turn],
            cut,
            {self.name: label, "dialogue": dialogue[used[window[:, 0]]]},
            truncated=int((cut < spans).any(1).sum()),
            columns={"segment": roles} if template.segments else {},
        )
        return plan_epoch(arrangement, packing, draws)

    def _fakes(
        self, rows: Dialogues, dialogue: Array, used: Array, turn: Array, real: Array, draws: Draws
    ) -> tuple[Array, Array, Array]:
        """Which sequences are faked, which of their turns, and the turns that are put there."""
        if self.fake and len(np.unique(dialogue[used])) < 2:
            raise PretuneError(f"{rows.file}: dlm needs two dialogues or more: no fake turn comes from the same one")
        first = turn[:, 0]
        fake = np.flatnonzero(draws.uniform("fake", first) < self.fake)
        place = draws.integers(real[fake].sum(1), "place", first[fake])
        roles, old = np.array(rows.roles), turn[fake, place]
        put = np.full(len(fake), -1)
        for role in (0, 1):
            mine = np.flatnonzero(roles[old] == role)
            put[mine] = elsewhere(used[roles[used] == role], dialogue, old[mine], draws)
        left = np.flatnonzero(put < 0)  # no other dialogue has a turn of this role
        put[left] = elsewhere(used, dialogue, old[left], draws)
        differs = rows.distinct[put] != rows.distinct[old]  # the same words are no fake
        return fake[differs], place[differs], put[differs]

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """Nothing to hide: the label is the target, at the sequence's start."""
        return judge_at_start(self.name, sequences)

    def room(self, packing: Packing) -> dict[str, int]:
        """One target a sequence."""
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


def elsewhere(turns: Array, dialogue: Array, old: Array, draws: Draws) -> Array:
    """For some old turns, one each of the given turns (rising) that is not of the same dialogue; -1 where there is none."""
    low, high = (np.searchsorted(dialogue[turns], dialogue[old], side=side) for side in ("left", "right"))
    others = len(turns) - (high - low)
    pick = draws.integers(np.maximum(others, 1), "elsewhere", old)
    pick = np.where(pick >= low, pick + (high - low), pick)  # past the turns of its own dialogue
    return np.where(others > 0, np.append(turns, -1)[np.minimum(pick, len(turns))], -1)


def fit(spans: Array, room: int) -> Array:
    """Lengths (m, k) cut so that each row has at most `room`: the longest first, down to one length."""
    most = spans.shape[1]
    limit = np.full(len(spans), room // most)
    for _ in range(most):  # what shorter ones leave free is shared out among the longer ones
        free = room - np.minimum(spans, limit[:, None]).sum(1)
        longer = (spans > limit[:, None]).sum(1)
        limit += np.where(longer > 0, free // np.maximum(longer, 1), 0)
    return np.minimum(spans, limit[:, None])
