"""Define the quality rules of MassiveText (Rae et al., 2021, arXiv:2112.11446, appendix A.1.1), the corpus of Gopher."""

from __future__ import annotations

import re

from pretune.text.corpus.cleaning.document_features import DocumentFeatures
from pretune.text.corpus.cleaning.rules import DocumentRule, Rule

FEWEST_WORDS, MOST_WORDS = 50, 100_000
SHORTEST_MEAN, LONGEST_MEAN = 3, 10  # characters per word
MOST_SYMBOLS = 0.1  # hash signs, or ellipses, per word
MOST_BULLETS = 0.9  # of the lines
MOST_ELLIPSES = 0.3  # of the lines
FEWEST_LETTERS = 0.8  # of the words contain a letter
FEWEST_STOP_WORDS = 2
BULLETS = tuple("•‣▪●○◦·*-–—")
ELLIPSES = ("...", "…")
LETTER = re.compile(r"[^\W\d_]")
ELLIPSIS = re.compile(r"\.\.\.|…")
# English as in the paper; the other lists have eight of the most frequent function words of each language.
STOP_WORDS = {
    "en": "the be to of and that have with",
    "de": "der die und in zu den das nicht",
    "es": "de la que el en y los se",
    "fr": "de la le et les des que en",
    "it": "di che la il un e per non",
    "nl": "de en van het een in dat niet",
    "pl": "w i na z do się nie że",
    "pt": "de que o do da em para não",
    "ru": "и в не на что с я он",
    "uk": "і в не на що з та до",
}
_STOP_WORDS = {language: frozenset(words.split()) for language, words in STOP_WORDS.items()}


def _has_unusual_words(document: DocumentFeatures) -> bool:
    if document.dense or not document.words:
        return False
    return not SHORTEST_MEAN <= float(document.word_lengths.mean()) <= LONGEST_MEAN


def _has_symbols(document: DocumentFeatures) -> bool:
    symbols = max(document.text.count("#"), len(ELLIPSIS.findall(document.text)))
    return symbols > MOST_SYMBOLS * len(document.words)


def _has_bullets(document: DocumentFeatures) -> bool:
    # A single line with a bullet is a line of dialogue.
    found = sum(line.startswith(BULLETS) for line in document.lines)
    return found > 1 and found > MOST_BULLETS * len(document.lines)


def _has_ellipses(document: DocumentFeatures) -> bool:
    found = sum(line.endswith(ELLIPSES) for line in document.lines)
    return found > 1 and found > MOST_ELLIPSES * len(document.lines)


def _lacks_letters(document: DocumentFeatures) -> bool:
    words = document.text.split()
    return sum(bool(LETTER.search(word)) for word in words) < FEWEST_LETTERS * len(words)


def _lacks_stop_words(document: DocumentFeatures) -> bool:
    known = _STOP_WORDS.get(document.language)
    return known is not None and len(known.intersection(document.words)) < FEWEST_STOP_WORDS


QUALITY_RULES: tuple[Rule, ...] = tuple(
    DocumentRule(f"gopher-quality/{name}", removes, about)
    for name, removes, about in (
        ("few-words", lambda d: len(d.words) < FEWEST_WORDS, f"documents of fewer than {FEWEST_WORDS} words"),
        ("many-words", lambda d: len(d.words) > MOST_WORDS, f"documents of more than {MOST_WORDS:,} words"),
        (
            "mean-word-length",
            _has_unusual_words,
            f"documents whose words have fewer than {SHORTEST_MEAN} or more than {LONGEST_MEAN} characters on average",
        ),
        ("symbols", _has_symbols, f"documents with more than {MOST_SYMBOLS} hash signs, or ellipses, per word"),
        ("bullets", _has_bullets, f"documents in which more than {MOST_BULLETS:.0%} of the lines start with a bullet"),
        (
            "ellipses",
            _has_ellipses,
            f"documents in which more than {MOST_ELLIPSES:.0%} of the lines end with an ellipsis",
        ),
        (
            "letters",
            _lacks_letters,
            f"documents in which fewer than {FEWEST_LETTERS:.0%} of the words contain a letter",
        ),
        (
            "stop-words",
            _lacks_stop_words,
            f"documents with fewer than {FEWEST_STOP_WORDS} of 8 frequent words of their language",
        ),
    )
)
