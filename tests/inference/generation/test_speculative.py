"""Speculative decoding: greedy texts are those of the target model, and samples follow its distribution."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pretune as pt
from pretune.inference.generation import static_decoding
from pretune.inference.generation.causal_generation import TextGenerator
from pretune.inference.generation.decoding_loops import GenerationConfig
from pretune.inference.generation.sampling import token_probabilities
from pretune.inference.generation.speculative import RoundDraws, verify_sampled
from pretune.inference.generation.static_decoding import is_recordable
from pretune.models.model import Model
from pretune.runtime.randomness import uniform
from pretune.text.corpus.documents import Document
from pretune.text.tokenizers.training import train_on_documents as train_tokenizer
from tests.support import tiny_training_cases
from tests.support.language_models import POSITIONS, gpt2
from tests.support.texts import RUSSIAN

PROMPTS = [[5, 9, 200], [17] * 9, [250, 4, 30, 31, 32, 90], [8], [44, 45]]


@cache
def models(noise: float) -> tuple[Model, Model]:
    """Return a target model, and a draft model with other weights, as different as `noise`."""
    return gpt2(), gpt2(noise=noise)


def generate(draft: Model | None, prompts: list[list[int]], end: set[int], **options: Any) -> list[tuple[Any, bool]]:
    writer = TextGenerator(models(0.0)[0], torch.device("cpu"), draft)
    return [(text.ids, text.ended) for text in writer.generate_ids(prompts, GenerationConfig(**options), end)]


@given(
    st.lists(st.lists(st.integers(0, 299), min_size=1, max_size=9), min_size=1, max_size=4),
    st.sampled_from([0.0, 0.02, 1.0]),
    st.sets(st.integers(0, 299), max_size=40),
    st.integers(1, 45),
    st.booleans(),
    st.sampled_from([(), ("e", " t")]),
)
@settings(max_examples=30, deadline=None)
def test_greedy_texts_equal_those_without_a_draft_model(
    prompts: list[list[int]], noise: float, end: set[int], tokens: int, static: bool, stop: tuple[str, ...]
) -> None:
    draft = models(noise)[1]
    expected = generate(None, prompts, end, max_new_tokens=tokens, stop=stop)
    with pytest.MonkeyPatch.context() as patch:
        if static:
            patch.setattr(static_decoding, "has_static_steps", is_recordable)
        assert generate(draft, prompts, end, max_new_tokens=tokens, stop=stop) == expected


def test_a_good_draft_model_saves_steps() -> None:
    target, same = models(0.0)
    writer = TextGenerator(target, torch.device("cpu"), same)
    steps = list(writer.stream("the value", GenerationConfig(max_new_tokens=30)))
    assert len(steps) == 1 + -(-29 // 5)  # the first token, then four proposals and one more token per step


@pytest.mark.parametrize("options", [{}, {"temperature": 0.5}, {"top_k": 4}, {"top_p": 0.7}], ids=str)
def test_verified_tokens_follow_the_distribution_of_the_target_model(options: dict[str, Any]) -> None:
    """Compare the first token after each check, by a chi-square test."""
    from scipy.stats import chisquare

    rounds, places, vocabulary = 20_000, 2, 8
    chance = torch.Generator().manual_seed(0)
    wanted = torch.randn(1, places + 1, vocabulary, generator=chance).expand(rounds, -1, -1)
    logits = wanted[0, :places] + torch.randn(places, vocabulary, generator=chance) / 2
    how = GenerationConfig(**{"temperature": 1.0, **options})
    draws = RoundDraws(how, np.arange(rounds), np.zeros(rounds, dtype=np.int64))
    expected = draws.probabilities(logits).expand(rounds, -1, -1)
    proposed = torch.stack(
        [torch.multinomial(expected[0, place], rounds, replacement=True, generator=chance) for place in range(places)],
        1,
    )
    accepted, chosen = verify_sampled(wanted, proposed, expected, draws)
    for place in range(places + 1):
        found = chosen[accepted >= place, place].numpy()
        shares = token_probabilities(wanted[0, place][None], how.temperature or 1.0, how.top_k, how.top_p)[0].numpy()
        counts = np.bincount(found, minlength=vocabulary)
        assert len(found) > 500 and not counts[shares == 0].any()
        assert chisquare(counts[shares > 0], shares[shares > 0] / shares.sum() * len(found)).pvalue > 1e-3


def test_sampled_texts_follow_the_distribution_of_the_target_model() -> None:
    """Compare the second and third token of many samples with those without a draft model, by a chi-square test."""
    from scipy.stats import chi2_contingency

    draft = models(0.1)[1]
    prompts, options = [[5, 9, 200]] * 1500, {"temperature": 1.0, "top_k": 3, "max_new_tokens": 3}
    texts = [generate(model, prompts, set(), seed=seed, **options) for seed, model in ((1, None), (2, draft))]
    for place in (1, 2):
        tokens = [[ids[place] for ids, _ in some] for some in texts]
        kinds, places = np.unique(np.concatenate(tokens), return_inverse=True)
        counts = np.stack([np.bincount(part, minlength=len(kinds)) for part in np.split(places, 2)])
        counts = counts[:, counts.sum(0) >= 10]
        assert counts.shape[1] > 1 and chi2_contingency(counts).pvalue > 1e-3


def test_sampled_texts_depend_on_the_seed_alone() -> None:
    draft = models(0.1)[1]
    first, again, other = (
        generate(draft, PROMPTS, set(), temperature=2.0, max_new_tokens=12, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again != other
    assert generate(draft, PROMPTS[:1], set(), temperature=2.0, max_new_tokens=12, seed=1) == first[:1]
    assert uniform(1, "accept", 0, 0, 0) != uniform(1, "accept", 0, 1, 0)  # rounds do not share random numbers


def save(folder: Path, **config: Any) -> Path:
    gpt2(**config).save(folder)
    return folder


def test_generate_with_a_draft_model(tmp_path: Path) -> None:
    target, draft = save(tmp_path / "target"), save(tmp_path / "draft", n_layer=1, n_positions=20)
    prompts = ["the value", "a list of"]
    plain = pt.generate(target, prompts, max_new_tokens=20)
    assert pt.generate(target, prompts, max_new_tokens=20, draft=draft).rows == plain.rows
    assert list(pt.load(target).generate(prompts, max_new_tokens=20, draft=pt.load(draft))) == plain.rows
    streamed = pt.generate(target, prompts, max_new_tokens=20, draft=draft, stream=True)
    assert [row["text"] for row in streamed] == [row["text"] for row in plain]


def test_unsuitable_draft_models_are_refused(tmp_path: Path) -> None:
    target, draft = models(0.0)[0], gpt2(n_layer=1, n_positions=8)
    writer = TextGenerator(target, torch.device("cpu"), draft)
    with pytest.raises(pt.PretuneError, match="the draft model has 8 positions, so a prompt of 9 tokens is too long"):
        writer.generate_ids(PROMPTS, GenerationConfig(max_new_tokens=4), set())
    for options in ({"num_beams": 2}, {"repetition_penalty": 1.5}, {"no_repeat_ngram_size": 2}):
        with pytest.raises(pt.PretuneError, match="a draft model supports greedy decoding and sampling only"):
            writer.generate_ids([[5]], GenerationConfig(max_new_tokens=4, **options), set())
    folder = save(tmp_path / "target")
    other = gpt2()
    documents = [Document(text, tmp_path, 1) for text in RUSSIAN]
    other.tokenizer = train_tokenizer(documents, "bpe", tiny_training_cases.VOCABULARY)
    other.save(tmp_path / "other")
    with pytest.raises(pt.PretuneError, match=r"has a different tokenizer than .*target, so it cannot propose tokens"):
        pt.generate(folder, ["a"], draft=tmp_path / "other")
    assert target.backbone.max_positions == POSITIONS
