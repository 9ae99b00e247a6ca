"""Tests that training reads sampled segmentations, evaluation never does, and resumed runs sample the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.models.loading import load
from pretune.objectives import Data, parse_objective
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.sequences import Packing
from pretune.text.store.resampling import check_resampling
from pretune.text.tokenizers.subword_sampling import SubwordSampling
from pretune.text.tokenizers.training import Kind
from pretune.training import prefetch
from pretune.training.data_streams import make_streams
from pretune.training.subword_regularization import epochs_of_sampled_subwords
from tests.support.interrupted_training import stop_at
from tests.support.objective_data import TEMPLATE, store
from tests.support.texts import english_documents

DROPOUT, ALPHA = SubwordSampling(bpe_dropout=0.2), SubwordSampling(unigram_alpha=0.2)


def epochs(kind: Kind, documents: int = 8, **parts: Any) -> Any:
    data = Data(store(kind).tokenizer, TEMPLATE, store=store(kind), documents=np.arange(documents))
    return epochs_of_sampled_subwords(replace(data, **parts), DROPOUT if "bpe" in kind else ALPHA, seed=4)


@pytest.mark.parametrize("kind", ["byte-level-bpe", "sentencepiece-unigram"])
def test_training_documents_of_a_store_are_tokenized_anew(kind: Kind) -> None:
    old = store(kind)
    new, later = (epochs(kind)(epoch).store for epoch in (0, 1))
    assert np.array_equal(new.document_offsets, old.document_offsets) and new.documents == old.documents
    assert new.tokens == new.sentence_offsets[-1] > old.tokens
    for number in range(old.documents):
        ids, usual = new.document(number), old.document(number)
        assert old.tokenizer.decode(ids) == old.tokenizer.decode(usual)
        if number >= 8:  # held out
            assert np.array_equal(ids, usual)
    assert not np.array_equal(new.document(0), old.document(0))
    assert not np.array_equal(new.document(0), later.document(0))
    words = new.gather_words(np.array([0]), np.array([new.tokens]))
    before = old.gather_words(np.array([0]), np.array([old.tokens]))
    assert words[new.sentence_offsets[:-1]].all() and abs(int(words.sum()) - int(before.sum())) < 0.02 * before.sum()
    again = epochs(kind)
    assert np.array_equal(again(1).store.read(0, later.tokens), later.read(0, later.tokens))  # without epoch 0 before
    assert np.array_equal(again(0).store.read(0, new.tokens), new.read(0, new.tokens))


def test_streams_of_a_mixture_read_the_same_sampled_epoch() -> None:
    data = Data(store("bpe").tokenizer, TEMPLATE, store=store("bpe"), documents=np.arange(8))
    made = epochs("bpe")
    streams = make_streams(
        parse_objective("mlm|lm"), data, tokens=256, packing=Packing(256, 32), seed=4, epoch_data=made
    )
    plans: list[Any] = [stream.epoch_plan(1) for stream in streams.streams]
    assert plans[0].arrangement.source is plans[1].arrangement.source is made(1).store
    batch = streams.streams[0].batch(1, 0, 0.0)
    assert torch.equal(batch.packed[0].ids, streams.streams[0].batch(1, 0, 0.0).packed[0].ids)


def test_labeled_rows_are_tokenized_anew_in_every_epoch() -> None:
    texts = english_documents()[0].split(". ")[:10]
    rows = LabeledRows(Path("rows"), {}, texts, None)
    data = Data(store("bpe").tokenizer, TEMPLATE, rows=rows)
    made = epochs_of_sampled_subwords(data, DROPOUT, seed=4)
    assert made is not None
    first, second = made(0).token_rows.ids, made(1).token_rows.ids
    usual = data.token_rows.ids
    assert len(first) > len(usual) and not np.array_equal(first, second)
    assert epochs_of_sampled_subwords(data, SubwordSampling(bpe_dropout=0.0), seed=4) is None


def test_stores_with_annotated_spans_are_refused() -> None:
    marked = store("bpe").with_language("en")
    marked.manifest = marked.manifest | {"settings": marked.manifest["settings"] | {"span_field": "names"}}
    with pytest.raises(pt.PretuneError, match="the store has annotated spans"):
        check_resampling(marked)


def pretrain(folder: Path, **options: Any) -> pt.Run:
    text = folder / "a.txt"
    text.write_text("\n".join(" ".join(one.split()) for one in english_documents()[:6]), encoding="utf-8")
    return pt.pretrain(
        "gpt2-tiny", text, out=folder / options.pop("name"), budget=pt.Budget(steps=8), split_by="line",
        tokenizer={"kind": "byte-level-bpe", "vocab_size": 300}, monitor=pt.Monitoring(save_every=3, held_out_fraction=0.0),
        batch=pt.Batching(tokens=1024, max_length=32, bpe_dropout=0.3), **options,
    )  # fmt: skip


@pytest.mark.end_to_end
def test_resumed_run_samples_the_same(tmp_path: Path) -> None:
    whole = pretrain(tmp_path, name="whole")
    assert whole.recipe["batch"]["bpe_dropout"] == 0.3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefetch, "deal", stop_at(prefetch.deal, 5))
        with pytest.raises(InterruptedError):
            pretrain(tmp_path, name="cut")
    again = pretrain(tmp_path, name="cut", resume=True)
    first, second = (load(run.folder).root.state_dict() for run in (whole, again))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


@pytest.mark.not_fast
def test_finetuning_samples_in_training_only(tmp_path: Path) -> None:
    pretrained = pretrain(tmp_path, name="run").folder
    words = [("wonderful performance", "good"), ("terrible disappointment", "bad")] * 20
    (tmp_path / "train.csv").write_text(
        "\n".join(["text,label", *(f"{t},{label}" for t, label in words)]), encoding="utf-8"
    )

    def tune(name: str, strategy: str = "full", **batch: Any) -> pt.Run:
        return pt.finetune(
            pretrained, tmp_path / "train.csv", dev=tmp_path / "train.csv", out=tmp_path / name, epochs=3, num_seeds=1,
            report=False, strategy=strategy, batch=pt.Batching(size=8, **batch), optimizer=pt.Optimizer(lr=3e-3),
        )  # fmt: skip

    run = tune("task", bpe_dropout=0.3)
    assert run.results["dev/accuracy"] == 1.0
    texts = [text for text, _ in words[:2]]
    assert [row["label"] for row in pt.predict(run.folder, texts)] == ["good", "bad"]
    with pytest.raises(pt.PretuneError, match="the strategy features fits a head without training"):
        tune("features", strategy="features", bpe_dropout=0.3)
    with pytest.raises(pt.PretuneError, match="unigram_alpha applies to Unigram tokenizers"):
        tune("other", unigram_alpha=0.1)
    with pytest.raises(
        pt.PretuneError, match=r"the recipe key batch\.nbest_size applies only with batch\.unigram_alpha"
    ):
        tune("nbest", nbest_size=4)
