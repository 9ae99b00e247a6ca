"""A decorator that excludes functions from torch.compile.

torch's own decorator imports the compiler as soon as it is applied, which takes seconds at the start of every program.
This decorator imports it only when something is about to be compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")
_WAITING: list[list[Callable[..., object]]] = []  # one function each, to be replaced by its excluded version


def exclude_from_compile(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function to be excluded from torch.compile graphs, once `apply_compile_exclusions` is called.

    >>> exclude_from_compile(len)("abc")
    3
    """
    chosen = [function]
    _WAITING.append(chosen)  # type: ignore[arg-type]

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        return chosen[0](*args, **options)

    return call


def apply_compile_exclusions() -> None:
    """Exclude all functions marked by `exclude_from_compile` from torch.compile; call this before compiling a model."""
    while _WAITING:
        chosen = _WAITING.pop()
        chosen[0] = torch.compiler.disable(chosen[0])  # type: ignore[no-untyped-call]
