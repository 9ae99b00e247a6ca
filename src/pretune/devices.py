"""Where to compute."""

from __future__ import annotations

import torch

from pretune.errors import PretuneError


def choose_device(name: str | None = None) -> torch.device:
    """The named device, else the first GPU, else the CPU.

    >>> choose_device("cpu").type
    'cpu'
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise PretuneError(f"unknown device {name!r}; cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise PretuneError("no CUDA device here; use --device cpu")
    return device
