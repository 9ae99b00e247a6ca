"""Tests that compiled steps of fixed shapes in half precision have the losses of the CPU. Run with -m gpu."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pretune.models.model import Network
from pretune.objectives import parse_objective
from pretune.text.packing.sequences import Packing
from pretune.training.data_streams import DataStream
from tests.support.objective_data import SENTINELS, data, encoder_decoder, store

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["spans", "denoise", "mass", "shuffle", "translate", "skip_thought"])
def test_compiled_step_on_the_gpu_equals_the_cpu(name: str) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    joint = parse_objective(name).joints[0]
    network = encoder_decoder(store("wordpiece", SENTINELS).tokenizer.size, width=128)  # heads of 64
    root = Network(network, [(name, joint.objectives[0].head(network))])
    made = DataStream(joint, data("wordpiece", SENTINELS, "t5"), Packing(1024, 64, fixed=True), seed=0)
    batches = [made.batch(0, index, 0.0) for index in range(min(3, len(made.epoch_plan(0))))]
    with torch.no_grad():
        wanted = [float(root(joint, batch).sums[name]) / batch.counts[name] for batch in batches]
    root.cuda()
    root.set_activation_dtype(torch.bfloat16)
    root.compile(dynamic=False)
    found = []
    for batch in batches:
        loss = root(joint, batch.to(torch.device("cuda")))
        loss.over(batch.counts).backward()
        found.append(float(loss.sums[name]) / batch.counts[name])
    np.testing.assert_allclose(found, wanted, rtol=2e-2)
    assert all(torch.isfinite(p.grad).all() for p in root.parameters() if p.grad is not None)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2
