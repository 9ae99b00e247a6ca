from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.objectives import parse_objective
from pretune.objectives.seq2seq.shuffle import Shuffle
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing
from pretune.text.tokenizers.training import Kind
from tests.support.objective_data import KINDS, data


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12)
@given(
    seed=st.integers(0, 2**40),
    unit=st.sampled_from(["words", "sentences"]),
    window=st.sampled_from([None, 1, 3]),
)
def test_units_move_whole_and_at_most_by_the_window(kind: Kind, seed: int, unit: str, window: int | None) -> None:
    source, draws = data(kind), EpochRandom(seed)
    objective = Shuffle(unit=unit, window=window)  # type: ignore[arg-type]
    plan = objective.arrange(source, Packing(512, 64), draws)
    clean, other = (plan.pack(seed % len(plan)) for _ in range(2))
    text = ~clean.columns["special"]
    other.ids[text] = clean.ids[text] = np.arange(int(text.sum())) + 5000  # each token gets a unique id
    noisy = objective.corrupt(other, source.tokenizer, draws)
    column = clean.columns["word" if unit == "words" else "sentence"]
    end = source.tokenizer.role("end")
    assert noisy.second is not None
    _, written = noisy.second.targets["shuffle"]
    for row in range(len(clean.lengths)):
        at = slice(clean.offsets[row] + 1, clean.offsets[row + 1] - 1)
        was, read = clean.ids[at], noisy.ids[at]
        assert written[noisy.second.offsets[row] : noisy.second.offsets[row + 1]].tolist() == [*was.tolist(), end]
        assert sorted(read) == sorted(was)
        begins = column[at].copy()
        begins[:1] = True
        unit_of = np.cumsum(begins) - 1  # of each token of the text
        now = unit_of[read - was[0]]
        order = now[np.concatenate([[True], now[1:] != now[:-1]])]  # units in reading order
        assert sorted(order) == list(range(begins.sum()))  # each unit is contiguous
        assert read.tolist() == [token for number in order for token in was[unit_of == number]]
        if window is not None:
            assert np.abs(order - np.arange(len(order))).max() <= window
        assert noisy.ids[noisy.offsets[row]] == source.tokenizer.role("start")


def test_most_words_move() -> None:
    source = data()
    plan = Shuffle().arrange(source, Packing(1024, 64), EpochRandom(0))
    clean, noisy = plan.pack(0), Shuffle().corrupt(plan.pack(0), source.tokenizer, EpochRandom(0))
    assert (clean.ids != noisy.ids).mean() > 0.7
    near = Shuffle(window=1).corrupt(plan.pack(0), source.tokenizer, EpochRandom(0))
    assert 0.2 < (clean.ids != near.ids).mean() < (clean.ids != noisy.ids).mean()


def test_options_are_checked() -> None:
    assert parse_objective("shuffle(unit=sentences,window=3)").objectives[0] == Shuffle("sentences", 3)
    for text, message in {
        "shuffle(unit=letters)": "input should be 'words' or 'sentences'",
        "shuffle(window=0)": "window=0: expected a number that is at least 1",
    }.items():
        with pytest.raises(PretuneError, match=message):
            parse_objective(text)
