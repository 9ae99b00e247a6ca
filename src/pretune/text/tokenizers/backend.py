"""Call the `tokenizers` library safely on files that may be damaged.

The library is written in Rust. It reports most problems as bare `Exception`s and some as panics, which Python sees as
`BaseException`s, and it ends the process if something does not fit into memory. So all sizes (ids, compiled rules,
padding) are checked or removed before the library uses them, and everything else becomes a PretuneError here.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers

from pretune.runtime.errors import PretuneError, quote
from pretune.runtime.parsing import read_text, validate_schema

MAX_VOCABULARY_BYTES = 1 << 30  # bytes of a vocabulary file; one with millions of words has some 100 MB
MAX_IDS = 1 << 24  # tables have one entry per id, gaps included
Content = dict[str, Any]


@contextmanager
def library_errors(where: str | Path, problem: str, advice: str) -> Iterator[None]:
    """Convert exceptions and panics of the `tokenizers` library inside the `with` block to PretuneErrors.

    The messages consist of `where`, usually a file, the `problem`, the text of the exception, and `advice`.

    >>> with library_errors("vocab.json", "not a vocabulary", "check the path"):
    ...     raise TypeError("ids must not be negative")
    Traceback (most recent call last):
    pretune.runtime.errors.PretuneError: vocab.json: not a vocabulary (ids must not be negative); check the path
    """
    try:
        yield
    except PretuneError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise  # such as KeyboardInterrupt
        raise PretuneError(f"{where}: {problem} ({str(error)[:300]}); {advice}") from error


def parse_tokenizer_json(text: str, where: str | Path) -> Content:
    """Parse a JSON text that may be very large, such as a tokenizer.json, and return the object in it as a dictionary.

    `where` names the source of the text in errors.
    """
    try:
        content = json.loads(text)  # excessive nesting fails here or in the library; a check would take seconds
    except (ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise PretuneError(
            f"{where}{line}: not valid JSON; the tokenizer file may be damaged or incomplete, so download it again"
        ) from error
    return validate_schema(content, dict[str, Any], str(where))


def read_vocabulary(path: Path) -> dict[str, int]:
    """Read the token-to-id mapping of a vocab.json."""
    return check_vocabulary(parse_tokenizer_json(read_text(path, MAX_VOCABULARY_BYTES), path), str(path))


def check_vocabulary(vocabulary: Any, where: str) -> dict[str, int]:
    """Return a token-to-id mapping; raise an error that names `where` if its ids are not distinct valid integers."""
    vocabulary = validate_schema(vocabulary, dict[str, int], where)
    check_ids(vocabulary, where)
    if len(set(vocabulary.values())) < len(vocabulary):
        tokens: dict[int, str] = {}
        for token, identity in vocabulary.items():
            if (other := tokens.setdefault(identity, token)) != token:
                both = f"{quote(other)} and {quote(token)}"
                raise PretuneError(f"{where}: the tokens {both} both have id {identity}; give each token its own id")
    return vocabulary


def check_ids(vocabulary: Mapping[str, int], where: str) -> None:
    """Raise an error that names `where` if the id of a token is negative or implausibly large."""
    for bound in (min, max):
        token = bound(vocabulary, key=vocabulary.__getitem__, default=None)
        if token is not None and not 0 <= vocabulary[token] < MAX_IDS:
            rule = f"ids must be at least 0 and less than {MAX_IDS:,}"
            raise PretuneError(f"{where}: token {quote(token)} has id {quote(vocabulary[token])}; {rule}")


def build_backend(text: str, where: str | Path) -> tokenizers.Tokenizer:
    """Build a tokenizer of the `tokenizers` library from the content of a tokenizer.json; `where` is its path."""
    content = parse_tokenizer_json(text, where)
    model = content.get("model")
    if not isinstance(model, dict):
        raise PretuneError(f'{where}: not a tokenizer file, because it has no "model"; check the path')
    if isinstance(model.get("vocab"), dict):
        check_vocabulary(model["vocab"], str(where))
    added = validate_schema(content.get("added_tokens") or [], list[dict[str, Any]], f"{where}: added_tokens")
    ids = {str(token.get("content")): token.get("id") for token in added}
    check_ids(validate_schema(ids, dict[str, int], f"{where}: added_tokens"), str(where))
    with library_errors(where, "the tokenizer file is not usable", "restore it from its source"):
        for normalizer in _normalizers(content.get("normalizer")):
            if "precompiled_charsmap" in normalizer:
                check_compiled_rules(base64.b64decode(normalizer["precompiled_charsmap"]), f"{where}: ")
        # The original text, not the parsed content serialized again: different digits would give slightly different scores.
        backend = tokenizers.Tokenizer.from_str(text)
    backend.no_padding()  # padding to a huge length would end the process
    return backend


def _normalizers(content: Any) -> Iterator[Content]:
    """Yield a normalizer of a tokenizer.json; if it is a sequence, also yield the normalizers inside, recursively."""
    if isinstance(content, dict):
        yield content
        for inner in content.get("normalizers") or ():
            yield from _normalizers(inner)


def check_compiled_rules(charsmap: bytes, where: str = "") -> None:
    """Raise an error if SentencePiece's compiled normalization rules are shorter than the size in their first bytes.

    >>> check_compiled_rules(bytes([4, 0, 0, 0, 1, 2, 3]), "spiece.model: ")
    Traceback (most recent call last):
    pretune.runtime.errors.PretuneError: spiece.model: the normalization rules are damaged; download the file again
    """
    if int.from_bytes(charsmap[:4], "little") > len(charsmap) - 4:
        raise PretuneError(f"{where}the normalization rules are damaged; download the file again")


def check_usable(backend: tokenizers.Tokenizer, where: str | Path) -> None:
    """Raise an error that names `where` if a tokenizer fails on text with characters outside its vocabulary."""
    with library_errors(
        where, "the tokenizer fails on some texts", "if its vocabulary lacks an unknown token, add one"
    ):
        for text in ("a", "Zoë’s naïve café \U0001f600 \u1100\u1161 ﬁ \U0010fffd"):
            backend.decode(backend.encode(text, add_special_tokens=False).ids)
        backend.encode("a", "b")
