"""pretune: transfer learning for text, end to end.

>>> import pretune as pt
>>> tokenizer = pt.train_tokenizer("corpus/", kind="wordpiece", size=30_000)  # doctest: +SKIP
>>> store = pt.prepare("corpus/", tokenizer, out="store/")  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretune.errors import PretuneError
from pretune.verbs.prepare import prepare
from pretune.verbs.tokenizer import inspect_tokenizer, train_tokenizer

if TYPE_CHECKING:
    from pretune.text.store import Store
    from pretune.text.tokenizer import Tokenizer

__version__ = "0.1.0"

__all__ = [
    "PretuneError",
    "Store",
    "Tokenizer",
    "__version__",
    "inspect_tokenizer",
    "prepare",
    "train_tokenizer",
]

_CLASSES = {"Store": "pretune.text.store", "Tokenizer": "pretune.text.tokenizer"}  # loaded when first asked for


def __getattr__(name: str) -> Any:
    if name in _CLASSES:
        from importlib import import_module

        return getattr(import_module(_CLASSES[name]), name)
    raise AttributeError(f"module 'pretune' has no attribute {name!r}")
