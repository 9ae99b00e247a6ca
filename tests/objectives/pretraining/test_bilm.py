from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.objectives import objective as objectives
from pretune.objectives import parse_objective
from pretune.objectives.pretraining.bilm import BiLM
from pretune.packed import Capacity
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing, collate
from pretune.text.tokenizers.training import Kind
from tests.support.objective_data import KINDS, bidirectional_stack, data, stack, store


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**40), epoch=st.integers(0, 3), length=st.sampled_from([8, 64]))
def test_every_token_is_predicted_in_both_directions(kind: Kind, seed: int, epoch: int, length: int) -> None:
    made, draws, packing = data(kind), EpochRandom(seed, epoch), Packing(256, length)
    plan = BiLM().arrange(made, packing, draws)
    index = seed % len(plan)
    clean, same = plan.pack(index), BiLM().corrupt(plan.pack(index), made.tokenizer, draws)
    assert (same.ids == clean.ids).all()  # nothing is masked
    (at, way), target = same.targets["bilm"][0].T, same.targets["bilm"][1]
    assert len(target) <= BiLM().max_targets(packing)["bilm"]
    predicted = at + np.where(way == 0, 1, -1)
    assert (clean.owner[predicted] == clean.owner[at]).all()  # within a sequence
    assert (target == clean.ids[predicted]).all()
    places = np.arange(len(clean.ids))
    assert predicted[way == 0].tolist() == np.setdiff1d(places, clean.offsets[:-1]).tolist()
    assert predicted[way == 1].tolist() == np.setdiff1d(places, clean.offsets[1:] - 1).tolist()


def test_batches_depend_only_on_seed_epoch_and_index() -> None:
    def contents(draws: EpochRandom, index: int) -> list[Any]:
        same = BiLM().corrupt(BiLM().arrange(data(), Packing(256, 64), draws).pack(index), data().tokenizer, draws)
        return [same.ids.tolist(), same.lengths.tolist(), same.targets["bilm"][0].tolist()]

    first = contents(EpochRandom(3, 1), 1)
    assert first == contents(EpochRandom(3, 1), 1)
    assert all(
        first != contents(draws, index)
        for draws, index in ((EpochRandom(4, 1), 1), (EpochRandom(3, 2), 1), (EpochRandom(3, 1), 2))
    )


def test_neither_direction_sees_its_target() -> None:
    """Check by gradients: forward predictions depend on tokens up to their position, backward ones on those from it."""
    made, draws = data(), EpochRandom(1)
    network = bidirectional_stack(made.tokenizer.size).eval()
    same = BiLM().corrupt(BiLM().arrange(made, Packing(96, 32), draws).pack(0), made.tokenizer, draws)
    batch, kept, states = collate(same), list[torch.Tensor](), list[torch.Tensor]()

    def hook(*parts: Any) -> torch.Tensor:
        kept.append(parts[-1].detach().requires_grad_())
        return kept[-1]

    network.embed.register_forward_hook(hook)  # called twice: on the sequence, then on its reverse
    head = BiLM().head(network)
    head.register_forward_pre_hook(lambda _, parts: states.append(parts[0]))
    BiLM().loss(head, network, batch)
    (at, way), count = same.targets["bilm"][0].T, len(same.ids)
    turned = np.concatenate([np.arange(a, b)[::-1] for a, b in zip(same.offsets[:-1], same.offsets[1:], strict=True)])
    for number in range(0, len(at), 5):
        gradients = torch.autograd.grad(states[0][number].square().sum(), kept, retain_graph=True, allow_unused=True)
        seen = [np.zeros(count, dtype=bool) if g is None else (g.abs().sum(1) > 0).numpy() for g in gradients]
        own = same.owner == same.owner[at[number]]
        before, after = np.arange(count) <= at[number], np.arange(count) >= at[number]
        assert (seen[0] == (own & before & (way[number] == 0))).all()
        assert (seen[1][turned] == (own & after & (way[number] == 1))).all()


def test_loss_is_the_mean_of_both_directions_for_all_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    made, draws = data(), EpochRandom(1)
    network = bidirectional_stack(made.tokenizer.size).eval()
    head: Any = BiLM().head(network)
    same = BiLM().corrupt(BiLM().arrange(made, Packing(96, 32), draws).pack(0), made.tokenizer, draws)
    batch = collate(same)
    with torch.no_grad():
        loss = BiLM().loss(head, network, batch)
        ahead, back = network(*batch.packed).last.chunk(2, 1)
        logits = [head(x, network.embed.tokens) for x in (ahead, back)]
    (at, way), target = same.targets["bilm"][0].T, torch.from_numpy(same.targets["bilm"][1])
    each = [F.cross_entropy(logits[i][at[way == i]], target[way == i], reduction="sum") for i in (0, 1)]
    torch.testing.assert_close(loss.sums["bilm"], each[0] + each[1])
    means = objectives.divide_by_totals({k: float(v) for k, v in {**loss.sums, **loss.logs}.items()}, batch.counts)
    half = batch.counts["bilm"] / 2
    assert means["bilm/forward"] == pytest.approx(float(each[0]) / half, rel=1e-5)
    assert means["bilm/backward"] == pytest.approx(float(each[1]) / half, rel=1e-5)
    assert means["bilm"] == pytest.approx((means["bilm/forward"] + means["bilm/backward"]) / 2, rel=1e-5)
    # Padding, and logits computed in chunks, change nothing.
    filled = collate(same, Capacity(128, 40, 32, {"bilm": 256}))
    with torch.no_grad():
        torch.testing.assert_close(BiLM().loss(head, network, filled).sums["bilm"], loss.sums["bilm"])
        monkeypatch.setattr(objectives, "MAX_LOGITS", 20_000)
        again = BiLM().loss(head, network, batch)
    torch.testing.assert_close(again.sums["bilm"], loss.sums["bilm"])
    torch.testing.assert_close(again.logs, loss.logs)


def test_both_directions_share_the_embedding_and_the_softmax() -> None:
    network = bidirectional_stack(store().tokenizer.size)
    root = torch.nn.ModuleList([network, BiLM().head(network)])
    sizes = [p for p in root.parameters() if store().tokenizer.size in p.shape]
    assert len(sizes) == 2  # the embedding and a bias


def test_invalid_use_is_rejected() -> None:
    with pytest.raises(PretuneError, match="'bilm' needs a model with a forward and a backward stack"):
        BiLM().head(stack(99))
    for name in ("mlm", "lm"):
        with pytest.raises(PretuneError, match="only be pretrained with the objective 'bilm'"):
            parse_objective(name).objectives[0].head(bidirectional_stack(99))
    with pytest.raises(PretuneError, match="incompatible attention patterns"):
        parse_objective("bilm+mlm")
