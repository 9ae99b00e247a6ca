"""Decoding steps with fixed shapes generate the texts of the other steps; here they run without a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.inference.generation import static_decoding
from pretune.inference.generation.causal_generation import TextGenerator
from pretune.inference.generation.decoding_loops import GenerationConfig
from pretune.inference.generation.decoding_session import DecodingSession
from pretune.inference.generation.static_decoding import StaticSession, begin_steps, bucket, is_recordable
from pretune.models.model import Model
from tests.support.language_models import CONFIG, gpt2

PROMPTS = [[5, 9, 200], [17] * 9, [250, 4, 30, 31, 32, 90], [8], [44, 45]]


@cache
def model() -> Model:
    return gpt2()


@pytest.fixture(autouse=True)
def static_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use static steps on the CPU, where nothing is recorded."""
    model()  # not first in inference mode
    monkeypatch.setattr(static_decoding, "has_static_steps", is_recordable)
    yield
    static_decoding._IDLE.clear()


def generate(static: bool, prompts: list[list[int]], end: set[int], **options: Any) -> list[tuple[list[int], bool]]:
    """Return the new tokens of each prompt, and whether it ended."""
    writer = TextGenerator(model(), torch.device("cpu"))
    with pytest.MonkeyPatch.context() as patch:
        if not static:
            patch.setattr(static_decoding, "has_static_steps", lambda reader: False)
        return [(text.ids, text.ended) for text in writer.generate_ids(prompts, GenerationConfig(**options), end)]


@torch.inference_mode()
def test_static_logits_equal_other_logits_at_every_step() -> None:
    sessions = [DecodingSession(model(), len(PROMPTS), 30) for _ in range(2)]
    for session in sessions:
        session.read(PROMPTS)
    static = begin_steps(sessions[1])
    assert isinstance(static, StaticSession)
    for step in range(12):
        tokens = torch.tensor([(step * 31 + row * 7) % 300 for row in range(len(PROMPTS))])
        expected = sessions[0].advance(tokens)
        torch.testing.assert_close(static.advance(tokens), expected, atol=1e-5, rtol=1e-5)
    lengths = np.array([len(prompt) + 3 * (row % 2) for row, prompt in enumerate(PROMPTS)])
    sessions[0].truncate(lengths)
    static.truncate(lengths)
    many = torch.arange(4 * len(PROMPTS)).view(-1, 4)
    torch.testing.assert_close(static.advance_many(many), sessions[0].advance_many(many), atol=1e-5, rtol=1e-5)


MODES: list[dict[str, Any]] = [
    {},
    {"temperature": 1.5, "seed": 3},
    {"top_k": 7},
    {"top_p": 0.8, "temperature": 2.0},
    {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2},
    {"num_beams": 3},
    {"num_beams": 4, "length_penalty": 0.0},
    {"num_beams": 2, "repetition_penalty": 1.5},
    {"num_beams": 3, "stop": ("e",)},
    {"stop": ("e", " t")},
]


@given(
    st.lists(st.lists(st.integers(0, 299), min_size=1, max_size=9), min_size=1, max_size=4),
    st.sampled_from(MODES),
    st.sets(st.integers(0, 299), max_size=40),
    st.integers(1, 45),
)
@settings(max_examples=40, deadline=None)
def test_static_steps_generate_the_same_texts(
    prompts: list[list[int]], mode: dict[str, Any], end: set[int], tokens: int
) -> None:
    if "num_beams" in mode:
        end = set(sorted(end)[:3])  # a vocabulary of 300 tokens has no more candidates for all beams
    options = {"max_new_tokens": tokens, **mode}
    assert generate(True, prompts, end, **options) == generate(False, prompts, end, **options)


def test_workspaces_are_used_again_only_by_the_same_model_and_shape() -> None:
    generate(True, PROMPTS, set(), max_new_tokens=5)
    (first,) = static_decoding._IDLE[model().backbone]
    generate(True, PROMPTS, set(), max_new_tokens=5)
    generate(True, PROMPTS[:2], set(), max_new_tokens=5)
    generate(True, PROMPTS[:2], set(), max_new_tokens=5, num_beams=3)
    generate(True, PROMPTS[:2], set(), max_new_tokens=5, num_beams=2)
    idle = static_decoding._IDLE[model().backbone]
    assert len(idle) == static_decoding.MOST_IDLE and first not in idle
    before = generate(True, PROMPTS[:2], set(), max_new_tokens=5)
    parameter = model().backbone.layers[0].attention.part.qkv.weight
    weights = parameter.data
    parameter.data = -weights  # elsewhere in memory
    changed = generate(True, PROMPTS[:2], set(), max_new_tokens=5)
    assert changed == generate(False, PROMPTS[:2], set(), max_new_tokens=5) != before
    parameter.data = weights


def test_nan_is_an_error() -> None:
    broken = gpt2()
    writer = TextGenerator(broken, torch.device("cpu"))
    broken.backbone.embed.positions.weight.data[7] = torch.nan  # read by a later step
    with pytest.raises(PretuneError, match="the model computes NaN"):
        writer.generate_ids([[5, 6, 7]], GenerationConfig(max_new_tokens=20), set())
    assert broken.backbone not in static_decoding._IDLE


def test_choices_are_the_same_as_with_other_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = TextGenerator(model(), torch.device("cpu"))
    prompts, how = ["the value", "a list of", "if"], GenerationConfig(choices=("value", "a list", "x"))
    found = writer.generate(prompts, how)
    monkeypatch.setattr(static_decoding, "has_static_steps", lambda reader: False)
    assert writer.generate(prompts, how) == found


def test_streams_yield_every_token() -> None:
    writer = TextGenerator(model(), torch.device("cpu"))
    pieces = list(writer.stream("the value", GenerationConfig(max_new_tokens=30)))
    assert len(pieces) == 30
    assert "".join(pieces) == writer.generate(["the value"], GenerationConfig(max_new_tokens=30))[0]["continuation"]


def test_other_networks_have_no_static_steps() -> None:
    windows = gpt2(n_positions=CONFIG["n_positions"])
    windows.backbone.memory = 8
    assert not is_recordable(DecodingSession(windows, 1, 8))
    assert [bucket(slots) for slots in (1, 64, 65, 1024)] == [64, 64, 128, 1024]
