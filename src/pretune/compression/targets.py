"""What a compressed model must come to: latency=5ms, size=20MB, quality>=0.97."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pretune.models.weights import read_size
from pretune.runtime.errors import PretuneError

_FORM = re.compile(r"\s*(latency|size|quality)\s*(<=|>=|=)\s*(.+?)\s*")
UNITS = {"ms": 1e-3, "s": 1.0, "us": 1e-6}


@dataclass(frozen=True)
class Found:
    """A candidate: what it costs, and the share of the uncompressed model's quality that it has."""

    name: str
    bytes: int
    latency: float  # seconds for one text
    quality: float


@dataclass(frozen=True)
class Target:
    """A limit; of costs the most, of quality the least."""

    kind: str
    limit: float

    def __str__(self) -> str:
        if self.kind == "latency":
            return f"latency={1e3 * self.limit:g}ms"
        return f"size={self.limit:.0f}" if self.kind == "size" else f"quality>={self.limit:g}"

    def met(self, found: Found) -> bool:
        """Whether a candidate keeps to it."""
        if self.kind == "quality":
            return found.quality >= self.limit
        return (found.latency if self.kind == "latency" else found.bytes) <= self.limit


def parse_target(text: str) -> Target:
    """Read one.

    >>> parse_target("latency=5ms"), parse_target("quality>=0.97")
    (Target(kind='latency', limit=0.005), Target(kind='quality', limit=0.97))
    """
    form = _FORM.fullmatch(text)
    if form is None:
        raise PretuneError(f"--target {text}: expected latency=5ms, size=20MB or quality>=0.97")
    kind, sign, value = form[1], form[2], form[3]
    if (sign == "<=") == (kind == "quality") and sign != "=":
        raise PretuneError(f"--target {text}: of {kind} a limit is {'>=' if kind == 'quality' else '<='}")
    if kind == "size":
        return Target(kind, float(read_size(value)))
    number = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|us|s)?", value)
    if number is None or (kind == "quality" and number[2]):
        raise PretuneError(f"--target {text}: {value!r} is no {kind}; expected latency=5ms, size=20MB or quality>=0.97")
    limit = float(number[1]) * (UNITS[number[2] or "ms"] if kind == "latency" else 1.0)
    if kind == "quality" and not 0 < limit <= 1:
        raise PretuneError(f"--target {text}: quality is a share of the uncompressed model's, above 0 and at most 1")
    return Target(kind, limit)


def choose(found: Sequence[Found], targets: Sequence[Target]) -> Found | None:
    """Of those that keep to all targets: the fastest where only quality is limited, else the best, the smaller of two."""
    fitting = [one for one in found if all(target.met(one) for target in targets)]
    if not fitting:
        return None
    if all(target.kind == "quality" for target in targets):
        return min(fitting, key=lambda one: (one.latency, one.bytes))
    return max(fitting, key=lambda one: (one.quality, -one.bytes))


def pareto(found: Sequence[Found], cost: str) -> list[Found]:
    """Those that no other beats in quality and this cost, cheapest first.

    >>> [one.name for one in pareto([Found("a", 1, 1, 0.5), Found("b", 2, 1, 0.4), Found("c", 3, 1, 0.9)], "bytes")]
    ['a', 'c']
    """
    kept: list[Found] = []
    for one in sorted(found, key=lambda one: (getattr(one, cost), -one.quality)):
        if not kept or one.quality > kept[-1].quality:
            kept.append(one)
    return kept
