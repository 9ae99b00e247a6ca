from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounter

from pretune.models.model import Network
from pretune.nn.attention import multi_head
from pretune.objectives import Data, parse_objective
from pretune.objectives.distillation.distill_hidden_states import DistillHidden, parse_matches
from pretune.objectives.distillation.distill_token_logits import DistillTokens
from pretune.objectives.distillation.teachers import frozen_copy
from pretune.text.examples.labeled import LabeledRows
from pretune.text.examples.question_answering import AnswerSpan, Questions
from pretune.text.examples.tagged import TaggedSentences
from pretune.text.packing.sequences import Packing
from pretune.training.data_streams import DataStream
from tests.support.objective_data import bidirectional_stack, dialogues
from tests.support.tiny_training_cases import LENGTH, TEMPLATE, VOCABULARY, bert, store, xl

NAMES = [
    "mlm(unit=span,span_boundary=true)+sop",
    "nsp+rtd",
    "item",
    "tlm",
    "trtd",
    "mlm+dlm",
    "bilm",
    "plm",
    "tag",
    "answer",
]


@pytest.mark.not_fast
@pytest.mark.parametrize("name", NAMES)
def test_training_step_compiles_to_one_graph_for_all_batches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only shapes, which are fixed, may be read on the host. Attention is replaced by a stub; it has its own tests."""
    monkeypatch.setattr(multi_head, "attend", lambda q, k, v, *others, **more: q * k + v)
    monkeypatch.setattr(multi_head, "attend_self", lambda qkv, *others, **more: qkv[:, 0] * qkv[:, 1] + qkv[:, 2])
    torch.manual_seed(0)
    root, mixture = (
        Network(bidirectional_stack(VOCABULARY) if name == "bilm" else bert()),
        parse_objective(name, labels=("O", "X")),
    )
    for objective in mixture.objectives:
        root.heads[objective.name] = objective.head(root.backbone)
    data = Data(store().tokenizer, TEMPLATE, store=store(), documents=np.arange(store().documents))
    pairs = LabeledRows(Path("pairs"), {}, ["a call", "it"] * 50, ["is not", "an expression"] * 50)
    words = TaggedSentences(Path("words"), {}, [["a", "call"], ["it"]] * 50, [["O", "X"], ["O"]] * 50)
    asked = Questions(Path("asked"), {}, pairs.texts, pairs.pairs or [], [[AnswerSpan("is", 0)], []] * 50)
    data.rows = {"tlm": pairs, "trtd": pairs, "mlm+dlm": dialogues(), "tag": words, "answer": asked}.get(name)
    stream = DataStream(mixture.joints[0], data, Packing(256, LENGTH, fixed=True), seed=0)
    batches = [stream.batch(0, index, 0.0) for index in (0, len(stream.epoch_plan(0)) - 1)]
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(root, dynamic=False, fullgraph=True, backend=counter)
    for batch in batches:
        torch.manual_seed(1)
        expected = root(stream.joint, batch)
        torch.manual_seed(1)
        found = compiled(stream.joint, batch)
        for term, value in {**expected.sums, **expected.logs}.items():
            torch.testing.assert_close({**found.sums, **found.logs}[term], value)
    assert batches[0].counts != batches[1].counts
    assert counter.frame_count == 1


@pytest.mark.not_fast
@pytest.mark.parametrize("name", ["plm(stateful=true)", "lm(stateful=true)"])
def test_step_with_memory_compiles_to_one_graph_after_the_first_batch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multi_head, "attend", lambda q, k, v, *others, **more: q * k.mean(0) + v.mean(0))
    torch.manual_seed(0)
    root, mixture = Network(xl(8)), parse_objective(name)
    (objective,) = mixture.objectives
    root.heads[objective.name] = objective.head(root.backbone)
    data = Data(store().tokenizer, TEMPLATE, store=store(), documents=np.arange(store().documents))
    stream = DataStream(mixture.joints[0], data, Packing(256, LENGTH, fixed=True), seed=0)
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(root, dynamic=False, fullgraph=True, backend=counter)
    carry = None
    for index in range(4):
        batch = stream.batch(0, index, 0.0)
        batch.state = carry
        expected, found = root(stream.joint, batch), compiled(stream.joint, batch)
        torch.testing.assert_close(found.sums[objective.name], expected.sums[objective.name])
        carry = found.state
    assert counter.frame_count == 2  # the first batch has no memory


@pytest.mark.not_fast
def test_distillation_step_compiles_to_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """With DistilBERT's three losses and matched hidden states, the teacher runs once per batch."""
    monkeypatch.setattr(multi_head, "attend_self", lambda qkv, *others, **more: qkv[:, 0] * qkv[:, 1] + qkv[:, 2])
    torch.manual_seed(0)
    student, large, mixture = Network(bert()), Network(bert()), parse_objective("mlm")
    (mlm,) = mixture.objectives
    large.heads["mlm"] = mlm.head(large.backbone)
    teacher = frozen_copy(large, torch.device("cpu"))
    taught: list[Any] = [
        DistillTokens(mlm, teacher),
        DistillHidden(teacher, parse_matches("cosine+10*hidden+states(1:2)", 2, 2)),
    ]
    mixture = mixture.with_part(taught[0]).joined(taught[1])
    for objective in mixture.objectives:
        student.heads[objective.name] = objective.head(student.backbone)
    data = Data(store().tokenizer, TEMPLATE, store=store(), documents=np.arange(store().documents))
    stream = DataStream(mixture.joints[0], data, Packing(256, LENGTH, fixed=True), seed=0)
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(student.eval(), dynamic=False, fullgraph=True, backend=counter)
    calls: list[int] = []
    teacher.backbone.register_forward_hook(lambda *given: calls.append(1))
    for index in (0, 1):
        batch = stream.batch(0, index, 0.0)
        expected = student(stream.joint, batch)
        assert len(calls) == 1 and not mixture.needs_host_sync
        found = compiled(stream.joint, batch)
        torch.testing.assert_close(found.sums, expected.sums)
        calls.clear()
    assert counter.frame_count == 1
