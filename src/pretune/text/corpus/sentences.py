r"""Split documents into sentences.

Segmentation uses the `sentencex` library, which knows abbreviations and initials of many languages. Its known errors,
which tests/text/corpus/test_sentences.py pins so that a release that corrects one is noticed:

- Russian «т. е.» before a lowercase word ends a sentence («…, т. е. | был поэтом.»);
- Russian «т. п.» and «т. д.» at the end of a sentence do not end it («и т. п. Вот так.» stays one sentence);
- «p.m.», «D.C.» and the like always end or never end a sentence, regardless of the next word;
- a paragraph of unmatched quotation marks takes time quadratic in its length, so long paragraphs are split here;
- a letter, non-ASCII whitespace and a full stop («A\xa0.») make it panic, so a plain space is passed instead.
"""

from __future__ import annotations

import re
from itertools import pairwise

LINES = "lines"  # a pseudo-language: every line is one sentence
LONGEST = 8_192  # characters passed to sentencex at once; longer paragraphs are split at spaces

_PARAGRAPH = re.compile(r"\n\s*\n")
_WIDE_SPACE_BEFORE_STOP = re.compile(r"[^\S\x00-\x7f](?=\.)")

Span = tuple[int, int]


def split_sentences(text: str, language: str = "en") -> list[Span]:
    """Return the spans (start, end) of the sentences of a text; with `language="lines"`, every line is a sentence.

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
    """Split a text into paragraphs, and split paragraphs of more than LONGEST characters at spaces."""
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
    """Return the spans (start, end) of consecutive pieces of a text without the whitespace around each piece.

    `pieces` are strings whose concatenation is the text; blank pieces are left out.
    """
    spans, position = [], 0
    for piece in pieces:
        if kept := piece.strip():
            start = position + len(piece) - len(piece.lstrip())
            spans.append((start, start + len(kept)))
        position += len(piece)
    assert position == len(text), "the concatenation of the pieces must be the text"
    return spans
