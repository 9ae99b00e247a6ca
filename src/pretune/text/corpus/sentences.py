r"""Sentences: where each one starts and ends in its document.

Segmentation is the `sentencex` library's, which knows abbreviations and initials of many languages. Its known errors
(tests/text/test_sentences.py holds them, so that a release that mends one is noticed):

- Russian «т. е.» before a lower-case word ends a sentence («…, т. е. | был поэтом.»);
- Russian «т. п.», «т. д.» at the end of a sentence do not («и т. п. Вот так.» stays one);
- «p.m.», «D.C.» and the like always end or never end a sentence, whatever the next word says;
- a paragraph of unmatched quotation marks takes time quadratic in its length, which is why long paragraphs are cut here;
- a letter, white space outside ASCII and a full stop («A\xa0.») end in a panic, which is why it sees a plain space there.
"""

from __future__ import annotations

import re
from itertools import pairwise

LINES = "lines"  # the splitter that takes every line as one sentence
LONGEST = 8_192  # characters handed to sentencex at once; longer paragraphs are cut at white space

_PARAGRAPH = re.compile(r"\n\s*\n")
_WIDE_SPACE_BEFORE_STOP = re.compile(r"[^\S\x00-\x7f](?=\.)")

Span = tuple[int, int]


def split_sentences(text: str, language: str = "en") -> list[Span]:
    """Spans (start, end) of the sentences of a text, without surrounding white space; `lines`: a sentence a line.

    >>> text = "It rains.  Stay in!"
    >>> [text[start:end] for start, end in split_sentences(text)]
    ['It rains.', 'Stay in!']
    """
    if language == LINES:
        return _trim(text, text.splitlines(keepends=True))
    from sentencex import segment

    pieces: list[str] = []
    for paragraph in _paragraphs(text):
        pieces += segment(language, _WIDE_SPACE_BEFORE_STOP.sub(" ", paragraph))
    return _trim(text, pieces)


def _paragraphs(text: str) -> list[str]:
    """The text in paragraphs of at most LONGEST characters; joined they are the text again."""
    bounds = [0, *(match.end() for match in _PARAGRAPH.finditer(text)), len(text)]
    pieces = []
    for start, end in pairwise(bounds):
        while end - start > LONGEST:
            cut = text.rfind(" ", start + LONGEST // 2, start + LONGEST) + 1 or start + LONGEST
            pieces.append(text[start:cut])
            start = cut
        pieces.append(text[start:end])
    return pieces


def _trim(text: str, pieces: list[str]) -> list[Span]:
    """Spans of pieces that lie end to end in the text, white space trimmed, empty ones dropped."""
    spans, position = [], 0
    for piece in pieces:
        kept = piece.strip()
        if kept:
            start = position + len(piece) - len(piece.lstrip())
            spans.append((start, start + len(kept)))
        position += len(piece)
    assert position == len(text), "pieces of a text must add up to it"
    return spans
