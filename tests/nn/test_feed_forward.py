from __future__ import annotations

import torch
import torch.nn.functional as F

from pretune.nn.feed_forward import FastGelu


def test_the_fast_gelu_is_gelu_and_so_is_its_slope() -> None:
    x = torch.linspace(-12, 12, 10001, requires_grad=True)
    z = x.detach().double().requires_grad_()
    FastGelu.apply(x).sum().backward()
    F.gelu(z).sum().backward()
    torch.testing.assert_close(FastGelu.apply(x).double(), F.gelu(z), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(x.grad.double(), z.grad, atol=2e-6, rtol=1e-6)  # type: ignore[union-attr]
