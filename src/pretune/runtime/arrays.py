"""Define a type alias for NumPy arrays, and the softmax."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]  # of any shape and dtype


def softmax(logits: Array) -> Array:
    """Return the softmax of an array of logits over its last axis.

    >>> softmax(np.log([0.1, 0.3])).round(3).tolist()
    [0.25, 0.75]
    """
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(shares / shares.sum(-1, keepdims=True))
