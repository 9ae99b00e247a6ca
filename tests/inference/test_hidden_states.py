"""Hidden states and attention weights of texts and token ids, against `transformers`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pretune import PretuneError
from pretune.inference.hidden_states import compute_states
from pretune.models.loading import load
from tests.support.tiny_models import save_random_model
from tests.support.transformers_cases import CASES

IDS = [[7, 12, 31, 8, 9], [11, 25], [13, 14, 15, 40, 41, 42, 43]]
TEXTS = ["The train was late.", "Yes.", "We waited for an hour, and nobody came.", "It rains."]


@pytest.mark.parametrize("family", ["bert", "modernbert", "deberta-v2", "albert", "gpt2", "t5", "mpnet"])
def test_states_and_attentions_match_transformers(family: str, tmp_path: Path) -> None:
    reference = CASES[family].reference(tmp_path, {})
    reference.set_attn_implementation("eager")
    model = load(tmp_path)
    states = compute_states(model, IDS, hidden_states=True, attentions=True)
    assert states.hidden_states is not None and states.attentions is not None
    network = reference.get_encoder() if family == "t5" else reference
    for number, ids in enumerate(IDS):  # one by one: `transformers` has no padding to mask then
        with torch.no_grad():
            theirs = network(torch.tensor([ids]), output_hidden_states=True, output_attentions=True)
        length = len(ids)
        assert states.ids[number, :length].tolist() == ids
        assert states.mask[number].tolist() == [True] * length + [False] * (7 - length)
        layers = [
            (ours, expected, (slice(length),))
            for ours, expected in zip(states.hidden_states, theirs.hidden_states, strict=True)
        ]
        square = (slice(None), slice(length), slice(length))
        layers += [
            (ours, expected, square) for ours, expected in zip(states.attentions, theirs.attentions, strict=True)
        ]
        for ours, expected, real in layers:
            torch.testing.assert_close(ours[number][real], expected[0], atol=1e-5, rtol=1e-5)
            assert int(ours[number].count_nonzero()) == int(ours[number][real].count_nonzero())  # padding is 0
    assert torch.equal(states.last_hidden_state, states.hidden_states[-1])


def test_order_and_batching_of_texts_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(save_random_model(tmp_path, "bert", "mlm"))
    whole = compute_states(model, TEXTS, attentions=True)
    order = [2, 0, 3, 1]
    monkeypatch.setattr("pretune.models.length_bucketing.TOKENS", 16)  # several batches
    other = compute_states(model, [TEXTS[place] for place in order], attentions=True)
    assert whole.attentions is not None and other.attentions is not None
    assert torch.equal(whole.mask[order], other.mask) and torch.equal(whole.ids[order], other.ids)
    torch.testing.assert_close(whole.last_hidden_state[order], other.last_hidden_state, atol=1e-5, rtol=1e-5)
    for mine, others in zip(whole.attentions, other.attentions, strict=True):
        torch.testing.assert_close(mine[order], others, atol=1e-5, rtol=1e-5)


def test_ids_of_a_text_give_the_states_of_the_text(tmp_path: Path) -> None:
    model = load(save_random_model(tmp_path, "bert", "mlm"))
    texts = compute_states(model, TEXTS)
    ids = [row[mask].tolist() for row, mask in zip(texts.ids, texts.mask, strict=True)]
    again = compute_states(model, ids)
    torch.testing.assert_close(texts.last_hidden_state, again.last_hidden_state, atol=1e-5, rtol=1e-5)
    assert len(compute_states(model, ids[0])) == 1  # a list of integers is one sequence
    assert compute_states(model, [], hidden_states=True).last_hidden_state.shape == (0, 0, 16)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([[1, 2], "text"], "sequence 1 of the token ids"),
        ([[1, 100_000]], "token id 100000"),
        ([[-1]], "token id -1"),
        ([[]], "has no token ids"),
        ([[1] * 100], "at most 24"),
        ([[1.5]], "not a list of integers"),
        (5, "neither a list of texts"),
    ],
)
def test_wrong_inputs_are_refused(inputs: object, message: str, tmp_path: Path) -> None:
    model = load(save_random_model(tmp_path, "bert", "mlm"))
    with pytest.raises(PretuneError, match=message):
        compute_states(model, inputs)


@pytest.mark.parametrize(("family", "objective"), [("performer", "mlm"), ("lstm", "lm"), ("big_bird", "mlm")])
def test_models_without_attention_weights_are_refused(family: str, objective: str, tmp_path: Path) -> None:
    model = load(save_random_model(tmp_path, family, objective))
    states = compute_states(model, TEXTS[:1], hidden_states=True)
    assert states.hidden_states is not None and len(states.hidden_states) > 1
    with pytest.raises(PretuneError, match="attention weights are not available"):
        compute_states(model, TEXTS[:1], attentions=True)
