from __future__ import annotations

import numpy as np
import pytest
import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounter

from canary import LENGTH, TEMPLATE, bert, store, xl
from pretune.model import Root
from pretune.nn import attention
from pretune.objectives import Data, parse_objective
from pretune.text.sequences import Packing
from pretune.training.streams import Stream


@pytest.mark.parametrize("name", ["mlm(unit=span,boundary=true)+sop", "nsp+rtd", "item", "plm"])
def test_a_step_is_one_graph_for_all_batches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but shapes, which are fixed, may be looked at on the host. Attention is a matter of its own."""
    monkeypatch.setattr(attention, "attend_self", lambda qkv, *others, **more: qkv[:, 0] * qkv[:, 1] + qkv[:, 2])
    torch.manual_seed(0)
    root, mixture = Root(bert()), parse_objective(name)
    for objective in mixture.objectives:
        root.heads[objective.name] = objective.head(root.backbone)
    data = Data(store().tokenizer, TEMPLATE, store=store(), documents=np.arange(store().documents))
    stream = Stream(mixture.joints[0], data, Packing(256, LENGTH, fixed=True), seed=0)
    batches = [stream.batch(0, index, 0.0) for index in range(2)]
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


@pytest.mark.parametrize("name", ["plm(stateful=true)", "lm(stateful=true)"])
def test_memory_is_one_graph_too_once_there_is_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "attend", lambda q, k, v, *others, **more: q * k.mean(0) + v.mean(0))
    torch.manual_seed(0)
    root, mixture = Root(xl(8)), parse_objective(name)
    (objective,) = mixture.objectives
    root.heads[objective.name] = objective.head(root.backbone)
    data = Data(store().tokenizer, TEMPLATE, store=store(), documents=np.arange(store().documents))
    stream = Stream(mixture.joints[0], data, Packing(256, LENGTH, fixed=True), seed=0)
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(root, dynamic=False, fullgraph=True, backend=counter)
    carry = None
    for index in range(4):
        batch = stream.batch(0, index, 0.0)
        batch.carry = carry
        expected, found = root(stream.joint, batch), compiled(stream.joint, batch)
        torch.testing.assert_close(found.sums[objective.name], expected.sums[objective.name])
        carry = found.carry
    assert counter.frame_count == 2  # the first batch has nothing to go on from
