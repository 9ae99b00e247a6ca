"""Tests that compiled steps without host offsets, as on a GPU, have the losses and gradients of eager ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounter

from pretune.models.model import Network
from pretune.nn.compiler_exclusions import apply_compile_exclusions
from pretune.objectives import Data, parse_objective
from pretune.text.packing.sequences import Packing
from pretune.training.data_streams import DataStream
from tests.support.tiny_training_cases import LENGTH, TEMPLATE, funnel, lstm, performer, reformer, store


@pytest.mark.not_fast
@pytest.mark.parametrize(
    ("make", "name", "whole"),
    # Reversible and recurrent stacks run eagerly; the parts before and after them are compiled.
    [
        (performer, "lm", True),
        pytest.param(funnel, "mlm", False, marks=pytest.mark.slow),
        (reformer, "lm", False),
        (lstm, "lm", False),
    ],
)
def test_compiled_step_equals_the_eager_step(make: Any, name: str, whole: bool) -> None:
    torch.manual_seed(0)
    root, mixture = Network(make()), parse_objective(name)
    root.heads[name] = mixture.objectives[0].head(root.backbone)
    data = Data(store().tokenizer, TEMPLATE, store=store(), documents=np.arange(store().documents))
    stream = DataStream(mixture.joints[0], data, Packing(256, LENGTH, fixed=True), seed=0)
    torch._dynamo.reset()
    apply_compile_exclusions()
    counter = CompileCounter()
    compiled = torch.compile(root, dynamic=False, fullgraph=whole, backend=counter)
    for index in (0, len(stream.epoch_plan(0)) - 1):
        batch = stream.batch(0, index, 0.0)
        batch.packed = tuple(replace(packed, host_offsets=None) for packed in batch.packed)
        gradients = []
        for model in (root, compiled):
            root.zero_grad()
            model(stream.joint, batch).over(batch.counts).backward()
            gradients.append([p.grad for p in root.parameters() if p.grad is not None])
        for plain, other in zip(*gradients, strict=True):
            torch.testing.assert_close(plain, other)
    assert counter.frame_count == 1 or not whole
