"""The record, in config.json, of what pruning and quantization changed in a backbone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from pretune.backbones.transformer_stack import TransformerStack
from pretune.nn.quantized.int8 import replace_linears
from pretune.nn.structured_pruning import Prunable, PrunableHeads, PrunableUnits
from pretune.runtime.errors import PretuneError, quote


@dataclass(frozen=True)
class PrunedShape:
    """The layers, heads and feed-forward units that pruning kept, and the quantization; empty for unchanged models."""

    layers: tuple[int, ...] | None = None  # the kept layers, by their original depths; None for all
    heads: Mapping[str, int] = field(default_factory=dict)  # the number of heads, by path of the attention module
    units: Mapping[str, int] = field(default_factory=dict)  # the number of units, by path of the feed-forward module
    linear: str = ""  # the quantization of all linear layers: dynamic, weights, int4; "" for none

    def __bool__(self) -> bool:
        return self != PrunedShape()

    def write(self) -> dict[str, Any]:
        """Return the pruned shape as JSON data, for the entry `shape` of config.json."""
        parts: dict[str, Any] = {} if self.layers is None else {"layers": list(self.layers)}
        rest = {"heads": dict(self.heads), "units": dict(self.units), "linear": self.linear}
        return parts | {name: part for name, part in rest.items() if part}

    def describe(self) -> str:
        """Return a description of what was pruned and quantized, for error messages.

        >>> PrunedShape(layers=(0, 2), linear="int4").describe()
        'pruned layers and int4 weights'
        """
        pruned = [name for name in ("layers", "heads", "units") if name in self.write()]
        parts = [f"pruned {' and '.join(pruned)}"] if pruned else []
        quantized = "int4" if self.linear == "int4" else "int8"
        return " and ".join(parts + ([f"{quantized} weights"] if self.linear else []))

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> PrunedShape:
        """Return the pruned shape that the entry `shape` of a config.json describes."""
        layers = content.get("layers")
        heads, units = (dict(content.get(name, {})) for name in ("heads", "units"))
        return cls(None if layers is None else tuple(layers), heads, units, content.get("linear", ""))

    def apply(self, backbone: Any) -> Any:
        """Prune and quantize a newly built backbone in place, as this pruned shape describes, and return it."""
        if self.layers is not None:
            keep_layers(backbone, self.layers)
        parts: dict[str, Prunable] = {**dict(prunable_attentions(backbone)), **dict(feed_forwards(backbone))}
        for path, count in {**self.heads, **self.units}.items():
            if path not in parts or count > parts[path].units:
                raise PretuneError(
                    f"config.json: the entry `shape` keeps {count} heads or units of the module {quote(path)}, but the model "
                    "has fewer; prune the original model again"
                )
            parts[path].keep_units(range(count))
        if self.linear:
            replace_linears(backbone, self.linear)
        return backbone

    def without_layers(self, kept: Sequence[int], depth: int, shared: bool) -> PrunedShape:
        """Return this pruned shape after the removal of further layers: of `depth` layers, those at `kept` remain.

        `shared` says whether layers share weights; if so, the paths of heads and feed-forward units do not change.
        """
        before, stack = self.layers or tuple(range(depth)), "layers."

        def renumbered(counts: Mapping[str, int]) -> dict[str, int]:
            if shared:
                return dict(counts)
            parts = {path: path.removeprefix(stack).partition(".") for path in counts}
            return {
                f"{stack}{list(kept).index(int(number))}.{rest}": counts[path]
                for path, (number, _, rest) in parts.items()
                if int(number) in kept
            }

        layers = tuple(before[depth] for depth in kept)
        return replace(self, layers=layers, heads=renumbered(self.heads), units=renumbered(self.units))


def keep_layers(backbone: Any, kept: Sequence[int]) -> None:
    """Keep only the layers at the indices `kept` of a Transformer stack, in place.

    If layers share weights (ALBERT), fewer of them run, but the shared parameters stay.
    """
    if not isinstance(backbone, TransformerStack):
        raise PretuneError(
            "layers can be removed only from a model with a single Transformer stack (an encoder or a decoder); choose "
            "such a model"
        )
    if not kept or max(kept) >= len(backbone.order):
        raise PretuneError(
            f"the layers {quote(list(kept))} cannot be kept, because the model has {len(backbone.order)} layers, counted from 0; "
            "prune the original model again, and keep layers that exist"
        )
    if shares_layers(backbone):
        backbone.order = [backbone.order[depth] for depth in kept]
        return
    backbone.layers = nn.ModuleList([backbone.layers[depth] for depth in kept])
    backbone.order = range(len(kept))


def shares_layers(backbone: TransformerStack) -> bool:
    """Return whether a Transformer stack runs the same layer at several depths, as ALBERT does."""
    return len(set(backbone.order)) < len(backbone.order)


def prune_layers(backbone: Any, shape: PrunedShape, kept: Sequence[int]) -> PrunedShape:
    """Keep only the layers at the indices `kept` of a Transformer stack, in place, and return the updated `shape`.

    `shape` records what pruning changed in the model.
    """
    depth, shared = backbone.depth, isinstance(backbone, TransformerStack) and shares_layers(backbone)
    keep_layers(backbone, kept)
    return shape.without_layers(kept, depth, shared)


def prunable_attentions(backbone: nn.Module) -> Iterator[tuple[str, PrunableHeads]]:
    """Return the attention modules whose heads can be pruned, as (module path, module); shared modules appear once."""
    return ((path, part) for path, part in backbone.named_modules() if isinstance(part, PrunableHeads))


def feed_forwards(backbone: nn.Module) -> Iterator[tuple[str, PrunableUnits]]:
    """Return (module path, module) pairs of a backbone's feed-forward networks; shared modules appear once."""
    return ((path, part) for path, part in backbone.named_modules() if isinstance(part, PrunableUnits))


def architecture_signature(backbone: Any) -> list[tuple[Any, ...]]:
    """Return a value that is equal for two backbones if and only if they have the same architecture."""
    found: list[tuple[Any, ...]] = [tuple(getattr(backbone, "order", ()))]
    for path, module in backbone.named_modules():
        facts = (getattr(module, "pattern", None), getattr(module, "base", None))
        count = module.units if isinstance(module, Prunable) else None
        shapes = {name: tuple(tensor.shape) for name, tensor in module.named_parameters(recurse=False)}
        found.append((path, type(module), *facts, count, shapes))
    return found
