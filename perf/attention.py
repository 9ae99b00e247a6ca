"""Compare self-attention in short sequences on a GPU: our tiled kernel and PyTorch's variable-length flash kernel.

    python perf/attention.py [--tokens 131072] [--heads 12] [--width 64] [--scan]

Times are of the operation alone, forward and backward, on queries, keys and values stacked as in the output of one
matrix product; gradients are stacked in the same way. With --scan, all tile sizes are tried, to choose those in
pretune/nn/kernels/short_attention.py.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from common import machine

from pretune.nn.attention.patterns import full
from pretune.nn.attention.query_key_layout import self_layout
from pretune.nn.attention.scaled_dot_product import attend_self
from pretune.nn.kernels import short_attention
from pretune.packed import Packed, pack


def make_packed(ragged: bool, tokens: int, length: int) -> Packed:
    """Return sequences of one length, or of lengths distributed uniformly from 8."""
    lengths = np.random.default_rng(0).integers(8, length + 1, tokens) if ragged else np.full(tokens, length)
    lengths = lengths[np.cumsum(lengths) <= tokens]
    return pack(np.zeros(int(lengths.sum()), dtype=np.int64), lengths).to(torch.device("cuda"))


def milliseconds(work: Callable[[], Any], repeats: int = 20) -> float:
    """Return the time of one call on the device."""
    for _ in range(3):
        work()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / repeats


def measure(packed: Packed, heads: int, width: int, backend: Any) -> tuple[float, float]:
    """Return the times of the forward pass, and of the forward and backward pass."""
    layout = self_layout(packed)
    qkv = torch.randn(len(packed), 3, heads, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    slope = torch.randn(len(packed), heads, width, device="cuda", dtype=torch.bfloat16)

    def forward() -> Any:
        with torch.no_grad():
            return attend_self(qkv, layout, full, backend=backend)

    def both() -> None:
        qkv.grad = None
        out = attend_self(qkv, layout, full, backend=backend)
        out.backward(slope)

    return milliseconds(forward), milliseconds(both)


def scan(packed: Packed, heads: int, width: int) -> None:
    """Time all tile sizes, forward and backward separately."""
    for setting, place in ((short_attention.FORWARD, 0), (short_attention.BACKWARD, 1)):
        before = dict(setting)
        for tile, other, warps, stages in itertools.product((64, 128), (32, 64, 128), (4, 8), (1, 2, 3)):
            setting |= {"tile": tile, "other": other, "num_warps": warps, "num_stages": stages}
            try:
                times = measure(packed, heads, width, "tiles")
            except Exception as error:  # too much shared memory
                print("  ", dict(setting), type(error).__name__, flush=True)
                continue
            print(
                f"   {times[0]:.3f} {times[1]:.3f}  {'forward' if place == 0 else 'backward'} {dict(setting)}",
                flush=True,
            )
        setting |= before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=131072)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--scan", action="store_true")
    options = parser.parse_args()
    print(machine())
    for length, ragged in ((128, False), (128, True), (512, False), (512, True)):
        packed = make_packed(ragged, options.tokens, length)
        found = {backend: measure(packed, options.heads, options.width, backend) for backend in ("flash", "tiles")}
        ratio = found["flash"][1] / found["tiles"][1]
        print(
            f"{'ragged' if ragged else 'full'} {length}: {found} ms (forward, forward and backward); ratio {ratio:.2f}",
            flush=True,
        )
        if options.scan and length == 128:
            scan(packed, options.heads, options.width)


if __name__ == "__main__":
    main()
