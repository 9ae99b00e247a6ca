"""Where a backbone departs from its configuration: layers that were dropped, heads and inner units that were removed, linear
maps of another kind.

A model's config.json says so under `pretune`, so that a pruned model is built and loaded like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from pretune.backbones.encoder import Encoder
from pretune.nn.quantized.int8 import replace_linears
from pretune.nn.structured_pruning import HEADED, OPENED, narrow, size
from pretune.runtime.errors import PretuneError, quote


@dataclass(frozen=True)
class Shape:
    """What is left of what a configuration describes; an empty one is all of it."""

    layers: tuple[int, ...] | None = None  # of a stack, by the depths they had
    heads: Mapping[str, int] = field(default_factory=dict)  # how many, by the path of the attention
    units: Mapping[str, int] = field(default_factory=dict)  # by the path of the feed-forward network
    linear: str = ""  # the kind of all linear maps, if they are integers: dynamic, weights, int4

    def __bool__(self) -> bool:
        return self != Shape()

    def write(self) -> dict[str, Any]:
        """For config.json: what there is to say."""
        parts = {"layers": None if self.layers is None else list(self.layers)}
        parts |= {"heads": dict(self.heads) or None, "units": dict(self.units) or None}  # type: ignore[dict-item]
        parts |= {"linear": self.linear or None}  # type: ignore[dict-item]
        return {name: part for name, part in parts.items() if part is not None}

    def told(self) -> str:
        """In words, what it is that a configuration cannot say."""
        gone = [name for name in ("layers", "heads", "units") if name in self.write()]
        parts = [f"which {' and '.join(gone)} were pruned"] if gone else []
        return " and ".join(
            parts + ([f"that matrices are of {4 if self.linear == 'int4' else 8} bits"] if self.linear else [])
        )

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Shape:
        """The inverse of `write`."""
        layers = content.get("layers")
        heads, units = (dict(content.get(name, {})) for name in ("heads", "units"))
        return cls(None if layers is None else tuple(layers), heads, units, content.get("linear", ""))

    def apply(self, backbone: Any) -> Any:
        """Make a backbone that was built from the configuration alone what it is now."""
        if self.layers is not None:
            keep_layers(backbone, self.layers)
        parts = {**dict(attentions(backbone)), **dict(feed_forwards(backbone))}
        for path, count in {**self.heads, **self.units}.items():
            if path not in parts or count > size(parts[path]):
                raise PretuneError(
                    f"the pruned shape asks for {count} heads or units of {quote(path)}, which the model lacks"
                )
            narrow(parts[path], range(count))
        if self.linear:
            replace_linears(backbone, self.linear)
        return backbone

    def without_layers(self, kept: Sequence[int], depth: int, shared: bool) -> Shape:
        """With some layers fewer, of `depth` there are now; where depths share their layers, these are all still there."""
        before, stack = self.layers or tuple(range(depth)), "layers."

        def moved(counts: Mapping[str, int]) -> dict[str, int]:
            found = {}
            if shared:
                return dict(counts)
            for path, count in counts.items():
                number, _, rest = path.removeprefix(stack).partition(".")
                if int(number) in kept:
                    found[f"{stack}{list(kept).index(int(number))}.{rest}"] = count
            return found

        return replace(
            self, layers=tuple(before[depth] for depth in kept), heads=moved(self.heads), units=moved(self.units)
        )


def keep_layers(backbone: Any, kept: Sequence[int]) -> None:
    """Leave a stack the layers at these depths. Where depths share their layers, it only runs through fewer."""
    if not isinstance(backbone, Encoder):
        raise PretuneError("only a single stack of layers can lose some of them; this model is another kind")
    if not kept or max(kept) >= len(backbone.order):
        raise PretuneError(f"the pruned shape keeps layers {quote(list(kept))} of a model with {len(backbone.order)}")
    if shares_layers(backbone):
        backbone.order = [backbone.order[depth] for depth in kept]
        return
    backbone.layers = nn.ModuleList([backbone.layers[depth] for depth in kept])
    backbone.order = range(len(kept))


def shares_layers(backbone: Encoder) -> bool:
    """Whether some depths have one layer."""
    return len(set(backbone.order)) < len(backbone.order)


def drop_all_but(backbone: Any, shape: Shape, kept: Sequence[int]) -> Shape:
    """Leave a stack the layers at these depths; the shape that it has then."""
    depth, shared = backbone.depth, isinstance(backbone, Encoder) and shares_layers(backbone)
    keep_layers(backbone, kept)
    return shape.without_layers(kept, depth, shared)


def attentions(backbone: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Attention whose heads can be removed, by path; shared ones once."""
    return ((path, part) for path, part in backbone.named_modules() if isinstance(part, HEADED))


def feed_forwards(backbone: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Feed-forward networks, by path; shared ones once."""
    return ((path, part) for path, part in backbone.named_modules() if isinstance(part, OPENED))


def kinds(backbone: Any) -> list[tuple[Any, ...]]:
    """All that decides what a backbone computes besides the values of its parameters: two with the same are built alike."""
    found: list[tuple[Any, ...]] = [tuple(getattr(backbone, "order", ()))]
    for path, module in backbone.named_modules():
        facts = (getattr(module, "pattern", None), getattr(module, "base", None))
        count = size(module) if isinstance(module, (*HEADED, *OPENED)) else None
        shapes = {name: tuple(tensor.shape) for name, tensor in module.named_parameters(recurse=False)}
        found.append((path, type(module), *facts, count, shapes))
    return found
