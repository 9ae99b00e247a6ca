"""Store token sequences in a prefix tree, for constrained decoding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class TokenTrie:
    """A prefix tree of token sequences, to look up the tokens that may follow a prefix.

    >>> sorted(TokenTrie([[5, 7], [5, 8, 9]]).after([5]))
    [7, 8]
    """

    def __init__(self, texts: Iterable[Sequence[int]]) -> None:
        self.next: dict[tuple[int, ...], set[int]] = {}
        self.longest = 0  # tokens of the longest sequence
        for text in texts:
            self.longest = max(self.longest, len(text))
            for place, token in enumerate(text):
                self.next.setdefault(tuple(text[:place]), set()).add(token)

    def after(self, ids: Sequence[int]) -> set[int]:
        """Return the tokens that may follow the prefix `ids`; an empty set if no sequence continues this prefix."""
        return self.next.get(tuple(ids), set())
