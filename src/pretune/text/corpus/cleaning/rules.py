"""Define the two types of cleaning rules: rules that remove lines, and rules that remove documents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pretune.text.corpus.cleaning.document_features import DocumentFeatures


@dataclass(frozen=True)
class LineRule:
    """A rule that removes each line of a document for which `removes` returns True; `about` describes it for users."""

    name: str  # SET/RULE
    removes: Callable[[str], bool]  # of a line that is not blank, without whitespace around it
    about: str  # what it removes, for documentation


@dataclass(frozen=True)
class DocumentRule:
    """A rule that removes each document for which `removes` returns True; `about` describes it for users."""

    name: str  # SET/RULE
    removes: Callable[[DocumentFeatures], bool]
    about: str


Rule = LineRule | DocumentRule
