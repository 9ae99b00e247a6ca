"""Patterns: who may look at whom, as pure functions of a query's and a key's columns.

Sequences never see each other, whatever the pattern. Patterns combine with & and |; `full` is neutral for &. The plain ones
(`full`, `causal`, `window`) are known to the variable-length kernels; all others are evaluated.

Rules are asked of tokens, and of whole blocks of them as `ranges`: they are made of + - // % abs(), comparisons, & | ~ and
`chosen`, which looks up in a table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from pretune.nn.attention.interval_arithmetic import chosen


class Columns(Protocol):
    """The columns of a token by name: `position` and whatever else the Packed carries."""

    def __getitem__(self, name: str) -> Tensor: ...


Allow = Callable[[Columns, Columns], Any]


@dataclass(frozen=True)
class Pattern:
    """A named rule. `reach` is what kernels need to know of plain ones: how far back and ahead a query may look."""

    name: str
    allow: Allow
    reach: tuple[int, int] | None = None  # -1: without limit; None: not plain, the rule must be evaluated
    heads: int = 1  # more: the rule reads the query's column `head`, and heads see different keys

    def __and__(self, other: Pattern) -> Pattern:
        if self == full:
            return other
        if other in (full, self):
            return self
        reach = None
        if self.reach is not None and other.reach is not None:
            reach = (_shorter(self.reach[0], other.reach[0]), _shorter(self.reach[1], other.reach[1]))
        first, second = self.allow, other.allow
        heads = max(self.heads, other.heads)
        return Pattern(f"{self.name} & {other.name}", lambda q, k: first(q, k) & second(q, k), reach, heads)

    def __or__(self, other: Pattern) -> Pattern:
        if full in (self, other):
            return full
        first, second = self.allow, other.allow
        heads = max(self.heads, other.heads)
        return Pattern(f"{self.name} | {other.name}", lambda q, k: first(q, k) | second(q, k), heads=heads)

    # Two patterns are the same when their names are: rules are built anew by every call of `window(3)`.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pattern) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


def _shorter(a: int, b: int) -> int:
    return max(a, b) if min(a, b) == -1 else min(a, b)


def _everything(query: Columns, key: Columns) -> Any:
    return (query["position"] >= 0) | (key["position"] >= 0)


full = Pattern("full", _everything, (-1, -1))
causal = Pattern("causal", lambda query, key: key["position"] <= query["position"], (-1, 0))


def window(size: int) -> Pattern:
    """Keys at most `size` positions away.

    >>> (causal & window(2)).reach
    (2, 0)
    """
    return Pattern(
        f"window({size})", lambda query, key: (query["position"] - key["position"]).abs() <= size, (size, size)
    )


def dilated(size: int, step: int) -> Pattern:
    """A window with gaps: `size` keys to each side, `step` positions from one to the next (Beltagy et al., 2020).

    >>> dilated(2, 1) == window(2)
    True
    """
    if step == 1:
        return window(size)

    def allow(query: Columns, key: Columns) -> Any:
        distance = (query["position"] - key["position"]).abs()
        return (distance <= size * step) & (distance % step == 0)

    return Pattern(f"dilated({size}, {step})", allow)


# column global: 1 for tokens that see all of their sequence and are seen by all of it. Longformer is window | global_tokens.
global_keys = Pattern("global keys", lambda query, key: key["global"] > 0)
global_queries = Pattern("global queries", lambda query, key: query["global"] > 0)
global_tokens = global_keys | global_queries


def blocks(plan: Tensor, size: int, name: str) -> Pattern:
    """Blocks of `size` tokens that look at blocks: those where `plan` (blocks, blocks) is not 0, a row for the queries' block.

    As plans have no names, `name` it: patterns of one name are taken to be one. The plan is to be where the batches are.
    """
    return Pattern(name, lambda query, key: chosen(plan, query["position"] // size, key["position"] // size))


def alternating(layers: int, *patterns: Pattern) -> list[Pattern]:
    """A pattern for each layer, in turn: GPT-3's are dense and locally banded (Brown et al., 2020).

    >>> [pattern.name for pattern in alternating(3, causal, causal & window(128))]
    ['causal', 'causal & window(128)', 'causal']
    """
    return [patterns[layer % len(patterns)] for layer in range(layers)]


prefix = Pattern(
    "prefix",
    # column prefix: 1 in the part that is read both ways; the rest is causal
    lambda query, key: (key["prefix"] > 0) | (key["position"] <= query["position"]),
)

permutation = Pattern(
    "permutation",
    # column stream: 0 content, 1 query; column order: the place of a token in the order of prediction.
    # Everybody sees content that comes earlier in that order; content also sees what has its own place, queries do not.
    lambda query, key: (key["stream"] == 0) & (key["order"] + query["stream"] <= query["order"]),
)

# column document: a number that differs from one document of a sequence to the next.
document = Pattern("document", lambda query, key: key["document"] == query["document"])


def visible(layer: Pattern, batch: Pattern | None) -> Pattern:
    """The effective pattern: the layer's and the batch's."""
    return layer if batch is None else layer & batch
