"""Character CNN embeddings."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from pretune import PretuneError
from pretune.nn.embedding.character_cnn import CharacterEmbeddings, distinct_rows
from pretune.packed import pack_lists
from pretune.text.tokenizers.character_ids import encode_characters

WORDS = ["cat", "dog", "cat", "catalog", "x", "dog"]


def make_embeddings(**options: float) -> CharacterEmbeddings:
    torch.manual_seed(0)
    return CharacterEmbeddings(100, 6, [(1, 3), (2, 4), (3, 5)], vectors=4, letters=12, highways=2, **options)  # type: ignore[arg-type]


def packed(words: list[str]):  # type: ignore[no-untyped-def]
    return pack_lists([list(range(len(words)))], columns={"characters": encode_characters(words, 12)})


def test_word_vectors_match_max_pooled_filters_and_highways() -> None:
    embed = make_embeddings()
    out = embed(packed(WORDS))
    table = torch.cat([torch.zeros(1, 4), embed.symbols])
    letters = table[torch.from_numpy(encode_characters(WORDS, 12)).long()]  # (words, letters, vectors)
    found = []
    for filters in embed.filters:
        width = filters.weight.shape[2]
        windows = letters.unfold(1, width, 1)  # (words, places, vectors, width)
        found.append((torch.einsum("wpvk,fvk->wpf", windows, filters.weight) + filters.bias).amax(1))
    x = torch.relu(torch.cat(found, 1))
    for highway in embed.highways:
        gate = torch.sigmoid(F.linear(x, highway.gate.weight, highway.gate.bias))
        x = gate * torch.relu(F.linear(x, highway.transform.weight, highway.transform.bias)) + (1 - gate) * x
    torch.testing.assert_close(out, F.linear(x, embed.project.weight, embed.project.bias))


def test_equal_words_are_computed_once_and_collect_all_gradients() -> None:
    embed = make_embeddings()
    counted: list[int] = []
    embed.project.register_forward_hook(lambda module, inputs, out: counted.append(len(out)))
    out = embed(packed(WORDS))
    assert counted == [4] and torch.equal(out[0], out[2]) and not torch.equal(out[0], out[3])
    out.sum().backward()
    gradient = embed.project.bias.grad
    assert gradient is not None
    torch.testing.assert_close(gradient, torch.full((6,), 6.0))


def test_distinct_rows() -> None:
    rows = torch.randint(0, 3, (200, 4))
    first, place = distinct_rows(rows)
    assert len(first) == len(rows.unique(dim=0)) and torch.equal(rows[first][place], rows)


def test_missing_characters_raise_an_error() -> None:
    with pytest.raises(PretuneError, match="tokenizer of the kind `characters`"):
        make_embeddings()(pack_lists([[1, 2]]))
