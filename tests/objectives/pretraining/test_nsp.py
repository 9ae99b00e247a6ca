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
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing
from pretune.text.store.builder import StoreSettings, build_store
from tests.support.objective_data import TEMPLATE, data, store


@settings(max_examples=25)
@given(st.integers(0, 2**40), st.integers(0, 3), st.sampled_from([24, 40, 64]))
def test_negatives_come_from_another_document_and_positives_follow(seed: int, epoch: int, length: int) -> None:
    arrangement = NSP().arrange(data(), Packing(1024, length), EpochRandom(seed, epoch)).arrangement  # type: ignore[attr-defined]
    bounds = store().sentence_offsets[store().document_offsets]
    owner = lambda at: np.searchsorted(bounds, at, side="right") - 1  # noqa: E731
    label = arrangement.labels["nsp"]
    first, second = owner(arrangement.starts[:, 0]), owner(arrangement.starts[:, 1])
    assert (first[label != 1] == second[label != 1]).all()
    assert (first[label == 1] != second[label == 1]).all()
    follows = arrangement.starts[:, 0] + arrangement.spans[:, 0] == arrangement.starts[:, 1]
    assert follows[(label != 1) & (arrangement.spans[:, 1] > 0)].all()
    pairs = arrangement.spans[:, 1] > 0
    assert (arrangement.spans[:, 0] > 0).all() and not (label[~pairs] >= 0).any()
    assert (arrangement.lengths <= length).all()
    # First texts may begin inside a truncated sentence.
    assert np.isin(arrangement.starts[pairs, 1], store().sentence_offsets).all()


def test_half_of_the_pairs_are_negatives_and_every_text_is_read_once() -> None:
    share, starts = [], []
    for seed in range(30):
        arrangement = NSP().arrange(data(), Packing(1024, 48), EpochRandom(seed)).arrangement  # type: ignore[attr-defined]
        label = arrangement.labels["nsp"]
        share.append(label[label >= 0].mean())
        starts.append(arrangement.starts[arrangement.spans > 0])
        assert (label[arrangement.spans[:, 1] > 0] >= 0).mean() > 0.7  # one document has a third of all pairs
        lost = store().tokens - arrangement.spans.sum()
        assert 0 <= lost < 0.03 * store().tokens  # truncated from second texts, to the length of another one
    assert abs(np.mean(share) - 0.5) < 0.05
    assert all(len(set(s.tolist())) == len(s) for s in starts)


def test_template_and_segments_equal_those_of_bert() -> None:
    plan = NSP().arrange(data(), Packing(512, 48), EpochRandom(0))
    sequences = plan.pack(0)
    tokenizer = data().tokenizer
    for start, end in zip(sequences.offsets[:-1], sequences.offsets[1:], strict=True):
        ids, segment = sequences.ids[start:end], sequences.columns["segment"][start:end]
        separators = np.flatnonzero(ids == tokenizer.role("separator"))
        assert ids[0] == tokenizer.role("start") and len(separators) in (1, 2) and separators[-1] == len(ids) - 1
        assert (segment == (np.arange(len(ids)) > separators[0])).all()


def make_data(texts: list[str]) -> Data:
    folder = Path(tempfile.mkdtemp())
    (folder / "a.txt").write_text("\n".join(texts), encoding="utf-8")
    made = build_store([folder / "a.txt"], store().tokenizer, folder / "store", StoreSettings(split_by="line"), 1)
    return Data(made.tokenizer, TEMPLATE, store=made, documents=np.arange(made.documents))


def test_corpora_without_pairs_are_rejected() -> None:
    with pytest.raises(PretuneError, match="needs two documents or more"):
        NSP(negative_rate=1.0).arrange(
            make_data(["One thing. Another thing. A third thing."]), Packing(99, 32), EpochRandom(0)
        )
    with pytest.raises(PretuneError, match="needs documents of two sentences or more"):
        NSP().arrange(make_data(["One thing.", "Another thing."]), Packing(99, 32), EpochRandom(0))
    with pytest.raises(PretuneError, match="leave no room for two texts"):
        NSP().arrange(data(), Packing(99, 4), EpochRandom(0))
    with pytest.raises(PretuneError, match="reads raw text"):
        NSP().arrange(Data(store().tokenizer, TEMPLATE), Packing(99, 32), EpochRandom(0))


def test_joint_objectives_are_parsed_and_checked() -> None:
    assert str(parse_objective("mlm + nsp")) == "mlm+nsp"
    assert str(parse_objective("3*mlm|lm")) == "0.75*mlm|0.25*lm"
    assert parse_objective("mlm(mask_rate=0.3,unit=word)").objectives[0].mask_rate == 0.3  # type: ignore[attr-defined]
    for text, message in {
        "mlm+lm": "incompatible attention patterns \\(mlm full and lm causal\\); alternate the objectives with |",
        "nsp+classify": "nsp and classify each need their own arrangement of the text",
        "mlm+mlm": "appears more than once in the sum",
        "mlm+rtd": "mlm and rtd each corrupt the text; alternate the objectives with |",
        "nsp+sop": "nsp and sop each need their own arrangement of the text",
        "mlmm": "unknown objective 'mlmm'; did you mean 'mlm'",
        "mlm(mask_rat=1)": "unknown option 'mask_rat'; did you mean 'mask_rate'",
        "mlm&nsp": "this is not an objective; write something like",
        "0*mlm": "all weights are 0",
    }.items():
        with pytest.raises(PretuneError, match=message):
            parse_objective(text)
