"""Weight initialization schemes, and the interface by which layers apply a scheme to their own parameters.

By default, the biases of a layer start at 0, and the scheme draws its other parameters at random. A layer that differs
from this rule implements `initialize_parameters`. After that, residual branches let the scheme rescale some of their
matrices (`refine_parameters`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function

Module = TypeVar("Module", bound=nn.Module)


class SkipInitialization(TorchFunctionMode):
    """A context manager in which torch's random initializers write zeros, which is faster before weights are loaded.

    >>> with SkipInitialization():
    ...     nn.Linear(8, 8).weight.abs().max().item()
    0.0
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a torch function, or fill its tensor with zeros if the function is a random initializer."""
        options = kwargs or {}
        if func in RANDOM_INITIALIZERS:
            return nn.init.zeros_(args[0] if args else options["tensor"])
        return func(*args, **options)


def truncated_normal_(weight: Tensor, deviation: float) -> Tensor:
    """Fill a tensor from a normal distribution that is truncated at two standard deviations, and return it."""
    if has_torch_function((weight,)):  # nn.init.trunc_normal_ hides itself from modes
        return handle_torch_function(truncated_normal_, (weight,), weight, deviation)  # type: ignore[no-any-return]
    return nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)


# Which of these functions a mode sees depends on the modes around it.
RANDOM_INITIALIZERS = (
    Tensor.normal_,
    Tensor.uniform_,
    nn.init.normal_,
    nn.init.uniform_,
    nn.init.kaiming_uniform_,
    truncated_normal_,
)


class InitializationScheme:
    """The base class of weight initialization schemes; this one leaves weights unchanged."""

    def draw(self, weight: Tensor, fan_in: int | None = None) -> None:
        """Initialize a weight in place; `fan_in` is its number of inputs per output, if known."""

    def draw_embedding(self, table: Tensor) -> None:
        """Initialize a table of token or segment embeddings in place."""
        self.draw(table)

    def refine_output(self, weight: Tensor) -> None:
        """Rescale the output matrix of a residual branch, after all parameters were initialized."""

    def refine_unscaled_query(self, weight: Tensor, head_width: int) -> None:
        """Rescale the query matrix of attention with unscaled logits, after all parameters were initialized."""


@runtime_checkable
class InitializesParameters(Protocol):
    """The interface of layers that initialize their own parameters."""

    def initialize_parameters(self, scheme: InitializationScheme) -> None:
        """Initialize this layer's own parameters by an initialization scheme, without those of its submodules."""


class ResidualBranch(nn.Module):
    """The base class of attention and feed-forward layers whose `output` projection adds to the residual stream."""

    output: nn.Linear

    def refine_parameters(self, scheme: InitializationScheme) -> None:
        """Let an initialization scheme rescale the output matrix, after all parameters were initialized."""
        scheme.refine_output(self.output.weight)


def _apply(scheme: InitializationScheme, module: Module) -> Module:
    """Initialize all parameters of a module by a scheme, in place, and return the module."""
    if any(parameter.is_meta for parameter in module.parameters()):  # only shapes are needed
        return module
    for child in module.modules():
        if isinstance(child, InitializesParameters):
            child.initialize_parameters(scheme)
            continue
        for name, parameter in child.named_parameters(recurse=False):
            nn.init.zeros_(parameter) if "bias" in name else scheme.draw(parameter)
    for child in module.modules():
        if isinstance(child, ResidualBranch):
            child.refine_parameters(scheme)
    return module


@dataclass(frozen=True)
class _TruncatedNormal(InitializationScheme):
    """BERT's initialization: a truncated normal distribution, the same for all weights and embeddings."""

    deviation: float
    output_scale: float

    def draw(self, weight: Tensor, fan_in: int | None = None) -> None:
        if weight.dim() < 2:  # the weights of norms stay 1
            return
        if self.deviation == 0:
            nn.init.zeros_(weight)
        else:
            truncated_normal_(weight, self.deviation)

    @torch.no_grad()
    def refine_output(self, weight: Tensor) -> None:
        if self.output_scale == 0:
            weight.zero_()  # a product with 0 may be -0
        else:
            weight.mul_(self.output_scale)


@dataclass(frozen=True)
class _FanIn(InitializationScheme):
    """T5's initialization: a normal distribution whose standard deviation depends on the number of inputs."""

    factor: float

    def draw(self, weight: Tensor, fan_in: int | None = None) -> None:
        if fan_in is not None:
            nn.init.normal_(weight, std=self.factor * fan_in**-0.5)

    def draw_embedding(self, table: Tensor) -> None:
        nn.init.normal_(table, std=self.factor)

    def refine_unscaled_query(self, weight: Tensor, head_width: int) -> None:
        self.draw(weight, weight.shape[1] * head_width)


@dataclass(frozen=True)
class _Uniform(InitializationScheme):
    """AWD-LSTM's initialization: a uniform distribution, for token embeddings only or for all weights."""

    bound: float
    embeddings_only: bool

    def draw(self, weight: Tensor, fan_in: int | None = None) -> None:
        if not self.embeddings_only:
            self.draw_embedding(weight)

    def draw_embedding(self, table: Tensor) -> None:
        nn.init.uniform_(table, -self.bound, self.bound)


def initialize(module: Module, deviation: float = 0.02, output_scale: float = 1.0) -> Module:
    """Initialize a module as BERT does: weights and embeddings from a truncated normal distribution, biases 0.

    The distribution is cut off at two standard deviations. `output_scale` multiplies the output matrix of every
    residual branch: GPT-2 scales it down, because many branches add up; with 0, a layer starts as the identity.
    """
    return _apply(_TruncatedNormal(deviation, output_scale), module)


def initialize_by_fan_in(module: Module, factor: float = 1.0) -> Module:
    """Initialize a module as T5 does: weights with standard deviation 1 / √inputs, token embeddings with 1, biases 0.

    Query matrices start smaller where attention does not scale its logits; `factor` multiplies all deviations.
    """
    return _apply(_FanIn(factor), module)


def initialize_uniform(module: Module, bound: float = 0.1, embeddings_only: bool = True) -> Module:
    """Initialize a module as AWD-LSTM does: token embeddings uniformly in ± `bound`, layers as in torch, biases 0.

    With `embeddings_only` False, all weights are drawn like the token embeddings (Sutskever et al., 2014).
    """
    return _apply(_Uniform(bound, embeddings_only), module)
