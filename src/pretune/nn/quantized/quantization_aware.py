"""Quantization-aware training (Zafrir et al., 2019, *Q8BERT*): the forward pass uses rounded numbers.

Gradients are straight-through. Weights and token embeddings are rounded by the range of each row, inputs of linear
layers by a learned range: an exponential moving average of their largest magnitude. Rounded weights and learned ranges
are kept, so that the int8 graph made from them computes what was trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from pretune.nn.embedding.token_embedding import Embeddings
from pretune.nn.linear import Linear
from pretune.nn.quantized.int8 import LARGEST_7_BIT
from pretune.nn.recurrent import RecurrentCells

DECAY = 0.9  # of the moving average, as in Q8BERT
LARGEST = 127  # of int8 integers
MIDDLE = 128  # the unsigned integer that represents 0 in activations


def fake_quantize(x: Tensor, range_: Tensor, largest: int = LARGEST, smallest: int | None = None) -> Tensor:
    """Round x to one of the numbers that an integer type can represent, with straight-through gradients.

    These are the multiples of s = range_ / largest from -largest · s (or smallest · s) to largest · s.

    >>> [round(x, 4) for x in fake_quantize(torch.tensor([0.3, 9.0]), torch.tensor(1.27)).tolist()]
    [0.3, 1.27]
    """
    scale = (range_ / largest).clamp(min=1e-12)
    quantized = (x / scale).round().clamp(-largest if smallest is None else smallest, largest) * scale
    return x + (quantized - x).detach()


class FakeQuantizedWeight(nn.Module):
    """Fake quantization of a weight matrix, row by row, to integers of magnitude at most `largest`."""

    def __init__(self, largest: int) -> None:
        super().__init__()
        self.largest = largest

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight matrix with each row fake-quantized by its own range."""
        return fake_quantize(weight, weight.detach().abs().amax(1, keepdim=True), self.largest)


class FakeQuantizedInput(nn.Module):
    """Fake quantization of the input of a linear layer to 8 bits, by a learned range."""

    largest: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Return the input (…, inputs) fake-quantized by the learned range; in training, update the range first."""
        if self.training:
            with torch.no_grad():
                now = x.abs().amax().float()
                first = self.largest == 0
                self.largest.copy_(torch.where(first, now, DECAY * self.largest + (1 - DECAY) * now))
        # From 0 to 255 with MIDDLE for 0: one more step below 0 than above.
        return fake_quantize(x, self.largest.to(x.dtype), smallest=-MIDDLE)


class FixedRange(nn.Module):
    """Fake quantization of a linear layer's input by a fixed range, with an operator that ONNX supports."""

    def __init__(self, largest: float) -> None:
        super().__init__()
        self.scale = max(largest / LARGEST, 1e-12)

    def forward(self, x: Tensor) -> Tensor:
        """Return the input (…, inputs) fake-quantized by the fixed range."""
        return torch.fake_quantize_per_tensor_affine(x, self.scale, MIDDLE, 0, 255)


def _parts(module: nn.Module) -> Iterator[tuple[nn.Module, str, int]]:
    """Yield each submodule that has a weight to quantize, with the weight's name and the largest integer allowed."""
    for child in list(module.modules()):
        if isinstance(child, Linear):
            yield child, "weight", LARGEST_7_BIT
        elif isinstance(child, Embeddings):
            yield child, "tokens", LARGEST
        elif isinstance(child, RecurrentCells):
            yield child, "weight_ih", LARGEST_7_BIT
            yield child, "weight_hh", LARGEST_7_BIT


def named_linears(module: nn.Module) -> Iterator[tuple[str, Linear]]:
    """Return the linear layers of a module as (path, layer); a layer that is used twice appears once."""
    return ((path, child) for path, child in module.named_modules() if isinstance(child, Linear))


def add_fake_quantization(module: nn.Module) -> None:
    """Make a module compute as with int8 weights and activations, for quantization-aware training."""
    for child, name, largest in _parts(module):
        parametrize.register_parametrization(child, name, FakeQuantizedWeight(largest))
        if isinstance(child, Linear):
            child.input_quantizer = FakeQuantizedInput().to(child.weight.device)


def remove_fake_quantization(module: nn.Module) -> dict[str, float]:
    """Remove fake quantization from a module, but keep the rounded weights.

    Return the learned input ranges of its linear layers, by the layers' paths.
    """
    ranges = {path: linear.input_quantizer for path, linear in named_linears(module)}
    for child, name, _ in _parts(module):
        if parametrize.is_parametrized(child, name):
            parametrize.remove_parametrizations(child, name, leave_parametrized=True)
        if isinstance(child, Linear):
            child.input_quantizer = None
    return {path: float(learned.largest) for path, learned in ranges.items() if isinstance(learned, FakeQuantizedInput)}


def set_input_ranges(module: nn.Module, ranges: Mapping[str, float]) -> None:
    """Make linear layers fake-quantize their inputs by fixed ranges; `ranges` maps the path of a layer to its range."""
    for path, linear in named_linears(module):
        if ranges.get(path):
            linear.input_quantizer = FixedRange(ranges[path])
