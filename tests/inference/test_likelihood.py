"""Tests that likelihoods of texts equal those of a loop over tokens, for every kind of model, window, and batch."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pretune as pt
from pretune.inference.likelihood import LikelihoodScorer, scoring_windows
from pretune.models.create_model import make_model
from pretune.models.model import Model, Network
from pretune.nn.attention.patterns import causal
from pretune.objectives import parse_objective
from pretune.packed import pack_lists
from pretune.runtime.errors import PretuneError
from pretune.text.tokenizers.tokenizer import Tokenizer

TEXTS = ["the river was low in august and children waded through it", "stones", "water and fire", ""]
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "lm": ("gpt2-tiny", {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 40}),
    "prefix": ("bert-tiny", {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32}),
    "mlm": ("bert-tiny", {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32}),
    "rtd": ("bert-tiny", {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32}),
    "plm": ("xlnet-tiny", {"d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32}),
    "spans": ("t5-tiny", {"d_model": 16, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2, "d_kv": 8, "d_ff": 32}),
}  # fmt: skip


@cache
def tokenizer() -> Tokenizer:
    import tempfile

    folder = Path(tempfile.mkdtemp())
    (folder / "a.txt").write_text("\n".join(TEXTS * 3), encoding="utf-8")
    return pt.train_tokenizer(str(folder / "a.txt"), kind="bpe", vocab_size=90)


@cache
def scorer(objective: str) -> LikelihoodScorer:
    preset, sizes = SMALL[objective]
    start = make_model(preset, 96)
    config = replace(start.config, **sizes)
    torch.manual_seed(3)
    model = Model(start.family, config, Network(start.family.build(config)))
    model.tokenizer = tokenizer()
    model.add_heads(parse_objective(objective).objectives)
    for parameter in model.root.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.root.eval()
    return LikelihoodScorer(model, objective, torch.device("cpu"))


@torch.inference_mode()
def loop_over_tokens(found: LikelihoodScorer, text: str) -> list[float]:
    """Score token after token, each with its own forward pass."""
    model, objective = found.model, found.head
    own = model.require_tokenizer()
    ids, head, tokens = own.encode(text), model.root.heads[found.head], model.backbone.embed.tokens
    scores = []
    for place in range(len(ids)):
        if objective in ("lm", "prefix"):
            begin = [own.role("end" if objective == "lm" else "start")]
            read = [*begin, *ids[:place]]
            prefix = {"prefix": np.array([1] + [0] * place)} if objective == "prefix" else {}
            packed = pack_lists([read], pattern=found.method.pattern, columns=prefix)
            state = model.backbone(packed).last[-1]
        elif objective == "spans":
            source, written = (
                pack_lists([[own.role("end")]]),
                pack_lists([[own.role("padding"), *ids[:place]]], pattern=causal),
            )
            state = model.backbone(source, written).last[-1]
        elif objective == "mlm":
            read = [own.role("start"), *ids, own.role("separator")]
            read[place + 1] = own.role("mask")
            state = model.backbone(pack_lists([read])).last[place + 1]
        elif objective == "rtd":
            read = [own.role("start"), *ids, own.role("separator")]
            state = model.backbone(pack_lists([read])).last[place + 1]
            scores.append(float(torch.nn.functional.logsigmoid(-head(state[None]))[0]))
            continue
        else:
            # All others are one part, the token alone another: the order in which PLM predicts.
            whole = [*ids, own.role("separator"), own.role("start")]
            read = [*whole, own.role("mask")]
            columns = {
                "order": np.array([int(i == place) for i in range(len(whole))] + [1]),
                "stream": np.array([0] * len(whole) + [1]),
                "segment": np.array([0] * (len(whole) - 1) + [2, 0]),
            }
            positions = np.array([*range(len(whole)), place])
            packed = pack_lists([read], pattern=found.method.pattern, columns=columns, positions=positions)
            state = model.backbone(packed).last[-1]
        scores.append(float(head(state[None], tokens).float().log_softmax(-1)[0, ids[place]]))
    return scores


@pytest.mark.parametrize("objective", SMALL)
def test_likelihoods_equal_those_of_a_loop_over_tokens(objective: str) -> None:
    found = scorer(objective)
    for text, scores in zip(TEXTS, found(TEXTS), strict=True):
        assert scores == pytest.approx(loop_over_tokens(found, text), abs=1e-4)


@pytest.mark.parametrize("objective", ["lm", "mlm"])
def test_likelihoods_do_not_depend_on_order_or_batch(objective: str) -> None:
    found = scorer(objective)
    together, backwards = found(TEXTS), found(TEXTS[::-1])[::-1]
    for text, a, b in zip(TEXTS, together, backwards, strict=True):
        assert a == pytest.approx(b, abs=1e-5) and a == pytest.approx(found([text])[0], abs=1e-5)
    assert found([]) == []


def test_bidirectional_models_average_both_directions() -> None:
    model = make_model("elmo-transformer-tiny", 96)
    model.tokenizer = tokenizer()
    model.add_heads(parse_objective("bilm").objectives)
    model.root.eval()
    found = LikelihoodScorer(model, "bilm", torch.device("cpu"))
    ids = tokenizer().encode(TEXTS[2])
    whole = [tokenizer().role("start"), *ids, tokenizer().role("end")]
    with torch.inference_mode():
        states = model.backbone(pack_lists([whole], pattern=causal)).last.view(len(whole), 2, -1)
        tell = lambda state, token: float(  # noqa: E731
            model.root.heads["bilm"](state[None], model.backbone.embed.tokens).float().log_softmax(-1)[0, token]
        )
        expected = [(tell(states[i, 0], t) + tell(states[i + 2, 1], t)) / 2 for i, t in enumerate(ids)]
    assert found([TEXTS[2]])[0] == pytest.approx(expected, abs=1e-4)


def test_likelihoods_depend_on_the_source() -> None:
    found = scorer("spans")
    assert found(["water"], ["fire"])[0] != pytest.approx(found(["water"])[0])
    with pytest.raises(PretuneError, match="reads no source text"):
        scorer("lm")(["water"], ["fire"])


@given(st.integers(0, 40), st.integers(2, 12), st.integers(1, 15), st.booleans())
def test_every_token_counts_once(tokens: int, room: int, stride: int, both: bool) -> None:
    found = scoring_windows(tokens, room, stride, both)
    counted = np.concatenate([np.empty(0, dtype=int), *(part for _, _, part in found)])
    assert sorted(counted.tolist()) == list(range(tokens))
    for start, end, part in found:
        assert start >= 0 and end - start <= room and end <= tokens
        assert ((part >= start) & (part < end)).all()


def test_long_texts_are_read_in_windows() -> None:
    found = scorer("lm")
    long = " ".join([TEXTS[0]] * 6)
    ids = tokenizer().encode(long)
    assert len(ids) > 40
    (scores,) = found([long], length=20, stride=6)
    assert len(scores) == len(ids) and not np.isnan(scores).any()
    begin = tokenizer().role("end")
    first = loop_over_tokens(found, long[:20])
    assert scores[: len(first) - 1] == pytest.approx(first[:-1], abs=1e-4)
    # The second window begins inside the text, and has at least 19 - 6 tokens of context before the tokens it scores.
    room = 20 - 1
    start, end, counted = scoring_windows(len(ids), room, 6, False)[1]
    with torch.inference_mode():
        states = found.model.backbone(pack_lists([ids[start:end]], pattern=causal)).last
        logits = found.model.root.heads["lm"](states, found.model.backbone.embed.tokens).float().log_softmax(-1)
    expected = [float(logits[place - start - 1, ids[place]]) for place in counted]
    assert scores[counted] == pytest.approx(expected, abs=1e-4) and begin not in ids
    with pytest.raises(PretuneError, match="no room"):
        found([long], length=2)
