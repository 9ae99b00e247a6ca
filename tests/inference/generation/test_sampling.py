"""Tests of decoding settings: equivalent settings agree, and choices, stop strings and streams work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.inference.generation.causal_generation import TextGenerator
from pretune.inference.generation.decoding_loops import GenerationConfig, beam_search_texts, generate_texts
from pretune.inference.generation.decoding_session import DecodingSession
from pretune.inference.generation.seq2seq_generation import Seq2SeqGenerator
from pretune.inference.generation.stop_strings import TextStream, truncate_at_stop
from tests.support.cli import run_command
from tests.support.tiny_models import read, tiny

WORDS = ["red", "water", "fire", "tree", "stone", "cloud", "good", "bad"]
CHOICES = ("good", "good fire", "bad", "stone cloud tree")
SETTINGS: list[dict[str, Any]] = [
    {}, {"temperature": 3.0}, {"top_k": 5, "temperature": 9.0}, {"top_p": 0.5}, {"num_beams": 3}, {"num_beams": 2, "length_penalty": 0.0},
    {"no_repeat_ngram_size": 1, "repetition_penalty": 5.0}, {"num_beams": 2, "no_repeat_ngram_size": 1},
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with untrained models."""
    folder = tmp_path_factory.mktemp("writing")
    known = read([" ".join(WORDS)] * 9)
    tiny("gpt2-tiny", known, folder / "gpt2", "lm")
    tiny("t5-tiny", known, folder / "t5", "lm")
    return folder


@pytest.fixture(scope="module", params=["gpt2", "t5"])
def writer(request: pytest.FixtureRequest, folder: Path) -> TextGenerator | Seq2SeqGenerator:
    return (TextGenerator if request.param == "gpt2" else Seq2SeqGenerator).load(folder / request.param)


def generate(writer: TextGenerator | Seq2SeqGenerator, prompts: list[str], how: GenerationConfig) -> list[str]:
    return [row.get("continuation", row["text"]) for row in writer.generate(prompts, how)]


@torch.inference_mode()
@pytest.mark.parametrize("penalty", [0.0, 1.0, 3.0])
def test_one_beam_is_greedy(penalty: float, folder: Path) -> None:
    writer = TextGenerator.load(folder / "gpt2")
    prompts = [[5, 6], [9], [12, 13, 14]]
    how = GenerationConfig(12, length_penalty=penalty)
    ends: list[set[int]] = [set(), {7, 30, 31, 32, 33}]
    for end in ends:
        one, greedy = (DecodingSession(writer.model, 3, 20) for _ in range(2))
        beams = beam_search_texts(one, prompts, [12] * 3, how, end)
        assert [beam.ids for beam in beams] == [
            t.ids for t in generate_texts(greedy, prompts, [0, 1, 2], [12] * 3, how, end)
        ]


@pytest.mark.parametrize(("seed", "temperature"), [(0, 0.5), (1, 1.0), (2, 2.0)])
def test_top_p_1_is_plain_sampling(folder: Path, seed: int, temperature: float) -> None:
    writer = TextGenerator.load(folder / "gpt2")
    plain, *same = (
        generate(writer, ["red", "good tree"], GenerationConfig(8, temperature=temperature, seed=seed, **options))
        for options in ({}, {"top_p": 1.0}, {"top_k": 10**6})
    )
    assert same == [plain, plain]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_only_the_given_choices_are_generated(
    settings: dict[str, Any], writer: TextGenerator | Seq2SeqGenerator
) -> None:
    prompts = [f"{a} {b}" for a in WORDS for b in WORDS[:3]]
    found = generate(writer, prompts, GenerationConfig(1, choices=CHOICES, seed=3, **settings))
    assert {text.strip() for text in found} <= set(CHOICES)
    if settings.get("temperature") == 3.0:
        assert len(set(found)) > 1


@pytest.mark.parametrize("settings", SETTINGS[:5], ids=str)
def test_texts_end_before_stop_strings(settings: dict[str, Any], writer: TextGenerator | Seq2SeqGenerator) -> None:
    prompts = ["red water", "bad", "tree fire"]
    whole = generate(writer, prompts, GenerationConfig(12, **settings))
    stop = tuple({text[len(text) // 2 :][:3] for text in whole if text.strip()}) or ("re",)
    stopped = generate(writer, prompts, GenerationConfig(12, stop=stop, **settings))
    assert not any(string in text for text in stopped for string in stop)
    if "num_beams" not in settings:
        assert stopped == [truncate_at_stop(text, stop) for text in whole]


@pytest.mark.parametrize("settings", SETTINGS[:4], ids=str)
def test_streams_add_up_to_the_text(settings: dict[str, Any], writer: TextGenerator | Seq2SeqGenerator) -> None:
    prompts = ["red water", "bad"]
    for more in ({}, {"stop": ("e", " w")}, {"choices": CHOICES}):
        how = GenerationConfig(9, seed=2, **settings, **more)
        for row, text in enumerate(generate(writer, prompts, how)):
            assert "".join(writer.stream(prompts[row], how, row)) == text
    assert not torch.is_inference_mode_enabled()


def test_streams_withhold_text_that_may_still_change() -> None:
    pieces = TextStream(["\n\n"])
    assert [pieces.update("на\ufffd"), pieces.update("над\n"), pieces.update("над\nа\n\nб", complete=True)] == [
        "на",
        "д",
        "\nа",
    ]


def test_command_line_streams_and_restricts_choices(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)
    for name in ("gpt2", "t5"):
        said = run_command(
            "generate", folder / name, "red", "bad tree", "--temperature", 2, "--stop", "e", "w", "--stream", "--json"
        )
        texts = [row.get("continuation", row["text"]) for row in said.json()["texts"]]
        assert said.stderr.endswith("\n".join([*texts, ""]))
        again = pt.generate(folder / name, ["red", "bad tree"], temperature=2, stop=["e", "w"])
        assert [row.get("continuation", row["text"]) for row in again] == texts
    (row,) = pt.generate(folder / "t5", ["red"], choices=["good", "bad"])
    assert row["text"] in ("good", "bad") and row["ended"]


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("gpt2", {"stop": [""]}, "stop: there is an empty text among ''"),
        ("gpt2", {"choices": ["good", " "]}, "choices: there is an empty text"),
        ("gpt2", {"choices": ["good", "☃"]}, "choice '☃': the model's tokenizer cannot represent it"),
        ("t5", {"choices": ["good", "☃"]}, "the tokenizer cannot encode the answer '☃'"),
        ("gpt2", {"stream": True, "num_beams": 2}, "leave out num_beams"),
        ("gpt2", {"language_pair": "en-ro"}, "--language-pair applies only to models that take language tokens"),
        ("t5", {"language_pair": "en-ro"}, "--language-pair applies only to models that take language tokens"),
        ("gpt2", {"prompts": ["red " * 1022], "choices": CHOICES}, "a prompt of 1022 tokens is too long"),
    ],
)
def test_invalid_requests_are_rejected(model: str, options: dict[str, Any], message: str, folder: Path) -> None:
    with pytest.raises(pt.PretuneError, match=message):
        pt.generate(folder / model, **{"prompts": ["red"], **options})
