"""A check that the outputs of a model are not NaN, before they become predictions."""

from __future__ import annotations

import torch
from torch import Tensor

from pretune.runtime.errors import PretuneError

NAN_MESSAGE = (
    "the model computes NaN instead of numbers, so there is no prediction; its weights or its config.json are damaged, "
    "or its training diverged; use another checkpoint"
)


def check_not_nan(outputs: Tensor) -> Tensor:
    """Return a model's outputs, or raise an error if any is NaN; -inf is allowed, for tokens that must not be chosen.

    >>> check_not_nan(torch.tensor([1.0, -torch.inf]))
    tensor([1., -inf])
    """
    if torch.isnan(outputs).any():
        raise PretuneError(NAN_MESSAGE)
    return outputs
