from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.objectives.pretraining.prefix_lm import PrefixLM
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing, Sequences, collate
from pretune.text.tokenizers.training import Kind
from tests.support.objective_data import KINDS, TEMPLATES, data
from tests.support.tiny_training_cases import encoder


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12)
@given(seed=st.integers(0, 2**40), epoch=st.integers(0, 3), template=st.sampled_from(sorted(TEMPLATES)))
def test_prefix_and_targets_together_are_the_text(kind: Kind, seed: int, epoch: int, template: str) -> None:
    source, draws = data(kind, template=template), EpochRandom(seed, epoch)
    plan = PrefixLM().arrange(source, Packing(512, 64), draws)
    sequences = PrefixLM().corrupt(plan.pack(seed % len(plan)), source.tokenizer, draws)
    clean = plan.pack(seed % len(plan))
    at, target = sequences.targets["prefix"]
    assert (sequences.ids == clean.ids).all()
    assert sequences.pattern is not None and sequences.pattern.name == "prefix"
    for row in range(len(clean.lengths)):
        own = slice(clean.offsets[row], clean.offsets[row + 1])
        mine = sequences.owner[at] == row
        prefix = clean.ids[own][sequences.columns["prefix"][own] == 1].tolist()
        assert prefix + target[mine].tolist() == clean.ids[own].tolist()
        assert sequences.columns["prefix"][own].tolist() == sorted(sequences.columns["prefix"][own], reverse=True)
        assert (sequences.ids[at[mine] + 1] == target[mine]).all()
        text = np.flatnonzero(~clean.columns["special"][own])
        if len(text) > 1:
            assert text[0] < len(prefix) <= text[-1]  # text on both sides


def test_split_points_are_uniform() -> None:
    source = data()
    shares: list[float] = []
    for seed in range(20):
        plan = PrefixLM().arrange(source, Packing(1024, 64), EpochRandom(seed))
        sequences = PrefixLM().corrupt(plan.pack(0), source.tokenizer, EpochRandom(seed))
        size = np.add.reduceat(sequences.columns["prefix"], sequences.offsets[:-1]) - 2
        free = sequences.lengths - 4
        shares += (size[free > 8] / free[free > 8]).tolist()
    assert min(shares) == 0 and max(shares) == 1 and abs(np.mean(shares) - 0.5) < 0.05


def test_example_from_the_lecture() -> None:
    words = ["I", "am", "happy", "to", "join", "with", "you", "today"]
    ids = np.arange(8) + 10
    for seed in range(200):
        sequences = Sequences(ids.copy(), np.array([8]), np.array([0]), columns={"special": np.zeros(8, dtype=bool)})
        sequences = PrefixLM().corrupt(sequences, data().tokenizer, EpochRandom(seed))
        if sequences.columns["prefix"].sum() == 4:
            assert [words[i - 10] for i in sequences.targets["prefix"][1]] == ["join", "with", "you", "today"]
            return
    pytest.fail("no seed cut in the middle")


def test_no_state_sees_its_target() -> None:
    torch.manual_seed(0)
    network = encoder().eval()
    lengths = np.array([9, 6])
    special = np.isin(np.arange(15), [0, 8, 9, 14])
    sequences = Sequences(np.arange(15) + 10, lengths, np.arange(2), columns={"special": special})
    sequences = PrefixLM().corrupt(sequences, data().tokenizer, EpochRandom(4))
    batch = collate(sequences)
    (packed,) = batch.packed
    kept: list[torch.Tensor] = []
    network.embed.register_forward_hook(lambda *parts: kept.append(parts[-1].detach().requires_grad_()) or kept[-1])
    states = network(packed).last
    inputs = kept[-1]
    owner = np.repeat([0, 1], lengths)
    for row in batch.targets["prefix"].at.tolist():
        (gradient,) = torch.autograd.grad(states[row].square().sum(), inputs, retain_graph=True)
        seen = gradient.abs().sum(1).numpy() > 0
        assert not seen[row + 1 :].any()
        assert seen[: row + 1].tolist() == (owner == owner[row])[: row + 1].tolist()
    # Inside the prefix, attention is bidirectional.
    prefix = np.flatnonzero((sequences.columns["prefix"] == 1) & (owner == 0))
    (gradient,) = torch.autograd.grad(states[0].square().sum(), inputs)
    assert (gradient.abs().sum(1).numpy() > 0).nonzero()[0].tolist() == prefix.tolist()
