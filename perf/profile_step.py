"""Profile training steps: print the GPU kernels of some steps by total time.

python perf/profile_step.py [--preset bert-base] [--tokens 65536] [--ragged] [--rows 16]
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
from pretraining_speed import with_pretune

from pretune.training import loop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="bert-base")
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--ragged", action="store_true")
    parser.add_argument("--rows", type=int, default=16)
    options = parser.parse_args()
    os.environ["PRETUNE_PROGRESS"] = "none"
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    rate = loop.lr_factor
    steps = 0

    def counted(*arguments: Any) -> float:  # called once per step
        nonlocal steps
        steps += 1
        if steps == 12:
            profiler.start()
        if steps == 17:
            torch.cuda.synchronize()
            profiler.stop()
        return rate(*arguments)

    loop.lr_factor = counted
    speed, flops = with_pretune(options.preset, options.ragged, options.tokens, 20, torch.device("cuda"))
    print(f"{speed:,.0f} tokens/s, {flops / 1e12:.0f} TFLOP/s (profiling included)")
    rows = profiler.key_averages()
    total = sum(row.self_device_time_total for row in rows)
    for row in sorted(rows, key=lambda row: -row.self_device_time_total)[: options.rows]:
        share = 100 * row.self_device_time_total / total
        print(f"{share:5.1f} %  {row.self_device_time_total / 5e3:8.2f} ms/step  {row.count // 5:4d}x  {row.key[:110]}")
    print(f"total {total / 5e3:.1f} ms/step on the device")


if __name__ == "__main__":
    main()
