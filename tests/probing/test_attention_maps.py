"""Tests of attention maps: words and tokens, sums of rows, and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.inference.hidden_states import compute_states
from pretune.probing import attention_maps as module
from pretune.probing.attention_maps import AttentionMap, attention_maps, check_head, merge_tokens, parse_head
from pretune.text.tokenizers.training import Kind
from tests.support.family_configs import DEBERTAS
from tests.support.pruning_models import made
from tests.support.tiny_models import WIDTHS, random_model, small_tokenizer
from tests.support.tricky_strings import TRICKY

TEXTS = ["The train was late.", "Yes.", "We waited for an hour, and nobody came."]


def maps(model: Any, texts: list[str], **options: Any) -> list[AttentionMap]:
    """Return the attention maps of texts in the order of the texts."""
    return [one for _, one in sorted(attention_maps(model, texts, **options), key=lambda pair: pair[0])]


@pytest.mark.parametrize("family", ["bert", "gpt2", "modernbert", "deberta-v2", "albert", "t5"])
@pytest.mark.parametrize("tokens", [False, True])
def test_rows_sum_to_1_before_and_after_merging(family: str, tokens: bool) -> None:
    objective = {"gpt2": "lm", "t5": "spans"}.get(family, "mlm")
    kind: Kind = "wordpiece" if family == "bert" else "byte-level-bpe"
    model = random_model(
        family, small_tokenizer(kind), objective, **DEBERTAS.get(family, {}) | WIDTHS | {"vocab_size": 400}
    )
    found = maps(model, TEXTS, tokens=tokens)
    assert [one.text for one in found] == TEXTS
    for one in found:
        size = len(one.units)
        assert len(one.weights) == 2 and len(one.special) == size
        for layer in one.weights:
            assert layer.shape == (2, size, size) and (layer >= 0).all()
            np.testing.assert_allclose(layer.sum(-1), 1.0, atol=1e-5)
    if family == "gpt2":  # words attend only to themselves and to earlier ones
        assert not any(np.triu(layer, 1).any() for one in found for layer in one.weights)


def test_tokens_have_the_weights_of_the_model_in_any_batching(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made("bert")
    states = compute_states(model, TEXTS, attentions=True)
    assert states.attentions is not None
    for most in (1, module.MAX_WEIGHTS):
        monkeypatch.setattr(module, "MAX_WEIGHTS", most)
        for row, one in enumerate(maps(model, TEXTS, tokens=True)):
            size = len(one.units)
            for layer, weights in zip(states.attentions, one.weights, strict=True):
                np.testing.assert_allclose(weights, layer[row, :, :size, :size].numpy(), atol=1e-6)


def test_words_merge_subwords_and_keep_special_tokens_apart() -> None:
    tokenizer = small_tokenizer("wordpiece")
    (one,) = maps(random_model("bert", tokenizer, "mlm"), ["strangely waited"])
    assert one.units == ["[CLS]", "strangely", "waited", "[SEP]"]
    assert one.special.tolist() == [True, False, False, True]
    (fine,) = maps(random_model("bert", tokenizer, "mlm"), ["strangely waited"], tokens=True)
    assert len(fine.units) > 4 and "".join(fine.units[1:-1]).replace("##", "") == "strangelywaited"
    assert one.first(2).units == ["[CLS]", "strangely"]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(0, 1000))
def test_merged_rows_keep_their_sums(sizes: list[int], seed: int) -> None:
    tokens = sum(sizes)
    weights = np.random.default_rng(seed).dirichlet(np.ones(tokens), size=(2, tokens))
    starts = np.cumsum(sizes) - sizes
    merged = merge_tokens(weights, starts)
    assert merged.shape == (2, len(sizes), len(sizes))
    np.testing.assert_allclose(merged.sum(-1), 1.0)
    # The slow way: sums over keys, means over queries.
    ends = np.cumsum(sizes)
    for row, (a, b) in enumerate(zip(starts, ends, strict=True)):
        for column, (c, d) in enumerate(zip(starts, ends, strict=True)):
            np.testing.assert_allclose(merged[:, row, column], weights[:, a:b, c:d].sum(-1).mean(-1))


def test_odd_unicode_has_maps() -> None:
    texts = [text for text in TRICKY if text.strip()]
    for one in maps(made("bert"), texts):
        for layer in one.weights:
            np.testing.assert_allclose(layer.sum(-1), 1.0, atol=1e-5)


def test_long_text_is_truncated_with_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    monkeypatch.setattr(module, "log_info", messages.append)
    (one,) = maps(made("bert"), ["late " * 100], tokens=True)
    assert len(one.units) == 24
    assert messages == ["1 of 1 texts are longer than 24 tokens and were truncated"]


def test_wrong_heads_are_refused_with_their_range() -> None:
    assert parse_head(" 3.7 ") == (3, 7)
    for text in ("3", "3.7.1", "a.b", "-1.2", "3,7", "", "9" * 50):
        with pytest.raises(PretuneError, match=r"expected LAYER\.HEAD"):
            parse_head(text)
    check_head(2, 4, [4, 4])
    for layer in (0, 3):
        with pytest.raises(PretuneError, match=f"layer {layer} does not exist.*with attention, 1 to 2"):
            check_head(layer, 1, [4, 3])
    for head in (0, 4):
        with pytest.raises(
            PretuneError, match=f"head {head} does not exist; choose one of the heads of layer 2, 1 to 3"
        ):
            check_head(2, head, [4, 3])


def test_models_and_texts_without_attention_are_refused() -> None:
    with pytest.raises(PretuneError, match="text 2 is blank"):
        maps(made("bert"), ["a", " \n"])
    with pytest.raises(PretuneError, match=r"not available for this lstm model.*choose such a model"):
        maps(random_model("lstm", small_tokenizer("wordpiece"), "lm"), ["a"])
    model = made("bert")
    model.tokenizer = None
    with pytest.raises(PretuneError, match="has no tokenizer"):
        maps(model, ["a"])
