"""Tests of corrective language modeling: which tokens are predicted, from what text, and what of it is masked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.models.model import Network
from pretune.objectives import JointObjective, parse_objective
from pretune.objectives.pretraining import rtd
from pretune.packed import Batch
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing, collate
from tests.support.objective_data import data
from tests.support.tiny_training_cases import VOCABULARY, encoder

PACKING = Packing(512, 64)


def make_root(expression: str) -> tuple[Network, JointObjective]:
    """Return a tiny network with the heads of a sum of objectives."""
    torch.manual_seed(0)
    root = Network(encoder())
    (joint,) = parse_objective(expression).joints
    for objective in joint.objectives:
        root.heads[objective.name] = objective.head(root.backbone)
    return root.eval(), joint


def make_batch(joint: JointObjective, seed: int = 0) -> Batch:
    """Return a batch of the text of the tests whose ids fit the tiny network."""
    source, draws = data("wordpiece"), EpochRandom(seed)
    sequences = joint.arrange(source, PACKING, draws).pack(0)
    sequences.ids %= VOCABULARY
    return collate(joint.corrupt(sequences, source.tokenizer, draws))


@settings(max_examples=10)
@given(seed=st.integers(0, 2**40), rate=st.sampled_from([0.1, 0.15]))
def test_targets_are_the_tokens_that_the_generator_fills_in(seed: int, rate: float) -> None:
    (joint,) = parse_objective(f"corrective+rtd(mask_rate={rate})").joints
    source, draws = data("wordpiece"), EpochRandom(seed)
    plan = joint.arrange(source, PACKING, draws)
    clean = plan.pack(0)
    noisy = joint.corrupt(plan.pack(0), source.tokenizer, draws)
    for found, expected in zip(noisy.targets["corrective"], noisy.targets["generator"], strict=True):
        assert np.array_equal(found, expected)
    at, target = noisy.targets["corrective"]
    assert (target == clean.ids[at]).all()
    assert len(at) <= joint.max_targets(PACKING)["corrective"]


def test_loss_is_the_cross_entropy_on_the_text_with_replacements(monkeypatch: pytest.MonkeyPatch) -> None:
    root, joint = make_root("rtd(generator_size=0.5)+2*corrective")
    batch = make_batch(joint)
    at, original = batch.targets["corrective"].at, batch.targets["corrective"].target
    monkeypatch.setattr(rtd, "sample_tokens", lambda logits, temperature: torch.full((len(logits),), 7))
    loss = root(joint, batch)
    text = batch.packed[0].ids.clone()
    text[at] = 7
    states = root.backbone(rtd.replace(batch.packed[0], ids=text)).last
    head: Any = root.heads["corrective"]
    logits = head(states[at], root.backbone.embed.tokens)
    torch.testing.assert_close(loss.sums["corrective"], F.cross_entropy(logits, original, reduction="sum"))
    assert loss.weights["corrective"] == 2.0


def test_one_forward_pass_serves_both_objectives() -> None:
    root, joint = make_root("rtd(generator_size=0.5)+corrective")
    calls: list[int] = []
    root.backbone.register_forward_hook(lambda *_: calls.append(1))
    assert set(root(joint, make_batch(joint)).sums) == {"generator", "rtd", "corrective"}
    assert len(calls) == 1


def test_kept_masks_are_read_as_masks_and_not_classified(monkeypatch: pytest.MonkeyPatch) -> None:
    root, joint = make_root("rtd(generator_size=0.5,kept_masks=0.4)+corrective")
    batch = make_batch(joint)
    at = batch.targets["generator"].at
    stays = torch.arange(len(at)) % 2 == 0
    monkeypatch.setattr(rtd.torch, "rand", lambda *shape, device: torch.where(stays, 0.0, 0.9))
    monkeypatch.setattr(rtd, "sample_tokens", lambda logits, temperature: torch.full((len(logits),), 7))
    read: list[Any] = []
    root.backbone.register_forward_hook(lambda module, given, out: read.append(given[0]))
    loss = root(joint, batch)
    mask = data("wordpiece").tokenizer.role("mask")
    assert (read[0].ids[at[stays]] == mask).all() and (read[0].ids[at[~stays]] == 7).all()
    head: Any = root.heads["rtd"]
    logits = head(root.backbone(read[0]).last)
    labels = (read[0].ids != batch.targets["rtd"].target).float()
    judged = torch.ones(len(labels), dtype=torch.bool)
    judged[at[stays]] = False
    expected = F.binary_cross_entropy_with_logits(logits[judged], labels[judged], reduction="sum")
    torch.testing.assert_close(loss.sums["rtd"], expected)


@pytest.mark.parametrize("expression", ["mlm+corrective", "corrective", "0.5*rtd|corrective"])
def test_without_rtd_there_is_nothing_to_correct(expression: str) -> None:
    with pytest.raises(PretuneError, match=r"corrective needs rtd in the same sum; write rtd\+corrective"):
        parse_objective(expression)


@pytest.mark.parametrize("share", [-0.1, 1])
def test_the_share_of_kept_masks_is_checked(share: float) -> None:
    with pytest.raises(PretuneError, match="kept_masks"):
        parse_objective(f"rtd(kept_masks={share})")
