"""Targets of compression, such as latency=5ms, size=20MB, or quality>=0.97, and the choice of a model that meets them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pretune.models.weight_files import parse_size
from pretune.runtime.errors import PretuneError, suggest

_FORM = re.compile(r"\s*(latency|size|quality)\s*(<=|>=|=)\s*(.+?)\s*")
UNITS = {"ms": 1e-3, "s": 1.0, "us": 1e-6}
EXAMPLES = "write, for example, latency=5ms, size=20MB or quality>=0.97"


@dataclass(frozen=True)
class Candidate:
    """A candidate of a compression search, with its size, latency, and quality relative to the uncompressed model."""

    name: str
    bytes: int
    latency: float  # in seconds, for one text
    quality: float


@dataclass(frozen=True)
class Target:
    """A target of compression: a maximum latency or size, or a minimum quality."""

    kind: str
    limit: float

    def __str__(self) -> str:
        if self.kind == "latency":
            return f"latency={1e3 * self.limit:g}ms"
        return f"size={self.limit:.0f}" if self.kind == "size" else f"quality>={self.limit:g}"

    def met(self, candidate: Candidate) -> bool:
        """Return whether a candidate model meets the compression target."""
        if self.kind == "quality":
            return candidate.quality >= self.limit
        return (candidate.latency if self.kind == "latency" else candidate.bytes) <= self.limit


def parse_target(text: str) -> Target:
    """Return the compression target that an expression such as latency=5ms describes.

    >>> parse_target("latency=5ms"), parse_target("quality>=0.97")
    (Target(kind='latency', limit=0.005), Target(kind='quality', limit=0.97))
    """
    form = _FORM.fullmatch(text)
    if form is None:
        kind = re.split(r"[<>=]", text)[0].strip()
        hint = suggest(kind, ("latency", "size", "quality"), " ").strip()
        raise PretuneError(f"--target {text}: this is not a target; {hint} {EXAMPLES}")
    kind, sign, value = form[1], form[2], form[3]
    if (sign == "<=") == (kind == "quality") and sign != "=":
        raise PretuneError(
            f"--target {text}: {kind} needs {'>=' if kind == 'quality' else '<='}, not {sign}; {EXAMPLES}"
        )
    if kind == "size":
        return Target(kind, float(parse_size(value)))
    number = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|us|s)?", value)
    if number is None or (kind == "quality" and number[2]):
        raise PretuneError(f"--target {text}: {value!r} is not a {kind}; {EXAMPLES}")
    limit = float(number[1]) * (UNITS[number[2] or "ms"] if kind == "latency" else 1.0)
    if kind == "quality" and not 0 < limit <= 1:
        raise PretuneError(
            f"--target {text}: quality is a fraction of the quality of the uncompressed model; give a number above 0 and at most 1, as in quality>=0.97"
        )
    return Target(kind, limit)


def choose_candidate(candidates: Sequence[Candidate], targets: Sequence[Target]) -> Candidate | None:
    """Return the best candidate that meets all targets, or None if there is none.

    The best candidate is the one with the highest quality and, among equals, the smallest size. If all targets limit
    the quality, it is the one with the lowest latency.
    """
    fitting = [one for one in candidates if all(target.met(one) for target in targets)]
    if not fitting:
        return None
    if all(target.kind == "quality" for target in targets):
        return min(fitting, key=lambda one: (one.latency, one.bytes))
    return max(fitting, key=lambda one: (one.quality, -one.bytes))


def pareto_front(candidates: Sequence[Candidate], cost: str) -> list[Candidate]:
    """Return the candidates on the Pareto front of quality and a cost ("bytes" or "latency"), cheapest first.

    >>> [one.name for one in pareto_front([Candidate("a", 1, 1, 0.5), Candidate("b", 2, 1, 0.4), Candidate("c", 3, 1, 0.9)], "bytes")]
    ['a', 'c']
    """
    front: list[Candidate] = []
    for one in sorted(candidates, key=lambda one: (getattr(one, cost), -one.quality)):
        if not front or one.quality > front[-1].quality:
            front.append(one)
    return front
