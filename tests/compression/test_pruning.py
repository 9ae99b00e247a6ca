"""Tests of pruned shapes: removing equals masking, files are smaller, and models can be loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune import PretuneError
from pretune.backbones.pruned_shape import feed_forwards, keep_layers, prunable_attentions
from pretune.compression.importance import gated, gradient_importance, heads_to_keep
from pretune.compression.layer_dropping import layers_to_keep, parse_drop
from pretune.compression.pruning import ImportanceData, PruningSpec, prune_model
from pretune.models.loading import load
from tests.support.pruning_models import made, packed, states
from tests.support.tiny_models import random_model, small_tokenizer


@pytest.mark.parametrize("family", ["bert", "modernbert", "gpt2", "albert"])
def test_removing_heads_and_units_equals_gating_them_to_zero(family: str, tmp_path: Path) -> None:
    model = made(family, num_attention_heads=4, n_head=4, embedding_size=16)
    smaller, report = prune_model(model, PruningSpec(heads=0.5, ffn_units=0.5), ImportanceData([]))
    masks = {}
    for find in (prunable_attentions, feed_forwards):
        old, new = dict(find(model.backbone)), dict(find(smaller.backbone))
        for path, part in old.items():
            # The columns of the last matrix show which ones were kept.
            columns, left = part.output.weight.T, new[path].output.weight.T  # type: ignore[union-attr]
            width = getattr(part, "head_width", 1)
            stayed = (columns[:, None] == left[None]).all(-1).any(1).view(-1, width)[:, 0]
            masks[path] = stayed.float()
            assert 1 <= int(stayed.sum()) < len(stayed)
    parts = dict(prunable_attentions(model.backbone)) | dict(feed_forwards(model.backbone))
    with gated(parts, masks):
        masked = states(model)
    torch.testing.assert_close(states(smaller), masked, rtol=1e-5, atol=1e-5)
    assert report["heads"]["after"] == report["heads"]["before"] // 2
    for name, one in (("old", model), ("new", smaller)):
        one.save(tmp_path / name)
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("old", "new")]
    assert sizes[1] < sizes[0]
    again = load(tmp_path / "new")
    assert not again.untrained and again.shape == smaller.shape
    torch.testing.assert_close(states(again), states(smaller))


@pytest.mark.parametrize("family", ["bert", "modernbert", "albert", "gpt2"])
def test_dropped_layers_are_saved_and_loaded(family: str, tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 5, "n_layer": 5, "embedding_size": 16}
    model = made(family, **sizes)
    by_hand = made(family, **sizes)
    keep_layers(by_hand.backbone, [1, 2, 4])
    smaller, _ = prune_model(model, PruningSpec(drop_layers="odd(2)"), ImportanceData([]))
    assert smaller.backbone.depth == 3
    smaller.save(tmp_path / "odd")
    torch.testing.assert_close(states(load(tmp_path / "odd")), states(smaller))
    bottom, _ = prune_model(smaller, PruningSpec(drop_layers="bottom(1)"), ImportanceData([]))
    bottom.save(tmp_path / "again")
    torch.testing.assert_close(states(load(tmp_path / "again")), states(bottom))
    top, _ = prune_model(model, PruningSpec(drop_layers="top(2)"), ImportanceData([]))
    # A configuration can describe fewer layers; ModernBERT's first layer, without a norm, is of another kind.
    assert not top.shape
    top.export(tmp_path / "top")
    assert load(tmp_path / "top").backbone.depth == 3
    assert bool(bottom.shape) == (family == "modernbert")


@pytest.mark.parametrize("family", ["bert", "albert"])
def test_layers_of_a_pruned_model_can_be_dropped(family: str, tmp_path: Path) -> None:
    model = made(family, num_attention_heads=4, num_hidden_layers=4, embedding_size=16)
    smaller, _ = prune_model(model, PruningSpec(heads=0.4), ImportanceData([]))
    twice, _ = prune_model(smaller, PruningSpec(drop_layers="bottom(2)"), ImportanceData([]))
    twice.save(tmp_path)
    torch.testing.assert_close(states(load(tmp_path)), states(twice))


def test_pruned_layers_load_in_transformers_and_pruned_heads_do_not(tmp_path: Path) -> None:
    from transformers import AutoModel

    model = made(num_attention_heads=4, num_hidden_layers=4)
    smaller, _ = prune_model(model, PruningSpec(drop_layers="even(1)", ffn_units=0.5), ImportanceData([]))
    smaller.save(tmp_path / "run")
    pt.export(tmp_path / "run", out=tmp_path / "out", head="none")
    theirs: Any = AutoModel.from_pretrained(tmp_path / "out").eval()
    ids = torch.tensor([[5, 9, 12, 40, 7]])
    torch.testing.assert_close(theirs(ids).last_hidden_state[0], states(smaller)[:5], rtol=1e-4, atol=1e-4)
    headless, _ = prune_model(model, PruningSpec(heads=0.3), ImportanceData([]))
    headless.save(tmp_path / "heads")
    with pytest.raises(PretuneError, match="cannot describe pruned heads"):
        pt.export(tmp_path / "heads", out=tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_gradient_importance_finds_the_head_that_matters() -> None:
    model = made(num_attention_heads=4)
    parts = dict(prunable_attentions(model.backbone))
    first = next(iter(parts.values()))
    with torch.no_grad():  # three of the heads have zero output
        first.output.weight[:, 4:] = 0.0  # type: ignore[union-attr, index]
    from pretune.packed import Batch

    def loss(batch: Batch) -> torch.Tensor:
        return model.backbone(*batch.packed).last.square().sum()

    found = gradient_importance(parts, loss, [Batch((packed(),))])
    assert found[next(iter(parts))].argmax() == 0 and float(found[next(iter(parts))][1:].max()) == 0.0
    kept = heads_to_keep(found, 0.3)
    assert 0 in kept[next(iter(parts))]


def test_layer_selection_methods() -> None:
    assert layers_to_keep("top", 4, 12, list) == list(range(8))
    assert layers_to_keep("bottom", 4, 12, list) == list(range(4, 12))
    assert layers_to_keep("odd", 4, 12, list) == [0, 1, 2, 3, 5, 7, 9, 11]  # 5, 7, 9, 11 are removed
    assert layers_to_keep("even", 4, 12, list) == [0, 1, 2, 3, 4, 6, 8, 10]
    assert layers_to_keep("symmetric", 4, 12, list) == [0, 1, 2, 3, 8, 9, 10, 11]
    assert layers_to_keep("contributions", 1, 3, lambda: [0.2, 0.9, 0.5]) == [0, 2]
    assert layers_to_keep("random", 3, 6, list, seed=1) == layers_to_keep("random", 3, 6, list, seed=1)


def test_invalid_options_are_rejected() -> None:
    for text, words in (("top", "such as"), ("tpo(3)", "did you mean 'top'")):
        with pytest.raises(PretuneError, match=words):
            parse_drop(text)
    with pytest.raises(PretuneError, match="the model has 12 layers; drop 1 to 11"):
        layers_to_keep("top", 12, 12, list)
    with pytest.raises(PretuneError, match="only 6 of the 12 layers are even"):
        layers_to_keep("even", 7, 12, list)
    with pytest.raises(PretuneError, match="must be at least 0 and below 1"):
        PruningSpec(heads=1.0).check()
    with pytest.raises(PretuneError, match="nothing to prune"):
        PruningSpec().check()
    with pytest.raises(PretuneError, match="give labeled examples with --train"):
        prune_model(made(), PruningSpec(drop_layers="contributions(1)"), ImportanceData([]))
    with pytest.raises(PretuneError, match="single Transformer stack"):
        prune_model(
            random_model("bart", small_tokenizer("byte-level-bpe"), "denoise"),
            PruningSpec(drop_layers="top(1)"),
            ImportanceData([]),
        )
