"""Where written texts end: at strings, of which nothing is shown, not even while a text is streamed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pretune.text.tokenizers.tokenizer import Tokenizer

Ended = Callable[[Sequence[int]], bool]  # the tokens that were written → whether the text is over


def ends_at(stop: Sequence[str], tokenizer: Tokenizer) -> Ended | None:
    """Whether one of some strings was written; only the last tokens are looked at, as it is asked after each."""
    if not stop:
        return None
    tail = 4 * max(map(len, stop)) + 1  # a character is at most four bytes, and a byte at most a token
    return lambda ids: any(string in tokenizer.decode(ids[-tail:]) for string in stop)


def cut(text: str, stop: Sequence[str]) -> str:
    """A text up to the first of some strings.

    >>> cut("one. two. three", ["\\n", ". "])
    'one'
    """
    places = [text.find(string) for string in stop if string in text]
    return text[: min(places)] if places else text


class Pieces:
    """A text that grows, piece by piece: what was given stands, and what may yet change is held back.

    That is half of a character, and the beginning of a string at which the text would end.

    >>> pieces = Pieces(["END"])
    >>> [pieces.grow("a st"), pieces.grow("a story E"), pieces.grow("a story END", whole=True)]
    ['a st', 'ory ', '']
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self.stop, self.given = stop, ""

    def grow(self, text: str, whole: bool = False) -> str:
        """The new piece of a text, of which all is there now, or not yet."""
        text = cut(text, self.stop)
        if not whole:
            held = [size for string in self.stop for size in range(1, len(string)) if text.endswith(string[:size])]
            text = text[: len(text) - max(held, default=0)].rstrip("\N{REPLACEMENT CHARACTER}")
        if not text.startswith(self.given):
            return ""
        piece = text[len(self.given) :]
        self.given = text
        return piece
