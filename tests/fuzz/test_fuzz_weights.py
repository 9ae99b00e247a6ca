"""Model folders with damaged weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pretune.models.weight_files import read_weights, write_weights
from tests.support.fuzz_harness import FEW, MANY, Kind, attack
from tests.support.fuzz_models import digest

TENSORS = {"a.weight": torch.arange(600.0).reshape(20, 30), "b.bias": torch.ones(7), "half": torch.ones(9).half()}


def pickled(folder: Path) -> None:
    torch.save(TENSORS, folder / "pytorch_model.bin")


KINDS = [
    Kind("model.safetensors", lambda folder: write_weights(folder, TENSORS), ["model.safetensors"], read_weights, digest),
    Kind(
        "shards of weights",
        lambda folder: write_weights(folder, TENSORS, shard=1000),
        ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
        read_weights,
        digest,
    ),
    Kind("index of shards", lambda folder: write_weights(folder, TENSORS, shard=1000), ["model.safetensors.index.json"], read_weights),
    Kind("pytorch_model.bin", pickled, ["pytorch_model.bin"], read_weights),
]  # fmt: skip


@pytest.mark.end_to_end
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_damaged_weights(kind: Kind, tmp_path: Path) -> None:
    report = attack(kind, tmp_path, FEW)
    assert not report.bad, str(report)
    assert report.counts["refused"] > FEW // 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_damaged_weights_at_length(kind: Kind, tmp_path: Path) -> None:
    report = attack(kind, tmp_path, MANY, seed=1)
    print(report)
    assert not report.bad, str(report)
