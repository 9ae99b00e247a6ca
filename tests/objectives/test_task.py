"""Tests for every task: fixed shapes change nothing, one graph for all batches, predictions independent of batching."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounter

from pretune.backbones import transformer_stack
from pretune.inference.predict import Predictor
from pretune.metrics import score
from pretune.models import length_bucketing
from pretune.models.create_model import make_model
from pretune.models.model import Network
from pretune.nn.attention import multi_head
from pretune.objectives import Data, Task, parse_objective, single_objective
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.training.data_streams import DataStream
from pretune.training.jobs.finetuning import row_packing
from tests.support.objective_data import TEMPLATE, few_words, stack, write
from tests.support.task_rows import ROWS


def prepare(name: str, folder: Path, count: int = 40) -> tuple[Any, Any]:
    """Return a fitted task and its examples."""
    (task,) = parse_objective(name).objectives
    assert isinstance(task, Task)
    examples = task.read(write(folder / "rows.jsonl", ROWS[name](count)), {})
    return task.fit(examples), examples


@pytest.mark.end_to_end
@pytest.mark.parametrize("name", ROWS)
def test_fixed_shapes_change_nothing_and_compile_to_one_graph(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # These stand-ins for attention, which compile fast, need as many queries as keys.
    monkeypatch.setattr(multi_head, "attend", lambda q, k, v, *others, **more: q * k + v)
    monkeypatch.setattr(multi_head, "attend_self", lambda qkv, *others, **more: qkv[:, 0] * qkv[:, 1] + qkv[:, 2])
    monkeypatch.setattr(transformer_stack, "defers_top_layer", lambda x: False)
    task, examples = prepare(name, tmp_path)
    tokenizer = Tokenizer.load(few_words())
    data = Data(tokenizer, TEMPLATE, rows=examples)
    torch.manual_seed(0)
    root = Network(stack(tokenizer.size))
    root.heads[task.name] = task.head(root.backbone)
    root.eval()
    joint = single_objective(task).joints[0]
    laid = task.tokenize_examples(data, 24)
    loose = DataStream(joint, data, row_packing(laid, 8, 24, fixed=False), seed=0)
    packing = dataclasses.replace(row_packing(laid, 8, 24, fixed=True), tokens=10 * 24, sequences=20)
    tight = DataStream(joint, data, packing, seed=0)
    assert len(loose.epoch_plan(0)) == len(tight.epoch_plan(0)) > 2
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(root, dynamic=False, fullgraph=True, backend=counter)
    shapes = set()
    for index in range(len(tight.epoch_plan(0))):
        free, fixed = loose.batch(0, index, 0.0), tight.batch(0, index, 0.0)
        assert free.counts == fixed.counts and (free.rows == fixed.rows).all()
        targets = fixed.targets[task.name]
        assert float(targets.weight.sum()) == pytest.approx(fixed.counts[task.name])
        shapes.add((fixed.packed[0].ids.shape, fixed.packed[0].offsets.shape, targets.at.shape, targets.target.shape))
        with torch.no_grad():
            expected = root(joint, free).over(free.counts)
            torch.testing.assert_close(root(joint, fixed).over(fixed.counts), expected)
            if index < 2:
                torch.testing.assert_close(compiled(joint, fixed).over(fixed.counts), expected)
    assert len(shapes) == 1 and counter.frame_count == 1


@pytest.mark.parametrize("name", ROWS)
def test_predictions_do_not_depend_on_batches_and_can_be_scored(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, examples = prepare(name, tmp_path, count=12)
    model = make_model("bert-tiny", 200)
    model.tokenizer = Tokenizer.load(few_words())
    model.add_heads([task])
    answer = Predictor(model, task, examples, 40)
    together = answer(torch.device("cpu"))
    assert len(together) == len(examples)
    monkeypatch.setattr(length_bucketing, "TOKENS", 64)
    for one, other in zip(together, answer(torch.device("cpu")), strict=True):
        assert one.keys() == other.keys()
        for key in ("value", "score", "similarity", "probability"):
            assert one.get(key) == pytest.approx(other.get(key), abs=1e-4)
    found = score(task, together, examples)
    assert task.primary_metric in found and all(np.isfinite(value) for value in found.values())
    some = examples.take(range(3))
    assert len(some) == 3 and some.location(2) == examples.location(2) and some.inputs(1) == examples.inputs(1)
    few = Predictor(model, task, some, 40)(torch.device("cpu"))
    assert few[0].keys() == together[0].keys()
