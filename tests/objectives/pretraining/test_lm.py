from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.objectives.pretraining.lm import LM
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.document_spans import cut_documents
from pretune.text.packing.sequences import Packing
from pretune.text.tokenizers.training import Kind
from tests.support.objective_data import KINDS, data, store


@pytest.mark.parametrize("kind", KINDS)
def test_targets_are_the_next_tokens(kind: Kind) -> None:
    source = data(kind)
    sequences = LM().arrange(source, Packing(512, 64), EpochRandom(0)).pack(1)
    sequences = LM().corrupt(sequences, source.tokenizer, EpochRandom(0))
    at, target = sequences.targets["lm"]
    assert (target == sequences.ids[at + 1]).all()
    assert len(at) == len(sequences.ids) - len(sequences.lengths)
    assert sequences.pattern is not None and sequences.pattern.name == "causal"


@pytest.mark.not_fast
@settings(max_examples=15)
@given(st.integers(1, 4), st.integers(4, 40), st.integers(1, 3), st.integers(0, 99))
def test_streams_predict_every_token_of_a_document_except_the_first(
    per: int, window: int, groups: int, seed: int
) -> None:
    source = data()
    epoch = LM(stateful=True).arrange(source, Packing(per * window, window, packs_per_step=groups), EpochRandom(seed))
    seen: list[int] = []
    for index in range(len(epoch)):
        sequences = LM(stateful=True).corrupt(epoch.pack(index), source.tokenizer, EpochRandom(seed))
        at, target = sequences.targets["lm"]
        inside = at[:-1][np.diff(at) == 1]
        same_lane = sequences.owner[inside] == sequences.owner[np.minimum(inside + 1, len(sequences.ids) - 1)]
        follows = target[:-1][np.diff(at) == 1] == sequences.ids[np.minimum(inside + 1, len(sequences.ids) - 1)]
        assert follows[same_lane].all()
        seen += target.tolist()
    documents = [store().document(i).tolist() for i in range(store().documents)]
    assert sorted(seen) == sorted(token for ids in documents for token in ids[1:])


@settings(max_examples=40)
@given(st.integers(3, 80), st.integers(0, 3), st.integers(0, 9))
def test_documents_are_split_into_whole_sentences_that_cover_every_token_once(
    length: int, epoch: int, seed: int
) -> None:
    chosen = np.arange(store().documents)[:: 1 + seed % 3]
    starts, lengths, owner = cut_documents(store(), chosen, length, EpochRandom(seed, epoch))
    bounds = store().sentence_offsets[store().document_offsets]
    assert (lengths > 0).all() and (lengths <= length).all()
    for document in chosen:
        mine = owner == document
        begin, size = starts[mine], lengths[mine]
        assert begin[0] == bounds[document] and begin[-1] + size[-1] == bounds[document + 1]
        assert (begin[1:] == (begin + size)[:-1]).all()
    sentence_lengths = np.diff(store().sentence_offsets)
    if length >= sentence_lengths.max():
        assert np.isin(starts, store().sentence_offsets).all()


def test_split_points_change_from_epoch_to_epoch() -> None:
    chosen = np.arange(store().documents)
    first, second = (cut_documents(store(), chosen, 40, EpochRandom(0, epoch))[0] for epoch in (1, 2))
    assert set(first.tolist()) != set(second.tolist())
