"""The sentence structural objective: next, previous, and other texts; the tests of leaks are in test_label_leaks.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.objectives import Data, parse_objective
from pretune.objectives.pretraining.sso import NEXT, OTHER, PREVIOUS, SSO
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing
from tests.support.objective_data import TEMPLATE, data, store


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**40), epoch=st.integers(0, 3), length=st.sampled_from([48, 64, 128]))
def test_labels_say_how_the_second_text_is_related_to_the_first(seed: int, epoch: int, length: int) -> None:
    made: Any = SSO().arrange(data(), Packing(1024, length), EpochRandom(seed, epoch))
    arrangement = made.arrangement
    sentences = store().sentence_offsets
    owner = np.searchsorted(sentences[store().document_offsets], arrangement.starts, side="right") - 1
    label, starts, spans = arrangement.labels["sso"], arrangement.starts, arrangement.spans
    assert (arrangement.lengths <= length).all() and (spans[:, 0] > 0).all()
    pairs = spans[:, 1] > 0
    assert not (label[~pairs] >= 0).any()
    same = owner[:, 0] == owner[:, 1]
    assert (same == (label != OTHER))[pairs].all()
    assert (starts[:, 0] < starts[:, 1])[(label == NEXT) | (pairs & (label < 0))].all()
    assert (starts[:, 0] > starts[:, 1])[label == PREVIOUS].all()
    adjacent = starts[:, 0] + spans[:, 0] == starts[:, 1]
    assert adjacent[label == NEXT].all()  # the second text may be truncated, but only at its end
    assert np.isin(starts[label >= 0], sentences).all()
    read = starts[spans > 0]
    assert len(np.unique(read)) == len(read)


def test_each_class_has_its_share_and_almost_every_token_is_read() -> None:
    labels = []
    for seed in range(60):
        made: Any = SSO().arrange(data(), Packing(1024, 48), EpochRandom(seed))
        arrangement = made.arrangement
        labels.append(arrangement.labels["sso"])
        assert 0 <= store().tokens - arrangement.spans.sum() < 0.05 * store().tokens
    found = np.concatenate(labels)
    shares = np.bincount(found[found >= 0], minlength=3) / (found >= 0).sum()
    assert abs(shares - 1 / 3).max() < 0.06
    uneven = [
        SSO(negative_rate=0.8, swap_rate=0.1).arrange(data(), Packing(1024, 48), EpochRandom(i)) for i in range(20)
    ]
    found = np.concatenate([plan.arrangement.labels["sso"] for plan in uneven])  # type: ignore[attr-defined]
    assert (found == OTHER).sum() > 2 * (found == NEXT).sum() > 4 * (found == PREVIOUS).sum()


def test_the_three_objectives_of_structbert_train_together() -> None:
    joint = parse_objective("mlm+word_order+sso").joints[0]
    plan = joint.arrange(data(), Packing(1024, 48), EpochRandom(0))
    noisy = joint.corrupt(plan.pack(0), data().tokenizer, EpochRandom(0))
    at, target = noisy.targets["sso"]
    assert (noisy.ids[at] == data().tokenizer.role("start")).all()
    assert set(target.tolist()) <= {NEXT, PREVIOUS, OTHER}
    assert len(noisy.targets["mlm"][0]) and len(noisy.targets["word_order"][0])


def test_bad_options_and_corpora_are_refused() -> None:
    with pytest.raises(PretuneError, match=r"swap_rate=1\.5: expected a number that is at least 0 and at most 1"):
        parse_objective("sso(swap_rate=1.5)")
    one = Data(store().tokenizer, TEMPLATE, store=store(), documents=np.array([0]))
    with pytest.raises(PretuneError, match="the objective 'sso' found no two documents that can exchange texts"):
        SSO().arrange(one, Packing(1024, 128), EpochRandom(0))
