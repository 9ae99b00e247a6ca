"""Tests of the errors of calls with wrong arguments."""

from __future__ import annotations

from typing import Any

import pytest

import pretune as pt

CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "key of a section": (
        ("m", "d"),
        {"out": "o", "seconds": 30},
        r"adapt() has no parameter 'seconds'; give budget=Budget(seconds=30)",
    ),
    "key of two sections": (
        ("m", "d"),
        {"out": "o", "tokens": 9},
        r"adapt() has no parameter 'tokens'; give budget=Budget(tokens=9) or batch=Batching(tokens=9)",
    ),
    "key that never applies": (("m", "d"), {"out": "o", "size": 3}, "adapt() has no parameter 'size'; known: batch, "),
    "misspelled": (("m", "d"), {"output": "o"}, "adapt() has no parameter 'output'; did you mean 'out'?"),
    "too many": (
        ("m", "d", "o"),
        {},
        "adapt() takes 2 arguments without a name (model, data), but 3 were given; give the others by name",
    ),
    "missing": (("m",), {}, "adapt() needs data and out; give data=…, out=…"),
    "given twice": (("m", "d"), {"out": "o", "model": "n"}, "adapt(): multiple values for argument 'model'"),
}


@pytest.mark.parametrize("case", CALLS)
def test_wrong_arguments_are_explained(case: str) -> None:
    args, options, message = CALLS[case]
    with pytest.raises(TypeError) as raised:
        pt.adapt(*args, **options)
    assert str(raised.value).startswith(message)
