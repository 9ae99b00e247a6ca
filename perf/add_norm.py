"""norm(x + dropout(y)) on a GPU: our kernels beside the compiler's, forward and backward, with every size of rows.

python perf/add_norm.py [--tokens 131072] [--width 768]
"""

from __future__ import annotations

import argparse
import itertools

import torch
import torch.nn.functional as F
from attention import milliseconds
from common import machine

from pretune.nn import add_norm as fused
from pretune.nn.dropout import kept_on_gpu

SHARE, EPS = 0.1, 1e-12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=131072)
    parser.add_argument("--width", type=int, default=768)
    options = parser.parse_args()
    print(machine())
    shape = (options.tokens, options.width)
    x, y = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    weight, bias = (torch.ones(options.width, device="cuda", requires_grad=True) for _ in range(2))
    slope = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    seed = torch.tensor(1, dtype=torch.int32, device="cuda")

    def plain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        mask = kept_on_gpu(seed, x.numel(), SHARE, 0).view(x.shape)
        total = x + torch.where(mask, y, 0.0) / (1.0 - SHARE)
        return F.layer_norm(total, (options.width,), weight.bfloat16(), bias.bfloat16(), EPS)

    def ours(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return fused.add_norm(x, y, weight, bias, seed, 0, SHARE, EPS)[0]

    def both(function: object) -> float:
        return milliseconds(lambda: function(x, y).backward(slope))  # type: ignore[operator]

    print(f"compiled {both(torch.compile(plain, dynamic=False)):.3f} ms, ours {both(ours):.3f} ms", flush=True)
    for name, setting in (("forward", fused.FORWARD), ("backward", fused.BACKWARD)):
        before = dict(setting)
        for rows, warps in itertools.product((1, 2, 4, 8), (2, 4, 8)):
            setting |= {"rows": rows, "num_warps": warps}
            print(f"   {both(ours):.3f} ms  {name} {dict(setting)}", flush=True)
        setting |= before


if __name__ == "__main__":
    main()
