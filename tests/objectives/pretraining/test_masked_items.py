from __future__ import annotations

import tempfile
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.families.encoders.bert import BERT, BertConfig, build
from pretune.inference.rank_items import rank_last_items
from pretune.metrics.ranking import ranking_metrics
from pretune.models.model import Model, Network
from pretune.objectives import Data, parse_objective
from pretune.objectives.pretraining.masked_items import MaskedItem
from pretune.runtime.randomness import EpochRandom
from pretune.text.corpus.documents import Document, read_documents
from pretune.text.packing.sequences import Packing
from pretune.text.store.builder import StoreSettings, build_store
from pretune.text.store.store import Store
from pretune.text.tokenizers.training import train_on_documents
from tests.support.objective_data import TEMPLATE, data


def make_items(lines: list[str], size: int = 500) -> Store:
    folder = Path(tempfile.mkdtemp())
    (folder / "histories.txt").write_text("\n".join(lines), encoding="utf-8")
    tokenizer = train_on_documents(read_documents([folder / "histories.txt"], split_by="line"), "items", size)
    return build_store(
        [folder / "histories.txt"], tokenizer, folder / "store", StoreSettings(split_by="line", language="lines"), 1
    )


@cache
def rings(users: int = 60) -> Store:
    """Return histories of users who go through a ring of 20 items from a random start: the next item is certain."""
    chance = np.random.default_rng(0)
    lines = []
    for _ in range(users):
        start, size = chance.integers(20), chance.integers(4, 30)
        lines.append(" ".join(f"item-{(start + step) % 20}" for step in range(size)))
    return make_items(lines)


def source(store: Store) -> Data:
    return Data(store.tokenizer, TEMPLATE, store=store, documents=np.arange(store.documents))


def test_items_are_single_tokens_with_any_characters() -> None:
    store = make_items(
        ["B00-1(x) 🙂 5.99 [MASK] a-very-long-name-of-an-item-that-nobody-cuts-up B00-1(x)", "5.99 B00-1(x)"]
    )
    tokenizer = store.tokenizer
    assert tokenizer.vocabulary[5:7] == ["B00-1(x)", "5.99"]  # sorted by frequency
    assert tokenizer.tokens(store.document(0)) == [
        # an item that is spelled like a special token is unknown
        "B00-1(x)", "🙂", "5.99", "[UNK]", "a-very-long-name-of-an-item-that-nobody-cuts-up", "B00-1(x)"
    ]  # fmt: skip
    assert store.sentences == store.documents == 2
    assert tokenizer.word_starts(store.document(0)).all()
    small = train_on_documents([Document("a b b c c c", Path("a"), 1)], "items", 7)
    assert small.tokens(small.encode("a b c new")) == ["[UNK]", "b", "c", "[UNK]"]
    assert small.report["unknown_rate"] == pytest.approx(1 / 6)


@settings(max_examples=25)
@given(st.integers(0, 2**40), st.integers(0, 3), st.sampled_from([6, 12, 40]), st.integers(0, 3))
def test_windows_cover_all_but_the_held_out_items_and_end_with_the_newest(
    seed: int, epoch: int, length: int, held: int
) -> None:
    store = rings()
    plan: Any = MaskedItem(num_held_out=held).arrange(source(store), Packing(256, length), EpochRandom(seed, epoch))
    made = plan.arrangement
    assert (made.spans > 0).all() and (made.lengths <= length).all()
    covered = np.zeros(store.tokens, dtype=int)
    for start, size in zip(made.starts[:, 0], made.spans[:, 0], strict=True):
        covered[start : start + size] += 1
    bounds = store.sentence_offsets[store.document_offsets]
    for begin, end in pairwise(bounds):
        seen = covered[begin:end]
        if end - begin - held >= 2:
            assert (seen[: len(seen) - held] == 1).all() and not seen[len(seen) - held :].any()
        else:
            assert not seen.any()
    if epoch == 0:
        ends = made.starts[:, 0] + made.spans[:, 0]
        full = made.spans[:, 0] == length - 2
        assert (full | np.isin(made.starts[:, 0], bounds)).all()  # only the oldest window is short
        assert np.isin(bounds[1:] - held, ends)[np.diff(bounds) - held >= 2].all()


@settings(max_examples=25)
@given(st.integers(0, 2**40), st.integers(0, 3), st.sampled_from([0.1, 0.4]), st.sampled_from([0.0, 0.5, 1.0]))
def test_targets_are_the_original_items(seed: int, epoch: int, rate: float, last: float) -> None:
    store, objective, draws = rings(), MaskedItem(mask_rate=rate, mask_last_rate=last), EpochRandom(seed, epoch)
    packing = Packing(256, 16, sequences=60)
    plan = objective.arrange(source(store), packing, draws)
    clean = plan.pack(0)
    noisy = objective.corrupt(plan.pack(0), store.tokenizer, draws)
    at, target = noisy.targets["item"]
    assert (target == clean.ids[at]).all() and (np.diff(at) > 0).all()
    assert not clean.columns["special"][at].any()
    assert (noisy.ids[at] == store.tokenizer.role("mask")).all()
    assert set(np.flatnonzero(noisy.ids != clean.ids)) == set(at)
    assert len(at) <= objective.max_targets(packing)["item"]
    if last == 1.0:
        assert (at == clean.offsets[1:] - 2).all()


def test_some_sequences_mask_only_the_last_item() -> None:
    only = total = 0
    for seed in range(20):
        plan = MaskedItem(mask_rate=0.5, mask_last_rate=0.3).arrange(
            source(rings()), Packing(512, 16), EpochRandom(seed)
        )
        noisy = MaskedItem(mask_rate=0.5, mask_last_rate=0.3).corrupt(
            plan.pack(0), rings().tokenizer, EpochRandom(seed)
        )
        hidden = np.bincount(noisy.owner[noisy.targets["item"][0]], minlength=len(noisy.lengths))
        long = noisy.lengths > 8
        only += int((hidden[long] == 1).sum())
        total += int(long.sum())
    assert abs(only / total - 0.3) < 5 * (0.3 * 0.7 / total) ** 0.5


def test_ranking_metrics_match_worked_examples() -> None:
    found = ranking_metrics(np.array([1, 2, 10, 11, 50]), at=10)
    assert found["hit_rate@10"] == pytest.approx(3 / 5)
    assert found["ndcg@10"] == pytest.approx((1 + 1 / np.log2(3) + 1 / np.log2(11)) / 5)
    assert found["mrr"] == pytest.approx((1 + 1 / 2 + 1 / 10 + 1 / 11 + 1 / 50) / 5)


def test_ranks_of_last_items_follow_the_logits() -> None:
    """Special tokens and padding rows of the vocabulary do not count, and ties share a rank."""
    store = rings()
    config = BertConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=40,
    )  # fmt: skip
    model = Model(BERT, config, Network(build(config)), store.tokenizer)
    model.add_heads(parse_objective("item").objectives)
    head: Any = model.root.heads["item"]
    torch.nn.init.zeros_(model.backbone.embed.tokens)  # only the bias matters
    with torch.no_grad():
        head.bias.copy_(torch.arange(64.0))
    for back in (1, 2):
        ranks = rank_last_items(model, store, length=20, back=back)
        last = np.array([int(store.document(i)[-back]) for i in range(store.documents)])
        assert (ranks == store.tokenizer.size - last).all()
    torch.nn.init.zeros_(head.bias)
    assert (rank_last_items(model, store) == 10.5).all()  # all twenty items are tied


def test_histories_that_are_too_short_are_rejected() -> None:
    short = make_items(["a b c", "a b"])
    with pytest.raises(
        PretuneError, match="'item' needs histories of at least 4 items, because it holds out num_held_out=2"
    ):
        MaskedItem().arrange(source(short), Packing(64, 16), EpochRandom(0))
    with pytest.raises(PretuneError, match="leave no room for two items"):
        MaskedItem().arrange(source(rings()), Packing(64, 3), EpochRandom(0))
    with pytest.raises(PretuneError, match="'item' reads user histories"):
        MaskedItem().arrange(Data(data().tokenizer, TEMPLATE), Packing(64, 16), EpochRandom(0))
    config = BertConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    model = Model(BERT, config, Network(build(config)), short.tokenizer)
    with pytest.raises(PretuneError, match="no history of 4 items or more"):
        rank_last_items(model, short, back=3)
