"""The data of a probing task: texts, or spans of texts, with labels and a split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Split = Literal["train", "dev", "test"]
Span = tuple[int, int]  # begin and end in characters


@dataclass(frozen=True)
class ProbingExample:
    """A text with a label; `spans` are the parts of the text that the label describes, empty for the whole text.

    If there is a second text, `pair`, the last span is a span of `pair`, as in words-in-context tasks.
    """

    text: str
    label: str
    split: Split
    spans: tuple[Span, ...] = ()
    pair: str | None = None


@dataclass(frozen=True)
class ProbingTask:
    """A property that a probe predicts from representations, with examples that all have the same number of spans.

    `group` is the kind of property: surface, syntax, morphology, semantics.
    """

    name: str
    group: str
    examples: Sequence[ProbingExample] = field(repr=False)

    @property
    def labels(self) -> list[str]:
        """The distinct labels of the examples, sorted."""
        return sorted({example.label for example in self.examples})

    def part(self, split: Split) -> list[ProbingExample]:
        """Return the examples of one split."""
        return [example for example in self.examples if example.split == split]
