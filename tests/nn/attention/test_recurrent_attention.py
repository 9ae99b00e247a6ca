"""Attention of recurrent decoders: scores, local attention, and hard attention by the published formulas."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F

from pretune import PretuneError
from pretune.nn.attention.query_key_layout import cross_layout
from pretune.nn.attention.recurrent_attention import Compatibility, RecurrentAttention
from pretune.nn.dropout import share_dropout_seed
from pretune.packed import Packed, pack_lists

TARGET, SOURCE = pack_lists([[1, 2, 3], [4], [5, 6]]), pack_lists([[1, 2], [3, 4, 5, 6, 7], [8]])


def states() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(len(TARGET), 6), torch.randn(len(SOURCE), 6)


def make_attention(score: str, reach: str = "global", window: int = 10) -> RecurrentAttention:
    torch.manual_seed(0)
    alignment: Any = RecurrentAttention(6, 6, score, reach, inner=5, window=window)  # type: ignore[arg-type]
    return alignment.eval()


def formula(alignment: Any, s: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """Return the score of one state with each source state, as in the papers."""
    match alignment.score:
        case "dot":
            return h @ s
        case "scaled":
            return h @ s / 6**0.5
        case "multiplicative":
            return h @ alignment.key.weight.T @ s
        case "cosine":
            return F.cosine_similarity(h, s[None]) * alignment.sharpness
    hidden = torch.tanh(alignment.query.weight @ s + alignment.query.bias + h @ alignment.key.weight.T)
    return hidden @ alignment.vector


def pairs(target: Packed, source: Packed) -> list[tuple[slice, slice]]:
    bounds = (pairwise(packed.offsets.tolist()) for packed in (target, source))
    return [(slice(*a), slice(*b)) for a, b in zip(*bounds, strict=True)]


@pytest.mark.parametrize("score", get_args(Compatibility))
def test_contexts_are_weighted_means_by_the_published_formula(score: str) -> None:
    alignment, (queries, keys) = make_attention(score), states()
    contexts, weights = alignment(queries, keys, cross_layout(TARGET, SOURCE))
    for mine, theirs in pairs(TARGET, SOURCE):
        wanted = torch.stack([formula(alignment, s, keys[theirs]).softmax(0) for s in queries[mine]])
        torch.testing.assert_close(weights[mine, : wanted.shape[1]], wanted)
        assert not weights[mine, wanted.shape[1] :].any()
        torch.testing.assert_close(contexts[mine], wanted @ keys[theirs])


def test_monotonic_attention_stays_near_the_target_position() -> None:
    alignment, (queries, keys) = make_attention("dot", "local-monotonic", window=1), states()
    weights = alignment(queries, keys, cross_layout(TARGET, SOURCE))[1]
    assert weights[3].nonzero().flatten().tolist() == [0, 1]  # the first token, of a source of five
    assert weights[2].nonzero().flatten().tolist() == [0, 1]  # the third, of a source of two
    torch.testing.assert_close(weights.sum(1), torch.ones(len(TARGET)))


def test_predicted_local_attention_decays_and_has_gradients() -> None:
    alignment, (queries, keys) = make_attention("dot", "local", window=2), states()
    weights = alignment(queries, keys, cross_layout(TARGET, SOURCE))[1]
    last = 4
    center = last * torch.sigmoid(torch.tanh(alignment.place(queries[3])) @ alignment.place_vector)
    places = torch.arange(5)
    logits = (keys[2:7] @ queries[3]).masked_fill((places - center).abs() > 2, -torch.inf)
    wanted = logits.softmax(0) * torch.exp(-((places - center) ** 2) / 2)
    torch.testing.assert_close(weights[3, :5], wanted)
    weights[3].sum().backward()
    assert alignment.place_vector.grad is not None and alignment.place_vector.grad.abs().sum() > 0


def test_hard_attention_samples_one_state_by_its_weight() -> None:
    soft, alignment, (queries, keys) = make_attention("dot"), make_attention("dot", "hard"), states()
    queries = torch.cat([queries[3:4]] * 400)
    target = pack_lists([[1] * 400])
    source = pack_lists([[3, 4, 5, 6, 7]])
    layout = cross_layout(target, source)
    shares = soft(queries, keys[2:7], layout)[1][0]
    fixed = alignment(queries, keys[2:7], layout)[1]
    assert (fixed.argmax(1) == shares.argmax()).all() and (fixed.sum(1) == 1).all()
    share_dropout_seed(alignment, torch.device("cpu")).fill_(5)
    drawn = alignment.train()(queries, keys[2:7], layout)[1]
    torch.testing.assert_close(drawn.max(1).values, torch.ones(400))
    torch.testing.assert_close(drawn.mean(0), shares, atol=0.08, rtol=0)
    learned = queries.clone().requires_grad_()
    (alignment(learned, keys[2:7], layout)[0] ** 2).sum().backward()
    assert learned.grad is not None and learned.grad.abs().sum() > 0


def test_incompatible_widths_raise_an_error() -> None:
    with pytest.raises(PretuneError, match="choose multiplicative or additive"):
        RecurrentAttention(6, 12, "dot")
