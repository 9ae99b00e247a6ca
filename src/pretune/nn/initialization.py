"""Weight initialization schemes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pretune.nn.attention.multi_head import CrossAttention, RelativeAttention
from pretune.nn.attention.relative_position_bias import T5RelativeBias
from pretune.nn.embedding.token_embedding import Embeddings

Module = TypeVar("Module", bound=nn.Module)


class SkipInitialization(TorchFunctionMode):
    """A context in which random initialization writes zeros, which is much faster: a checkpoint overwrites them.

    >>> with SkipInitialization():
    ...     float(nn.Linear(8, 8).weight.abs().max())
    0.0
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the function, or write zeros if it draws random numbers."""
        given = kwargs or {}
        return (
            nn.init.zeros_(args[0] if args else given["tensor"])
            if func in RANDOM_INITIALIZERS
            else func(*args, **given)
        )


# Which of these functions a mode sees depends on the modes around it.
RANDOM_INITIALIZERS = (Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)


def initialize(module: Module, deviation: float = 0.02, zero_outputs: bool = False) -> Module:
    """Initialize as BERT does: weights and embeddings from a truncated normal, biases 0, norms 1.

    With `zero_outputs`, the output matrix of every sublayer starts at 0, so that a layer starts as the identity.
    """
    if next(module.parameters()).is_meta:  # only shapes are needed
        return module
    norms = (nn.LayerNorm, nn.RMSNorm)
    for child in module.modules():
        for name, parameter in child.named_parameters(recurse=False):
            if isinstance(child, norms):
                nn.init.ones_(parameter) if name == "weight" else nn.init.zeros_(parameter)
            elif "bias" in name:
                nn.init.zeros_(parameter)
            elif parameter.dim() > 1:
                truncated_normal_(parameter, deviation)
    if zero_outputs:
        # After everything else, because the matrices inside a sublayer are drawn after it is visited.
        for child in module.modules():
            output = getattr(child, "output", None)
            if isinstance(output, nn.Linear):
                nn.init.zeros_(output.weight)
    return module


def truncated_normal_(parameter: Tensor, deviation: float) -> None:
    """Fill a parameter from a normal distribution that is cut off at two standard deviations; 0 where that is 0."""
    with torch.no_grad():
        if deviation == 0:
            nn.init.zeros_(parameter)
        else:
            nn.init.trunc_normal_(parameter, std=deviation, a=-2 * deviation, b=2 * deviation)


def initialize_by_fan_in(module: Module, factor: float = 1.0) -> Module:
    """Initialize as T5 does: weights with standard deviation 1 / √inputs, token embeddings with 1, biases 0, norms 1.

    Where attention does not scale its logits, its query matrix starts smaller instead.
    """
    if next(module.parameters()).is_meta:  # only shapes are needed
        return module
    widths = [child.width for child in module.modules() if isinstance(child, Embeddings)]
    for child in module.modules():
        if isinstance(child, nn.Linear):
            nn.init.normal_(child.weight, std=factor * child.in_features**-0.5)
            if child.bias is not None:
                nn.init.zeros_(child.bias)
        elif isinstance(child, Embeddings):
            nn.init.normal_(child.tokens, std=factor)
        elif isinstance(child, T5RelativeBias):
            nn.init.normal_(child.weight, std=factor * widths[0] ** -0.5)
    for child in module.modules():  # after all matrices are drawn
        if isinstance(child, (RelativeAttention, CrossAttention)) and child.scale == 1.0:
            inputs = child.query.in_features * child.head_width
            nn.init.normal_(child.query.weight, std=factor * inputs**-0.5)
    return module


def initialize_uniform(module: Module, reach: float = 0.1, everywhere: bool = False) -> Module:
    """Initialize as AWD-LSTM does: token embeddings uniformly from -reach to reach, layers as in torch, biases 0.

    With `everywhere`, all weights are drawn like the token embeddings (Sutskever et al., 2014).
    """
    for child in module.modules():
        for name, parameter in child.named_parameters(recurse=False):
            if "bias" in name:
                nn.init.zeros_(parameter)
            elif everywhere or isinstance(child, Embeddings):
                nn.init.uniform_(parameter, -reach, reach)
    return module


def scale_outputs(module: Module, factor: float) -> Module:
    """Scale down the output matrix of every sublayer, as GPT-2 does, because the residual stream adds many of them up."""
    for child in module.modules():
        output = getattr(child, "output", None)
        if isinstance(output, nn.Linear):
            with torch.no_grad():
                output.weight.mul_(factor)
    return module
