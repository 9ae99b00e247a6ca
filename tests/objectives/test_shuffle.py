from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from material import KINDS, data
from pretune import PretuneError
from pretune.objectives import parse_objective
from pretune.objectives.shuffle import Shuffle
from pretune.randomness import Draws
from pretune.text.sequences import Packing
from pretune.text.tokenizer_training import Kind


def units(ids: np.ndarray, begins: np.ndarray) -> list[tuple[int, ...]]:
    begins = begins.copy()
    begins[:1] = True
    return [tuple(part.tolist()) for part in np.split(ids, np.flatnonzero(begins)[1:])]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12)
@given(
    seed=st.integers(0, 2**40),
    unit=st.sampled_from(["words", "sentences"]),
    window=st.sampled_from([None, 1, 3]),
)
def test_units_move_whole_and_no_further_than_the_window(kind: Kind, seed: int, unit: str, window: int | None) -> None:
    source, draws = data(kind), Draws(seed)
    objective = Shuffle(unit=unit, window=window)  # type: ignore[arg-type]
    plan = objective.arrange(source, Packing(512, 64), draws)
    clean = plan.pack(seed % len(plan))
    noisy = objective.corrupt(plan.pack(seed % len(plan)), source.tokenizer, draws)
    column = clean.columns["word" if unit == "words" else "sentence"]
    assert noisy.second is not None
    _, written = noisy.second.targets["shuffle"]
    for row in range(len(clean.lengths)):
        at = slice(clean.offsets[row] + 1, clean.offsets[row + 1] - 1)
        text, read = clean.ids[at], noisy.ids[at]
        end = source.tokenizer.role("end")
        assert written[noisy.second.offsets[row] : noisy.second.offsets[row + 1]].tolist() == [*text.tolist(), end]
        were = units(text, column[at])
        # Follow the read text unit by unit; where units look alike, any of them will do.
        place, left, now = 0, dict(enumerate(were)), read.tolist()
        while now:
            limit = len(were) if window is None else window
            fits = [i for i, u in left.items() if tuple(now[: len(u)]) == u and abs(i - place) <= limit]
            assert fits
            best = max(fits, key=lambda i: (len(left[i]), -i))
            now = now[len(left.pop(best)) :]
            place += 1
        assert not left
        assert noisy.ids[noisy.offsets[row]] == source.tokenizer.role("start")


def test_most_words_move() -> None:
    source = data()
    plan = Shuffle().arrange(source, Packing(1024, 64), Draws(0))
    clean, noisy = plan.pack(0), Shuffle().corrupt(plan.pack(0), source.tokenizer, Draws(0))
    assert (clean.ids != noisy.ids).mean() > 0.7
    near = Shuffle(window=1).corrupt(plan.pack(0), source.tokenizer, Draws(0))
    assert 0.2 < (clean.ids != near.ids).mean() < (clean.ids != noisy.ids).mean()


def test_options_are_checked() -> None:
    assert parse_objective("shuffle(unit=sentences,window=3)").objectives[0] == Shuffle("sentences", 3)
    for text, message in {
        "shuffle(unit=letters)": "words or sentences",
        "shuffle(window=0)": "nothing would move",
    }.items():
        with pytest.raises(PretuneError, match=message):
            parse_objective(text)
