"""Functions that compilers leave alone.

torch's own decorator loads the compiler as soon as it is used: seconds at the start of every program, most of which compile
nothing. Here it is used when something is about to be compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")
_WAITING: list[list[Callable[..., object]]] = []  # of one function each, which others call


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """A function that a compiled model calls as it is, once `leave_out_of_graphs` was called.

    >>> uncompiled(len)("abc")
    3
    """
    chosen = [function]
    _WAITING.append(chosen)  # type: ignore[arg-type]

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        return chosen[0](*args, **options)

    return call


def leave_out_of_graphs() -> None:
    """Call this before something is compiled."""
    while _WAITING:
        chosen = _WAITING.pop()
        chosen[0] = torch.compiler.disable(chosen[0])  # type: ignore[no-untyped-call]
