"""Objectives that learn from rows, or predict both ways, fit their fixed shapes in every epoch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pretune.objectives import parse_objective
from pretune.text.examples.question_answering import AnswerSpan, Questions
from pretune.text.examples.tagged import TaggedSentences
from pretune.text.packing.sequences import Packing
from pretune.training.data_streams import DataStream
from tests.support.objective_data import data, dialogues, parallel

NAMES = ["tlm", "tlm(rate=1)", "trtd(rate=1)", "dlm", "mlm+dlm(turns=5)", "bilm", "tag", "tag+mlm", "answer(stride=20)"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("tokens", "length"), [(512, 96), (160, 96), (64, 64)])
def test_every_pack_fits(name: str, tokens: int, length: int) -> None:
    rows: Any = dialogues() if "dlm" in name else parallel()
    if "tag" in name:
        rows = TaggedSentences(
            Path("x"), {}, words := [text.split() for text in rows.texts], [["O"] * len(row) for row in words]
        )
    if "answer" in name:
        rows = Questions(Path("x"), {}, rows.pairs, [" ".join(rows.texts[i : i + 5]) for i in range(len(rows))])
        rows.answers = [[AnswerSpan(passage[:9], 0)] for passage in rows.passages]
    source = replace(
        data(),
        rows=rows,
        languages={"de": 0, "en": 1, "ru": 2} if "tlm" in name or "trtd" in name else {},
        exponent=0.3,
    )
    stream = DataStream(
        parse_objective(name, labels=("O",)).joints[0], source, Packing(tokens, length, fixed=True), seed=1
    )
    shapes = set()
    for epoch in range(3):
        for index in range(len(stream.epoch_plan(epoch))):
            batch = stream.batch(epoch, index, 0.0)
            (packed,) = batch.packed
            targets = tuple((term, tuple(t.at.shape), tuple(t.target.shape)) for term, t in batch.targets.items())
            columns = tuple(sorted(packed.columns))
            shapes.add((tuple(packed.ids.shape), tuple(packed.offsets.shape), packed.max_length, columns, targets))
            assert all(float(t.weight.sum()) == batch.counts[term] for term, t in batch.targets.items())
    assert len(shapes) == 1
