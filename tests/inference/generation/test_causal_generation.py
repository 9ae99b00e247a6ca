"""Tests of generation: cached equals uncached, decoding equals `transformers`, sampling is unbiased, and texts end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pretune as pt
from pretune.families import FAMILIES
from pretune.inference.generation import causal_generation as module
from pretune.inference.generation.causal_generation import TextGenerator
from pretune.inference.generation.decoding_loops import GenerationConfig, beam_search_texts, generate_texts
from pretune.inference.generation.decoding_session import DecodingSession
from pretune.inference.generation.sampling import penalize_repetition, sample
from pretune.models.loading import load_model
from pretune.models.model import Model
from pretune.nn.attention.patterns import causal
from pretune.objectives import parse_objective
from pretune.packed import pack_lists
from pretune.runtime.randomness import uniform
from tests.support import tiny_training_cases
from tests.support.texts import RUSSIAN

NAMES = ["openai-gpt", "gpt2"]
POSITIONS = 48
SMALL = {
    "vocab_size": tiny_training_cases.VOCABULARY, "n_positions": POSITIONS, "n_embd": 32, "n_layer": 2, "n_head": 4,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
PROMPTS = [[5, 9, 200], [17] * 9, [250, 4, 30, 31, 32, 90], [8], [44, 45]]


def randomize_parameters(reference: torch.nn.Module) -> None:
    """Set parameters with which every context has its own next token, far from any tie."""
    for name, parameter in reference.named_parameters():
        scale = "ln_" in name and name.endswith("weight")
        torch.nn.init.normal_(parameter, mean=float(scale), std=0.4 if parameter.dim() > 1 else 0.1)


@pytest.fixture(scope="module", params=NAMES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Model, Path]:
    """Return a model of `transformers`, the same model in pretune, and its folder."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(1)
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    reference = AutoModelForCausalLM.from_config(AutoConfig.for_model(request.param, **SMALL, **ids)).eval()
    randomize_parameters(reference)
    folder = tmp_path_factory.mktemp("models") / request.param
    reference.save_pretrained(folder)
    model = load_model(folder, parse_objective("lm"))
    model.tokenizer = tiny_training_cases.store().tokenizer
    model.root.eval()
    model.save(folder)
    return reference, model, folder


def generate_with_transformers(reference: Any, prompt: list[int], end: set[int], **options: Any) -> list[int]:
    """Return what `transformers` adds to a prompt, without the end token."""
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": list(end) or None, "pad_token_id": 0} | options
    out = reference.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), **options
    )
    added: list[int] = out[0, len(prompt) :].tolist()
    return added[: next((i for i, token in enumerate(added) if token in end), len(added))]


@torch.inference_mode()
def generate_ids(model: Model, prompts: list[list[int]], how: GenerationConfig, end: set[int]) -> list[list[int]]:
    reader = DecodingSession(model, len(prompts), max(map(len, prompts)) + how.max_new_tokens)
    limits = [how.max_new_tokens] * len(prompts)
    if how.num_beams > 1:
        return [beam.ids for beam in beam_search_texts(reader, prompts, limits, how, end)]
    return [text.ids for text in generate_texts(reader, prompts, range(len(prompts)), limits, how, end)]


def frequent_token(model: Model) -> int:
    """Return a token that is in the middle of greedy texts, to use as an end token."""
    texts = generate_ids(model, PROMPTS, GenerationConfig(max_new_tokens=12), set())
    return int(np.bincount([token for text in texts for token in text[2:]]).argmax())


@torch.inference_mode()
def test_cached_logits_equal_uncached_logits_at_every_step(pair: tuple[Any, Model, Path]) -> None:
    _, model, _ = pair
    reader = DecodingSession(model, len(PROMPTS), 30)
    texts = [list(prompt) for prompt in PROMPTS]
    bits = texts
    for step in range(12):
        logits = reader.read(bits)
        packed = pack_lists(texts, pattern=causal)
        last = model.backbone(packed).last[packed.offsets[1:].long() - 1]
        expected = model.root.heads["lm"](last, model.backbone.embed.tokens)
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
        bits = [[(step * 31 + row * 7) % 300] * (1 + (step == 5 and row == 2)) for row in range(len(texts))]
        texts = [text + bit for text, bit in zip(texts, bits, strict=True)]


RULES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "repetition penalty": {"repetition_penalty": 1.5},
    "no repeated pairs": {"no_repeat_ngram_size": 2},
    "no repeated token": {"no_repeat_ngram_size": 1},
    "both": {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3},
}


@pytest.mark.parametrize("rule", RULES)
def test_greedy_decoding_equals_transformers_for_any_batch(pair: tuple[Any, Model, Path], rule: str) -> None:
    reference, model, _ = pair
    end = {frequent_token(model)}
    found = generate_ids(model, PROMPTS, GenerationConfig(max_new_tokens=12, **RULES[rule]), end)
    assert found == [generate_with_transformers(reference, prompt, end, **RULES[rule]) for prompt in PROMPTS]
    if rule == "greedy":
        assert len(set(map(len, found))) > 1  # some ended, at different steps


@pytest.mark.not_fast
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0, -1.0])
@pytest.mark.parametrize("rule", ["greedy", "both"])
def test_beam_search_equals_transformers(pair: tuple[Any, Model, Path], penalty: float, rule: str) -> None:
    reference, model, _ = pair
    ending = False
    for end in (set(), {frequent_token(model)}, {5, 17}):
        rules = {"num_beams": 4, "length_penalty": penalty, **RULES[rule]}
        found = generate_ids(model, PROMPTS, GenerationConfig(max_new_tokens=10, **rules), end)
        assert found == [generate_with_transformers(reference, p, end, max_new_tokens=10, **rules) for p in PROMPTS]
        ending |= any(len(text) < 10 for text in found)
    assert ending


def test_more_beams_find_more_likely_texts(pair: tuple[Any, Model, Path]) -> None:
    _, model, _ = pair

    def likelihood(prompt: list[int], text: list[int]) -> float:
        packed = pack_lists([prompt + text])
        with torch.no_grad():
            logits = model.root.heads["lm"](model.backbone(packed).last, model.backbone.embed.tokens)
        chances = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        return float(chances.gather(1, torch.tensor(text)[:, None]).sum())

    sums = [
        sum(
            likelihood(p, t)
            for p, t in zip(
                PROMPTS,
                generate_ids(model, PROMPTS, GenerationConfig(max_new_tokens=6, num_beams=b), set()),
                strict=True,
            )
        )
        for b in (1, 3, 12)
    ]
    assert sums == sorted(sums) and sums[0] < sums[-1]


# -- sampling -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0, "top_k": 5},
        {"top_p": 0.7},
        {"top_k": 6, "top_p": 0.8},
        {"top_k": 99},
    ],
    ids=str,
)
def test_sampled_tokens_follow_their_probabilities(options: dict[str, Any]) -> None:
    """Compare with the probabilities of the logits processors of `transformers` by a chi-square test."""
    from scipy.stats import chisquare
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(0)) * 2
    scores = logits
    for name, warper in (
        ("temperature", TemperatureLogitsWarper),
        ("top_k", TopKLogitsWarper),
        ("top_p", TopPLogitsWarper),
    ):
        if name in options:
            scores = warper(options[name])(None, scores)
    shares = scores.softmax(-1)[0].double().numpy()
    draws = 20_000
    drawn = sample(logits.expand(draws, -1), uniform(3, "test", np.arange(draws)), **options).numpy()
    counts = np.bincount(drawn, minlength=12)
    assert not counts[shares == 0].any()
    assert chisquare(counts[shares > 0], shares[shares > 0] / shares.sum() * draws).pvalue > 1e-3


@pytest.mark.parametrize("top_p", [0.01, 0.5, 0.9, 0.999])
def test_nucleus_sampling_equals_transformers(top_p: float) -> None:
    from transformers import TopPLogitsWarper

    logits = torch.randn(3, 5000, generator=torch.Generator().manual_seed(0)) * torch.tensor([[0.1], [1.0], [5.0]])
    kept = TopPLogitsWarper(top_p)(None, logits.double()).isfinite().sum(-1)
    last = sample(logits, np.full(3, 1.0 - 1e-15), top_p=top_p)  # the least likely token that may be sampled
    ranks = [int((row > row[token]).sum()) + 1 for row, token in zip(logits, last.tolist(), strict=True)]
    assert ranks == kept.tolist()


def test_extreme_uniform_numbers_sample_allowed_tokens() -> None:
    logits = torch.tensor([[-torch.inf, 1.0, 2.0, -torch.inf, 0.0, -torch.inf]] * 2)
    chance = np.array([0.0, 1.0])
    assert sample(logits, chance).tolist() == [1, 4]
    assert sample(logits, chance, top_k=2).tolist() == [2, 1]
    assert sample(logits, chance, top_p=0.1).tolist() == [2, 2]


def test_top_1_is_greedy_and_sampling_depends_on_the_seed(
    pair: tuple[Any, Model, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, model, folder = pair
    greedy = generate_ids(model, PROMPTS, GenerationConfig(max_new_tokens=12), set())
    assert generate_ids(model, PROMPTS, GenerationConfig(max_new_tokens=12, top_k=1), set()) == greedy
    assert generate_ids(model, PROMPTS, GenerationConfig(max_new_tokens=12, temperature=1e-4), set()) == greedy
    one = generate_ids(model, PROMPTS, GenerationConfig(max_new_tokens=12, temperature=2.0, seed=1), set())
    assert (
        one
        == generate_ids(model, PROMPTS, GenerationConfig(max_new_tokens=12, temperature=2.0, seed=1), set())
        != greedy
    )
    assert one != generate_ids(model, PROMPTS, GenerationConfig(max_new_tokens=12, temperature=2.0, seed=2), set())
    prompts = ["the value", "of", "a list is not a list", "the value", "if"]
    together = pt.generate(folder, prompts, max_new_tokens=8, temperature=1.0, seed=4)
    assert together[0]["text"] != together[3]["text"]  # the same prompt, other random numbers
    monkeypatch.setattr(module, "ROWS", (2, 2))
    assert pt.generate(folder, prompts, max_new_tokens=8, temperature=1.0, seed=4).rows == together.rows


def test_repetition_penalties_match_worked_examples() -> None:
    logits = torch.arange(8.0).repeat(2, 1) - 3.5
    out = penalize_repetition(logits, [[1, 2, 3, 1, 2], [7]], penalty=2.0, ngram=3)
    assert out[0].tolist() == [-3.5, -5.0, -3.0, -torch.inf, 0.5, 1.5, 2.5, 3.5]
    assert out[1].tolist() == [*logits[1, :7].tolist(), 1.75]
    assert penalize_repetition(logits, [[1], [1]], penalty=1.0, ngram=0) is logits


def test_column_major_weights_give_the_same_texts(pair: tuple[Any, Model, Path], tmp_path: Path) -> None:
    *_, folder = pair
    writer = TextGenerator.load(folder)
    expected = writer.generate_ids(PROMPTS[:2], GenerationConfig(max_new_tokens=8), set())
    assert writer.model.backbone.embed.tokens.is_contiguous()
    assert writer.generate_ids(PROMPTS, GenerationConfig(max_new_tokens=8), set())[:2] == expected
    assert not writer.model.backbone.embed.tokens.is_contiguous()
    writer.model.save(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    (writer.model.backbone(pack_lists(PROMPTS)).last ** 2).sum().backward()  # it can still be trained


def test_beam_search_ends_when_no_token_is_allowed() -> None:
    from pretune.inference.generation.beam_search import BeamSearch

    search = BeamSearch(width=2, limit=5, penalty=1.0, ends=())
    assert search.step(torch.tensor([[0.0, -torch.inf]]).log_softmax(-1), torch.tensor([[0, 1]])) == [0]
    assert search.step(torch.full((1, 2), -torch.inf), torch.tensor([[0, 1]])) == []
    assert search.finished[0].ids == [0]


# -- texts ----------------------------------------------------------------------------------------------------------


def test_texts_end_at_the_end_token(pair: tuple[Any, Model, Path]) -> None:
    reference, model, folder = pair
    writer = TextGenerator.load(folder)
    tokenizer = writer.model.require_tokenizer()
    tokenizer.roles["end"] = frequent_token(model)
    rows = writer.generate(["the value of", "a list"], GenerationConfig(max_new_tokens=12))
    for row, prompt in zip(rows, ["the value of", "a list"], strict=True):
        ids = tokenizer.encode(prompt)
        expected = generate_with_transformers(reference, ids, {tokenizer.roles["end"]})
        assert row["text"] == tokenizer.decode(ids + expected) and row["text"].endswith(row["continuation"])
        assert row["tokens"] == len(expected) and row["ended"] == (len(expected) < 12)
    searched = writer.generate(["the value of"], GenerationConfig(max_new_tokens=12, num_beams=3))
    assert searched[0]["prompt"] == "the value of" and searched[0]["tokens"] <= 12


def test_texts_do_not_exceed_the_positions_of_the_model(pair: tuple[Any, Model, Path]) -> None:
    _, model, folder = pair
    tokenizer = model.require_tokenizer()
    long = tokenizer.decode([tokenizer.encode("list")[0]] * 40)
    size = len(tokenizer.encode(long))
    assert 20 < size < POSITIONS
    for beams in (1, 2):
        rows = pt.generate(folder, [long, "the"], max_new_tokens=30, num_beams=beams)
        assert rows[0]["ended"] or rows[0]["tokens"] == POSITIONS - size
        assert rows[1]["ended"] or rows[1]["tokens"] == 30
    with pytest.raises(pt.PretuneError, match=r"the model has 48 positions, so a prompt of \d+ tokens is too long"):
        pt.generate(folder, ["the", long * 3])


def test_empty_prompt_starts_with_the_start_token_of_the_family(pair: tuple[Any, Model, Path]) -> None:
    _, model, folder = pair
    if model.family.name == "openai-gpt":
        with pytest.raises(
            pt.PretuneError, match="the prompt is empty, and openai-gpt has no start token to begin with"
        ):
            pt.generate(folder, [""])
        return
    end = model.require_tokenizer().role("end")
    (expected,) = generate_ids(model, [[end]], GenerationConfig(max_new_tokens=5), {end})
    row = pt.generate(folder, [""], max_new_tokens=5)[0]
    assert row["text"] == row["continuation"] == model.require_tokenizer().decode(expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens=0 is too small; give 1 or more"),
        ({"num_beams": 0}, "num_beams=0 is too small"),
        ({"top_k": 0}, "top_k=0 is too small"),
        ({"top_p": 1.5}, r"top_p=1\.5 is not a probability; give a number above 0 and up to 1"),
        ({"temperature": 0.0}, "temperature=0 is not positive"),
        ({"repetition_penalty": -1.0}, "repetition_penalty=-1 is not positive"),
        ({"num_beams": 2, "temperature": 1.0}, "leave out temperature, top_k, and top_p, or num_beams"),
    ],
)
def test_invalid_settings_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(pt.PretuneError, match=message):
        GenerationConfig(**options)


def test_only_language_models_generate_text(tmp_path: Path) -> None:
    from pretune.models.create_model import make_model
    from pretune.models.model import Network

    tokenizer = tiny_training_cases.store().tokenizer
    for objective in ("mlm", "0.5*mlm|0.5*lm"):
        bert = make_model("bert-tiny", vocabulary=320)
        model = Model(bert.family, bert.config, Network(bert.backbone), tokenizer, objective)
        model.add_heads(parse_objective(objective).objectives)
        model.save(tmp_path / objective[:3])
    with pytest.raises(
        pt.PretuneError, match="this bert model was not trained to generate text; use a model with the objective 'lm'"
    ):
        pt.generate(tmp_path / "mlm", ["the"])
    writer = TextGenerator.load(tmp_path / "0.5")
    assert writer.encode("") == [tokenizer.role("start")]
    (row,) = writer.generate(["the value"], GenerationConfig(max_new_tokens=4))
    # Padding rows of the vocabulary are never generated, and bidirectional layers do not look ahead.
    packed = pack_lists([writer.encode("the value")], pattern=causal)
    with torch.no_grad():
        logits = writer.model.root.heads["lm"](writer.model.backbone(packed).last, writer.model.backbone.embed.tokens)
    first = int(logits[-1, : tokenizer.size].argmax())
    assert row["tokens"] == 0 or row["text"].startswith(tokenizer.decode([*writer.encode("the value"), first]))
    with pytest.raises(pt.PretuneError, match="there is no prompt"):
        pt.generate(tmp_path / "0.5")


def test_russian_gpt_in_the_published_format(tmp_path: Path) -> None:
    """ruGPT is a GPT-2 with a byte-level BPE of Russian text, and has attention masks among its weights."""
    import json

    import tokenizers
    from safetensors.torch import load_file, save_file
    from transformers import GPT2Config, GPT2LMHeadModel, GPT2Tokenizer

    specials = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(RUSSIAN * 3, vocab_size=420, special_tokens=specials, show_progress=False)
    trained.save_model(str(tmp_path))
    settings = {"tokenizer_class": "GPT2Tokenizer", "errors": "replace", "add_prefix_space": False}
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | names))
    torch.manual_seed(0)
    small = {**SMALL, "vocab_size": 424, "n_ctx": POSITIONS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    reference = GPT2LMHeadModel(GPT2Config(**small)).eval()
    randomize_parameters(reference)
    reference.transformer.wte.weight.data[trained.get_vocab_size() :] = 0.0
    reference.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for layer in range(2):
        tensors[f"transformer.h.{layer}.attn.bias"] = torch.ones(1, 1, POSITIONS, POSITIONS, dtype=torch.bool).tril()
        tensors[f"transformer.h.{layer}.attn.masked_bias"] = torch.tensor(-10000.0)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})

    writer = TextGenerator.load(tmp_path)
    reference_tokenizer = GPT2Tokenizer.from_pretrained(tmp_path)
    prompt = RUSSIAN[0][:40]
    ids = writer.encode(prompt)
    assert ids == reference_tokenizer(prompt)["input_ids"] and writer.model.require_tokenizer().decode(ids) == prompt
    row = writer.generate([prompt], GenerationConfig(max_new_tokens=10))[0]
    assert row["text"].startswith(prompt)
    added = generate_with_transformers(reference, ids, {2}, max_new_tokens=10)
    assert row["text"] == reference_tokenizer.decode(ids + added, skip_special_tokens=True)


def test_documents_have_an_end_token_and_other_texts_have_none() -> None:
    """GPT-2 trains on documents that end with its end token."""
    from pretune.objectives import Data
    from pretune.objectives.pretraining.lm import LM
    from pretune.runtime.randomness import EpochRandom
    from pretune.text.packing.sequences import Packing

    store = tiny_training_cases.store()
    end = store.tokenizer.role("end")
    data = Data(store.tokenizer, FAMILIES["gpt2"].template, store=store, documents=np.arange(store.documents))
    sequences = LM().arrange(data, Packing(512, 32), EpochRandom(0)).pack(0)
    assert (sequences.ids[sequences.offsets[1:] - 1] == end).all() and sequences.lengths.max() <= 32
    plain = (
        LM().arrange(replace(data, template=FAMILIES["openai-gpt"].template), Packing(512, 32), EpochRandom(0)).pack(0)
    )
    assert not (plain.ids == end).any()


@given(st.lists(st.integers(1, 2000), max_size=300), st.integers(1, 8), st.sampled_from(["cpu", "cuda"]))
def test_every_row_is_in_exactly_one_batch_within_the_limits(slots: list[int], beams: int, kind: str) -> None:
    parts = list(module.batch_rows(slots, beams, torch.device(kind)))
    assert sorted(row for part in parts for row in part) == list(range(len(slots)))
    for part in parts:
        assert slots[part[0]] == max(slots[row] for row in part)
        width = beams * len(part)
        assert len(part) == 1 or width <= (32 if kind == "cpu" else max(32, min(512, (1 << 15) // slots[part[0]])))
