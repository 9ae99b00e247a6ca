"""XLNet on our bricks: two streams as copies of the predicted tokens, relative positions, segments, memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pretune.backbones.encoder import Encoder, Memory
from pretune.nn.attention import ScoredAttention
from pretune.nn.blocks import Layer, PostNorm
from pretune.nn.embeddings import Embeddings
from pretune.nn.feed_forward import FeedForward
from pretune.nn.heads import VocabularyHead
from pretune.nn.linear import LayerNorm, Linear
from pretune.nn.patterns import permutation
from pretune.nn.scores import TransformerXL
from pretune.packed import Packed, pack

VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH, ROWS = 50, 32, 4, 3, 10, 3


@pytest.fixture(scope="module")
def peer() -> Any:
    from transformers import XLNetConfig, XLNetModel

    torch.manual_seed(0)
    config = XLNetConfig(
        vocab_size=VOCABULARY, d_model=WIDTH, n_layer=LAYERS, n_head=HEADS, d_inner=64, dropout=0.0, mem_len=LENGTH,
        ff_activation="gelu", attn_type="bi", summary_last_dropout=0.0, layer_norm_eps=1e-12,
    )  # fmt: skip
    model = XLNetModel(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model


def ours(peer: Any, memory: int) -> Encoder:
    """The same network with the peer's weights."""

    def layer() -> Layer:
        score = TransformerXL(WIDTH, HEADS, WIDTH // HEADS, segments=True)
        attention = ScoredAttention(WIDTH, HEADS, score, content_bias=True, bias=False)
        return Layer(
            attention=PostNorm(attention, LayerNorm(WIDTH, 1e-12)),
            feed_forward=PostNorm(FeedForward(WIDTH, 64), LayerNorm(WIDTH, 1e-12)),
        )

    stack = Encoder(
        Embeddings(VOCABULARY + 1, WIDTH), [layer() for _ in range(LAYERS)],
        vocabulary_head=partial(VocabularyHead, VOCABULARY), pooler=partial(Linear, WIDTH, WIDTH), memory=memory,
    )  # fmt: skip
    with torch.no_grad():
        stack.embed.tokens.copy_(torch.cat([peer.word_embedding.weight, peer.mask_emb[0]]))
        for mine, theirs in zip(stack.layers, peer.layer, strict=True):
            attention, relative = mine["attention"].part, theirs.rel_attn
            flat = lambda x: x.reshape(WIDTH, WIDTH).T  # noqa: E731  (width, heads, d) → (heads · d, width)
            attention.query.weight.copy_(flat(relative.q))
            attention.key_value.weight.copy_(torch.cat([flat(relative.k), flat(relative.v)]))
            attention.output.weight.copy_(relative.o.reshape(WIDTH, WIDTH))
            attention.content_bias.copy_(relative.r_w_bias)
            attention.score.position.copy_(flat(relative.r))
            attention.score.position_bias.copy_(relative.r_r_bias)
            attention.score.segment_bias.copy_(relative.r_s_bias)
            attention.score.segment.copy_(relative.seg_embed)
            mine["attention"].norm.load_state_dict(relative.layer_norm.state_dict())
            feed_forward = mine["feed_forward"]
            feed_forward.part.inner.load_state_dict(theirs.ff.layer_1.state_dict())
            feed_forward.part.output.load_state_dict(theirs.ff.layer_2.state_dict())
            feed_forward.norm.load_state_dict(theirs.ff.layer_norm.state_dict())
    return stack


class Segment:
    """A random batch: ids, segments, an order of prediction, and the positions predicted (those last in the order)."""

    def __init__(self, seed: int, start: int, segments: bool) -> None:
        chance = np.random.default_rng(seed)
        self.ids = chance.integers(0, VOCABULARY, (ROWS, LENGTH))
        self.types = chance.integers(0, 2, (ROWS, LENGTH)) * int(segments)
        self.order = np.stack([chance.permutation(LENGTH) for _ in range(ROWS)])
        self.predicted = [np.flatnonzero(row >= LENGTH - 3) for row in self.order]
        self.start = start

    def packed(self) -> Packed:
        parts: dict[str, list[Any]] = {name: [] for name in ("ids", "positions", "segment", "order", "stream")}
        for row in range(ROWS):
            p = self.predicted[row]
            parts["ids"].append(np.r_[self.ids[row], np.full(len(p), VOCABULARY)])
            parts["positions"].append(self.start + np.r_[np.arange(LENGTH), p])
            parts["segment"].append(np.r_[self.types[row], self.types[row][p]])
            parts["order"].append(np.r_[self.order[row], self.order[row][p]])
            parts["stream"].append(np.r_[np.zeros(LENGTH, int), np.ones(len(p), int)])
        flat = {name: np.concatenate(columns) for name, columns in parts.items()}
        lengths = np.array([len(x) for x in parts["ids"]])
        return pack(flat.pop("ids"), lengths, positions=flat.pop("positions"), columns=flat, pattern=permutation)

    def peer_inputs(self) -> dict[str, Tensor]:
        hidden = torch.from_numpy(self.order)
        mask = (hidden[:, None, :] >= hidden[:, :, None]).float()  # 1: row i may not see column j
        mapping = torch.zeros(ROWS, 3, LENGTH)
        for row, p in enumerate(self.predicted):
            mapping[row, torch.arange(3), torch.from_numpy(p)] = 1.0
        return {
            "input_ids": torch.from_numpy(self.ids),
            "token_type_ids": torch.from_numpy(self.types),
            "perm_mask": mask,
            "target_mapping": mapping,
        }


@pytest.mark.parametrize("memory", [0, LENGTH])
def test_both_streams_of_every_layer_are_the_peers(peer: Any, memory: int) -> None:
    stack = ours(peer, memory)
    mems, carry = None, None
    for number in range(3):
        # The peer takes what it remembers as segment 0.
        segment = Segment(number, number * LENGTH, segments=number == 2 or not memory)
        with torch.no_grad():
            theirs = peer(**segment.peer_inputs(), mems=mems, use_mems=memory > 0, output_hidden_states=True)
            states = stack(segment.packed(), carry=carry, keep="all")
        if memory:
            mems, carry = theirs.mems, states.carry
        streams = theirs.hidden_states  # content and query in turn
        for layer, content, query in zip(states.layers, streams[::2], streams[1::2], strict=True):
            rows = layer.view(ROWS, LENGTH + 3, WIDTH)
            torch.testing.assert_close(rows[:, :LENGTH], content, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(rows[:, LENGTH:], query, atol=1e-5, rtol=1e-5)


def test_a_position_never_sees_itself_or_later_ones(peer: Any) -> None:
    stack = ours(peer, 0)
    segment = Segment(5, 0, segments=True)
    packed = segment.packed()
    inputs: list[Tensor] = []

    def watch(module: nn.Module, arguments: Any, output: Tensor) -> Tensor:
        inputs.append(output.detach().requires_grad_())
        return inputs[-1]

    stack.embed.register_forward_hook(watch)
    states = stack(packed).last.view(ROWS, LENGTH + 3, WIDTH)
    for place, position in enumerate(segment.predicted[0]):
        states[0, LENGTH + place].square().sum().backward(retain_graph=True)
        seen = inputs[0].grad.view(ROWS, LENGTH + 3, WIDTH)[0, :LENGTH].abs().sum(-1) > 0  # type: ignore[union-attr]
        earlier = torch.from_numpy(segment.order[0] < segment.order[0][position])
        assert torch.equal(seen, earlier)
        inputs[0].grad = None


def test_memory_is_attention_over_the_longer_text(peer: Any) -> None:
    """With slots for all of it, two segments with memory give the second half what one long segment gives it."""
    from pretune.nn.patterns import causal

    stack = ours(peer, LENGTH)
    ids = np.random.default_rng(0).integers(0, VOCABULARY, 2 * LENGTH)
    column = {"segment": np.zeros(2 * LENGTH, dtype=np.int64)}
    half = {"segment": column["segment"][:LENGTH]}
    size = np.array([LENGTH])
    with torch.no_grad():
        whole = stack(pack(ids, 2 * size, columns=column, pattern=causal)).last
        first = stack(pack(ids[:LENGTH], size, columns=half, pattern=causal))
        second = stack(
            pack(ids[LENGTH:], size, columns=half, positions=LENGTH + np.arange(LENGTH), pattern=causal),
            carry=first.carry,
        )
    torch.testing.assert_close(second.last, whole[LENGTH:], atol=1e-5, rtol=1e-5)
    again = Memory.from_tensors(second.carry.tensors())
    assert all(torch.equal(a, b) for a, b in zip(again.states, second.carry.states, strict=True))
    assert again.used.tolist() == [LENGTH]
