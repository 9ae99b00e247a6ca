"""Compare the cost of sparse attention patterns in long texts with full attention, forward and backward.

    python perf/sparse_attention.py [--lengths 1024 2048 4096 8192 16384] [--texts 1] [--heads 12] [--width 64]
                                    [--json] [--plot PATH]
    python perf/sparse_attention.py --read FILE --plot PATH

For one text of each length, or several at once, it measures milliseconds, peak memory in addition to queries, keys and
values, and milliseconds to make the block mask, which all layers of a model share. Then it prints the ratio of the
longest text to one of a quarter of its length: 4 is linear, 16 is quadratic. On a CPU, which computes all pairs for any
pattern, this only shows that the script runs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import machine

from pretune.nn.attention.big_bird import block_sparse, random_numbers
from pretune.nn.attention.flex_block_mask import block_mask
from pretune.nn.attention.patterns import Pattern, full, global_tokens, window
from pretune.nn.attention.query_key_layout import self_layout
from pretune.nn.attention.scaled_dot_product import attend
from pretune.packed import pack

LENGTHS = {"cuda": [1024, 2048, 4096, 8192, 16384], "cpu": [64, 256, 1024]}
REACH, BLOCK, RANDOM = 256, 64, 3  # as published: half of Longformer's window, BigBird's blocks
Found = dict[str, dict[str, dict[str, float]]]  # by case, length and unit
UNITS = {
    "ms": "milliseconds, forward and backward",
    "MiB": "MiB of peak memory",
    "mask ms": "milliseconds to make the mask",
}


@dataclass
class Case:
    """A pattern, and its path if not the default one."""

    pattern: Pattern
    backend: Any = None
    masked: bool = True  # with a block mask


def cases(length: int, heads: int, device: torch.device) -> dict[str, Case]:
    """Return the cases to compare."""
    numbers = random_numbers(0, heads, -(-length // BLOCK), RANDOM).to(device)
    found = {
        "full": Case(full, masked=False),
        "full, flex": Case(full, backend="flex"),
        "window": Case(window(REACH), masked=False),
        "longformer": Case(window(REACH) | global_tokens),
        "bigbird": Case(block_sparse(numbers, BLOCK, str(BLOCK))),
    }
    if device.type == "cpu":
        del found["full, flex"]
    return found


def milliseconds(work: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Return the time of one call."""
    for _ in range(2):
        work()
    synchronize(device)
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    synchronize(device)
    return (time.perf_counter() - start) * 1000 / repeats


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def measure(
    case: Case, length: int, texts: int, heads: int, width: int, device: torch.device, repeats: int
) -> dict[str, float]:
    """Return the time, the memory and the time of the mask, by unit."""
    torch._dynamo.reset()  # every case is compiled for its own shapes, and the cache is limited
    on_gpu = device.type == "cuda"
    n = texts * length
    columns = {"global": np.arange(n) % length == 0}  # the first token of a text has global attention
    packed = pack(np.zeros(n, dtype=np.int64), np.full(texts, length), columns=columns).to(device)
    layout = self_layout(packed)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    q, k, v = (torch.randn(n, heads, width, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    slope = torch.randn(n, heads, width, device=device, dtype=dtype)

    def both() -> None:
        q.grad = k.grad = v.grad = None
        attend(q, k, v, layout, case.pattern, backend=case.backend).backward(slope)

    found = {"ms": milliseconds(both, device, repeats)}
    if on_gpu:
        q.grad = k.grad = v.grad = None
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        both()
        found["MiB"] = (torch.cuda.max_memory_allocated() - before) / 2**20
        if case.masked:
            found["mask ms"] = milliseconds(lambda: block_mask(self_layout(packed), case.pattern), device, repeats)
    return {unit: round(number, 3) for unit, number in found.items()}


def table(found: Found, unit: str) -> str:
    """Return a table with one row per case and one column per length."""
    lengths = list(next(iter(found.values())))
    rows = [f"{unit:>12} " + "".join(f"{int(length):>11,}" for length in lengths)]
    for name, points in found.items():
        if any(unit in point for point in points.values()):
            rows.append(f"{name:>12} " + "".join(f"{points[length].get(unit, 0):>11.3f}" for length in lengths))
    return "\n".join(rows)


def growth(found: Found) -> dict[str, float]:
    """Return the ratio of the time of the longest text to one of a quarter of its length."""
    lengths = next(iter(found.values()))
    longest = max(int(length) for length in lengths)
    quarter = str(longest // 4)
    if quarter not in lengths:
        return {}
    return {name: round(points[str(longest)]["ms"] / points[quarter]["ms"], 2) for name, points in found.items()}


def draw(found: Found, about: dict[str, Any], out: str) -> None:
    """Plot one panel for time and one for memory, with logarithmic axes."""
    from matplotlib.figure import Figure

    units = [
        unit for unit in ("ms", "MiB") if all(unit in point for points in found.values() for point in points.values())
    ]
    figure = Figure(figsize=(5.5 * len(units), 4.5), layout="constrained")
    for axes, unit in zip(np.atleast_1d(np.array(figure.subplots(1, len(units)))), units, strict=True):
        for (name, points), marker in zip(found.items(), "osD^v", strict=False):
            lengths = [int(length) for length in points]
            style = "--" if name.startswith("full") else "-"
            axes.plot(lengths, [point[unit] for point in points.values()], style, marker=marker, label=name)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.set_xlabel("tokens of a text")
        axes.set_ylabel(UNITS[unit])
        axes.grid(alpha=0.3, which="both")
        axes.legend()
    where = about.get("gpu", about["machine"])
    figure.suptitle(
        f"attention, {about['texts']} at once, {about['heads']} heads of {about['width']}, {where}, torch {about['torch']}",
        fontsize=10,
    )
    figure.savefig(out, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--lengths", type=int, nargs="+")
    parser.add_argument("--texts", type=int, default=1, help="of the same length, at once")
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", metavar="PATH", help="write the picture of it")
    parser.add_argument("--read", metavar="FILE", help="measure nothing, only plot what --json gave")
    options = parser.parse_args()
    device = torch.device(options.device)
    if options.read:
        stored = json.loads(Path(options.read).read_text())
        draw(stored["cases"], stored, options.plot)
        return
    found: Found = {}
    for length in sorted(options.lengths or LENGTHS[device.type]):
        for name, case in cases(length, options.heads, device).items():
            point = measure(case, length, options.texts, options.heads, options.width, device, options.repeats)
            found.setdefault(name, {})[str(length)] = point
            if not options.json:
                print(f"{name}, {length:,} tokens: {point}", flush=True)
    ratios, about = growth(found), {"texts": options.texts, "heads": options.heads, "width": options.width, **machine()}
    if options.json:
        print(json.dumps({"cases": found, "ratio": ratios, **about}))
    else:
        units = [unit for unit in UNITS if any(unit in point for points in found.values() for point in points.values())]
        print(
            about,
            *(table(found, unit) for unit in units),
            f"ratio of the longest text to a quarter of it: {ratios}",
            sep="\n\n",
        )
    if options.plot:
        draw(found, about, options.plot)


if __name__ == "__main__":
    main()
