"""Custom GPU kernels match plain modules. Run with -m gpu."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pretune.nn.attention.multi_head import AttentionContext, SelfAttention
from pretune.nn.attention.query_key_layout import self_layout
from pretune.nn.blocks import PostNorm
from pretune.nn.dropout import dropout_mask
from pretune.nn.embedding.positional_encoding import RotaryPositions
from pretune.nn.feed_forward import FeedForward, GatedFeedForward
from pretune.nn.linear import LayerNorm
from pretune.packed import Packed, pack_lists

pytestmark = pytest.mark.gpu


class ConstantOutput(torch.nn.Module):
    """A sublayer that returns a given tensor."""

    def __init__(self, y: Tensor) -> None:
        super().__init__()
        self.y = y

    def forward(self, x: Tensor, context: object) -> Tensor:
        return self.y


@pytest.mark.parametrize(("n", "width", "share"), [(1000, 768, 0.1), (37, 96, 0.3), (5000, 256, 0.0)])
@pytest.mark.parametrize("compiled", [False, True])
def test_norm_of_a_sum_with_dropout(n: int, width: int, share: float, compiled: bool) -> None:
    torch.manual_seed(0)
    x, y = (torch.randn(n, width, device="cuda").bfloat16().requires_grad_() for _ in range(2))
    slope = torch.randn(n, width, device="cuda")
    block = PostNorm(ConstantOutput(y), LayerNorm(width, 1e-12), share).cuda().train()
    torch.nn.init.normal_(block.norm.weight)
    torch.nn.init.normal_(block.norm.bias)
    block.dropout.seed, block.dropout.salt = torch.tensor(12345, dtype=torch.int32, device="cuda"), 3
    function = torch.compile(block, dynamic=False) if compiled else block
    out = function(x, AttentionContext(self_layout(pack_lists([[1]]))))
    (out.float() * slope).sum().backward()
    found = [out, x.grad, y.grad, block.norm.weight.grad, block.norm.bias.grad]

    a, b = (t.detach().float().requires_grad_() for t in (x, y))
    weight, bias = (p.detach().clone().requires_grad_() for p in (block.norm.weight, block.norm.bias))
    mask = dropout_mask(block.dropout.seed, n * width, share, 3).view(n, width)
    expected = F.layer_norm(a + torch.where(mask, b, 0.0) / (1 - share), (width,), weight, bias, 1e-12)
    (expected * slope).sum().backward()
    for one, other in zip(found, [expected, a.grad, b.grad, weight.grad, bias.grad], strict=True):
        assert one is not None and other is not None
        assert float((one.float() - other).norm() / other.norm()) < 1e-2


def compare_with_double(module: torch.nn.Module, x: Tensor, packed: Packed) -> None:
    """Compare output and gradients in half precision on the GPU with those in double precision on the CPU."""
    slope = torch.randn(len(x), x.shape[1])
    found = []
    for device, kind in (("cuda", torch.bfloat16), ("cpu", torch.float64)):
        module.zero_grad()
        at = x.to(device, kind).requires_grad_()
        parameters = torch.float32 if kind == torch.bfloat16 else kind
        out = module.to(device, parameters)(at, AttentionContext(self_layout(packed.to(torch.device(device)))))
        (out * slope.to(device)).sum().backward()
        found.append([t.detach().cpu().double() for t in (out, at.grad, *(p.grad for p in module.parameters()))])
    for one, other in zip(*found, strict=True):
        assert float((one - other).norm() / other.norm()) < 1e-2


@pytest.mark.parametrize(("n", "width", "inner"), [(1000, 64, 256), (37, 48, 96), (3, 16, 640)])
@pytest.mark.parametrize("gated", [False, True])
def test_feed_forward_with_gelu(n: int, width: int, inner: int, gated: bool) -> None:
    torch.manual_seed(0)
    module = GatedFeedForward(width, inner) if gated else FeedForward(width, inner)
    compare_with_double(module, 3 * torch.randn(n, width).bfloat16(), pack_lists([[1]]))


def test_attention_with_rotary_positions() -> None:
    torch.manual_seed(0)
    packed = pack_lists([[1] * 70, [1], [1] * 33])
    compare_with_double(
        SelfAttention(128, 4, rotary=RotaryPositions(32)), torch.randn(len(packed), 128).bfloat16(), packed
    )
