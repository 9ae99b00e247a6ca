"""Compare the cost of attention for long texts with full attention, forward and backward: sparse patterns and approximations.

    python perf/sparse_attention.py [--lengths 4096 16384] [--cases full longformer bigbird] [--path auto flex]
                                    [--texts 1] [--heads 12] [--width 64] [--compile] [--tune] [--limit SECONDS]
                                    [--json] [--plot PATH]
    python perf/sparse_attention.py --read FILE --plot PATH

For one text of each length, or several at once, it measures milliseconds of calls from Python, milliseconds of the GPU
alone (the same work, recorded as a CUDA graph), peak memory in addition to queries, keys and values, and, for flex,
milliseconds to make the block mask, which all layers of a model share. Then it prints the ratio to full attention, the
length from which each case is faster than full attention, and the ratio of the longest text to one of a quarter of its
length: 4 is linear, 16 is quadratic. A case that fails prints its traceback, and the next one is measured. On a CPU,
which computes all pairs for any pattern, this only shows that the script runs.

The cases: `full` and `window` of 512 tokens with PyTorch's flash kernel; `longformer`, that window and one global token
with projections of its own; `bigbird`, blocks of 64 and 3 random ones; `performer`, 256 random features; `lsh`, one
round of hashing into chunks of 64. `--path` selects implementations of longformer and bigbird: `auto` is what models
use, `flex` is flex_attention with a block mask. `--tune` measures longformer and bigbird with other tile sizes.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from common import machine
from torch import Tensor

from pretune.nn.attention.big_bird import block_sparse, random_numbers
from pretune.nn.attention.chunked import attend_chunks
from pretune.nn.attention.flex_block_mask import block_mask
from pretune.nn.attention.lsh import sort_by_bucket
from pretune.nn.attention.patterns import Pattern, full, global_keys, window
from pretune.nn.attention.performer import RandomFeatureAttention
from pretune.nn.attention.query_key_layout import AttentionLayout, self_layout
from pretune.nn.attention.scaled_dot_product import attend, attend_globally, attend_self
from pretune.packed import pack

# The two lengths with a target come first, so that a run that is cut short has them.
LENGTHS = {"cuda": [4096, 16384, 2048, 8192, 1024, 32768], "cpu": [64, 256]}
REACH, BLOCK, RANDOM = 256, 64, 3  # as published: half of Longformer's window, BigBird's blocks
FEATURES, CHUNK = 256, 64  # of Performer and Reformer
CASES = ("full", "window", "longformer", "bigbird", "performer", "lsh")
Found = dict[str, dict[str, dict[str, float]]]  # by case, length and unit
UNITS = {
    "ms": "milliseconds, forward and backward",
    "gpu ms": "milliseconds of the GPU, forward and backward",
    "MiB": "MiB of peak memory",
    "mask ms": "milliseconds to make the mask",
}
START = time.perf_counter()
# For --tune: constants of the kernels' forward and backward passes.
TILES = (
    {"tile": 64, "other": 64, "num_warps": 4, "num_stages": 2},
    {"tile": 64, "other": 64, "num_warps": 4, "num_stages": 3},
    {"tile": 128, "other": 64, "num_warps": 8, "num_stages": 3},
    {"tile": 64, "other": 32, "num_warps": 4, "num_stages": 2},
    {"tile": 64, "other": 64, "num_warps": 8, "num_stages": 2},
)
WARPS = ({"num_warps": w, "num_stages": s} for w in (4, 8) for s in (1, 2, 3))


@dataclass
class Case:
    """A function of stacked queries, keys and values, and the pattern of its block mask, if it has one."""

    attend: Callable[[AttentionLayout, list[Tensor]], Tensor]
    stacked: int = 1  # number of tensors with queries, keys and values, (n, 3, heads, d); 0: three of (n, heads, d)
    masked: Pattern | None = None


def cases(options: argparse.Namespace, length: int, device: torch.device) -> dict[str, Case]:
    """Return the cases to compare."""
    numbers = random_numbers(0, options.heads, -(-length // BLOCK), RANDOM).to(device)
    sparse = block_sparse(numbers, BLOCK, str(BLOCK))
    local = window(REACH)
    performer = RandomFeatureAttention(options.width, FEATURES).to(device)
    # Full attention has its inputs in separate tensors, which is fastest for it: no gradients are stacked.
    found = {
        "full": Case(lambda layout, x: attend(*x, layout, full), stacked=0),
        "window": Case(lambda layout, x: attend(*x, layout, local), stacked=0),
    }
    for path in options.path:
        backend: Any = None if path == "auto" else path
        end = "" if path == "auto" else f", {path}"
        on_flex = path == "flex"
        found["longformer" + end] = Case(
            partial(lambda layout, x, backend: attend_globally(*x, layout, local, backend=backend), backend=backend),
            stacked=2,
            masked=local | global_keys if on_flex else None,
        )
        found["bigbird" + end] = Case(
            partial(lambda layout, x, backend: attend_self(*x, layout, sparse, backend=backend), backend=backend),
            masked=sparse if on_flex else None,
        )
    compiled = partial(torch.compile, dynamic=False) if options.compile else lambda function: function
    found["performer"] = Case(compiled(lambda layout, x: performer(*x, layout, full)), stacked=0)
    found["lsh"] = Case(compiled(partial(lsh, length)), stacked=0)
    return {name: case for name, case in found.items() if name.split(",")[0] in options.cases}


def lsh(length: int, layout: AttentionLayout, x: list[Tensor]) -> Tensor:
    """Return Reformer's attention of the first tensor of x, as queries and keys, to the last one, as values."""
    q, _, v = x
    buckets = 2 ** max(1, round(math.log2(2 * length / CHUNK)))
    rotations = torch.randn(q.shape[1], q.shape[2], 1, buckets // 2, device=q.device, dtype=q.dtype)
    with torch.no_grad():
        order = sort_by_bucket(q, rotations, [buckets], layout.queries)
    keys = F.rms_norm(q, (q.shape[-1],), eps=1e-6)
    return attend_chunks(q, keys, v, layout, full, size=CHUNK, before=1, order=order, self_last=True)


def milliseconds(work: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Return the time of one call."""
    for _ in range(3):
        work()
    synchronize(device)
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    synchronize(device)
    return (time.perf_counter() - start) * 1000 / repeats


def gpu_milliseconds(work: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Return the time of one call recorded as a CUDA graph, which takes no time of the host."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return milliseconds(graph.replay, device, repeats)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def measure(case: Case, length: int, options: argparse.Namespace, device: torch.device) -> dict[str, float]:
    """Return the time, the memory and the time of the mask, by unit."""
    torch._dynamo.reset()  # every case is compiled for its own shapes, and the cache is limited
    on_gpu = device.type == "cuda"
    n = options.texts * length
    columns = {"global": np.arange(n) % length == 0}  # the first token of a text has global attention
    packed = pack(np.zeros(n, dtype=np.int64), np.full(options.texts, length), columns=columns).to(device)
    layout = self_layout(packed)
    make = partial(torch.randn, device=device, dtype=torch.bfloat16 if on_gpu else torch.float32)
    if case.stacked:
        x = [make(n, 3, options.heads, options.width).requires_grad_() for _ in range(case.stacked)]
    else:
        x = [make(n, options.heads, options.width).requires_grad_() for _ in range(3)]
    slope = make(n, options.heads, options.width)

    def both() -> None:
        for tensor in x:
            tensor.grad = None
        case.attend(layout, x).backward(slope)

    found = {"ms": milliseconds(both, device, options.repeats)}
    if on_gpu:
        for tensor in x:
            tensor.grad = None
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        both()
        found["MiB"] = (torch.cuda.max_memory_allocated() - before) / 2**20
        if case.masked is not None:
            pattern = case.masked
            found["mask ms"] = milliseconds(lambda: block_mask(self_layout(packed), pattern), device, 5)
        try:
            found["gpu ms"] = gpu_milliseconds(both, device, options.repeats)
        except Exception:  # some operations cannot be recorded
            torch.cuda.synchronize()
            print(traceback.format_exc(limit=3), flush=True)
    return {unit: round(number, 3) for unit, number in found.items()}


def tune(options: argparse.Namespace, device: torch.device) -> None:
    """Print the time of longformer and bigbird with each of the tile sizes, the forward and the backward pass apart."""
    from pretune.nn.kernels import block_sparse_attention, global_attention

    length = max(options.lengths)
    for name, module, candidates in (
        ("longformer", global_attention, TILES),
        ("bigbird", block_sparse_attention, tuple(WARPS)),
    ):
        case = cases(options, length, device)[name]
        for constants in (module.FORWARD, module.BACKWARD):
            kept = dict(constants)
            which = "forward" if constants is module.FORWARD else "backward"
            for candidate in candidates:
                if time.perf_counter() - START > options.limit:
                    return
                constants.update(candidate)
                try:
                    print(f"{name}, {which} {candidate}: {measure(case, length, options, device)}", flush=True)
                except Exception as error:
                    print(f"{name}, {which} {candidate}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            constants.update(kept)


def table(found: Found, unit: str) -> str:
    """Return a table with one row per case and one column per length."""
    lengths = sorted({length for points in found.values() for length in points}, key=int)
    rows = [f"{unit:>18} " + "".join(f"{int(length):>11,}" for length in lengths)]
    for name, points in found.items():
        if any(unit in point for point in points.values()):
            cells = [points.get(length, {}).get(unit) for length in lengths]
            rows.append(f"{name:>18} " + "".join(f"{'':>11}" if x is None else f"{x:>11.3f}" for x in cells))
    return "\n".join(rows)


def growth(found: Found) -> dict[str, float]:
    """Return the ratio of the time of the longest text to one of a quarter of its length."""
    ratios = {}
    for name, points in found.items():
        longest = max(map(int, points))
        if (quarter := str(longest // 4)) in points:
            ratios[name] = round(points[str(longest)]["ms"] / points[quarter]["ms"], 2)
    return ratios


def relative(found: Found) -> Found:
    """Return the ratio of the times to those of full attention."""
    return {
        name: {
            length: {
                f"{unit} / full": point[unit] / found["full"][length][unit]
                for unit in ("ms", "gpu ms")
                if unit in point and unit in found["full"].get(length, {})
            }
            for length, point in points.items()
        }
        for name, points in found.items()
    }


def crossovers(found: Found, unit: str) -> dict[str, str]:
    """Return the length from which each case is faster than full attention, interpolated between measured lengths."""
    lengths = sorted((length for length, point in found["full"].items() if unit in point), key=int)
    results = {}
    for name, points in found.items():
        measured = [length for length in lengths if unit in points.get(length, {})]
        if name == "full" or not measured:
            continue
        logs = [math.log(points[length][unit] / found["full"][length][unit]) for length in measured]
        slower = [i for i, x in enumerate(logs) if x >= 0]
        if not slower:
            results[name] = f"below {int(measured[0]):,}"
        elif slower[-1] == len(logs) - 1:
            results[name] = f"above {int(measured[-1]):,}"
        else:
            i = slower[-1]
            one, other = (math.log(int(measured[j])) for j in (i, i + 1))
            results[name] = f"about {math.exp(one + (other - one) * logs[i] / (logs[i] - logs[i + 1])):,.0f}"
    return results


def draw(found: Found, about: dict[str, Any], out: str) -> None:
    """Plot one panel for time and one for memory, with logarithmic axes."""
    from matplotlib.figure import Figure

    units = [
        unit for unit in ("ms", "MiB") if all(unit in point for points in found.values() for point in points.values())
    ]
    figure = Figure(figsize=(5.5 * len(units), 4.5), layout="constrained")
    for axes, unit in zip(np.atleast_1d(np.array(figure.subplots(1, len(units)))), units, strict=True):
        for (name, points), marker in zip(found.items(), "osD^vP*X", strict=False):
            points = dict(sorted(points.items(), key=lambda item: int(item[0])))
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
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--path", nargs="+", choices=("auto", "sparse", "flex", "dense"), default=["auto"])
    parser.add_argument("--texts", type=int, default=1, help="of the same length, at once")
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--compile", action="store_true", help="compile performer and lsh, as in training")
    parser.add_argument("--tune", action="store_true", help="measure other tile sizes of the kernels")
    parser.add_argument("--limit", type=float, default=math.inf, help="start no other measurement after these seconds")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", metavar="PATH", help="write the picture of it")
    parser.add_argument("--read", metavar="FILE", help="measure nothing, only plot what --json gave")
    options = parser.parse_args()
    device = torch.device(options.device)
    if options.read:
        stored = json.loads(Path(options.read).read_text())
        draw(stored["cases"], stored, options.plot)
        return
    options.lengths = options.lengths or LENGTHS[device.type]
    if options.tune:
        tune(options, device)
        return
    found: Found = {}
    for length in options.lengths:
        for name, case in cases(options, length, device).items():
            if time.perf_counter() - START > options.limit:
                break
            try:
                point = measure(case, length, options, device)
            except Exception:  # measure the next one
                print(f"{name}, {length:,} tokens failed:\n{traceback.format_exc()}", flush=True)
                continue
            found.setdefault(name, {})[str(length)] = point
            if not options.json:
                print(f"{name}, {length:,} tokens: {point}", flush=True)
    if not found:
        raise SystemExit("every case failed")
    ratios = growth(found)
    about = {"texts": options.texts, "heads": options.heads, "width": options.width, **machine()}
    units = [unit for unit in UNITS if any(unit in point for points in found.values() for point in points.values())]
    crossing = {unit: crossovers(found, unit) for unit in units if "ms" in unit and "full" in found}
    if options.json:
        print(json.dumps({"cases": found, "ratio": ratios, "faster than full from": crossing, **about}))
    else:
        compared = relative(found) if "full" in found else {}
        tables = [table(found, unit) for unit in units]
        tables += [table(compared, f"{unit} / full") for unit in ("ms", "gpu ms") if compared and unit in units]
        print(
            about,
            *tables,
            f"faster than full attention from: {crossing}",
            f"ratio of the longest text to a quarter of it: {ratios}",
            sep="\n\n",
        )
    if options.plot:
        draw(found, about, options.plot)


if __name__ == "__main__":
    main()
