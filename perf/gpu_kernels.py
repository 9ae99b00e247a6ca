"""Compare our kernels on a GPU with the compiled plain modules, forward and backward together.

    python perf/gpu_kernels.py [--tokens 131072] [--scan]

`memory` is the minimum time to read and write everything once. With --scan, all tile sizes are tried, to choose those
in pretune/nn/kernels/.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from attention import milliseconds
from common import machine
from torch import Tensor

from pretune.nn.dropout import dropout_mask_cuda
from pretune.nn.embedding.positional_encoding import RotaryPositions
from pretune.nn.kernels import add_norm, gelu

SHARE, EPS, HEADS, HEAD_WIDTH = 0.1, 1e-12, 12, 64
BYTES_PER_SECOND = 4.3e12


def random(*shape: int) -> Tensor:
    """Return a random tensor in half precision with a gradient."""
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)


def both(function: Callable[..., Tensor], inputs: Sequence[Tensor], slope: Tensor) -> float:
    """Return the milliseconds of a forward and backward pass."""
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    return milliseconds(lambda: torch.autograd.grad(function(*inputs), wanted, slope))


def report(name: str, plain: Any, ours: Any, inputs: Sequence[Tensor], moved: int) -> None:
    """Print one line."""
    slope = torch.randn_like(ours(*inputs))
    compiled = both(torch.compile(plain, dynamic=False), inputs, slope)
    least = moved * 2 / BYTES_PER_SECOND * 1e3
    print(f"{name}: compiled {compiled:.3f} ms, ours {both(ours, inputs, slope):.3f}, memory {least:.3f}", flush=True)


def scan(title: str, work: Callable[[], Any], setting: dict[str, int], choices: dict[str, Sequence[int]]) -> None:
    """Print the best of all settings of one kernel."""
    before, found = dict(setting), []
    for values in itertools.product(*choices.values()):
        setting |= dict(zip(choices, values, strict=True))
        try:
            found.append((milliseconds(work), dict(setting)))
        except Exception as error:  # too much shared memory
            print("  ", dict(setting), type(error).__name__)
    setting |= before
    for time, best in sorted(found, key=lambda pair: pair[0])[:4]:
        print(f"   {title}: {time:.3f} ms  {best}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=131072)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--scan", action="store_true")
    options = parser.parse_args()
    print(machine())
    n, width = options.tokens, options.width
    seed = torch.tensor(1, dtype=torch.int32, device="cuda")
    x, y = random(n, width), random(n, width)
    weight, bias = (torch.ones(width, device="cuda", requires_grad=True) for _ in range(2))

    def plain_norm(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        mask = dropout_mask_cuda(seed, x.numel(), SHARE, 0).view(x.shape)
        total = x + torch.where(mask, y, 0.0) / (1.0 - SHARE)
        return F.layer_norm(total, (width,), weight.bfloat16(), bias.bfloat16(), EPS)

    def our_norm(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return add_norm.add_norm(x, y, weight, bias, seed, 0, SHARE, EPS)[0]

    report("norm(x + dropout(y))", plain_norm, our_norm, [x, y, weight, bias], 8 * n * width)
    inner = random(n, 4 * width)
    wide = torch.ones(4 * width, device="cuda", requires_grad=True)
    report("gelu(x + bias)", lambda x, b: F.gelu(x + b.bfloat16()), gelu.bias_gelu, [inner, wide], 20 * n * width)

    def plain_gate(x: Tensor) -> Tensor:
        opened, gate = x.chunk(2, -1)
        return F.gelu(opened) * gate

    report("gated gelu", plain_gate, gelu.gated_gelu, [inner], 16 * n * width)
    rotary = RotaryPositions(HEAD_WIDTH)
    angles = rotary.angles(torch.arange(n, device="cuda") % 128)
    qkv = random(n, 3, HEADS, HEAD_WIDTH)

    def plain_turn(qkv: Tensor) -> Tensor:
        q, k, v = qkv.unbind(1)
        return torch.stack([rotary(q, angles), rotary(k, angles), v], 1)

    turned = 12 * n * HEADS * HEAD_WIDTH
    report("rotary", plain_turn, lambda qkv: rotary.rotate(qkv, *angles, 1.0), [qkv], turned)
    if not options.scan:
        return
    held: dict[str, Sequence[int]] = {"held": (1024, 2048, 4096, 8192), "num_warps": (2, 4, 8)}
    with torch.no_grad():
        out, total, mean, scale = add_norm.add_norm(x, y, weight, bias, seed, 0, SHARE, EPS)
        scan(
            "add_norm forward",
            lambda: our_norm(x, y, weight, bias),
            add_norm.launch_settings(width, add_norm.FORWARD),
            held,
        )
        backward = add_norm.add_norm_backward
        for programs in (528, 1056, 2112, 4224):
            add_norm.PROGRAMS = programs
            scan(
                f"add_norm backward, {programs} programs",
                lambda: backward(out, total, mean, scale, weight, seed, 0, SHARE),
                add_norm.launch_settings(width, add_norm.BACKWARD),
                held,
            )
        tiles: dict[str, Sequence[int]] = {"rows": (2, 4, 8), "columns": (256, 512), "num_warps": (4, 8)}
        slope = torch.randn_like(inner)
        scan("bias_gelu forward", lambda: gelu.bias_gelu(inner, wide), gelu.FORWARD, tiles)
        for programs in (1056, 2112, 4224):
            gelu.PROGRAMS = programs
            scan(
                f"bias_gelu backward, {programs} programs",
                lambda: gelu.bias_gelu_backward(slope, inner, wide),
                gelu.BACKWARD,
                tiles,
            )


if __name__ == "__main__":
    main()
