"""Sets of texts as trees of tokens: what may follow, if one of them is to be written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Trie:
    """The texts that may be written, token by token.

    >>> sorted(Trie([[5, 7], [5, 8, 9]]).after([5]))
    [7, 8]
    """

    def __init__(self, texts: Iterable[Sequence[int]]) -> None:
        self.next: dict[tuple[int, ...], set[int]] = {}
        self.longest = 0  # tokens
        for text in texts:
            self.longest = max(self.longest, len(text))
            for place, token in enumerate(text):
                self.next.setdefault(tuple(text[:place]), set()).add(token)

    def after(self, ids: Sequence[int]) -> set[int]:
        """What may follow on some tokens."""
        return self.next.get(tuple(ids), set())
