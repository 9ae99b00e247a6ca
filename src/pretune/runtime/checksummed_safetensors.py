"""Safetensors files with a checksum of their content.

The checksum is an entry in the metadata of the file's header, which other programs ignore; it covers the names, types, shapes,
and bytes of all tensors. Files from other sources have none, and are read without a check.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from pretune.runtime.atomic_io import atomic_file
from pretune.runtime.errors import PretuneError

Tensors = dict[str, Tensor]
CHECKSUM = "pretune_sha256"  # key in the metadata
METADATA = "__metadata__"
LFS = b"version https://git-lfs"  # beginning of a git-lfs pointer file
LARGEST_HEADER = 100_000_000  # maximum bytes, as in the safetensors library
BLOCK = 1 << 24  # bytes hashed at a time


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file with its checksum, atomically."""
    header, data = split_header(memoryview(save(dict(tensors))))
    known = dict(metadata or {})
    known[CHECKSUM] = digest(header, [data])
    raw = json.dumps({METADATA: known, **header}, separators=(",", ":"), ensure_ascii=False).encode()
    raw += b" " * (-len(raw) % 8)  # tensors are aligned to 8 bytes
    with atomic_file(path) as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.write(data)


def read_tensors(path: Path) -> Tensors:
    """Read the tensors of a safetensors file; raise an error if it is damaged or does not match its checksum."""
    with reading_tensors(path):
        verify_checksum(path)
        return load_file(path)


@contextmanager
def reading_tensors(path: Path) -> Iterator[None]:
    """Convert errors while reading a safetensors file into one that names the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise PretuneError(f"{path}: there is no such file") from error
    except (SafetensorError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise PretuneError(f"{path}: the file is damaged or truncated ({error}); restore it from its source") from error
    except OSError as error:
        raise PretuneError(f"{path}: cannot be read ({error.strerror})") from error


def verify_checksum(path: Path) -> None:
    """Check a file against its own checksum, if it has one."""
    check_not_lfs_pointer(path)
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > LARGEST_HEADER:
            raise PretuneError(
                f"{path} is not a safetensors file, or its header is damaged; restore it from its source"
            )
        header = json.loads(file.read(size))
        metadata = header.pop(METADATA, None) or {}
        wanted = metadata.get(CHECKSUM)
        if wanted is not None and wanted != digest(header, iter(lambda: file.read(BLOCK), b"")):
            raise PretuneError(
                f"{path}: the tensors do not match their checksum, so the file is damaged; restore it from its source"
            )


def check_not_lfs_pointer(path: Path) -> None:
    """Raise an error if a file is a git-lfs pointer."""
    with path.open("rb") as file:
        if file.read(len(LFS)) == LFS:
            raise PretuneError(f"{path} is a git-lfs pointer, not the weights; fetch these with `git lfs pull`")


def digest(header: Mapping[str, Any], data: Iterable[bytes | memoryview]) -> str:
    """Return the checksum of a header without its metadata, and of the bytes of the tensors."""
    found = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for block in data:
        found.update(block)
    return found.hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 checksum of a file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise PretuneError(f"{path}: cannot be read ({error.strerror})") from error


def split_header(content: memoryview) -> tuple[dict[str, Any], memoryview]:
    """Split the content of a safetensors file into the header, without metadata, and the bytes of the tensors."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(bytes(content[8 : 8 + size]))
    header.pop(METADATA, None)
    return header, content[8 + size :]


def check_finite(tensors: Mapping[str, Tensor], where: Path) -> None:
    """Raise an error that names the weights with NaN or infinity."""
    # A sum is several times as fast as checking each number, and finite only if all numbers are (unless it overflows).
    wide = {name: x.float() if x.element_size() == 1 else x for name, x in tensors.items() if x.is_floating_point()}
    suspects = [name for name, x in wide.items() if not torch.isfinite(x.sum(dtype=torch.float32))]
    bad = [name for name in suspects if not torch.isfinite(wide[name]).all()]
    if bad:
        listed = ", ".join(bad[:5]) + (f" and {len(bad) - 5} more" if len(bad) > 5 else "")
        raise PretuneError(
            f"{where}: there is NaN or infinity in {listed}; the weights are damaged or their training diverged"
        )
