"""Where to compute, and how fast that could be."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from pretune.runtime.errors import PretuneError, if_option

# Dense bf16 operations a second, from the vendor's data sheets; the first name that is part of the device's counts.
KNOWN = {
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
}


def choose_device(name: str | None = None) -> torch.device:
    """The named device, else the first GPU, else the CPU.

    >>> choose_device("cpu").type
    'cpu'
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise PretuneError(f"unknown device {name!r}; cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise PretuneError(f"no CUDA device here{if_option('device', '; use --device cpu')}")
    return device


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Same seed, same machine, same bits: slower ways are taken where the fast ones add up in any order.

    >>> with deterministic(True):
    ...     torch.are_deterministic_algorithms_enabled()
    True
    """
    before = torch.are_deterministic_algorithms_enabled()
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def device_name(device: torch.device) -> str:
    """What the device is called; a CPU with its number of threads, since that is what a measurement is of."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def peak_flops(device: torch.device) -> float | None:
    """Operations a second at best: as measured on this machine, else by data sheet; None where nobody knows."""
    name = device_name(device)
    measured = _measured().get(name)
    if measured is not None:
        return measured
    return next((peak for part, peak in KNOWN.items() if part in name), None)


def remember_peak(device: torch.device, peak: float) -> None:
    """Keep a measurement for the next time."""
    from pretune.runtime.atomic_io import write_json

    write_json(_file(), {**_measured(), device_name(device): peak})


def cache_folder() -> Path:
    """What may be kept from one run to the next, and may be lost."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pretune"


def _file() -> Path:
    return cache_folder() / "devices.json"


def _measured() -> dict[str, float]:
    try:
        return {str(name): float(peak) for name, peak in json.loads(_file().read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, AttributeError):
        return {}


def out_of_memory(error: BaseException) -> str | None:
    """Return what ran out of memory ("the GPU" or "this machine") where that is what an error says, else None.

    >>> out_of_memory(MemoryError()), out_of_memory(RuntimeError("shapes do not match"))
    ('this machine', None)
    """
    if isinstance(error, torch.OutOfMemoryError):
        return "the GPU"
    text = str(error)
    if isinstance(error, MemoryError) or "can't allocate memory" in text or "Cannot allocate memory" in text:
        return "this machine"
    return "the GPU" if "CUDA out of memory" in text or "CUBLAS_STATUS_ALLOC_FAILED" in text else None
