"""Calls into the `tokenizers` library with files that may be damaged.

The library is written in Rust. It reports most problems as bare `Exception`s, some as panics, which Python sees as a
`BaseException`, and ends the process where a table of ids does not fit into memory. So ids are checked before they get there, and
everything else becomes one error here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers

from pretune.runtime.errors import PretuneError, quote
from pretune.runtime.parsing import conform, read_text

LARGEST = 1 << 30  # bytes of a vocabulary file; those of millions of words have a hundred megabytes
MOST_IDS = 1 << 24  # the library and we keep tables with one entry per id, gaps included
Content = dict[str, Any]


@contextmanager
def library_errors(where: str | Path, problem: str) -> Iterator[None]:
    """Turn the exceptions and panics of the library inside the block into an error of one line.

    >>> with library_errors("vocab.json", "not a vocabulary"):
    ...     tokenizers.models.BPE({"a": -1}, [])
    Traceback (most recent call last):
    pretune.runtime.errors.PretuneError: vocab.json: not a vocabulary (failed to extract…
    """
    try:
        yield
    except PretuneError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise  # an interrupt
        raise PretuneError(f"{where}: {problem} ({str(error)[:300]})") from error


def parse_content(text: str, where: str | Path) -> Content:
    """Return the object in a JSON text that may be very large, as vocabularies are."""
    try:
        content = json.loads(text)  # depth fails here or in the library; scanning megabytes for it would take seconds
    except (ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise PretuneError(
            f"{where}{line}: not valid JSON, so not a tokenizer file; is it damaged or incomplete?"
        ) from error
    return conform(content, dict[str, Any], str(where))


def read_vocabulary(path: Path) -> dict[str, int]:
    """Return the ids by token that a vocab.json has."""
    return check_vocabulary(parse_content(read_text(path, LARGEST), path), str(path))


def check_vocabulary(vocabulary: Any, where: str) -> dict[str, int]:
    """Return ids by token; refuse ids that are not whole numbers, that two tokens share, or that are far too large."""
    vocabulary = conform(vocabulary, dict[str, int], where)
    check_ids(vocabulary, where)
    if len(set(vocabulary.values())) < len(vocabulary):
        tokens: dict[int, str] = {}
        for token, identity in vocabulary.items():
            if identity in tokens:
                raise PretuneError(
                    f"{where}: the tokens {quote(tokens[identity])} and {quote(token)} both have id {identity}"
                )
            tokens[identity] = token
    return vocabulary


def check_ids(vocabulary: Mapping[str, int], where: str) -> None:
    """Refuse negative ids, and ids that no vocabulary has."""
    for bound in (min, max):
        token = bound(vocabulary, key=vocabulary.__getitem__, default=None)
        if token is not None and not 0 <= vocabulary[token] < MOST_IDS:
            raise PretuneError(
                f"{where}: token {quote(token)} has id {quote(vocabulary[token])}; ids lie between 0 and {MOST_IDS:,}"
            )


def build_backend(text: str, where: str | Path) -> tokenizers.Tokenizer:
    """Return the tokenizer that the text of a tokenizer.json describes; `where` names its source in errors."""
    content = parse_content(text, where)
    model = content.get("model")
    if not isinstance(model, dict):
        raise PretuneError(f"{where}: not a tokenizer file (it has no model)")
    if isinstance(model.get("vocab"), dict):
        check_vocabulary(model["vocab"], str(where))
    added = conform(content.get("added_tokens") or [], list[dict[str, Any]], f"{where}: added_tokens")
    ids = {str(token.get("content")): token.get("id") for token in added}
    check_ids(conform(ids, dict[str, int], f"{where}: added_tokens"), str(where))
    with library_errors(where, "not a tokenizer file that can be used"):
        # Not the parsed contents written anew: the library reads numbers spelled otherwise as slightly other numbers.
        return tokenizers.Tokenizer.from_str(text)


def check_usable(backend: tokenizers.Tokenizer, where: str | Path) -> None:
    """Refuse a tokenizer that fails on texts with characters that its vocabulary does not have."""
    with library_errors(where, "a tokenizer that fails on some texts; does its vocabulary have an unknown token?"):
        for text in ("a", "Zoë’s naïve café \U0001f600 \u1100\u1161 ﬁ \U0010fffd"):
            backend.decode(backend.encode(text, add_special_tokens=False).ids)
        backend.encode("a", "b")
