"""Stop strings: a generated text ends before the first of them, also while it is streamed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pretune.text.tokenizers.tokenizer import Tokenizer

StopCondition = Callable[[Sequence[int]], bool]  # the generated tokens → whether the text is finished


def stop_condition(stop: Sequence[str], tokenizer: Tokenizer) -> StopCondition | None:
    """Return a function that checks whether generated tokens contain a stop string; None without stop strings."""
    if not stop:
        return None
    tail = 4 * max(map(len, stop)) + 1  # a character has at most four bytes, and a byte is at most one token
    return lambda ids: any(string in tokenizer.decode(ids[-tail:]) for string in stop)


def truncate_at_stop(text: str, stop: Sequence[str]) -> str:
    """Return a text up to the first stop string in it.

    >>> truncate_at_stop("one. two. three", ["\\n", ". "])
    'one'
    """
    places = [text.find(string) for string in stop if string in text]
    return text[: min(places)] if places else text


class TextStream:
    """Splits a growing text into pieces for streaming; incomplete characters and possible stop strings are held back.

    >>> pieces = TextStream(["END"])
    >>> [pieces.update("a st"), pieces.update("a story E"), pieces.update("a story END", complete=True)]
    ['a st', 'ory ', '']
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self.stop, self.emitted = stop, ""

    def update(self, text: str, complete: bool = False) -> str:
        """Return the new part of a growing text that is final; `complete` is true at the end of the text."""
        text = truncate_at_stop(text, self.stop)
        if not complete:
            held = [size for string in self.stop for size in range(1, len(string)) if text.endswith(string[:size])]
            text = text[: len(text) - max(held, default=0)].rstrip("\N{REPLACEMENT CHARACTER}")
        if not text.startswith(self.emitted):
            return ""
        piece = text[len(self.emitted) :]
        self.emitted = text
        return piece
