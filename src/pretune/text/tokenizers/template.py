"""Define templates of special tokens around texts, such as BERT's [CLS] A [SEP] B [SEP]."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pretune.runtime.arrays import Array


@dataclass(frozen=True)
class Template:
    """A template of special tokens around texts: a list of roles, such as "start", and text placeholders "A" and "B".

    `single` frames the first text, and `pair` is appended for every further text; `last` comes at the end in both
    cases. `target` frames the text of an encoder-decoder's decoder. `document` frames running text, if it differs from
    `single` (GPT-2 puts a token after documents, but not after other texts). With `segments`, further texts have the
    segment id 1 and `last` has 2; otherwise all segment ids are 0.

    >>> BERT = Template(single=("start", "A", "separator"), pair=("B", "separator"))
    >>> BERT.num_special_tokens(pair=True)
    3
    """

    single: tuple[str, ...]
    pair: tuple[str, ...]
    segments: bool = True  # whether `pair` is segment 1 and `last` segment 2; else all is segment 0
    target: tuple[str, ...] = ()
    document: tuple[str, ...] | None = None
    last: tuple[str, ...] = ()

    @property
    def document_template(self) -> Template:
        """Return the template for running text, such as documents in pretraining."""
        return self if self.document is None else replace(self, single=self.document, document=None)

    @property
    def opening_role(self) -> str:
        """Return the role of the special token that precedes a text or, if there is none, that separates documents.

        >>> Template(single=("A",), pair=("B",), document=("A", "end")).opening_role
        'end'
        """
        frame = self.target or self.single
        before = frame[: frame.index("A")] or [role for role in self.document_template.single if role != "A"]
        return before[-1] if before else ""

    def num_special_tokens(self, pair: bool) -> int:
        """Return the number of special tokens around a pair of texts, if `pair`, or around a single text."""
        return len(self.single) - 1 + (len(self.pair) - 1 if pair else 0) + len(self.last)

    def items(self, texts: int) -> list[tuple[str, int, int]]:
        """Return the template for a number of texts, as a list of (role or placeholder, text index, segment id)."""
        further = [(item, part, 1) for part in range(1, texts) for item in self.pair]
        items = [*((item, 0, 0) for item in self.single), *further, *((item, 0, 2) for item in self.last)]
        return [(item, part, segment if self.segments else 0) for item, part, segment in items]

    def sizes(self, spans: Array) -> Array:
        """Return how many tokens each role or placeholder of the template takes in each sequence, (sequences, items).

        `spans` has the number of tokens of each text, (sequences, texts).

        >>> Template(single=("start", "A", "separator"), pair=("B", "separator")).sizes(np.array([[3, 2]])).tolist()
        [[1, 3, 1, 2, 1]]
        """
        items = self.items(spans.shape[1])
        sizes = np.ones((len(spans), len(items)), dtype=np.int64)
        for number, (item, part, _) in enumerate(items):
            if item in "AB":
                sizes[:, number] = spans[:, part]
            elif part:
                sizes[:, number] = spans[:, part] > 0
        return sizes
