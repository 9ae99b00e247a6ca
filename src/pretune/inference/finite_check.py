"""The check that a model's outputs are numbers, made before they become answers."""

from __future__ import annotations

import torch
from torch import Tensor

from pretune.runtime.errors import PretuneError


def checked(outputs: Tensor) -> Tensor:
    """Return the outputs; refuse NaN.

    Minus infinity is allowed: it marks what may not be chosen.

    >>> checked(torch.tensor([1.0, -torch.inf]))
    tensor([1., -inf])
    """
    if torch.isnan(outputs).any():
        raise PretuneError(
            "the model computes NaN instead of numbers, so there is no answer; its weights or its config.json are damaged, or "
            "its training diverged"
        )
    return outputs
