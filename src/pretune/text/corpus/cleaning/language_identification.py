"""Identify the language of documents with py3langid, a naive Bayes classifier over byte n-grams (Lui and Baldwin, 2012)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from pretune.runtime.errors import PretuneError, suggest
from pretune.runtime.optional_imports import import_optional

LONGEST = 2_000  # characters that are looked at: the beginning of a document decides


@cache
def _identifier() -> Any:
    module = import_optional("py3langid.langid", "identifying languages")
    return module.LanguageIdentifier.from_model_file(module.MODEL_FILE)


def identify_language(text: str) -> str:
    """Return the ISO 639-1 code of the most probable language of a text."""
    beginning = text[:LONGEST]
    if sum(map(str.isupper, beginning)) > sum(map(str.islower, beginning)):  # capitals mislead the model
        beginning = beginning.lower()
    return str(_identifier().classify(beginning)[0])


def check_languages(languages: Sequence[str]) -> None:
    """Raise an error if an element of `languages` is not the code of a language that can be identified."""
    known = [str(label) for label in _identifier().labels]
    for language in languages:
        if language not in known:
            raise PretuneError(
                f"{language!r} is not the code of a language that can be identified; {suggest(language, known)}"
            )
