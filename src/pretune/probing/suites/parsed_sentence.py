"""A parsed sentence as the sentence tasks read it, from a dependency tree or a constituency tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pretune.probing.probing_task import Split

NUMBERS = {"Sing": "singular", "Plur": "plural", "NN": "singular", "NNS": "plural"}
TENSES = {"Past": "past", "Imp": "past", "Pres": "present", "VBD": "past", "VBZ": "present", "VBP": "present"}


@dataclass(frozen=True)
class Token:
    """A token of a sentence; `space_after` is true if a space separates it from the next token.

    Nouns and verbs have a `kind`, their tag with all inflectional features: words of the same kind can replace each
    other. `inner_form` is the form that the token has within a sentence, where only names are capitalized.
    """

    form: str
    inner_form: str
    lemma: str
    space_after: bool = True
    is_punctuation: bool = False
    kind: str = ""


class InflectedWord(NamedTuple):
    """A word whose inflection is the label of a sentence: the label, and the lemma (or the form, if unknown)."""

    label: str
    lemma: str


class Clauses(NamedTuple):
    """The bounds of the two coordinated clauses of a sentence, as token indices; ends are exclusive.

    The first clause begins with the sentence, at token 0.
    """

    first_end: int
    second_begin: int
    second_end: int


@dataclass(frozen=True)
class ParsedSentence:
    """A parsed sentence with the properties that probing tasks predict; a property that it does not have is None.

    `top` names the constituents, or the relations of the root's dependents, at the top of the tree, joined by
    underscores.
    """

    tokens: tuple[Token, ...]
    split: Split | None
    depth: int
    top: str | None = None
    tense: InflectedWord | None = None
    subject: InflectedWord | None = None
    object: InflectedWord | None = None
    clauses: Clauses | None = None

    @cached_property
    def text(self) -> str:
        """The sentence as plain text."""
        return join_tokens(self.tokens)


def join_tokens(tokens: Sequence[Token]) -> str:
    """Join tokens to the text of a sentence, with spaces where the tokens had them.

    >>> join_tokens([Token("Hello", "hello", "hello", space_after=False), Token("!", "!", "!", is_punctuation=True)])
    'Hello!'
    """
    return "".join(f"{token.form} " if token.space_after else token.form for token in tokens).rstrip()


def lower_first(form: str) -> str:
    """Return a word with its first letter in lowercase.

    >>> lower_first("The")
    'the'
    """
    return form[:1].lower() + form[1:]


def upper_first(form: str) -> str:
    """Return a word with its first letter in uppercase.

    >>> upper_first("the")
    'The'
    """
    return form[:1].upper() + form[1:]
