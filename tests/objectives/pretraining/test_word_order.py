"""Tests of the word-order objective: what is shuffled, what is predicted, and its sum with masked language modeling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.objectives import parse_objective
from pretune.objectives.pretraining.word_order import WordOrder
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing, Sequences
from tests.support.objective_data import data
from tests.support.tiny_models import random_model, small_tokenizer

PACKING = Packing(1024, 64)


def shuffled(expression: str, seed: int = 0, epoch: int = 0) -> tuple[Sequences, Sequences]:
    """Return a pack before and after corruption by the sum of objectives."""
    source = data("wordpiece")
    (joint,) = parse_objective(expression).joints
    draws = EpochRandom(seed, epoch)
    plan = joint.arrange(source, PACKING, draws)
    index = seed % len(plan)
    return plan.pack(index), joint.corrupt(plan.pack(index), source.tokenizer, draws)


@settings(max_examples=10)
@given(
    seed=st.integers(0, 2**40), rate=st.sampled_from([0.05, 0.3, 1.0]), size=st.sampled_from([2, 3, 5]),
    masks=st.booleans(),
)  # fmt: skip
def test_only_unmasked_ngrams_are_shuffled_and_their_original_tokens_predicted(
    seed: int, rate: float, size: int, masks: bool
) -> None:
    expression = f"word_order(shuffle_rate={rate},ngram_size={size})" + ("+mlm" if masks else "")
    clean, noisy = shuffled(expression, seed)
    at, target = noisy.targets["word_order"]
    assert (target == clean.ids[at]).all()
    ngrams = at.reshape(-1, size)
    assert (np.diff(ngrams, axis=1) == 1).all() and len(set(at.tolist())) == len(at)
    assert (clean.owner[ngrams] == clean.owner[ngrams[:, :1]]).all() and not clean.columns["special"][at].any()
    assert (np.sort(noisy.ids[ngrams], 1) == np.sort(clean.ids[ngrams], 1)).all()  # the same tokens in another order
    masked = noisy.targets["mlm"][0] if masks else np.empty(0, dtype=np.int64)
    assert not np.intersect1d(at, masked).size
    if masks:
        assert (noisy.targets["mlm"][1] == clean.ids[masked]).all()
    assert set(np.flatnonzero(noisy.ids != clean.ids)) <= {*at.tolist(), *masked.tolist()}
    tokens = np.bincount(clean.owner[~clean.columns["special"]], minlength=len(clean.lengths))
    wanted = np.maximum(1, np.round(rate * (tokens // size)))
    assert (np.bincount(clean.owner[ngrams[:, 0]], minlength=len(clean.lengths)) <= wanted).all()
    assert len(at) <= parse_objective(expression).joints[0].max_targets(PACKING)["word_order"]


def test_the_rate_is_reached_and_most_ngrams_change() -> None:
    changed = total = expected = 0
    for epoch in range(20):
        clean, noisy = shuffled("word_order(shuffle_rate=0.5)", epoch=epoch)
        ngrams = noisy.targets["word_order"][0].reshape(-1, 3)
        tokens = np.bincount(clean.owner[~clean.columns["special"]])
        expected += np.maximum(1, np.round(0.5 * (tokens // 3))).sum()
        total += len(ngrams)
        changed += (noisy.ids[ngrams] != clean.ids[ngrams]).any(1).sum()
    assert total > 0.9 * expected  # the rest has no place after a random shift
    assert 0.7 < changed / total < 0.9  # five of six orders are different


def test_masking_comes_first_in_any_order_of_the_sum() -> None:
    first, second = (shuffled(expression, 7)[1] for expression in ("mlm+word_order", "word_order+mlm"))
    assert (first.ids == second.ids).all()
    alone = shuffled("mlm", 7)[1]
    assert (first.targets["mlm"][0] == alone.targets["mlm"][0]).all()


def test_the_same_seed_gives_the_same_batch_and_another_epoch_another() -> None:
    one, again, other = (shuffled("word_order", 3, epoch)[1] for epoch in (0, 0, 1))
    assert (one.ids == again.ids).all() and not np.array_equal(one.targets["word_order"], other.targets["word_order"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shuffle_rate": 0.0}, "shuffle_rate"),
        ({"shuffle_rate": 1.5}, "shuffle_rate"),
        ({"ngram_size": 1}, "one token has no order; give 2 or more"),
    ],
)
def test_options_outside_their_ranges_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PretuneError, match=message):
        WordOrder(**options)


def test_a_causal_objective_cannot_be_added() -> None:
    with pytest.raises(PretuneError, match="incompatible attention patterns"):
        parse_objective("lm+word_order")


def test_detection_of_replaced_tokens_cannot_be_added() -> None:
    with pytest.raises(PretuneError, match=r"rtd\+word_order: shuffled tokens would count as replaced"):
        shuffled("rtd+word_order")


def test_both_objectives_share_one_output_layer() -> None:
    model = random_model("bert", small_tokenizer("wordpiece"), "mlm+word_order")
    assert model.root.heads["mlm"] is model.root.heads["word_order"]
