"""Pruning of layers, attention heads, feed-forward units, weights, and vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch

from pretune.backbones import pruned_shape
from pretune.backbones.onnx_runtime import OnnxBackbone
from pretune.compression.importance import gradient_importance, heads_to_keep, magnitude_importance, units_to_keep
from pretune.compression.layer_dropping import layer_similarity, layers_to_keep, parse_drop
from pretune.models.adapt_vocabulary import replace_vocabulary
from pretune.models.model import Model
from pretune.nn.magnitude_pruning import prune_by_magnitude, sparsity
from pretune.packed import Batch
from pretune.runtime.errors import PretuneError
from pretune.text.tokenizers.vocabulary_pruning import prune_vocabulary

# Keys of config.json for the number of layers, and for the number of feed-forward units.
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
WIDTHS = ("intermediate_size", "hidden_dim", "n_inner", "d_inner", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim")


@dataclass(frozen=True)
class PruningSpec:
    """Settings of pruning: which layers to drop, and which fractions of heads, units, weights, and vocabulary."""

    drop_layers: str | None = None  # layers, e.g. top(4)
    heads: float = 0.0  # fractions to remove
    ffn_units: float = 0.0
    sparsity: float = 0.0
    vocabulary_texts: Callable[[], Iterable[str]] | None = None  # returns texts whose tokens are kept
    seed: int = 0

    def check(self) -> Self:
        """Return the pruning specification itself; raise an error if it removes nothing or everything."""
        for name in ("heads", "ffn_units", "sparsity"):
            share = getattr(self, name)
            if not 0 <= share < 1:
                raise PretuneError(
                    f"{name} {share:g}: the fraction to remove must be at least 0 and below 1, for example 0.4"
                )
        if not (self.drop_layers or self.heads or self.ffn_units or self.sparsity or self.vocabulary_texts):
            raise PretuneError(
                "there is nothing to prune; give `pretune prune` --drop-layers, --heads, --ffn-units, --sparsity or --vocabulary-texts"
            )
        if self.drop_layers:
            parse_drop(self.drop_layers)
        return self


@dataclass(frozen=True)
class ImportanceData:
    """Batches on which the importance of heads and units is measured, and the loss of the model's task, if any."""

    batches: list[Batch]
    loss: Callable[[Model, Batch], torch.Tensor] | None = None


def prune_model(
    model: Model, pruning: PruningSpec, examples: ImportanceData, device: torch.device | None = None
) -> tuple[Model, dict[str, Any]]:
    """Return a pruned copy of a model, and a report with the numbers of layers, heads, … before and after pruning.

    The importance of heads and units is measured on `examples`.
    """
    model = editable_copy(model)
    model.root.to(device or torch.device("cpu"))
    model.root.set_activation_dtype(torch.bfloat16 if device is not None and device.type == "cuda" else torch.float32)
    report: dict[str, Any] = {}
    if pruning.drop_layers:
        report["layers"] = drop_layers(model, pruning.drop_layers, examples, pruning.seed)
    for name, find, keep_most in (
        ("heads", pruned_shape.prunable_attentions, heads_to_keep),
        ("ffn_units", pruned_shape.feed_forwards, units_to_keep),
    ):
        if share := getattr(pruning, name):
            parts = dict(find(model.backbone))
            if not parts:
                raise PretuneError(
                    f"{name}: {model.family.name} models have no {name} that can be pruned; prune without this option"
                )
            kept = keep_most(importance_of(model, parts, examples), share)
            report[name] = keep_only(model, name, parts, kept)
    model.root.to("cpu").set_activation_dtype(torch.float32)
    if pruning.vocabulary_texts:
        before = model.require_tokenizer().size
        model, _ = replace_vocabulary(model, prune_vocabulary(model.require_tokenizer(), pruning.vocabulary_texts()))
        report["tokens"] = {"before": before, "after": model.require_tokenizer().size}
    if pruning.sparsity:
        prune_by_magnitude(model.backbone, pruning.sparsity)
        model.sparse = True
        report["zeros"] = sparsity(model.backbone)
    update_config(model)
    return model, report


def editable_copy(model: Model) -> Model:
    """Return a deep copy of a model to modify; raise an error for a quantized model, which cannot be modified."""
    if isinstance(model.backbone, OnnxBackbone):
        raise PretuneError(f"{model.backbone.path}: an ONNX graph cannot be changed; compress the model before export")
    if model.shape.linear:
        raise PretuneError("a model with int8 weights cannot be changed; compress the model before quantization")
    return replace(model, root=deepcopy(model.root))


def drop_layers(model: Model, text: str, examples: ImportanceData, seed: int) -> dict[str, Any]:
    """Drop the layers of a model that an expression such as top(4) selects; return a report of the remaining layers."""
    backbone, depth = model.backbone, model.backbone.depth
    kept = layers_to_keep(*parse_drop(text), depth, lambda: layer_similarity(backbone, examples.batches), seed)
    model.shape = pruned_shape.prune_layers(backbone, model.shape, kept)
    return {"before": depth, "after": len(kept), "kept": [layer + 1 for layer in kept]}


def importance_of(model: Model, parts: dict[str, Any], examples: ImportanceData) -> dict[str, torch.Tensor]:
    """Return the importance of attention heads or feed-forward units, one tensor (units,) per module in `parts`.

    It is estimated by gradients on `examples`, or by weight norms if there are no labeled examples.
    """
    loss = examples.loss
    if loss is None or not examples.batches:
        return magnitude_importance(parts)
    model.root.eval()
    return gradient_importance(parts, lambda batch: loss(model, batch), examples.batches)


def keep_only(model: Model, name: str, parts: dict[str, Any], kept: dict[str, list[int]]) -> dict[str, Any]:
    """Remove attention heads or feed-forward units, except those in `kept`; return their numbers before and after.

    `name` is "heads" or "ffn_units", `parts` has the modules by path, and `kept` the indices to keep in each module.
    """
    before = sum(part.units for part in parts.values())
    for path, part in parts.items():
        part.keep_units(kept[path])
    counts = {path: len(units) for path, units in kept.items()}
    model.shape = replace(model.shape, heads=counts) if name == "heads" else replace(model.shape, units=counts)
    return {"before": before, "after": sum(counts.values()), "per_layer": list(counts.values())}


def update_config(model: Model) -> None:
    """Write a model's pruned sizes into its configuration, if it has keys for them, for other programs to load it."""
    known = {key.name for key in fields(model.config)}
    depth = {key: model.backbone.depth for key in DEPTHS if key in known}
    if "layer_types" in known and hasattr(model.config, "kinds") and model.shape.layers is not None:
        depth["layer_types"] = [model.config.kinds()[layer] for layer in model.shape.layers]
    units = set(model.shape.units.values())
    width = {key: next(iter(units)) for key in WIDTHS if key in known} if len(units) == 1 else {}
    try_config(model, depth, replace(model.shape, layers=None))
    try_config(model, width, replace(model.shape, units={}))
    try_config(model, {}, replace(model.shape, heads={}))  # if no head was removed


def try_config(model: Model, changes: dict[str, Any], shape: pruned_shape.PrunedShape) -> None:
    """Apply `changes` to a model's configuration, and set its pruned shape to `shape`.

    Do nothing if a model with this configuration and shape would have other layers than the actual model.
    """
    if shape == model.shape:
        return
    try:
        with torch.device("meta"):
            config = replace(model.config, **changes)
            other = shape.apply(model.family.build(config))
    except (PretuneError, RuntimeError, IndexError, AttributeError):
        return  # the configuration cannot express this shape
    if pruned_shape.architecture_signature(other) == pruned_shape.architecture_signature(model.backbone):
        model.config, model.shape = config, shape
