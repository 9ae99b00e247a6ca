"""Targets of compression, such as latency=5ms, size=20MB, or quality>=0.97, and the choice of a model that meets them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pretune.models.weight_files import parse_size
from pretune.runtime.errors import PretuneError

_FORM = re.compile(r"\s*(latency|size|quality)\s*(<=|>=|=)\s*(.+?)\s*")
UNITS = {"ms": 1e-3, "s": 1.0, "us": 1e-6}


@dataclass(frozen=True)
class Candidate:
    """A candidate model with its size, latency, and quality relative to the uncompressed model."""

    name: str
    bytes: int
    latency: float  # in seconds, for one text
    quality: float


@dataclass(frozen=True)
class Target:
    """An upper limit of latency or size, or a lower limit of quality."""

    kind: str
    limit: float

    def __str__(self) -> str:
        if self.kind == "latency":
            return f"latency={1e3 * self.limit:g}ms"
        return f"size={self.limit:.0f}" if self.kind == "size" else f"quality>={self.limit:g}"

    def met(self, found: Candidate) -> bool:
        """Return whether a candidate meets the target."""
        if self.kind == "quality":
            return found.quality >= self.limit
        return (found.latency if self.kind == "latency" else found.bytes) <= self.limit


def parse_target(text: str) -> Target:
    """Parse a target.

    >>> parse_target("latency=5ms"), parse_target("quality>=0.97")
    (Target(kind='latency', limit=0.005), Target(kind='quality', limit=0.97))
    """
    form = _FORM.fullmatch(text)
    if form is None:
        raise PretuneError(
            f"--target {text}: not a target; write, for example, latency=5ms, size=20MB or quality>=0.97"
        )
    kind, sign, value = form[1], form[2], form[3]
    if (sign == "<=") == (kind == "quality") and sign != "=":
        raise PretuneError(f"--target {text}: {kind} needs {'>=' if kind == 'quality' else '<='}")
    if kind == "size":
        return Target(kind, float(parse_size(value)))
    number = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|us|s)?", value)
    if number is None or (kind == "quality" and number[2]):
        raise PretuneError(
            f"--target {text}: {value!r} is not a {kind}; write, for example, latency=5ms, size=20MB or quality>=0.97"
        )
    limit = float(number[1]) * (UNITS[number[2] or "ms"] if kind == "latency" else 1.0)
    if kind == "quality" and not 0 < limit <= 1:
        raise PretuneError(f"--target {text}: quality is a fraction of the uncompressed model's, above 0 and at most 1")
    return Target(kind, limit)


def choose_candidate(found: Sequence[Candidate], targets: Sequence[Target]) -> Candidate | None:
    """Return the best candidate that meets all targets, or None.

    If only quality is limited, this is the fastest one; otherwise the one with the highest quality, the smaller of equals.
    """
    fitting = [one for one in found if all(target.met(one) for target in targets)]
    if not fitting:
        return None
    if all(target.kind == "quality" for target in targets):
        return min(fitting, key=lambda one: (one.latency, one.bytes))
    return max(fitting, key=lambda one: (one.quality, -one.bytes))


def pareto_front(found: Sequence[Candidate], cost: str) -> list[Candidate]:
    """Return the Pareto front of quality and a cost, cheapest first.

    >>> [one.name for one in pareto_front([Candidate("a", 1, 1, 0.5), Candidate("b", 2, 1, 0.4), Candidate("c", 3, 1, 0.9)], "bytes")]
    ['a', 'c']
    """
    kept: list[Candidate] = []
    for one in sorted(found, key=lambda one: (getattr(one, cost), -one.quality)):
        if not kept or one.quality > kept[-1].quality:
            kept.append(one)
    return kept
