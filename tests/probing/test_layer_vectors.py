"""Tests of the vectors of texts and words from all layers, and of their alignment between tokenizers."""

from __future__ import annotations

import numpy as np
import pytest

from pretune import PretuneError
from pretune.inference.hidden_states import compute_states
from pretune.probing.layer_vectors import layer_vectors, shared_words, split_words
from tests.support.pruning_models import made
from tests.support.tiny_models import random_model, small_tokenizer
from tests.support.tricky_strings import TRICKY

TEXTS = ["The train was late, again.", "Yes.", "We waited for an hour."]


def test_vectors_are_means_of_the_states_of_tokens() -> None:
    model = made("bert")
    found = layer_vectors(model, TEXTS)
    states = compute_states(model, TEXTS, hidden_states=True)
    assert states.hidden_states is not None and len(found.texts) == len(found.words) == 3
    assert found.spelled == [word for text in TEXTS for word, _, _ in split_words(text)]
    for layer, expected in enumerate(states.hidden_states):
        for row in range(len(TEXTS)):
            inner = expected[row, 1 : int(states.mask[row].sum()) - 1]  # without [CLS] and [SEP]
            np.testing.assert_allclose(found.texts[layer][row], inner.mean(0).numpy(), atol=1e-5)
    tokenizer = model.require_tokenizer()
    first = len(tokenizer.encode("The"))
    np.testing.assert_allclose(found.words[2][0], states.hidden_states[2][0, 1 : 1 + first].mean(0).numpy(), atol=1e-5)
    last = len(tokenizer.encode("again"))
    end = int(states.mask[0].sum()) - 2  # before "." and [SEP]
    place = found.spelled.index("again")
    np.testing.assert_allclose(
        found.words[1][place], states.hidden_states[1][0, end - last : end].mean(0).numpy(), atol=1e-5
    )


@pytest.mark.parametrize("family", ["gpt2", "t5", "lstm", "roberta", "xlnet"])
def test_every_kind_of_model_has_layers(family: str) -> None:
    objective = {"gpt2": "lm", "lstm": "lm", "t5": "spans", "xlnet": "plm"}.get(family, "mlm")
    model = random_model(family, small_tokenizer("byte-level-bpe"), objective)
    found = layer_vectors(model, TEXTS)
    assert found.spelled == [word for text in TEXTS for word, _, _ in split_words(text)]
    assert all(np.isfinite(layer).all() for layer in (*found.texts, *found.words))


def test_words_of_two_tokenizers_are_aligned() -> None:
    texts = [*TEXTS, "late " * 15]  # the second model reads less of it
    first = layer_vectors(made("bert"), texts)
    second = layer_vectors(random_model("gpt2", small_tokenizer("byte-level-bpe"), "lm", n_positions=12), texts)
    a, b = shared_words(first, second)
    assert a.spelled == b.spelled and len(b.spelled) < len(first.spelled)
    assert (a.word_keys == b.word_keys).all() and len(a.words[0]) == len(b.words[0]) == len(a.spelled)
    same, _ = shared_words(first, first)
    np.testing.assert_allclose(same.words[1], first.words[1])


def test_odd_unicode_and_texts_without_tokens() -> None:
    texts = [text for text in TRICKY if text.strip() and made("bert").require_tokenizer().encode(text)]
    found = layer_vectors(made("bert"), texts)
    assert len(found.texts[0]) == len(texts) and np.isfinite(found.texts[-1]).all()
    with pytest.raises(PretuneError, match="text 2 has no tokens"):
        layer_vectors(made("bert"), ["a", "  "])
