from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.nn.pooling import pool
from pretune.objectives import Data
from pretune.objectives.tasks.classify import Classify
from pretune.packed import Capacity, pack_lists
from pretune.runtime.randomness import EpochRandom
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.sequences import Packing, collate
from pretune.text.packing.token_rows import TokenRows, arrange_rows
from pretune.text.tokenizers.template import Template
from tests.support.objective_data import TEMPLATE, stack, store

texts_strategy = st.lists(st.text("abcdefg hijk", max_size=60), min_size=1, max_size=9)


def test_mean_pooling_of_long_texts_is_accurate_in_bfloat16() -> None:
    states = 0.5 + 0.01 * torch.randn(2, 400, 8)
    means = states.bfloat16().double().mean(1)
    packed = pack_lists([[7] * 400] * 2)
    torch.testing.assert_close(pool(states.bfloat16().flatten(0, 1), packed, "mean").double(), means, rtol=1e-5, atol=0)


def test_padding_does_not_affect_batch_statistics() -> None:
    objective = Classify(labels=("bad", "good"), pooling="concat", hidden_size=6, dropout=0.0)
    rows = LabeledRows(Path("x"), {}, ["a b", "c", "d e f"], labels=["good", "bad", "good"])
    data = Data(store().tokenizer, TEMPLATE, rows=rows)
    sequences = objective.arrange(data, Packing(64, 16), EpochRandom(0)).pack(0)
    sequences = objective.corrupt(sequences, data.tokenizer, EpochRandom(0))
    found = []
    for capacity in (None, Capacity(64, 16, 8, {"classify": 9})):
        torch.manual_seed(0)
        backbone = stack(store().tokenizer.size)
        head = objective.head(backbone)
        loss = objective.loss(head, backbone, collate(sequences, capacity))
        found.append((loss.sums["classify"], head.hidden.norm.mean, head.hidden.norm_inner.variance))
    torch.testing.assert_close(*found)


@settings(max_examples=30)
@given(texts_strategy, st.booleans(), st.integers(8, 40), st.data())
def test_rows_are_truncated_to_fit_and_otherwise_unchanged(
    texts: list[str], pair: bool, length: int, draw: st.DataObject
) -> None:
    pairs = [draw.draw(st.text("abcdefg hijk", max_size=60)) for _ in texts] if pair else None
    tokenizer = store().tokenizer
    rows = TokenRows.make(LabeledRows(Path("x"), {}, texts, pairs), tokenizer)
    arrangement = arrange_rows(rows, tokenizer, TEMPLATE, length, {})
    assert (arrangement.lengths <= length).all()
    whole = [[tokenizer.encode(t) for t in texts]] + (
        [[tokenizer.encode(t) for t in pairs]] if pairs is not None else []
    )
    sequences = arrangement.take(np.arange(len(texts)))
    truncated = 0
    for row in range(len(texts)):
        ids = sequences.ids[sequences.offsets[row] : sequences.offsets[row + 1]].tolist()
        parts = [side[row] for side in whole]
        kept = arrangement.spans[row]
        room = length - (3 if pair else 2)
        truncated += sum(map(len, parts)) > room
        if sum(map(len, parts)) > room:
            assert kept.sum() == room
        else:
            assert kept.tolist() == [len(p) for p in parts]
        expected = [tokenizer.role("start"), *parts[0][: kept[0]], tokenizer.role("separator")]
        if pair and kept[1]:
            expected += [*parts[1][: kept[1]], tokenizer.role("separator")]
        assert ids == expected
    assert arrangement.truncated == truncated


def test_labels_are_encoded_and_unknown_labels_are_rejected() -> None:
    rows = LabeledRows(Path("dev.csv"), {}, ["a", "b"], labels=["good", "bda"], lines=[2, 3])
    with pytest.raises(PretuneError, match=r"dev\.csv, line 3: label 'bda' was not in training; did you mean 'bad'"):
        Classify(labels=("bad", "good")).encode_labels(rows)
    rows.labels = ["good", "bad"]
    objective = Classify(labels=("bad", "good"))
    data = Data(store().tokenizer, TEMPLATE, rows=rows)
    sequences = objective.arrange(data, Packing(64, 16), EpochRandom(0)).pack(0)
    sequences = objective.corrupt(sequences, data.tokenizer, EpochRandom(0))
    at, target = sequences.targets["classify"]
    assert sorted(zip(sequences.index[at].tolist(), target.tolist(), strict=True)) == [(0, 1), (1, 0)]
    with pytest.raises(PretuneError, match="learns from labeled rows"):
        objective.arrange(Data(store().tokenizer, TEMPLATE), Packing(64, 16), EpochRandom(0))


def test_pooling_matches_the_definition() -> None:
    packed = pack_lists([[1, 2, 3], [4], [5, 6]])
    states = torch.randn(6, 4)
    parts = [states[:3], states[3:4], states[4:]]
    assert torch.equal(pool(states, packed, "cls"), torch.stack([p[0] for p in parts]))
    assert torch.equal(pool(states, packed, "last"), torch.stack([p[-1] for p in parts]))
    assert torch.equal(pool(states, packed, "second_to_last"), torch.stack([p[-2:][0] for p in parts]))
    torch.testing.assert_close(pool(states, packed, "mean"), torch.stack([p.mean(0) for p in parts]))
    assert torch.equal(pool(states, packed, "max"), torch.stack([p.max(0).values for p in parts]))


def test_decoder_input_is_the_source_shifted_by_one() -> None:
    tokenizer = store().tokenizer
    template = Template(single=("start", "A", "end"), pair=("separator", "B", "end"), target=("padding", "A", "end"))
    rows = TokenRows.make(LabeledRows(Path("x"), {}, ["one", "", "two three"], ["x", "y", ""]), tokenizer)
    sequences = arrange_rows(rows, tokenizer, template, 30, {}).take(np.array([2, 0, 1]))
    assert sequences.second is not None
    source, target = collate(sequences).packed
    assert torch.equal(source.offsets, target.offsets)
    for start, end in pairwise(source.offsets.tolist()):
        assert target.ids[start:end].tolist() == [tokenizer.role("padding"), *source.ids[start : end - 1].tolist()]
    assert arrange_rows(rows, tokenizer, TEMPLATE, 30, {}).take(np.array([2])).second is None


def test_threshold_decides_between_two_classes() -> None:
    task = Classify(labels=("ham", "spam"), threshold=0.3)
    answer = task.answer_from(np.array([0.65, 0.35]))
    assert answer["label"] == "spam" and answer["probability"] == 0.35
    assert task.answer_from(np.array([0.75, 0.25]))["label"] == "ham"
    assert replace(task, threshold=0.5).answer_from(np.array([0.65, 0.35]))["label"] == "ham"
    rows = LabeledRows(Path("x.csv"), {}, ["…"] * 3, labels=["a", "b", "c"])
    with pytest.raises(PretuneError, match="a threshold needs two classes"):
        Classify(threshold=0.3).fit(rows)


def test_class_weights_by_label_are_the_weights_of_the_loss() -> None:
    rows = LabeledRows(Path("x.csv"), {}, ["…"] * 3, labels=["ham", "spam", "ham"])
    assert Classify(class_weight={"spam": 5}).fit(rows).label_weights == (1.0, 5.0)
    with pytest.raises(PretuneError, match="a label 'spma' that is not in the file; did you mean 'spam'"):
        Classify(class_weight={"spma": 5}).fit(rows)
