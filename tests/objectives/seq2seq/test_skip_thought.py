from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.models.model import Network
from pretune.objectives import Data
from pretune.objectives.seq2seq.skip_thought import SkipThought, inner_sentences
from pretune.packed import Batch, pack, pack_lists, pack_targets
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing
from pretune.text.tokenizers.training import Kind
from tests.support.objective_data import KINDS, TEMPLATES, data, store
from tests.support.tiny_training_cases import encoder_decoder


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**40), length=st.sampled_from([16, 40, 96]), template=st.sampled_from(sorted(TEMPLATES)))
def test_neighbors_are_the_sentences_before_and_after(kind: Kind, seed: int, length: int, template: str) -> None:
    source, draws, made = data(kind, template=template), EpochRandom(seed), store(kind)
    plan = SkipThought().arrange(source, Packing(512, length), draws)
    target = TEMPLATES[template].target or ("start", "A", "end")
    first, last = (set((made.document_offsets + shift).tolist()) for shift in (0, -1))
    seen = []
    for index in range(len(plan)):
        chosen = plan.plan.pack(index)  # type: ignore[attr-defined]
        sequences = SkipThought().corrupt(plan.pack(index), source.tokenizer, draws)
        side = sequences.second
        assert side is not None and len(side.lengths) == 2 * len(sequences.lengths)
        assert len(sequences.ids) <= 512 and len(side.ids) <= 512
        assert sequences.lengths.max() <= length and side.lengths.max() <= length
        starts = plan.arrangement.starts[chosen, 0]  # type: ignore[attr-defined]
        centers = np.searchsorted(made.sentence_offsets, starts)
        seen += centers.tolist()
        if index != seed % len(plan):
            continue
        written = side.targets["skip_thought"][1]
        before = target.index("A") - 1  # template tokens that are generated before the text
        for row, center in enumerate(centers):
            assert int(center) not in first and int(center) not in last
            for number, neighbor in ((2 * row, center - 1), (2 * row + 1, center + 1)):
                late = written[side.offsets[number] : side.offsets[number + 1]]
                text = late[before : len(late) - (len(target) - target.index("A") - 1)]
                assert text.tolist() == made.sentence(int(neighbor))[: len(text)].tolist() and len(text)
    assert sorted(seen) == inner_sentences(made, source.documents).tolist()


def small_batch() -> Batch:
    source = pack_lists([[11, 12, 13], [14, 15], [16, 17, 18, 19]])
    target = pack_lists([[1, 20, 21], [1, 22], [1, 23, 24], [1, 25, 26], [1, 27], [1, 28, 29, 30]])
    at = np.arange(len(target))
    return Batch((source, target), {"skip_thought": pack_targets(at, at + 30)})


def test_decoder_sees_the_sentence_only_as_one_vector() -> None:
    torch.manual_seed(0)
    network = encoder_decoder().eval()
    objective = SkipThought()
    head = objective.head(network)
    batch = small_batch()
    source, target = batch.packed
    whole = objective.loss(head, network, batch).sums["skip_thought"]
    # Each neighbor alone, from the mean of the states of its own sentence only.
    states = network.encoder(source).last
    means = [states[a:b].mean(0) for a, b in zip(source.offsets[:-1], source.offsets[1:], strict=True)]
    total = torch.zeros(())
    for number, (start, end) in enumerate(zip(target.offsets[:-1].tolist(), target.offsets[1:].tolist(), strict=True)):
        vector = means[number // 2] + head.neighbor[number % 2]
        own = pack(target.ids[start:end].numpy(), np.array([end - start]))
        decoded = network.decode(own, pack_lists([[0]]), vector[None]).last
        logits = head.vocabulary(decoded, network.embed.tokens)
        total = total + torch.nn.functional.cross_entropy(logits, torch.arange(start, end) + 30, reduction="sum")
    torch.testing.assert_close(whole, total, atol=1e-4, rtol=1e-5)


def test_bfloat16_states_keep_their_dtype() -> None:
    torch.manual_seed(0)
    network, objective = encoder_decoder().eval(), SkipThought()
    head = objective.head(network)
    wanted = objective.loss(head, network, small_batch()).sums["skip_thought"]
    Network(network, [("skip_thought", head)]).set_activation_dtype(torch.bfloat16)
    found = objective.loss(head, network, small_batch()).sums["skip_thought"]
    torch.testing.assert_close(found, wanted, atol=0.0, rtol=0.01)


def test_corpora_without_triples_are_rejected() -> None:
    two = np.flatnonzero(np.diff(store().document_offsets) == 2)
    assert len(two)
    source = Data(store().tokenizer, TEMPLATES["t5"], store=store(), documents=two)
    with pytest.raises(PretuneError, match="three sentences or more"):
        SkipThought().arrange(source, Packing(128, 32), EpochRandom(0))
    with pytest.raises(PretuneError, match="leave no room"):
        SkipThought().arrange(data(), Packing(4, 2), EpochRandom(0))
    with pytest.raises(PretuneError, match="reads raw text"):
        SkipThought().arrange(Data(store().tokenizer, TEMPLATES["t5"]), Packing(128, 32), EpochRandom(0))


def test_two_decoders_each_learn_their_own_neighbor() -> None:
    torch.manual_seed(0)
    network = encoder_decoder().eval()
    objective = SkipThought(separate_decoders=True)
    head = objective.head(network)
    shared = {parameter.data_ptr() for parameter in network.parameters()}
    assert not shared & {parameter.data_ptr() for parameter in head.next_decoder.parameters()}
    with torch.no_grad():
        for parameter in head.next_decoder.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    batch = small_batch()
    source, target = batch.packed
    whole = objective.loss(head, network, batch).sums["skip_thought"]
    states = network.encoder(source).last
    means = [states[a:b].mean(0) for a, b in zip(source.offsets[:-1], source.offsets[1:], strict=True)]
    total = torch.zeros(())
    for number, (start, end) in enumerate(zip(target.offsets[:-1].tolist(), target.offsets[1:].tolist(), strict=True)):
        decoder = network.with_decoder(head.next_decoder) if number % 2 else network
        own = pack(target.ids[start:end].numpy(), np.array([end - start]))
        decoded = decoder.decode(own, pack_lists([[0]]), means[number // 2][None]).last
        logits = head.vocabulary(decoded, network.embed.tokens)
        total = total + torch.nn.functional.cross_entropy(logits, torch.arange(start, end) + 30, reduction="sum")
    torch.testing.assert_close(whole, total, atol=1e-4, rtol=1e-5)
    # Only the decoder of the next sentence learns from the sentences after, and the encoder learns from both.
    for number in (0, 1):
        network.zero_grad()
        head.zero_grad()
        weight = (torch.repeat_interleave(torch.arange(6), target.offsets.diff().long()) % 2 == number).float()
        batch.targets["skip_thought"].weight = weight
        objective.loss(head, network, batch).sums["skip_thought"].backward()
        learned = [
            any(p.grad is not None and bool(p.grad.any()) for p in part.parameters())
            for part in (network.encoder, network.layers, head.next_decoder)
        ]
        assert learned == [True, number == 0, number == 1]
