"""Tests of magnitude pruning and of sparse storage."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pretune import PretuneError
from pretune.compression.pruning import ImportanceData, PruningSpec, prune_model
from pretune.models.loading import load
from pretune.nn.linear import Linear
from pretune.nn.magnitude_pruning import (
    FINAL_SPARSITY_AT,
    PRUNING_STEPS,
    GradualMagnitudePruning,
    prune_by_magnitude,
    sparsity,
)
from pretune.runtime.compressed_tensors import decode_tensors, encode_sparse
from pretune.training.jobs.finetuning_strategies import parse_strategy
from tests.support.one_word_task import start, tune
from tests.support.pruning_models import made, states


def test_zero_weights_are_not_stored(tmp_path: Path) -> None:
    model = made()
    model.save(tmp_path / "dense")
    sparse, report = prune_model(model, PruningSpec(sparsity=0.8), ImportanceData([]))
    assert report["zeros"] == pytest.approx(0.8, abs=0.01)
    sparse.save(tmp_path / "sparse")
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("dense", "sparse")]
    assert sizes[1] < 0.5 * sizes[0]
    again = load(tmp_path / "sparse")
    assert again.sparse and sparsity(again.backbone) == sparsity(sparse.backbone)
    assert torch.equal(states(again), states(sparse))
    again.export(tmp_path / "for others")
    assert not load(tmp_path / "for others").sparse


def test_sparse_storage_is_lossless() -> None:
    torch.manual_seed(0)
    tensors = {
        "full": torch.randn(5, 7), "bias": torch.zeros(9),
        "sparse": torch.randn(13, 11) * (torch.rand(13, 11) > 0.7), "half": torch.eye(40).half(),
    }  # fmt: skip
    kept = encode_sparse(tensors)
    assert {"full", "bias"} <= kept.keys() and {"sparse", "half"}.isdisjoint(kept)
    back = decode_tensors(kept)
    assert all(torch.equal(back[name], tensor) and back[name].dtype == tensor.dtype for name, tensor in tensors.items())


def test_gradual_pruning_keeps_pruned_weights_at_zero() -> None:
    torch.manual_seed(0)
    linear = Linear(40, 50)
    shrink = GradualMagnitudePruning(linear, 0.9)
    shares = []
    for step in range(1, 41):
        with torch.no_grad():
            linear.weight.add_(0.01 * torch.randn(50, 40))
        zeros = linear.weight == 0
        shrink(step / 40)
        assert bool((linear.weight[zeros] == 0).all())
        shares.append(sparsity(linear))
    assert shares == sorted(shares) and shares[-1] == pytest.approx(0.9, abs=0.01)
    assert shares[int(40 * FINAL_SPARSITY_AT)] == shares[-1]
    assert len(set(shares)) <= PRUNING_STEPS + 1
    # A pruning that resumes from here finds the same zeros.
    fresh = GradualMagnitudePruning(linear, 0.9)
    fresh(1.0)
    assert sparsity(linear) == shares[-1]


@pytest.mark.not_fast
def test_finetuning_with_gradual_pruning(tmp_path: Path) -> None:
    run = tune(tmp_path / "run", strategy="full+sparse(0.8)", steps=60)
    assert run.results["dev/accuracy"] > 0.9
    model = load(tmp_path / "run")
    assert sparsity(model.backbone) == pytest.approx(0.8, abs=0.01) and model.sparse
    assert (tmp_path / "run/model.safetensors").stat().st_size < 0.5 * (
        start() / "start/model.safetensors"
    ).stat().st_size


def test_invalid_sparsity_is_rejected() -> None:
    with pytest.raises(PretuneError, match="above 0 and below 1"):
        parse_strategy("sparse(1)")
    with pytest.raises(PretuneError, match="needs all weights to be trained"):
        parse_strategy("frozen+sparse(0.5)")
    linear = Linear(4, 4)
    before = linear.weight.clone()
    prune_by_magnitude(linear, 0.01)  # of 16 weights, none
    assert torch.equal(before, linear.weight)
