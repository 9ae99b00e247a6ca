"""Tests of independent cropping: where crops come from, what is deleted, and that nothing but their words matches them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.models.model import Network
from pretune.objectives import parse_objective
from pretune.objectives.pretraining.cropping import Cropping
from pretune.packed import Capacity
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing, Sequences, collate
from pretune.text.tokenizers.training import Kind
from tests.support.objective_data import KINDS, data
from tests.support.tiny_training_cases import VOCABULARY, bert, encoder

PACKING = Packing(512, 64)
SMALL = Cropping(window=24, min_crop=0.25, max_crop=0.5)


def crops(
    objective: Cropping = SMALL, kind: Kind = "wordpiece", seed: int = 0, epoch: int = 0, packing: Packing = PACKING
) -> Sequences:
    """Return the crops of one batch."""
    source, draws = data(kind), EpochRandom(seed, epoch)
    plan = objective.arrange(source, packing, draws)
    return objective.corrupt(plan.pack(seed % len(plan)), source.tokenizer, draws)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**40), epoch=st.integers(0, 2))
def test_two_crops_of_a_passage_are_contiguous_parts_of_it(kind: Kind, seed: int, epoch: int) -> None:
    objective = replace(SMALL, delete_rate=0.0)
    source, draws = data(kind), EpochRandom(seed, epoch)
    plan = objective.arrange(source, PACKING, draws)
    batch = plan.pack(seed % len(plan))
    assert len(batch.lengths) % 2 == 0 and len(batch.ids) <= PACKING.tokens
    found = objective.corrupt(batch, source.tokenizer, draws)
    assert (found.ids == batch.ids).all()
    at, group = found.targets["cropping"]
    assert sorted(at.ravel()) == list(range(len(found.lengths))) and (group[:, 0] == group[:, 1]).all()
    assert (found.labels["group"][at] == group).all() and len(set(group[:, 0])) == len(group)
    store, special = source.store, found.columns["special"]
    assert store is not None
    words = [found.ids[(found.owner == i) & ~special] for i in range(len(found.lengths))]
    assert all(6 <= len(crop) <= 12 for crop in words)
    arrangement = plan.arrangement  # type: ignore[attr-defined]
    for first, second in at:
        begin, end = (int(arrangement.starts[found.index[i], 0]) for i in (first, second))
        assert abs(begin - end) < SMALL.window  # from the same passage
        for start, crop in ((begin, words[first]), (end, words[second])):
            assert (store.read(start, start + len(crop)) == crop).all()


def test_tokens_are_deleted_at_the_given_rate_but_special_tokens_stay() -> None:
    gone, total = 0, 0
    for seed in range(20):
        whole, noisy = (crops(replace(SMALL, delete_rate=rate), seed=seed) for rate in (0.0, 0.3))
        assert (whole.columns["special"].sum() == noisy.columns["special"].sum()) and noisy.lengths.min() > 2
        assert len(noisy.ids) == noisy.lengths.sum() == len(noisy.columns["special"])
        total += int((~whole.columns["special"]).sum())
        gone += len(whole.ids) - len(noisy.ids)
    assert 0.2 < gone / total < 0.32  # the token in the middle of a crop is never deleted


def test_the_seed_determines_the_crops() -> None:
    one, same, other = crops(seed=3), crops(seed=3), crops(seed=3, epoch=1)
    assert (one.ids == same.ids).all() and (one.lengths == same.lengths).all()
    assert len(one.ids) != len(other.ids) or (one.ids != other.ids).any()


def test_lengths_do_not_tell_which_crops_belong_together() -> None:
    hits, wanted = 0, 0.0
    for seed in range(150):
        batch = crops(seed=seed, epoch=seed % 3)
        at, _ = batch.targets["cropping"]
        first, second = batch.lengths[at[:, 0]], batch.lengths[at[:, 1]]
        nearest = np.abs(first[:, None] - second[None]).argmin(1)
        hits += int((nearest == np.arange(len(first))).sum())
        wanted += 1.0  # one of m in each of m guesses
    assert abs(hits - wanted) < 5 * wanted**0.5


def test_loss_is_the_cross_entropy_of_the_other_crop() -> None:
    torch.manual_seed(0)
    root, joint = Network(bert()), parse_objective("cropping(temperature=0.1)").joints[0]
    objective = joint.objectives[0]
    root.heads["cropping"] = objective.head(root.backbone)
    ids = np.random.default_rng(0).integers(10, 60, 24)
    special = np.zeros(24, dtype=bool)
    plain = Sequences(ids, np.full(4, 6), np.arange(4), {"special": special}, {"group": np.array([5, 5, 9, 9])})
    batch = collate(replace(objective, delete_rate=0.0).corrupt(plain, data().tokenizer, EpochRandom(0)))  # type: ignore[type-var]
    loss = root.eval()(joint, batch)
    states = root.backbone(*batch.packed).last.view(4, 6, -1).mean(1)
    vectors = torch.nn.functional.normalize(states, dim=-1)
    similar = vectors[[0, 2]] @ vectors[[1, 3]].T / 0.1
    expected = -(similar.log_softmax(1).diagonal() + similar.log_softmax(0).diagonal()).sum() / 2
    torch.testing.assert_close(loss.sums["cropping"], expected)
    padded = collate(
        objective.corrupt(
            Sequences(ids, np.full(4, 6), np.arange(4), {"special": special}, plain.labels),
            data().tokenizer,
            EpochRandom(0),
        ),
        Capacity(64, 20, 16, {"cropping": 7}),
    )
    assert padded.counts["cropping"] == 2 and torch.isfinite(root(joint, padded).sums["cropping"])


def test_training_finds_the_other_crop() -> None:
    torch.manual_seed(0)
    objective = parse_objective("cropping").joints[0]
    root = Network(encoder())
    root.heads["cropping"] = objective.objectives[0].head(root.backbone)
    optimizer = torch.optim.Adam(root.parameters(), 3e-3)
    sequences = crops(replace(SMALL, delete_rate=0.0))
    sequences.ids %= VOCABULARY
    batch = collate(sequences)
    losses = []
    for _ in range(30):
        loss = root(objective, batch).over(batch.counts)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("cropping(min_crop=0.6)", "min_crop at most max_crop"),
        ("cropping(max_crop=1.5)", "at most 1"),
        ("cropping(delete_rate=1)", "at least 0 and below 1"),
        ("cropping(temperature=0)", "above 0 and finite"),
    ],
)
def test_options_are_checked(name: str, problem: str) -> None:
    with pytest.raises(PretuneError, match=problem):
        parse_objective(name)


def test_a_corpus_of_short_texts_has_short_crops() -> None:
    batch = crops(Cropping(window=10_000, min_crop=0.1, max_crop=0.2), packing=Packing(65_536, 16_384))
    assert len(batch.targets["cropping"][0]) > 0


def test_it_has_its_own_arrangement() -> None:
    with pytest.raises(PretuneError):
        parse_objective("cropping+nsp")
