"""Run an encoder-decoder with another decoder, which shares the encoder and the embeddings."""

from __future__ import annotations

from copy import copy, deepcopy
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from pretune.packed import Packed
from pretune.runtime.arrays import Array
from pretune.text.spans import span_indices

Network = TypeVar("Network", bound=nn.Module)


def copy_modules(network: nn.Module, names: tuple[str, ...]) -> nn.ModuleDict:
    """Return copies of the modules of a network with the given names, without those that it does not have.

    >>> list(copy_modules(nn.Sequential(nn.Linear(2, 2)), ("0", "1")))
    ['0']
    """
    own = dict(network.named_children())
    return nn.ModuleDict({name: deepcopy(own[name]) for name in names if name in own})


def replace_modules(network: Network, modules: nn.ModuleDict) -> Network:
    """Return a network that has the given modules instead of its own, and shares everything else with `network`."""
    view = copy(network)
    view.__dict__["_modules"] = dict(network.named_children()) | dict(modules.items())
    return view


def select_sequences(packed: Packed, chosen: Array) -> tuple[Packed, Tensor]:
    """Return the packed sequences at the indices `chosen`, in that order, and the indices of their tokens, (n,)."""
    offsets = packed.offsets.cpu().numpy().astype(np.int64)
    lengths = np.diff(offsets)[chosen]
    device = packed.offsets.device
    rows = torch.from_numpy(span_indices(offsets[:-1][chosen], lengths)).to(device)
    host = np.concatenate([[0], np.cumsum(lengths)])
    selected = replace(
        packed.map(lambda tensor: tensor[rows] if len(tensor) == len(packed) else tensor),
        offsets=torch.from_numpy(host.astype(np.int32)).to(device),
        host_offsets=None if packed.host_offsets is None else host,
    )
    return selected, rows
