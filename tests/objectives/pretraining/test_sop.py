from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.objectives import Data, parse_objective
from pretune.objectives.pretraining.nsp import NSP
from pretune.objectives.pretraining.sop import SOP
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.document_spans import cut_documents
from pretune.text.packing.sequences import Arrangement, Packing
from pretune.text.store.builder import StoreSettings, build_store
from pretune.text.tokenizers.training import Kind
from tests.support.objective_data import KINDS, TEMPLATE, data, store


def arrangement(
    objective: SOP | NSP, seed: int, epoch: int = 0, length: int = 48, kind: Kind = "wordpiece"
) -> Arrangement:
    return objective.arrange(data(kind), Packing(1024, length), EpochRandom(seed, epoch)).arrangement  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**40), epoch=st.integers(0, 3), length=st.sampled_from([24, 40, 64]))
def test_pairs_are_consecutive_texts_of_one_document_in_order_or_swapped(
    kind: Kind, seed: int, epoch: int, length: int
) -> None:
    made = arrangement(SOP(), seed, epoch, length, kind)
    bounds = store(kind).sentence_offsets[store(kind).document_offsets]
    assert (made.lengths <= length).all() and (made.spans[:, 0] > 0).all()
    assert made.spans.sum() == store(kind).tokens  # all tokens are read
    pairs = made.spans[:, 1] > 0
    assert not (made.labels["sop"][~pairs] >= 0).any()
    starts, spans, swapped = made.starts[pairs], made.spans[pairs], made.labels["sop"][pairs] == 1
    first = np.where(swapped, starts[:, 1], starts[:, 0])
    second = np.where(swapped, starts[:, 0], starts[:, 1])
    sizes = np.where(swapped, spans[:, 1], spans[:, 0])
    assert (first + sizes == second).all()
    owner = np.searchsorted(bounds, starts, side="right") - 1
    assert (owner[:, 0] == owner[:, 1]).all()
    assert np.isin(second, store(kind).sentence_offsets).all()
    assert (spans > 0).all()


def test_half_of_the_pairs_are_swapped_and_every_text_is_read_once() -> None:
    total = swapped = 0
    for seed in range(30):
        made = arrangement(SOP(), seed)
        label = made.labels["sop"]
        total += int((label >= 0).sum())
        swapped += int((label == 1).sum())
        starts, pairs = made.starts[made.spans > 0], made.spans[:, 1] > 0
        assert len(set(starts.tolist())) == len(starts)
        # Pairs that begin inside a truncated sentence have no label.
        assert ((label < 0) == ~np.isin(made.starts.min(1), store().sentence_offsets))[pairs].all()
    assert abs(swapped / total - 0.5) < 5 * (0.25 / total) ** 0.5


def test_label_is_predicted_at_the_start_token() -> None:
    joint = parse_objective("mlm(unit=ngram)+sop").joints[0]
    plan = joint.arrange(data(), Packing(512, 48), EpochRandom(0))
    noisy = joint.corrupt(plan.pack(0), data().tokenizer, EpochRandom(0))
    at, target = noisy.targets["sop"]
    assert (noisy.ids[at] == data().tokenizer.role("start")).all()
    assert (target == noisy.labels["sop"][noisy.labels["sop"] >= 0]).all() and len(noisy.targets["mlm"][0])


@pytest.mark.parametrize("objective", [SOP, NSP])
def test_option_short_gives_some_documents_shorter_pairs(objective: type[SOP] | type[NSP]) -> None:
    plain, some, all_ = (
        np.concatenate([arrangement(objective(short_seq_prob=share), seed, length=300).lengths for seed in range(8)])
        for share in (0.0, 0.1, 1.0)
    )
    assert plain.mean() > some.mean() > all_.mean()
    assert all_.mean() < 0.8 * plain.mean()


@settings(max_examples=25)
@given(st.integers(3, 60), st.integers(0, 2), st.integers(0, 99), st.booleans())
def test_shorter_spans_still_cover_every_token_once(length: int, epoch: int, seed: int, both: bool) -> None:
    chosen = np.arange(store().documents)
    draws = EpochRandom(seed, epoch)
    starts, lengths, owner = cut_documents(store(), chosen, length, draws, short=0.5, from_both_ends=both)
    bounds = store().sentence_offsets[store().document_offsets]
    assert (lengths > 0).all() and (lengths <= length).all()
    for document in chosen:
        begin, size = starts[owner == document], lengths[owner == document]
        assert begin[0] == bounds[document] and begin[-1] + size[-1] == bounds[document + 1]
        assert (begin[1:] == (begin + size)[:-1]).all()


def make_data(texts: list[str]) -> Data:
    folder = Path(tempfile.mkdtemp())
    (folder / "a.txt").write_text("\n".join(texts), encoding="utf-8")
    made = build_store([folder / "a.txt"], store().tokenizer, folder / "store", StoreSettings(split_by="line"), 1)
    return Data(made.tokenizer, TEMPLATE, store=made, documents=np.arange(made.documents))


def test_corpora_without_pairs_are_rejected() -> None:
    one = make_data(["One thing. Another thing. A third thing."])
    assert len(SOP().arrange(one, Packing(99, 32), EpochRandom(0))) == 1  # one document is enough
    with pytest.raises(PretuneError, match="'sop' needs documents of two sentences or more"):
        SOP().arrange(make_data(["One thing.", "Another thing."]), Packing(99, 32), EpochRandom(0))
    with pytest.raises(PretuneError, match="leave no room for two texts"):
        SOP().arrange(data(), Packing(99, 4), EpochRandom(0))
    with pytest.raises(PretuneError, match="sop reads raw text"):
        SOP().arrange(Data(store().tokenizer, TEMPLATE), Packing(99, 32), EpochRandom(0))
