"""Decoding steps that are recorded as CUDA graphs generate the texts of a CPU. Run with -m gpu."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from pretune.inference.generation import static_decoding
from pretune.inference.generation.causal_generation import TextGenerator
from pretune.inference.generation.decoding_loops import GenerationConfig
from pretune.inference.generation.decoding_session import DecodingSession
from pretune.inference.generation.static_decoding import StaticSession, begin_steps
from pretune.models.model import Model
from pretune.nn.attention import scaled_dot_product
from tests.support.language_models import gpt2

pytestmark = pytest.mark.gpu

PROMPTS = [[5, 9, 200], [17] * 9, [250, 4, 30, 31, 32, 90], [8], [44, 45]]
MODES: list[dict[str, Any]] = [
    {},
    {"temperature": 1.5, "seed": 3},
    {"top_k": 7},
    {"top_p": 0.8, "temperature": 2.0},
    {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2},
    {"num_beams": 3},
    {"num_beams": 4, "length_penalty": 0.0},
    {"num_beams": 2, "repetition_penalty": 1.5},
    {"stop": ("e", " t")},
]


@pytest.fixture(params=["kernel", "dense"])
def attention(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use either implementation of attention to the cache."""
    if request.param == "dense":
        monkeypatch.setattr(scaled_dot_product, "DECODE_HEAD_WIDTHS", ())
    static_decoding._IDLE.clear()
    yield
    static_decoding._IDLE.clear()


@cache
def model(device: str, noise: float = 0.0, layers: int = 2) -> Model:
    made = gpt2(noise=noise, n_positions=320, n_layer=layers)
    made.root.to(device)
    return made


def generate(device: str, prompts: list[list[int]], end: set[int], draft: Model | None = None, **options: Any) -> Any:
    writer = TextGenerator(model(device), torch.device(device), draft)
    return [(text.ids, text.ended) for text in writer.generate_ids(prompts, GenerationConfig(**options), end)]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_recorded_steps_generate_the_texts_of_a_cpu(mode: dict[str, Any], attention: None) -> None:
    for tokens, end in ((70, set[int]()), (40, {3, 77, 150})):  # more than one number of visible slots
        expected = generate("cpu", PROMPTS, end, max_new_tokens=tokens, **mode)
        for _ in range(2):  # recorded, then only replayed
            assert generate("cuda", PROMPTS, end, max_new_tokens=tokens, **mode) == expected
    if not {"num_beams", "repetition_penalty"} <= mode.keys():  # beam search with penalties has no fixed shapes
        assert static_decoding._IDLE[model("cuda").backbone]


def test_batches_of_other_sizes_and_lengths_do_not_disturb_each_other() -> None:
    for prompts, tokens in ((PROMPTS, 12), (PROMPTS[:2], 200), (PROMPTS[2:], 30), (PROMPTS, 12), (PROMPTS[:2], 200)):
        expected = generate("cpu", prompts, set(), max_new_tokens=tokens)
        assert generate("cuda", prompts, set(), max_new_tokens=tokens) == expected


@pytest.mark.parametrize("noise", [0.0, 0.02, 1.0])
def test_greedy_texts_with_a_draft_model_equal_those_without(noise: float) -> None:
    for end in (set[int](), {3, 77, 150}):
        expected = generate("cpu", PROMPTS, end, max_new_tokens=60)
        for _ in range(2):
            assert generate("cuda", PROMPTS, end, model("cuda", noise), max_new_tokens=60) == expected


def test_sampled_texts_with_a_draft_model_equal_those_of_a_cpu() -> None:
    options = {"temperature": 1.5, "max_new_tokens": 40, "seed": 5}
    expected = generate("cpu", PROMPTS, set(), model("cpu", 0.1), **options)
    assert generate("cuda", PROMPTS, set(), model("cuda", 0.1), **options) == expected


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
@torch.inference_mode()
def test_recorded_logits_are_near_those_of_other_steps(kind: torch.dtype, attention: None) -> None:
    with torch.inference_mode(False):
        network = deepcopy(model("cuda"))
        network.root.to(kind)
        network.root.set_activation_dtype(kind)
    sessions = [DecodingSession(network, len(PROMPTS), 90) for _ in range(2)]
    for session in sessions:
        session.read(PROMPTS)
    static = begin_steps(sessions[1])
    assert isinstance(static, StaticSession)
    tolerance = 1e-4 if kind == torch.float32 else 0.1

    def check(found: torch.Tensor, expected: torch.Tensor) -> None:
        assert (found - expected).norm() <= tolerance * expected.norm()

    for step in range(70):
        tokens = torch.tensor([(step * 31 + row * 7) % 300 for row in range(len(PROMPTS))], device="cuda")
        expected = sessions[0].advance(tokens)
        check(static.advance(tokens), expected)
    lengths = np.array([len(prompt) + 3 * (row % 2) for row, prompt in enumerate(PROMPTS)])
    for reader in (sessions[0], static):
        reader.truncate(lengths)
    many = torch.arange(4 * len(PROMPTS), device="cuda").view(-1, 4)
    check(static.advance_many(many), sessions[0].advance_many(many))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("left", [1 << 30, 20])
@pytest.mark.parametrize("shared", [False, True])
def test_decode_attention_equals_plain_attention(kind: torch.dtype, left: int, shared: bool) -> None:
    from pretune.nn.kernels.decode_attention import decode_attention

    torch.manual_seed(0)
    sequences, slots, heads, width = 5, 192, 3, 64
    q = torch.randn(sequences, 3, heads, width, device="cuda", dtype=kind)[:, 0]
    k, v = torch.randn(2, sequences * slots, heads, width, device="cuda", dtype=kind)
    used = torch.tensor([0, 5, 63, 64, 300], device="cuda")  # the last sequence has more tokens than slots
    table = torch.randint(0, sequences * slots, (sequences, slots), device="cuda") if shared else None
    found = decode_attention(q, k, v, used, slots, table, left, 0.125)
    places = torch.arange(slots, device="cuda")
    for row in range(sequences):
        last = min(int(used[row]), slots - 1)
        chosen = places[(places <= last) & (places >= last - left)]
        index = chosen + row * slots if table is None else table[row, chosen]
        weights = (torch.einsum("hd,khd->hk", q[row].float(), k[index].float()) * 0.125).softmax(-1)
        expected = torch.einsum("hk,khd->hd", weights, v[index].float())
        torch.testing.assert_close(
            found[row].float(), expected, atol=1e-2 if kind == torch.bfloat16 else 1e-4, rtol=1e-2
        )
