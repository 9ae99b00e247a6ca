"""Texts that are tokenized again and again, by one process after another, are tokenized once."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from pretune.runtime.atomic_io import write_bytes

Array = np.ndarray[Any, np.dtype[Any]]
FEWEST = 1000  # texts that are worth a file
_FOLDER: ContextVar[Path | None] = ContextVar("remembered", default=None)


@contextmanager
def remembering(folder: Path) -> Iterator[None]:
    """While the block runs, what is tokenized is kept in a folder, and looked up there first."""
    token = _FOLDER.set(folder)
    try:
        yield
    finally:
        _FOLDER.reset(token)


def remember(digest: str, texts: Sequence[str], make: Callable[[], tuple[Array, Array]]) -> tuple[Array, Array]:
    """What `make` makes of some texts with the tokenizer of that digest: from the folder, where it is there."""
    folder = _FOLDER.get()
    if folder is None or len(texts) < FEWEST:
        return make()
    name = hashlib.sha256(digest.encode())
    for text in texts:
        raw = text.encode("utf-8", "surrogatepass")
        name.update(len(raw).to_bytes(8, "little") + raw)
    path = folder / f"{name.hexdigest()}.npz"
    try:
        with np.load(path, allow_pickle=False) as found:
            return found["ids"], found["lengths"]
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):  # not there, or damaged: it is made again
        pass
    ids, lengths = make()
    content = io.BytesIO()
    np.savez(content, ids=ids, lengths=lengths)
    write_bytes(path, content.getvalue())
    return ids, lengths
