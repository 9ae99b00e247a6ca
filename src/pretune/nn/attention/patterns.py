"""Attention patterns: which keys a query may attend to, as pure functions of the columns of a query and a key.

Sequences never attend to each other, whatever the pattern. Patterns combine with & and |; `full` is neutral for &. The
variable-length kernels support only `full`, `causal` and `window`; for all other patterns, masks are computed.

The rule of a pattern is evaluated for single tokens and, with `interval_arithmetic`, for whole blocks of tokens. So it
may only use + - // % abs(), comparisons, & | ~ and `lookup`, a table lookup.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from pretune.nn.attention.interval_arithmetic import lookup


class PatternColumns(Protocol):
    """The per-token features (columns) that attention patterns read, by name, such as `position` and `segment`."""

    def __getitem__(self, name: str) -> Tensor:
        """Return the per-token feature with this name, such as `position`, for one or more tokens."""


PatternRule = Callable[[PatternColumns, PatternColumns], Any]


@dataclass(frozen=True)
class GlobalWindow:
    """A pattern that is a union of a window, of the columns of global tokens and of their rows, each of which may be absent."""

    reach: tuple[int, int] | None  # of the window, as in `Pattern`
    keys: bool  # all tokens attend to global tokens
    queries: bool  # global tokens attend to all tokens

    def __or__(self, other: GlobalWindow) -> GlobalWindow | None:
        if self.reach is not None and other.reach is not None and self.reach != other.reach:
            return None  # not a window in general
        reach = other.reach if self.reach is None else self.reach
        return GlobalWindow(reach, self.keys or other.keys, self.queries or other.queries)


@dataclass(frozen=True)
class RandomBlocks:
    """The form of BigBird's pattern: blocks of `size` tokens and the numbers, (heads, blocks, r), of r random blocks each."""

    numbers: Tensor
    size: int

    @property
    def short(self) -> int:
        """Return the largest length of a sequence that uses full attention."""
        return (5 + 2 * self.numbers.shape[2]) * self.size


@dataclass(frozen=True)
class Pattern:
    """A named attention pattern, whose rule `allow` tells whether a query may attend to a key.

    If the pattern is a window, `reach` is the number of tokens back and ahead that a query may attend to.
    """

    name: str
    allow: PatternRule
    reach: tuple[int, int] | None = None  # -1: unlimited; None: not plain, so the rule must be evaluated
    heads: int = 1  # more than 1: the rule reads the query's column `head`, and heads have different patterns
    form: GlobalWindow | RandomBlocks | None = None  # what the rule amounts to, if there is a kernel for it

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
        return Pattern(
            f"{self.name} | {other.name}",
            lambda q, k: first(q, k) | second(q, k),
            heads=heads,
            form=_union(self, other),
        )

    # Patterns are equal if their names are: every call of `window(3)` builds a new rule.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pattern) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


def _union(*patterns: Pattern) -> GlobalWindow | None:
    """Return the form of the union of two patterns if it consists of a window and global tokens, else None."""
    forms = [p.form if p.reach is None else GlobalWindow(p.reach, False, False) for p in patterns]
    first, second = forms
    return first | second if isinstance(first, GlobalWindow) and isinstance(second, GlobalWindow) else None


def _shorter(a: int, b: int) -> int:
    """Return the smaller of two attention window sizes, where -1 means unlimited."""
    return max(a, b) if min(a, b) == -1 else min(a, b)


full = Pattern("full", lambda query, key: (query["position"] >= 0) | (key["position"] >= 0), (-1, -1))
causal = Pattern("causal", lambda query, key: key["position"] <= query["position"], (-1, 0))


def window(size: int) -> Pattern:
    """Return the pattern in which queries attend to keys at most `size` positions away.

    >>> (causal & window(2)).reach
    (2, 0)
    """
    name, reach = f"window({size})", (size, size)
    return Pattern(name, lambda query, key: (query["position"] - key["position"]).abs() <= size, reach)


def dilated(size: int, step: int) -> Pattern:
    """Return the pattern of a dilated window: `size` keys on each side, `step` positions apart (Beltagy et al., 2020).

    >>> dilated(2, 1) == window(2)
    True
    """
    if step == 1:
        return window(size)

    def allow(query: PatternColumns, key: PatternColumns) -> Any:
        distance = (query["position"] - key["position"]).abs()
        return (distance <= size * step) & (distance % step == 0)

    return Pattern(f"dilated({size}, {step})", allow)


# Column `global` is 1 for tokens that attend to their whole sequence, which attends to them (Longformer).
global_keys = Pattern("global keys", lambda query, key: key["global"] > 0, form=GlobalWindow(None, True, False))
global_queries = Pattern("global queries", lambda query, key: query["global"] > 0, form=GlobalWindow(None, False, True))
global_tokens = global_keys | global_queries


def block_pattern(plan: Tensor, size: int, name: str) -> Pattern:
    """Return the pattern in which a block of queries attends to a block of keys where `plan` is not 0.

    `plan` is (query blocks, key blocks), with blocks of `size` tokens, and must be on the device of the batches.
    Patterns with the same `name` are considered equal.
    """
    return Pattern(name, lambda query, key: lookup(plan, query["position"] // size, key["position"] // size))


def alternating(layers: int, *patterns: Pattern) -> list[Pattern]:
    """Return one attention pattern for each of `layers` layers, cycling through `patterns` (GPT-3; Brown et al., 2020).

    >>> [pattern.name for pattern in alternating(3, causal, causal & window(128))]
    ['causal', 'causal & window(128)', 'causal']
    """
    return [patterns[layer % len(patterns)] for layer in range(layers)]


prefix = Pattern(
    "prefix",
    # Column `prefix` is 1 in the bidirectional part; the rest is causal.
    lambda query, key: (key["prefix"] > 0) | (key["position"] <= query["position"]),
)

permutation = Pattern(
    "permutation",
    # Column `stream`: 0 content, 1 query; column `order`: the rank of a token in the order of prediction. Both streams attend
    # to content of lower rank; content also to its own rank.
    lambda query, key: (key["stream"] == 0) & (key["order"] + query["stream"] <= query["order"]),
)

# Column `document` differs between consecutive documents of a sequence.
document = Pattern("document", lambda query, key: key["document"] == query["document"])


def effective_pattern(layer: Pattern, batch: Pattern | None) -> Pattern:
    """Return the pattern that allows what both a layer's pattern and a batch's pattern allow (None: no restriction)."""
    return layer if batch is None else layer & batch
