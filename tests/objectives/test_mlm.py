from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from material import KINDS, data
from pretune.objectives.mlm import MLM
from pretune.randomness import Draws
from pretune.text.sequences import Packing, Sequences
from pretune.text.tokenizer_training import Kind


def masked(kind: Kind, objective: MLM, seed: int, epoch: int, progress: float = 0.0) -> tuple[Sequences, Sequences]:
    source = data(kind)
    draws = Draws(seed, epoch, progress)
    plan = objective.arrange(source, Packing(1024, 64), draws)
    index = seed % len(plan)
    return plan.pack(index), objective.corrupt(plan.pack(index), source.tokenizer, draws)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 3),
    rate=st.sampled_from([0.05, 0.15, 0.4, 1.0]),
    whole=st.booleans(),
)
def test_labels_are_the_originals_and_specials_are_never_touched(
    kind: Kind, seed: int, epoch: int, rate: float, whole: bool
) -> None:
    clean, noisy = masked(kind, MLM(rate=rate, whole_words=whole), seed, epoch)
    at, target = noisy.targets["mlm"]
    special = clean.columns["special"]
    assert (target == clean.ids[at]).all()
    assert len(set(at.tolist())) == len(at)
    assert not special[at].any()
    changed = np.flatnonzero(noisy.ids != clean.ids)
    assert set(changed) <= set(at)
    tokenizer = data(kind).tokenizer
    inserted = noisy.ids[changed]
    assert not (tokenizer.specials[inserted] & (inserted != tokenizer.role("mask"))).any()
    free = np.bincount(clean.owner[~special], minlength=len(clean.lengths))
    chosen = np.bincount(clean.owner[at], minlength=len(clean.lengths))
    wanted = np.where(free > 0, np.maximum(1, np.round(rate * free)), 0)
    if whole:
        assert (chosen <= wanted).all()
    else:
        assert (chosen == wanted).all()


@pytest.mark.parametrize("kind", KINDS)
def test_whole_words_are_hidden_whole(kind: Kind) -> None:
    clean, noisy = masked(kind, MLM(rate=0.3, whole_words=True), 3, 0)
    at = set(noisy.targets["mlm"][0].tolist())
    word = np.cumsum(clean.columns["word"] | clean.columns["special"])
    assert at
    for number in {word[i] for i in at}:
        members = set(np.flatnonzero((word == number) & ~clean.columns["special"]))
        assert members <= at


def test_fates_follow_their_shares() -> None:
    counts = {"mask": 0, "same": 0, "other": 0}
    tokenizer = data().tokenizer
    for seed in range(40):
        noisy = masked("wordpiece", MLM(rate=0.5), seed, 0)[1]
        at, target = noisy.targets["mlm"]
        counts["mask"] += int((noisy.ids[at] == tokenizer.role("mask")).sum())
        counts["same"] += int((noisy.ids[at] == target).sum())
        counts["other"] += int(((noisy.ids[at] != target) & (noisy.ids[at] != tokenizer.role("mask"))).sum())
    total = sum(counts.values())
    deviation = (0.8 * 0.2 / total) ** 0.5
    assert abs(counts["mask"] / total - 0.8) < 5 * deviation
    assert abs(counts["other"] / total - 0.1) < 5 * deviation + 0.1 / 900  # a random token may be the same one
    assert abs(counts["same"] / total - 0.1) < 5 * deviation + 0.1 / 900


def test_the_rate_follows_its_schedule() -> None:
    objective = MLM(rate=0.4, final_rate=0.1)
    sizes = [len(masked("wordpiece", objective, 0, 0, progress)[1].targets["mlm"][0]) for progress in (0.0, 0.5, 1.0)]
    tokens = int((~masked("wordpiece", objective, 0, 0)[0].columns["special"]).sum())
    assert np.array(sizes) / tokens == pytest.approx([0.4, 0.25, 0.1], abs=0.02)


def test_masks_change_with_epoch_and_seed_and_with_nothing_else() -> None:
    objective = MLM()
    first = masked("wordpiece", objective, 0, 0)[1].targets["mlm"][0]
    assert (first == masked("wordpiece", objective, 0, 0)[1].targets["mlm"][0]).all()
    plan = objective.arrange(data(), Packing(1024, 64), Draws(0))
    other = objective.corrupt(plan.pack(0), data().tokenizer, Draws(0, epoch=1)).targets["mlm"][0]
    assert set(first) != set(other)


def test_a_sequences_mask_does_not_depend_on_its_pack() -> None:
    objective, draws = MLM(), Draws(5)
    packs = {}
    for tokens in (256, 1024):
        plan = objective.arrange(data(), Packing(tokens, 64), draws)
        for index in range(len(plan)):
            noisy = objective.corrupt(plan.pack(index), data().tokenizer, draws)
            for place, number in enumerate(noisy.index):
                start, end = noisy.offsets[place], noisy.offsets[place + 1]
                packs.setdefault(int(number), []).append(noisy.ids[start:end].tolist())
    assert all(len(versions) == 2 and versions[0] == versions[1] for versions in packs.values())


def test_targets_fit_the_room() -> None:
    for rate in (0.15, 0.5):
        objective = MLM(rate=rate)
        packing = Packing(512, 64, sequences=40, fixed=True)
        plan = objective.arrange(data(), packing, Draws(1))
        for index in range(len(plan)):
            noisy = objective.corrupt(plan.pack(index), data().tokenizer, Draws(1))
            assert len(noisy.targets["mlm"][0]) <= objective.room(packing)["mlm"]


@pytest.mark.parametrize("name", ["mlm+nsp", "mlm|lm"])
def test_logits_in_chunks_are_the_same_logits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from canary import make
    from pretune.objectives import objective

    found = []
    wide = make(name, 1).root.backbone.embed.vocabulary
    for most in (1 << 30, 300 * 7):
        monkeypatch.setattr(objective, "MOST_LOGITS", most)
        training = make(name, 1)
        saved = 0

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal saved
            if tensor.shape[-1:] == (wide,):  # logits, or something as large
                saved += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            losses = [training.root(stream.joint, stream.batch(0, 0, 0.0)) for stream in training.streams.streams]
        values = [loss.sums[term] for loss in losses for term in loss.sums]
        logs = [loss.logs[term] for loss in losses for term in loss.logs]
        torch.stack(values).sum().backward()
        grads = [p.grad for p in training.root.parameters() if p.grad is not None]
        found.append((saved, [*(v.detach() for v in values), *logs, *grads]))
    (whole, one), (chunked, other) = found
    assert chunked < 0.2 * whole
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
