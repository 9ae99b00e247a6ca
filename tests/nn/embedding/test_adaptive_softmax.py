"""Adaptive embeddings and the adaptive softmax."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pretune.nn.embedding.adaptive_softmax import AdaptiveEmbeddings, AdaptiveHead
from pretune.packed import pack

VOCABULARY, WIDTH = 50, 16


def make(cutoffs: tuple[int, ...]) -> tuple[AdaptiveEmbeddings, AdaptiveHead]:
    torch.manual_seed(0)
    embed = AdaptiveEmbeddings(VOCABULARY, WIDTH, 12, cutoffs, 2)
    head = AdaptiveHead(embed)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return embed, head


@pytest.mark.parametrize("cutoffs", [(), (10,), (10, 30), (10, 30, 60)])
def test_tokens_get_the_vectors_of_their_cluster(cutoffs: tuple[int, ...]) -> None:
    embed, _ = make(cutoffs)
    vectors = embed(pack(np.arange(VOCABULARY), np.array([VOCABULARY])))
    bounds = [0, *(c for c in cutoffs if c < VOCABULARY), VOCABULARY]
    assert [tuple(table.shape) for table in embed.tables] == [
        (end - begin, 12 // 2**i) for i, (begin, end) in enumerate(pairwise(bounds))
    ]
    expected = [F.linear(t, p.weight) for t, p in zip(embed.tables, embed.projects, strict=True)]
    torch.testing.assert_close(vectors, torch.cat(expected) * WIDTH**0.5)


@pytest.mark.parametrize("cutoffs", [(), (10,), (10, 30)])
def test_probabilities_are_products_of_cluster_and_token_probabilities(cutoffs: tuple[int, ...]) -> None:
    embed, head = make(cutoffs)
    states = torch.randn(7, WIDTH)
    logs = head(states, embed.tokens)
    assert logs.shape == (7, VOCABULARY)
    torch.testing.assert_close(logs.exp().sum(-1), torch.ones(7))
    torch.testing.assert_close(logs.log_softmax(-1), logs)  # log-probabilities are already normalized
    if len(cutoffs) == 2:
        assert head.cluster is not None
        narrow = states @ head.project
        first = torch.cat([narrow @ embed.tables[0].T + head.biases[0], head.cluster(narrow)], -1).softmax(-1)
        torch.testing.assert_close(logs[:, :10].exp(), first[:, :10])
        for number, (begin, end) in enumerate([(10, 30), (30, 50)]):
            torch.testing.assert_close(logs[:, begin:end].exp().sum(-1), first[:, 10 + number])


def test_matches_adaptive_softmax_of_torch() -> None:
    """torch has biases in its head only, and a separate projection to each cluster."""
    embed, head = make((10, 30))
    theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(12, VOCABULARY, [10, 30], div_value=2.0, head_bias=True)
    head.project.data = torch.eye(WIDTH)[:, :12].clone()  # so that the projections agree
    states = torch.randn(5, WIDTH)
    states[:, 12:] = 0
    assert head.cluster is not None
    with torch.no_grad():
        theirs.head.weight.copy_(torch.cat([embed.tables[0], head.cluster.weight]))
        theirs.head.bias.copy_(torch.cat([head.biases[0], head.cluster.bias]))
        for number, tail in enumerate(theirs.tail, 1):
            tail[0].weight.copy_(embed.projects[number].weight[:12].T)
            tail[1].weight.copy_(embed.tables[number])
            head.biases[number].zero_()
        torch.testing.assert_close(head(states, embed.tokens), theirs.log_prob(states[:, :12]))
