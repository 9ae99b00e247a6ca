"""Pruning a model: layers, heads, inner units, weights, tokens. What goes, goes out of the matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch

from pretune.backbones.onnx_runtime import OnnxBackbone
from pretune.backbones.pruned_shape import Shape, attentions, drop_all_but, feed_forwards, kinds
from pretune.compression.importance import by_gradient, by_magnitude, least_heads, least_units
from pretune.compression.layer_dropping import choose_kept, likeness, parse_drop
from pretune.models.adapt_vocabulary import match_vocabulary
from pretune.models.model import Model
from pretune.nn.magnitude_pruning import make_sparse, zeros_in
from pretune.nn.structured_pruning import narrow, size
from pretune.packed import Batch
from pretune.runtime.errors import PretuneError
from pretune.text.tokenizers.vocabulary_pruning import trim

# Keys of config.json that say how many layers there are, and how many inner units.
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
WIDTHS = ("intermediate_size", "hidden_dim", "n_inner", "d_inner", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim")


@dataclass(frozen=True)
class Pruning:
    """What is to go."""

    drop: str | None = None  # layers: top(4) …
    heads: float = 0.0  # shares
    units: float = 0.0
    weights: float = 0.0
    vocabulary: Callable[[], Iterable[str]] | None = None  # texts whose tokens stay
    seed: int = 0

    def check(self) -> Self:
        """Refuse what leaves nothing, or everything."""
        for name in ("heads", "units", "weights"):
            share = getattr(self, name)
            if not 0 <= share < 1:
                raise PretuneError(f"{name} {share:g}: a share of 0 to below 1 can go; something must be left")
        if not (self.drop or self.heads or self.units or self.weights or self.vocabulary):
            raise PretuneError(
                "nothing to prune: give `pretune prune` --drop, --heads, --units, --weights or --vocabulary"
            )
        if self.drop:
            parse_drop(self.drop)
        return self


@dataclass(frozen=True)
class Examples:
    """What a model is looked at with: batches, and the loss of each where the model was trained for a task."""

    batches: list[Batch]
    loss: Callable[[Model, Batch], torch.Tensor] | None = None


def prune(
    model: Model, pruning: Pruning, examples: Examples, device: torch.device | None = None
) -> tuple[Model, dict[str, Any]]:
    """A smaller copy of a model, and what went; weights at once, whoever wants them gone slowly fine-tunes instead.

    Examples are looked at on a device, in 16 bits on a GPU.
    """
    model = copied(model)
    model.root.to(device or torch.device("cpu"))
    model.root.compute_in(torch.bfloat16 if device is not None and device.type == "cuda" else torch.float32)
    report: dict[str, Any] = {}
    if pruning.drop:
        report["layers"] = drop_layers(model, pruning.drop, examples, pruning.seed)
    for name, find, least in (("heads", attentions, least_heads), ("units", feed_forwards, least_units)):
        if share := getattr(pruning, name):
            parts = dict(find(model.backbone))
            if not parts:
                raise PretuneError(f"{name}: this {model.family.name} has none that can be removed one by one")
            kept = least(worths(model, parts, examples), share)
            report[name] = remove(model, name, parts, kept)
    model.root.to("cpu").compute_in(torch.float32)
    if pruning.vocabulary:
        before = model.need_tokenizer().size
        model, _ = match_vocabulary(model, trim(model.need_tokenizer(), pruning.vocabulary()))
        report["tokens"] = {"were": before, "left": model.need_tokenizer().size}
    if pruning.weights:
        make_sparse(model.backbone, pruning.weights)
        model.sparse = True
        report["zeros"] = zeros_in(model.backbone)
    express(model)
    return model, report


def copied(model: Model) -> Model:
    """A model that can be changed while the other stays."""
    if isinstance(model.backbone, OnnxBackbone):
        raise PretuneError(
            f"{model.backbone.path}: a graph can be used, not changed; compress the model it was made of"
        )
    if model.shape.linear:
        raise PretuneError("matrices of 8 bits are not changed any more; compress the model they were made of")
    return replace(model, root=deepcopy(model.root))


def drop_layers(model: Model, text: str, examples: Examples, seed: int) -> dict[str, Any]:
    """Leave some layers out."""
    way, count = parse_drop(text)
    backbone, depth = model.backbone, model.backbone.depth
    kept = choose_kept(way, count, depth, lambda: likeness(backbone, examples.batches), seed)
    model.shape = drop_all_but(backbone, model.shape, kept)
    return {"were": depth, "left": len(kept), "kept": [layer + 1 for layer in kept]}


def worths(model: Model, parts: dict[str, Any], examples: Examples) -> dict[str, torch.Tensor]:
    """By gradient where there are examples of the model's task, else by magnitude."""
    loss = examples.loss
    if loss is None or not examples.batches:
        return by_magnitude(parts)
    model.root.eval()
    return by_gradient(parts, lambda batch: loss(model, batch), examples.batches)


def remove(model: Model, name: str, parts: dict[str, Any], kept: dict[str, list[int]]) -> dict[str, Any]:
    """Leave the parts only what is kept of them."""
    before = sum(size(part) for part in parts.values())
    for path, part in parts.items():
        narrow(part, kept[path])
    counts = {path: len(left) for path, left in kept.items()}
    model.shape = replace(model.shape, heads=counts) if name == "heads" else replace(model.shape, units=counts)
    return {"were": before, "left": sum(counts.values()), "of_each": list(counts.values())}


def express(model: Model) -> None:
    """Let the configuration say what it can of a model's shape, so that others can load it."""
    known = {key.name for key in fields(model.config)}
    depth = {key: model.backbone.depth for key in DEPTHS if key in known}
    if "layer_types" in known and hasattr(model.config, "kinds") and model.shape.layers is not None:
        depth["layer_types"] = [model.config.kinds()[layer] for layer in model.shape.layers]
    units = set(model.shape.units.values())
    width = {key: next(iter(units)) for key in WIDTHS if key in known} if len(units) == 1 else {}
    settle(model, depth, replace(model.shape, layers=None))
    settle(model, width, replace(model.shape, units={}))
    settle(model, {}, replace(model.shape, heads={}))  # where none went after all


def settle(model: Model, changes: dict[str, Any], shape: Shape) -> None:
    """Take another configuration and another shape, if these build the same model."""
    if shape == model.shape:
        return
    try:
        with torch.device("meta"):
            config = replace(model.config, **changes)
            other = shape.apply(model.family.build(config))
    except (PretuneError, RuntimeError, IndexError, AttributeError):
        return  # which is one that they cannot build
    if kinds(other) == kinds(model.backbone):
        model.config, model.shape = config, shape
