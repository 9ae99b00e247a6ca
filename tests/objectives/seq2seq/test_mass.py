from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.objectives.seq2seq.mass import MASS
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing, Sequences
from pretune.text.tokenizers.training import Kind
from tests.support.objective_data import KINDS, TEMPLATES, data


def corrupted(
    kind: Kind, objective: MASS, seed: int, epoch: int = 0, template: str = "bert"
) -> tuple[Sequences, Sequences]:
    source = data(kind, template=template)
    draws = EpochRandom(seed, epoch)
    plan = objective.arrange(source, Packing(1024, 64), draws)
    index = seed % len(plan)
    return plan.pack(index), objective.corrupt(plan.pack(index), source.tokenizer, draws)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12)
@given(
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 3),
    share=st.sampled_from([0.1, 0.5, 0.9]),
    removed=st.booleans(),
    template=st.sampled_from(sorted(TEMPLATES)),
)
def test_fragment_is_masked_and_predicted_at_its_own_positions(
    kind: Kind, seed: int, epoch: int, share: float, removed: bool, template: str
) -> None:
    clean, noisy = corrupted(
        kind, MASS(mask_rate=share, mask_replace_prob=1.0, trim_decoder_input=removed), seed, epoch, template
    )
    mask = data(kind).tokenizer.role("mask")
    assert noisy.second is not None and (noisy.lengths == clean.lengths).all()
    side = noisy.second
    at, wanted = side.targets["mass"]
    positions = side.index_in_sequence if side.positions is None else side.positions
    filled = noisy.ids.copy()
    for row in range(len(clean.lengths)):
        own = slice(clean.offsets[row], clean.offsets[row + 1])
        text = np.flatnonzero(~clean.columns["special"][own])
        hidden = np.flatnonzero(noisy.ids[own] == mask)
        assert len(hidden) == max(1, round(share * len(text)))
        assert (np.diff(hidden) == 1).all() and set(hidden) <= set(text)
        mine = side.owner[at] == row
        assert positions[at[mine]].tolist() == hidden.tolist()
        assert wanted[mine].tolist() == clean.ids[own][hidden].tolist()
        filled[own][hidden] = wanted[mine]
        # The decoder reads only the fragment, shifted by one.
        read = side.ids[side.offsets[row] : side.offsets[row + 1]]
        places = positions[side.offsets[row] : side.offsets[row + 1]]
        late = np.full(len(clean.ids[own]), mask)
        late[hidden[1:]] = clean.ids[own][hidden[:-1]]
        assert places.tolist() == (hidden if removed else np.arange(len(late))).tolist()
        assert read.tolist() == late[places].tolist()
    assert (filled == clean.ids).all()


def test_replacements_follow_their_proportions() -> None:
    tokenizer = data().tokenizer
    counts = {"mask": 0, "same": 0, "other": 0}
    for seed in range(40):
        clean, noisy = corrupted("wordpiece", MASS(), seed)
        assert noisy.second is not None and noisy.second.positions is not None
        at = clean.offsets[noisy.second.owner] + noisy.second.positions
        now, was = noisy.ids[at], clean.ids[at]
        counts["mask"] += int((now == tokenizer.role("mask")).sum())
        counts["same"] += int((now == was).sum())
        counts["other"] += int(((now != was) & (now != tokenizer.role("mask"))).sum())
        assert not (tokenizer.specials[now] & (now != tokenizer.role("mask")) & (now != was)).any()
        rest = np.setdiff1d(np.arange(len(clean.ids)), at)
        assert (noisy.ids[rest] == clean.ids[rest]).all()
    total = sum(counts.values())
    for name, share in {"mask": 0.8, "same": 0.1, "other": 0.1}.items():
        assert abs(counts[name] / total - share) < 0.01


def test_fragment_starts_are_uniform() -> None:
    begins: list[float] = []
    for seed in range(30):
        clean, noisy = corrupted("wordpiece", MASS(), seed)
        assert noisy.second is not None and noisy.second.positions is not None
        first = noisy.second.positions[noisy.second.offsets[:-1]] - 1
        free = clean.lengths - 2 - noisy.second.lengths
        begins += (first[free > 3] / free[free > 3]).tolist()
    assert min(begins) == 0 and max(begins) == 1 and abs(np.mean(begins) - 0.5) < 0.03
