"""Extract sample text that every Python installation has: the docstrings of its packages."""

from __future__ import annotations

import ast
import inspect
import sysconfig
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

SHORTEST = 200  # characters; shorter docstrings are skipped
PACKAGES = ("numpy", "torch", "sklearn", "scipy")  # after the standard library, where installed


def read_docstrings(max_characters: int) -> Iterator[str]:
    """Yield docstrings of Python's standard library, then of installed packages, up to `max_characters` in total.

    >>> len(next(read_docstrings(1000))) >= 200
    True
    """
    seen, paths = 0, sysconfig.get_paths()
    packages = (sorted((Path(paths["purelib"]) / package).rglob("*.py")) for package in PACKAGES)
    for file in chain(sorted(Path(paths["stdlib"]).glob("*.py")), chain.from_iterable(packages)):
        for text in parse_docstrings(file):
            if len(text) >= SHORTEST:
                yield text
                seen += len(text)
                if seen >= max_characters:
                    return


def parse_docstrings(file: Path) -> Iterator[str]:
    """Yield the docstrings in a Python source file, which is parsed but not executed."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):  # unreadable, or written for another version of Python
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield inspect.cleandoc(text)
