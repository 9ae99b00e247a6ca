"""Tests of streams of contiguous text, forward and backward, with and without template tokens around documents."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from pretune.backbones.bidirectional import BidirectionalBackbone
from pretune.backbones.recurrent import RecurrentBackbone
from pretune.nn.embedding.token_embedding import Embeddings
from pretune.nn.initialization import initialize
from pretune.nn.output_heads import TiedVocabularyHead
from pretune.nn.recurrent import RecurrentCells, RecurrentLayer
from pretune.objectives import parse_objective
from pretune.objectives.pretraining.bilm import BiLM
from pretune.objectives.pretraining.lm import LM
from pretune.objectives.pretraining.stateful_batches import StreamEpoch, stream_epoch
from pretune.packed import Batch, pack
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing, Sequences, collate
from tests.support.objective_data import data

PACKING = Packing(64, 16, packs_per_step=2)


def streams(epoch: StreamEpoch, backward: bool) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return the ids, targets and document starts of each stream over the whole epoch, in reading order."""
    found: dict[int, list[np.ndarray]] = {}
    for index in range(len(epoch)):
        pack = epoch.pack(index)
        group = index % epoch.groups
        for lane, (start, end) in enumerate(zip(pack.offsets[:-1], pack.offsets[1:], strict=True)):
            table = np.stack([pack.ids, pack.columns["next"], pack.columns["document_start"]])[:, start:end]
            found.setdefault(group * len(pack.lengths) + lane, []).append(table[:, ::-1] if backward else table)
    return [tuple(np.concatenate(parts, 1)) for _, parts in sorted(found.items())]  # type: ignore[misc]


@pytest.mark.parametrize("framed", [False, True])
def test_backward_streams_are_reversed_forward_streams(framed: bool) -> None:
    made, draws = data(), EpochRandom(3)
    ahead, back = (
        streams(stream_epoch(made, PACKING, draws, backward=way, framed=framed), way) for way in (False, True)
    )
    for (ids, following, fresh), (ids_back, following_back, fresh_back) in zip(ahead, back, strict=True):
        assert ids.tolist() == ids_back[::-1].tolist()
        for read, wanted, begins in ((ids, following, fresh), (ids_back, following_back, fresh_back)):
            assert begins[0] == 1
            assert (wanted[:-1] >= 0).tolist() == (begins[1:] == 0).tolist()  # nothing is predicted across documents
            assert (wanted[:-1] == read[1:])[wanted[:-1] >= 0].all()
    tokenizer = made.tokenizer
    start, separator = tokenizer.role("start"), tokenizer.role("separator")
    whole = np.concatenate([ids for ids, _, _ in ahead])
    assert (start in whole) == framed
    if framed:
        (places,) = np.nonzero(whole[:-1] == separator)
        assert len(places) and (whole[places + 1] == start).all()
        assert made.store is not None
        assert len(whole) == made.store.tokens + 2 * made.store.documents


def test_template_tokens_are_special_and_start_words() -> None:
    pack = stream_epoch(data(), PACKING, EpochRandom(3), framed=True).pack(0)
    assert (pack.columns["special"] == data().tokenizer.specials[pack.ids]).all()
    assert pack.columns["word"][pack.columns["special"]].all() and not pack.columns["word"].all()


def test_backward_language_models_predict_the_previous_token() -> None:
    made, draws = data(), EpochRandom(1)
    plan = LM(backward=True).arrange(made, Packing(96, 32), draws)
    sequences = LM(backward=True).corrupt(plan.pack(0), made.tokenizer, draws)
    at, target = sequences.targets["lm"]
    assert (target == sequences.ids[at - 1]).all()
    assert set(range(len(sequences.ids))) - set(at.tolist()) == set(sequences.offsets[:-1].tolist())


def stack(vocabulary: int, backward: bool = False) -> RecurrentBackbone:
    torch.manual_seed(0)
    layers = [RecurrentLayer(RecurrentCells(12, 12)) for _ in range(2)]
    head = lambda: TiedVocabularyHead(vocabulary)  # noqa: E731
    return initialize(
        RecurrentBackbone(Embeddings(vocabulary, 12), layers, vocabulary_head=head, backward=backward), 0.3
    )


def test_backward_stack_sees_only_later_tokens() -> None:
    made, draws = data(), EpochRandom(1)
    backbone = stack(made.tokenizer.size, backward=True)
    plan = LM(backward=True).arrange(made, Packing(96, 32), draws)
    batch = collate(LM(backward=True).corrupt(plan.pack(0), made.tokenizer, draws))
    kept: list[torch.Tensor] = []
    backbone.embed.register_forward_hook(lambda module, inputs, out: kept.append(out.requires_grad_()) or kept[-1])
    states = backbone(*batch.packed).last
    (gradient,) = torch.autograd.grad(states[3].sum(), kept[0])
    seen = gradient.abs().sum(1).nonzero().flatten().tolist()
    assert seen == list(range(int(batch.packed[0].offsets[1]) - 3))  # the embeddings are in reverse order


def windows(epoch: StreamEpoch | object, objective: LM | BiLM, count: int) -> list[Batch]:
    made: list[Sequences] = [epoch.pack(index) for index in range(count)]  # type: ignore[attr-defined]
    return [collate(objective.corrupt(sequences, data().tokenizer, EpochRandom(0))) for sequences in made]


@pytest.mark.not_fast
@pytest.mark.parametrize("backward", [False, True])
def test_windows_with_recurrent_state_equal_one_long_text(backward: bool) -> None:
    objective = LM(stateful=True, backward=backward)
    backbone = stack(data().tokenizer.size, backward).eval()
    head = objective.head(backbone)
    losses = []
    for length in (16, 48):
        epoch = objective.arrange(data(), Packing(length, length), EpochRandom(2))
        carry, total, count = None, 0.0, 0.0
        for batch in windows(epoch, objective, len(epoch)):
            batch.state = carry
            loss = objective.loss(head, backbone, batch)
            carry = loss.state
            total, count = total + float(loss.sums["lm"].detach()), count + batch.counts["lm"]
        losses.append((total / count, count))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.not_fast
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_reading_backward_equals_reading_reversed_text_forward(device: str) -> None:
    """States and gradients are equal, window after window, with recurrent state."""
    size = data().tokenizer.size
    ways = [stack(size, backward).to(device) for backward in (False, True)]
    epoch = stream_epoch(data(), PACKING, EpochRandom(2), backward=True)
    carries: list[Any] = [None, None]
    for index in range(0, len(epoch), 2):
        lanes = epoch.pack(index)
        turned = np.concatenate([np.arange(end - 1, start - 1, -1) for start, end in pairwise(lanes.offsets)])
        states = []
        for number, (way, order) in enumerate(zip(ways, (turned, np.arange(len(turned))), strict=True)):
            columns = {"document_start": lanes.columns["document_start"][order]}
            packed = pack(lanes.ids[order], np.diff(lanes.offsets), columns=columns).to(torch.device(device))
            found = way(packed, carries[number])
            carries[number] = found.state
            states.append(found.last)
        there = torch.from_numpy(turned).to(device)
        torch.testing.assert_close(states[0][there], states[1], rtol=1e-4, atol=1e-5)
        for state in (states[0][there], states[1]):
            (state * torch.arange(state.numel(), device=device).view_as(state).cos()).sum().backward()
    for ahead, back in zip(ways[0].parameters(), ways[1].parameters(), strict=True):
        torch.testing.assert_close(ahead.grad, back.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.not_fast
def test_both_directions_carry_state_in_their_own_streams() -> None:
    objective = BiLM(stateful=True)
    torch.manual_seed(0)
    embed = Embeddings(data().tokenizer.size, 12)
    ways = [stack(data().tokenizer.size) for _ in range(2)]
    for way in ways:
        way.embed = embed
    backbone = initialize(BidirectionalBackbone(*ways), 0.3).eval()
    head = objective.head(backbone)
    losses = []
    for length in (16, 48):
        epoch = objective.arrange(data(), Packing(length, length), EpochRandom(2))
        carry, found = None, np.zeros(4)
        for batch in windows(epoch, objective, len(epoch)):
            batch.state = carry
            loss = objective.loss(head, backbone, batch)
            carry = backbone.restore_state({name: x.clone() for name, x in loss.state.tensors().items()})
            names = ("forward", "forward/of", "backward", "backward/of")
            found += [float(loss.logs[f"bilm/{name}"]) for name in names]
        losses.append(found)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0][1] == losses[0][3]


def test_direction_of_model_and_objective_must_agree() -> None:
    from pretune import PretuneError

    with pytest.raises(PretuneError, match=r"reads backward, .*; pretrain this model with lm\(backward=true\)"):
        parse_objective("lm").objectives[0].head(stack(20, backward=True))
    with pytest.raises(PretuneError, match=r"reads forward, .*; pretrain this model with lm$"):
        parse_objective("lm(backward=true)").objectives[0].head(stack(20))
