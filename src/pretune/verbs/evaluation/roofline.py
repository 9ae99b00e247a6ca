"""The `roofline` verb: measure the peak throughput and the memory bandwidth of a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pretune.verbs import options as opt
from pretune.verbs.verb import verb

SIZES = {"cuda": (2048, 4096, 8192), "cpu": (256, 512, 1024, 2048)}
SECONDS = 0.5  # of measurement per size


@dataclass(frozen=True)
class Roofline:
    """Measured peak throughput and memory bandwidth of a device."""

    device: str
    dtype: str
    teraflops: dict[int, float]  # by matrix size
    bandwidth: float  # bytes per second

    @property
    def peak(self) -> float:
        """Return the highest measured throughput, in floating-point operations per second."""
        return max(self.teraflops.values()) * 1e12

    def describe(self) -> dict[str, Any]:
        """Return the measured throughputs and the memory bandwidth of the device by name."""
        rows = [{"matrices": f"{size} x {size}", "TFLOP/s": speed} for size, speed in self.teraflops.items()]
        return {
            "device": self.device,
            "dtype": self.dtype,
            "matmul": rows,
            "peak_teraflops": self.peak / 1e12,
            "gigabytes_per_second": self.bandwidth / 1e9,
        }


@verb()
def roofline(device: opt.Device = None) -> Roofline:
    """Measure the matrix-multiplication throughput and memory bandwidth of a device.

    Training reports its model FLOPs utilization relative to this peak.

    Examples
    --------
    >>> roofline("cpu").peak > 1e9  # doctest: +SKIP
    True
    """
    import torch

    from pretune.runtime.devices import choose_device, device_name, save_peak_flops
    from pretune.runtime.progress import progress

    where = choose_device(device)
    kind = torch.bfloat16 if where.type == "cuda" else torch.float32
    sizes = SIZES[where.type]
    speeds = {}
    with progress("measuring", len(sizes) + 1) as bar:
        for number, size in enumerate(sizes):
            a, b = (torch.randn(size, size, device=where, dtype=kind) for _ in range(2))
            speeds[size] = 2 * size**3 / _seconds(lambda a=a, b=b: a @ b, where) / 1e12
            bar.update(number + 1)
        block = torch.empty((1 << 30 if where.type == "cuda" else 1 << 28) // 4, device=where)
        target = torch.empty_like(block)
        bandwidth = 2 * block.nbytes / _seconds(lambda: target.copy_(block), where)
    result = Roofline(device_name(where), str(kind).removeprefix("torch."), speeds, bandwidth)
    save_peak_flops(where, result.peak)
    return result


def _seconds(work: Any, device: Any) -> float:
    """Call `work` on a device several times, and return the shortest time of a call in seconds."""
    import time

    import torch

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    work()
    best, until = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        wait()
        start = time.perf_counter()
        for _ in range(4):
            work()
        wait()
        best = min(best, (time.perf_counter() - start) / 4)
    return best
