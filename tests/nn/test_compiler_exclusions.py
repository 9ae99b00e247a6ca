"""Exclusions from compilation, and no import of the compiler without need."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from pretune.nn.compiler_exclusions import apply_compile_exclusions, exclude_from_compile


def test_a_compiled_function_calls_excluded_functions_eagerly() -> None:
    compiling = []

    @exclude_from_compile
    def inside(x: Tensor, *, by: int = 2) -> Tensor:
        compiling.append(torch.compiler.is_compiling())
        return x * by

    def outside(x: Tensor) -> Tensor:
        return inside(x + 1, by=3) + 1

    apply_compile_exclusions()
    counter = CompileCounter()
    compiled = torch.compile(outside, backend=counter)
    x = torch.ones(3)
    for _ in range(3):
        assert torch.equal(compiled(x), outside(x))
    assert compiling == [False] * 6
    assert counter.frame_count == 2  # the code before and after it is compiled once each


@pytest.mark.not_fast
def test_loading_a_model_does_not_import_the_compiler() -> None:
    check = "import sys, pretune; pretune.load('pretune-small-en'); print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"
