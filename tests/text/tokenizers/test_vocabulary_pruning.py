"""Tests that pruning removes unused tokens and keeps the tokenization of the texts."""

from __future__ import annotations

import pytest

from pretune import PretuneError
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import Kind
from pretune.text.tokenizers.vocabulary_pruning import prune_vocabulary
from tests.support.texts import english_documents
from tests.support.tiny_models import small_tokenizer as tokenizer

TEXTS = [part for text in english_documents()[:1] for part in text.split("\n\n")][:12]


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "byte-level-bpe", "unigram", "sentencepiece-unigram"])
def test_pruning_keeps_the_tokenization(kind: Kind) -> None:
    words: Tokenizer = tokenizer(kind)
    smaller = prune_vocabulary(words, TEXTS)
    assert smaller.size < words.size
    assert smaller.roles.keys() == words.roles.keys()
    for text in TEXTS:
        assert smaller.tokens(smaller.encode(text)) == words.tokens(words.encode(text))
    strange = "Zebras quarrel over jam"
    assert smaller.decode(smaller.encode(strange)).strip() == words.decode(words.encode(strange)).strip()
    assert Tokenizer.from_state(smaller.state()).digest == smaller.digest


def test_pruning_without_text_raises_an_error() -> None:
    with pytest.raises(PretuneError, match="pruning would remove all tokens"):
        prune_vocabulary(tokenizer("wordpiece"), [])
