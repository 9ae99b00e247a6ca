"""Choose a device, make it deterministic, and look up its peak speed."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from pretune.runtime.errors import PretuneError, if_option, quote, suggest

# Dense bf16 FLOPs per second, from the vendors' data sheets; the first name contained in the device's name applies.
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
DEVICES = ("cpu", "cuda")  # kinds of devices that commands run on


def choose_device(name: str | None = None) -> torch.device:
    """Return the torch device called `name`; without a name, the first GPU, or the CPU if there is no GPU.

    >>> choose_device("cpu").type
    'cpu'
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise PretuneError(f"there is no device {quote(name)}; {suggest(name, DEVICES)}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise PretuneError(f"this machine has no CUDA device{if_option('device', '; use --device cpu')}")
    return device


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Use deterministic algorithms in the `with` block if `wanted` is True; otherwise change nothing.

    Results are then bitwise reproducible on the same machine.

    >>> with deterministic(True):
    ...     torch.are_deterministic_algorithms_enabled()
    True
    """
    before = torch.are_deterministic_algorithms_enabled()
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required by cuBLAS
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def device_name(device: torch.device) -> str:
    """Return the name of a device; for a CPU, it includes the number of threads, which measurements depend on."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def peak_flops(device: torch.device) -> float | None:
    """Return the peak speed of a device in floating-point operations per second; None if it is unknown.

    The speed was measured on this machine (see `save_peak_flops`) or comes from the data sheet of the device.
    """
    name = device_name(device)
    data_sheet = next((peak for part, peak in KNOWN.items() if part in name), None)
    return _measured().get(name, data_sheet)


def save_peak_flops(device: torch.device, peak: float) -> None:
    """Save the measured peak speed of a device, in floating-point operations per second, for later runs."""
    from pretune.runtime.atomic_io import write_json

    write_json(_file(), {**_measured(), device_name(device): peak})


def cache_folder() -> Path:
    """Return pretune's cache folder, whose files are reused between runs and can be deleted at any time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pretune"


def _file() -> Path:
    return cache_folder() / "devices.json"


def _measured() -> dict[str, float]:
    try:
        return {str(name): float(peak) for name, peak in json.loads(_file().read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, AttributeError):
        return {}


def out_of_memory(error: BaseException) -> str | None:
    """Return what ran out of memory, "the GPU" or "this machine"; None if the error has another cause.

    >>> out_of_memory(MemoryError()), out_of_memory(RuntimeError("shapes do not match"))
    ('this machine', None)
    """
    if isinstance(error, torch.OutOfMemoryError):
        return "the GPU"
    text = str(error)
    if isinstance(error, MemoryError) or "can't allocate memory" in text or "Cannot allocate memory" in text:
        return "this machine"
    return "the GPU" if "CUDA out of memory" in text or "CUBLAS_STATUS_ALLOC_FAILED" in text else None
