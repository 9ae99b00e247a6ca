"""Tests of fine-tuning strategies: each trains exactly the documented parameters, and each learns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pretune import PretuneError
from pretune.models.create_model import make_model
from pretune.models.loading import load_model
from pretune.nn.layer_mixing import LayerFeatures
from pretune.nn.lora import add_lora, merge_lora
from pretune.nn.pooling import AttentionPooling, pool
from pretune.packed import pack_lists
from pretune.training.jobs.finetuning_strategies import choose_strategy, parse_strategy
from tests.support.one_word_task import start, tune

LAYERS = [f"layer {number}" for number in range(4)]


def changed_groups(out: Path) -> set[str]:
    """Return the groups of the backbone that differ from the initial model."""
    before, after = load_model(start() / "start").backbone, load_model(out).backbone
    return {
        name
        for (name, old), (_, new) in zip(before.groups(), after.groups(), strict=True)
        if any(
            not torch.equal(a, b)
            for x, y in zip(old, new, strict=True)
            for a, b in zip(x.parameters(), y.parameters(), strict=True)
        )
    }


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("full", {"embed", *LAYERS}),
        ("frozen", set()),
        ("top(1)", {"layer 3"}),
        ("gradual(1)", {*LAYERS}),
        ("lora(2)", {*LAYERS}),
        ("frozen+reset(2)", {"layer 2", "layer 3"}),
        ("full+freelb(2)", {"embed", *LAYERS}),
        ("top(1)+smart", {"layer 3"}),
    ],
)
def test_strategy_trains_only_its_parameters(strategy: str, expected: set[str], tmp_path: Path) -> None:
    tune(tmp_path / "run", strategy, steps=4)
    assert changed_groups(tmp_path / "run") == expected


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    "strategy", ["full", "top(2)", "gradual", "lora(4)", "reset(1)", "full+freelb(2)", "full+smart"]
)
def test_strategy_learns(strategy: str, tmp_path: Path) -> None:
    assert tune(tmp_path / "run", strategy).results["dev/accuracy"] > 0.9


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    "objective",
    [
        "classify(pooling=mean) on embeddings", "classify(pooling=mean) on mix/bilstm", "classify(pooling=max) on concat4",
        "classify(pooling=attention) on second/mlp", "classify(pooling=concat)", "classify(pooling=mean) on sum4",
    ],
)  # fmt: skip
def test_layer_features_learn_and_are_restored(objective: str, tmp_path: Path) -> None:
    run = tune(tmp_path / "run", "full", objective)
    assert run.results["dev/accuracy"] > 0.9
    lines = [line.split(",") for line in (start() / "train.csv").read_text().splitlines()[1:]]
    answers = run.predict([text for text, _ in lines])
    right = sum(answer["label"] == label for answer, (_, label) in zip(answers, lines, strict=True))
    assert right / len(lines) == run.results["dev/accuracy"]


@pytest.mark.not_fast
def test_frozen_features_learn(tmp_path: Path) -> None:
    run = tune(tmp_path / "run", "frozen", "classify(pooling=mean) on mix/bilstm", steps=60)
    assert run.results["dev/accuracy"] > 0.9
    assert not changed_groups(tmp_path / "run")


def test_lora_starts_as_identity_and_can_be_merged() -> None:
    backbone = make_model("bert-tiny", 64).backbone.eval()
    packed = pack_lists([[1, 2, 3], [4, 5]])
    before = backbone(packed).last
    add_lora(backbone, 2, scale=2.0)
    assert torch.equal(backbone(packed).last, before)
    moving = [p for p in backbone.parameters() if p.requires_grad]
    assert all(p.dim() == 3 for p in moving)
    for p in moving:
        torch.nn.init.normal_(p, std=0.1)
    changed = backbone(packed).last
    names = {name for name, _ in make_model("bert-tiny", 64).backbone.named_parameters()}
    merge_lora(backbone)
    assert {name for name, _ in backbone.named_parameters()} == names
    assert torch.allclose(backbone(packed).last, changed, atol=1e-6) and not torch.allclose(changed, before)


def test_lstm_over_packed_sequences_equals_lstm_over_each_sequence() -> None:
    features = LayerFeatures(8, 2, "last", "bilstm")
    sequences = [[1] * 5, [1], [1] * 3, [1] * 9]
    packed = pack_lists(sequences)
    x = torch.randn(len(packed), 8)
    out = features([x], packed)
    theirs = torch.nn.LSTM(8, 4, bidirectional=True, batch_first=True)
    for cells, ending in ((features.lstms.ahead, ""), (features.lstms.back, "_reverse")):
        for name, weight in zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), cells.weights(x.dtype), strict=True):
            getattr(theirs, f"{name}_l0{ending}").data.copy_(weight)
    start = 0
    for sequence in sequences:
        alone, _ = theirs(x[start : start + len(sequence)][None])
        assert torch.allclose(out[start : start + len(sequence)], alone[0], atol=1e-6)
        start += len(sequence)


def test_pooling_is_restricted_to_its_sequence() -> None:
    packed = pack_lists([[1, 2, 3], [4]])
    states = torch.randn(4, 6, requires_grad=True)
    assert torch.equal(pool(states, packed, "concat")[1], states[3].repeat(3))
    pooled = AttentionPooling(6)(states, packed)
    assert torch.allclose(pooled[1], states[3])
    (slope,) = torch.autograd.grad(pooled[1].sum(), states)
    assert not slope[:3].any()


def test_a_strategy_must_train_something() -> None:
    assert "full" in choose_strategy("auto").parts
    with pytest.raises(PretuneError, match="strategy frozen: the task 'contrast' has no head"):
        choose_strategy("frozen", "contrast", has_head=False)
    with pytest.raises(PretuneError, match="'features' only fits the head"):
        choose_strategy("features+lora(4)")
    with pytest.raises(PretuneError, match="temperature must be above 0"):
        choose_strategy("contrastive(0)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("frozzen", "there is no strategy 'frozzen'; did you mean 'frozen'"),
        ("frozen+lora", "full, frozen, top, gradual, and lora exclude one another"),
        ("top(x)", "there is no strategy"),
    ],
)
def test_invalid_strategies_are_rejected(text: str, message: str) -> None:
    with pytest.raises(PretuneError, match=message.replace("(", r"\(").replace(")", r"\)")):
        parse_strategy(text)


def test_more_layers_than_the_model_has_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match=r"top\(9\): this model has 4 layers"):
        tune(tmp_path / "run", "top(9)")
    with pytest.raises(PretuneError, match="unknown features 'midle'"):
        tune(tmp_path / "run2", objective="classify on midle")
