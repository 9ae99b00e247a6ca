"""Tests that corpora are sampled with their weights, without replacement, and equally in resumed runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.models.loading import load
from pretune.objectives import Data
from pretune.text.corpus.documents import Document
from pretune.text.store.builder import StoreSettings, build_store
from pretune.text.store.store import Store, join_stores
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import train_on_documents
from pretune.training import prefetch
from pretune.training.corpus_sampling import Corpus, CorpusMixture, mix_corpora
from pretune.training.held_out import hold_out_documents
from pretune.training.recipe_sections import Batching, resolve_section
from tests.support.interrupted_training import stop_at
from tests.support.objective_data import TEMPLATE

SIZES = {"books": 30, "web": 200, "wiki": 60}  # documents
WEIGHTS = (0.5, 0.2, 0.3)


def texts(name: str) -> list[str]:
    """Return documents of one to seven sentences whose words tell the corpus."""
    return [" ".join(f"{name} number {n} {k}." for k in range(1 + n % 7)) for n in range(SIZES[name])]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("corpora")
    documents = [Document(text, folder, 0) for name in SIZES for text in texts(name)]
    tokenizer: Tokenizer = train_on_documents({"": documents}, vocab_size=300, kind="wordpiece")
    stores = []
    for name in SIZES:
        (folder / f"{name}.txt").write_text("\n".join(texts(name)), encoding="utf-8")
        settings = StoreSettings("en", split_by="line")
        stores.append(build_store([folder / f"{name}.txt"], tokenizer, folder / name, settings))
    return join_stores(stores)


def mixture(store: Store, step_tokens: int = 1, **options: Any) -> CorpusMixture:
    documents = options.pop("documents", np.arange(store.documents))
    return mix_corpora(tuple(SIZES), WEIGHTS, store, documents, options.pop("seed", 3), step_tokens)


def corpus_of(document: str) -> str:
    return document.split()[0]


def tokens_by_corpus(store: Store, documents: Any) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for number in documents:
        ids = store.document(int(number))
        counts[corpus_of(store.tokenizer.decode(ids))] += len(ids)
    return dict(counts)


def test_epochs_have_the_weights_of_the_corpora(store: Store) -> None:
    mixed = mixture(store)
    sizes = [corpus.tokens for corpus in mixed.corpora]
    assert sum(sizes) == store.tokens and mixed.epoch_tokens == pytest.approx(sizes[0] / 0.5)  # books are read once
    for epoch in range(5):
        documents = mixed.documents(epoch)
        counts = tokens_by_corpus(store, documents)
        total = sum(counts.values())
        assert [counts[name] / total for name in SIZES] == pytest.approx(WEIGHTS, abs=0.05)
        assert sorted(documents[: SIZES["books"]]) == list(range(SIZES["books"]))  # each once
    natural = np.array(sizes) / sum(sizes)
    assert abs(natural - WEIGHTS).max() > 0.3, "the weights differ from the sizes"


def test_documents_are_sampled_without_replacement_across_epochs(store: Store) -> None:
    mixed = mixture(store)
    web = mixed.corpora[1]
    seen: Counter[int] = Counter()
    for epoch in range(40):
        seen.update(int(number) for number in mixed.documents(epoch) if number in web.documents)
        if seen:
            read = sum(seen[int(d)] * n for d, n in zip(web.documents, web.lengths, strict=True)) / web.tokens
            counts = [seen[int(document)] for document in web.documents]
            assert max(counts) - min(counts) <= 1, epoch
            assert read == pytest.approx(mixed.describe(epoch + 1)[1]["epochs"], abs=0.05)
    assert max(seen.values()) > 2


def test_order_differs_by_reading_and_seed_and_is_a_function_of_the_epoch(store: Store) -> None:
    mixed = mixture(store)
    epochs = [mixed.documents(epoch) for epoch in range(4)]
    for epoch in (3, 0, 2, 1):  # in any order, also in another process that resumes
        assert np.array_equal(mixture(store).documents(epoch), epochs[epoch])
        assert np.array_equal(mixed.documents(epoch), epochs[epoch])
    assert not np.array_equal(epochs[0][:30], epochs[1][:30])
    assert not np.array_equal(mixture(store, seed=4).documents(0), epochs[0])


def test_small_corpora_make_epochs_of_several_steps(store: Store) -> None:
    once = mixture(store)
    assert mixture(store, step_tokens=100).epoch_tokens == min(store.tokens, 3200) > once.epoch_tokens
    assert mixture(store, step_tokens=10**9).epoch_tokens == store.tokens
    long = mixture(store, step_tokens=10**9)
    counts = Counter(map(int, long.documents(0)))
    assert max(counts[number] for number in range(SIZES["books"])) > 1, "a small corpus repeats within the epoch"


def test_corpora_are_found_in_a_store_whose_documents_were_split(store: Store) -> None:
    cut, train, held_out = hold_out_documents(store.split_documents_at(np.arange(0, store.sentences, 3)), 0.1)
    mixed = mixture(cut, documents=train)
    for name, corpus in zip(SIZES, mixed.corpora, strict=True):
        assert {corpus_of(store.tokenizer.decode(cut.document(int(d)))) for d in corpus.documents} == {name}
    chosen = np.concatenate([mixed.documents(epoch) for epoch in range(20)])
    assert not np.isin(held_out, chosen).any() and np.isin(chosen, train).all()


def test_data_of_an_epoch_do_not_share_caches(store: Store) -> None:
    data = Data(store.tokenizer, TEMPLATE, store=store, documents=np.arange(3))
    made = mixture(store).epoch_data(data)
    assert made(1).cache is not data.cache and np.array_equal(made(1).documents, mixture(store).documents(1))


def test_a_corpus_without_text_is_an_error(store: Store) -> None:
    with pytest.raises(pt.PretuneError, match="web: the corpus has no text to train on"):
        mixture(store, documents=np.arange(SIZES["books"]))
    empty = Corpus("web", np.arange(0), np.arange(0), 0.5)
    with pytest.raises(pt.PretuneError, match="web: the corpus has no text"):
        CorpusMixture.make([empty], seed=0, step_tokens=1)


def test_weights_replace_the_smoothing_of_languages() -> None:
    assert resolve_section(Batching, Batching(corpus_weights=(1.0, 2.0))).language_alpha is None
    assert (
        resolve_section(Batching, Batching(corpus_weights=(1.0, 2.0)), {"language_alpha": 0.3}).language_alpha is None
    )
    with pytest.raises(pt.PretuneError, match="both set the shares of the data"):
        resolve_section(Batching, Batching(corpus_weights=(1.0, 2.0), language_alpha=0.5))
    with pytest.raises(pt.PretuneError, match=r"batch\.corpus_weights=0"):
        Batching(corpus_weights=(0.0, 1.0))


def pretrain(folder: Path, name: str, **options: Any) -> pt.Run:
    for corpus in SIZES:
        (folder / f"{corpus}.txt").write_text("\n".join(texts(corpus)), encoding="utf-8")
    batch = {"tokens": 512, "max_length": 32, "corpus_weights": WEIGHTS, **options.pop("batch", {})}
    return pt.pretrain(
        "gpt2-tiny", [folder / f"{corpus}.txt" for corpus in SIZES], out=folder / name, budget=pt.Budget(steps=8),
        tokenizer={"kind": "byte-level-bpe", "vocab_size": 300},
        monitor=pt.Monitoring(save_every=3, held_out_fraction=0.0), batch=pt.Batching(**batch), **options | ({} if "objective" in options else {"split_by": "line"}),
    )  # fmt: skip


@pytest.mark.parametrize("more", [{}, {"bpe_dropout": 0.3}])
def test_resumed_run_reads_the_same_documents(tmp_path: Path, more: dict[str, Any]) -> None:
    whole = pretrain(tmp_path, "whole", batch=more)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefetch, "deal", stop_at(prefetch.deal, 5))
        with pytest.raises(InterruptedError):
            pretrain(tmp_path, "cut", batch=more)
    again = pretrain(tmp_path, "cut", resume=True, batch=more)
    first, second = (load(run.folder).root.state_dict() for run in (whole, again))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    rows = whole.results["corpora"]
    assert rows == again.results["corpora"] and [row["weight"] for row in rows] == pytest.approx(WEIGHTS)
    assert [Path(row["corpus"]).stem for row in rows] == list(SIZES)
    for row in rows if not more else []:  # sampled segmentations have more tokens than those of the store
        read = row["epochs"] * row["tokens"]  # without special tokens
        assert 0.7 * whole.results["tokens"] < read / row["weight"] <= 1.1 * whole.results["tokens"]


def test_impossible_weights_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(pt.PretuneError, match=r"batch\.corpus_weights has 2 weights for 3 corpora"):
        pretrain(tmp_path, "run", batch={"corpus_weights": (1.0, 2.0)})
    with pytest.raises(pt.PretuneError, match="applies to running text, but translate trains on rows"):
        pretrain(tmp_path, "run", objective="translate")
    assert not (tmp_path / "run").exists()
