"""Tests of prefix language modeling with an encoder-decoder: source and target are the two parts of a text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.objectives.seq2seq.prefix_seq2seq import PrefixSeq2Seq
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing
from pretune.text.tokenizers.training import Kind
from tests.support.objective_data import KINDS, data


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12)
@given(seed=st.integers(0, 2**40))
def test_source_and_target_are_the_parts_of_each_text_in_order(kind: Kind, seed: int) -> None:
    source, draws, objective = data(kind), EpochRandom(seed), PrefixSeq2Seq()
    plan = objective.arrange(source, Packing(512, 64), draws)
    clean, other = (plan.pack(seed % len(plan)) for _ in range(2))
    made = objective.corrupt(other, source.tokenizer, draws)
    assert made.second is not None
    _, written = made.second.targets["prefix_seq2seq"]
    end = source.tokenizer.role("end")
    cuts = []
    for row in range(len(clean.lengths)):
        text = clean.ids[clean.offsets[row] + 1 : clean.offsets[row + 1] - 1].tolist()
        read = made.ids[made.offsets[row] + 1 : made.offsets[row + 1] - 1].tolist()
        target = written[made.second.offsets[row] : made.second.offsets[row + 1]].tolist()
        assert [*read, *target] == [*text, end]
        assert len(target) > 1 and (read or len(text) == 1)
        cuts.append(len(read) / len(text))
    assert len(cuts) < 4 or np.std(cuts) > 0.0
