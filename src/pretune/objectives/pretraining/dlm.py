"""Dialogue language modeling (Sun et al., 2019, ERNIE): classify dialogues as real or as having one turn replaced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from pretune.objectives.objective import Data, LearnsFromRows
from pretune.objectives.pretraining.sentence_pairs import (
    UNLABELED,
    SequenceClassification,
    exchange_groups,
    match_in_pairs,
)
from pretune.objectives.registry import register_objective
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.corpus.dialogues import QUERY, RESPONSE, Dialogues, read_dialogues
from pretune.text.corpus.files import Errors
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, plan_epoch


@register_objective
@dataclass(frozen=True)
class DLM(SequenceClassification, LearnsFromRows):
    """Dialogue language modeling: classify windows of up to `max_turns` turns as real or as having one turn replaced.

    In each window, one turn is chosen at random. Windows of the same file are then matched at random in pairs whose
    chosen turns have the same role, about the same length, and different words. Both chosen turns are truncated to the
    shorter length, and a share `replace_rate` of the pairs exchange them, so that roles, positions, and lengths do not
    reveal the label. Windows without a partner have no label.
    """

    max_turns: int = 3
    replace_rate: float = 0.5

    name: ClassVar[str] = "dlm"
    classes: ClassVar[tuple[str, str]] = ("real", "fake")

    def __post_init__(self) -> None:
        if self.max_turns < 2:
            raise PretuneError(
                f"dlm(max_turns={self.max_turns}): a dialogue has at least 2 turns; set max_turns to 2 or more"
            )
        if not 0 <= self.replace_rate <= 1:
            raise PretuneError(
                f"dlm(replace_rate={self.replace_rate:g}): the share must be between 0 and 1; give, for example, 0.5"
            )

    def read_rows(self, files: Sequence[str | Path], errors: Errors = "strict") -> Dialogues:
        """Read dialogues from files, one dialogue per row."""
        return read_dialogues(files, errors)

    def arrange(self, data: Data, packing: Packing, draws: EpochRandom) -> Epoch:
        """Return one sequence per window of dialogue turns; if a window is too long, truncate its longest turns."""
        if not isinstance(data.rows, Dialogues):
            raise PretuneError("the objective 'dlm' learns from dialogues; give it a .jsonl file of dialogues")
        rows, tokens = data.rows, data.token_rows
        starts, lengths = tokens.starts[:, 0], tokens.lengths[:, 0]
        dialogue = np.repeat(np.arange(len(rows)), rows.counts)
        used = np.flatnonzero(lengths > 0)  # turns without a token are skipped
        window = turn_windows(dialogue[used], self.max_turns, draws)
        real = window >= 0
        if not real.any():
            raise PretuneError(
                f"{rows.file}: no dialogue has two turns or more, as the objective 'dlm' needs; add longer dialogues"
            )
        if not any(can_exchange(rows, dialogue, used, role) for role in (QUERY, RESPONSE)):
            raise PretuneError(
                f"{rows.file}: the objective 'dlm' exchanges turns between dialogues, but no two dialogues have turns of the same role "
                "with different words; give it more dialogues"
            )
        turn = np.where(real, used[window], 0)  # (m, k)
        roles = np.array(rows.roles)[turn]  # of the positions, before turns are exchanged
        spans = np.where(real, lengths[turn], 0)
        label = self._exchange(rows, dialogue, turn, spans, draws)
        template, most = data.template, turn.shape[1]
        text_length = packing.length - template.num_special_tokens(pair=False) - (len(template.pair) - 1) * (most - 1)
        if text_length < most:
            raise PretuneError(
                f"sequences of {packing.length} tokens leave no room for {most} turns; increase batch.max_length"
            )
        cut = truncate_longest_first(spans, text_length)
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

    def _exchange(self, rows: Dialogues, dialogue: Array, turn: Array, spans: Array, draws: EpochRandom) -> Array:
        """Exchange one turn each between pairs of the m windows, in place; return the labels of the windows, (m,).

        A label is 0 for a real window, 1 for a fake one, and -1 for a window without a partner. `turn` (m, k) has the
        indices of the turns in each window, `spans` (m, k) their lengths in tokens, and `dialogue` the dialogue number
        of every turn in `rows`.
        """
        every, first = np.arange(len(turn)), turn[:, 0]
        place = draws.integers((spans > 0).sum(1), "place", first)
        drawn = turn[every, place]
        files = np.array(rows.files or [0] * len(rows))
        groups = exchange_groups(files, np.zeros_like(files), dialogue[drawn])
        kinds = 2 * groups + np.array(rows.roles)[drawn]
        sizes = spans[every, place]
        partner = match_in_pairs(sizes, kinds, dialogue[drawn], draws, rows.distinct[drawn])
        matched = np.flatnonzero(partner >= 0)
        spans[matched, place[matched]] = np.minimum(sizes[matched], sizes[partner[matched]])
        label = np.full(len(turn), UNLABELED)
        label[matched] = draws.uniform("fake", np.minimum(matched, partner[matched])) < self.replace_rate
        fake = np.flatnonzero(label == 1)
        turn[fake, place[fake]] = drawn[partner[fake]]
        return label


def turn_windows(dialogue: Array, size: int, draws: EpochRandom) -> Array:
    """Group the turns of each dialogue into windows of up to `size` turns, and return turn indices (m, size).

    Shorter windows are padded with -1. `dialogue` (n,) has the dialogue number of each turn. After the first epoch,
    dialogues are cut at random places. Windows with a single turn are dropped.
    """
    _, first, counts = np.unique(dialogue, return_index=True, return_counts=True)
    shift = draws.integers(size, "shift", first) if draws.epoch else np.zeros_like(first)
    shift = np.where(counts > size, shift, 0)  # the first window is shorter by this
    place = np.arange(len(dialogue)) - np.repeat(first, counts) + np.repeat(shift, counts)
    number, column = place // size, place % size
    begins = np.append(True, (number[1:] != number[:-1]) | (dialogue[1:] != dialogue[:-1]))[: len(dialogue)]
    row = np.cumsum(begins) - 1
    made = np.full((int(row[-1]) + 1 if len(row) else 0, size), -1)
    made[row, column - column[begins][row]] = np.arange(len(dialogue))
    return made[made[:, 1] >= 0]


def can_exchange(rows: Dialogues, dialogue: Array, used: Array, role: int) -> bool:
    """Return whether any of the turns `used` with the role `role` can be exchanged between two dialogues.

    An exchange needs turns of at least two dialogues, with at least two different texts.
    """
    turns = used[np.array(rows.roles)[used] == role]
    return len(np.unique(dialogue[turns])) > 1 and len(np.unique(rows.distinct[turns])) > 1


def truncate_longest_first(spans: Array, room: int) -> Array:
    """Return the text lengths `spans` (m, k), shortened so that each row sums to at most `room` tokens.

    In each row, the longest texts are shortened first.
    """
    most = spans.shape[1]
    limit = np.full(len(spans), room // most)
    for _ in range(most):  # what shorter texts leave free is divided among the longer ones
        free = room - np.minimum(spans, limit[:, None]).sum(1)
        longer = (spans > limit[:, None]).sum(1)
        limit += np.where(longer > 0, free // np.maximum(longer, 1), 0)
    return np.minimum(spans, limit[:, None])
