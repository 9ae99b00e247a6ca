"""Encode tensors compactly in files: without zeros, or as int8.

A tensor NAME with many zeros becomes NAME:bits (one bit per weight), NAME:values (the nonzero ones), and NAME:shape. An int8
tensor becomes NAME:int8 and NAME:scale (one factor per row).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod

import numpy as np
import torch
from torch import Tensor

BITS, VALUES, SHAPE = ":bits", ":values", ":shape"
INT8, SCALE = ":int8", ":scale"
Tensors = dict[str, Tensor]


def is_sparse_entry(name: str) -> bool:
    """Return whether a tensor name in a file is part of a tensor's sparse encoding (see `encode_sparse`)."""
    return name.endswith(BITS)


def encode_sparse(tensors: Mapping[str, Tensor]) -> Tensors:
    """Return named tensors in which each tensor with many zeros is replaced by three smaller ones.

    These are a bit mask of the nonzero values, the nonzero values, and the shape.

    >>> sorted(encode_sparse({"w": torch.eye(32)}))
    ['w:bits', 'w:shape', 'w:values']
    """
    encoded: Tensors = {}
    for name, tensor in tensors.items():
        nonzero = tensor.flatten() != 0
        values = tensor.flatten()[nonzero]
        size = tensor.element_size()
        if tensor.dim() < 2 or values.numel() * size + tensor.numel() / 8 >= tensor.numel() * size:
            encoded[name] = tensor
        else:
            encoded[name + BITS] = torch.from_numpy(np.packbits(nonzero.numpy()))
            encoded[name + VALUES] = values
            encoded[name + SHAPE] = torch.tensor(tensor.shape)
    return encoded


def encode_int8(tensors: Mapping[str, Tensor], names: Collection[str]) -> Tensors:
    """Return named tensors in which each tensor listed in `names` is replaced by an int8 tensor and a scale per row.

    >>> sorted(encode_int8({"w": torch.ones(4, 8)}, ["w"]))
    ['w:int8', 'w:scale']
    """
    encoded = dict(tensors)
    for name in names:
        if name in encoded:
            rounded, scale = quantize_rows(encoded.pop(name).float())
            encoded |= {name + INT8: rounded, name + SCALE: scale}
    return encoded


def quantize_rows(rows: Tensor, largest: int = 127) -> tuple[Tensor, Tensor]:
    """Round each row of a matrix to integers from -largest to largest; return the integers and the scale of each row.

    The scales, (rows,), are the numbers by which the integers must be multiplied to approximate the matrix.

    >>> quantize_rows(torch.tensor([[1.0, -0.5]]))[0].tolist()
    [[127, -64]]
    """
    scale = (rows.abs().amax(1) / largest).clamp(min=1e-12)
    return (rows / scale[:, None]).round().clamp(-largest, largest).to(torch.int8), scale


def decode_tensors(tensors: Mapping[str, Tensor]) -> Tensors:
    """Return all tensors by name, decoding those that `encode_sparse` or `encode_int8` has encoded.

    Tensors encoded by `encode_sparse` are restored exactly, those encoded by `encode_int8` approximately.
    """
    suffixes = (BITS, VALUES, SHAPE, INT8, SCALE)
    decoded: Tensors = {name: tensor for name, tensor in tensors.items() if not name.endswith(suffixes)}
    for name in (name.removesuffix(INT8) for name in tensors if name.endswith(INT8)):
        decoded[name] = tensors[name + INT8].float() * tensors[name + SCALE][:, None]
    for name in (name.removesuffix(BITS) for name in tensors if is_sparse_entry(name)):
        shape = [int(rows) for rows in tensors[name + SHAPE]]
        values = tensors[name + VALUES]
        nonzero = np.unpackbits(tensors[name + BITS].numpy(), count=prod(shape)).astype(bool)
        full = values.new_zeros(prod(shape))
        full[torch.from_numpy(nonzero)] = values
        decoded[name] = full.view(shape)
    return decoded
