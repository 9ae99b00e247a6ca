"""Cache tokenized texts on disk, for texts that several processes tokenize one after another."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.atomic_io import write_bytes

FEWEST = 1000  # texts below which caching does not pay
_FOLDER: ContextVar[Path | None] = ContextVar("token_cache", default=None)


@contextmanager
def use_token_cache(folder: Path) -> Iterator[None]:
    """Cache tokenized texts in a folder inside the `with` block, for `cached_tokens`."""
    token = _FOLDER.set(folder)
    try:
        yield
    finally:
        _FOLDER.reset(token)


def cached_tokens(
    digest: Callable[[], str], texts: Sequence[str], make: Callable[[], tuple[Array, Array]]
) -> tuple[Array, Array]:
    """Return the token ids and lengths of texts, from the cache if they are there, else from a call of `make`.

    `digest` returns what identifies the tokenizer. If no cache is in use (see `use_token_cache`), or for few texts, `make` is always
    called.
    """
    folder = _FOLDER.get()
    if folder is None or len(texts) < FEWEST:
        return make()
    name = hashlib.sha256(digest().encode())
    for text in texts:
        raw = text.encode("utf-8", "surrogatepass")
        name.update(len(raw).to_bytes(8, "little") + raw)
    path = folder / f"{name.hexdigest()}.npz"
    try:
        with np.load(path, allow_pickle=False) as cached:
            return cached["ids"], cached["lengths"]
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):  # missing or damaged: tokenize again
        pass
    ids, lengths = make()
    content = io.BytesIO()
    np.savez(content, ids=ids, lengths=lengths)
    write_bytes(path, content.getvalue())
    return ids, lengths
