"""Read and write safetensors files with a checksum of their content.

The checksum is an entry in the metadata of the file's header, which other programs ignore; it covers the names, types, shapes,
and bytes of all tensors. Files from other sources have no checksum and are read without a check.
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
    """Write tensors to a safetensors file atomically, with their checksum in the metadata."""
    header, data = split_header(memoryview(save(dict(tensors))))
    entries = {**(metadata or {}), CHECKSUM: digest(header, [data])}
    raw = json.dumps({METADATA: entries, **header}, separators=(",", ":"), ensure_ascii=False).encode()
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
    """Convert errors of reading a safetensors file inside the `with` block to PretuneErrors that name the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise PretuneError(f"{path}: there is no such file; check the path") from error
    except (SafetensorError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise PretuneError(f"{path}: the file is damaged or truncated ({error}); restore it from its source") from error
    except OSError as error:
        raise PretuneError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error


def verify_checksum(path: Path) -> None:
    """Raise an error if the tensors of a safetensors file do not match the checksum in its metadata, if there is one."""
    check_not_lfs_pointer(path)
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > LARGEST_HEADER:
            raise PretuneError(f"{path}: not a safetensors file, or its header is damaged; restore it from its source")
        header = json.loads(file.read(size))
        expected = (header.pop(METADATA, None) or {}).get(CHECKSUM)
        if expected is not None and expected != digest(header, iter(lambda: file.read(BLOCK), b"")):
            problem = "the tensors do not match their checksum, so the file is damaged"
            raise PretuneError(f"{path}: {problem}; restore it from its source")


def check_not_lfs_pointer(path: Path) -> None:
    """Raise an error if a file is a git-lfs pointer, a small text file, instead of the weights that it stands for."""
    with path.open("rb") as file:
        if file.read(len(LFS)) == LFS:
            raise PretuneError(f"{path} is a git-lfs pointer, not the weights; fetch the weights with `git lfs pull`")


def digest(header: Mapping[str, Any], data: Iterable[bytes | memoryview]) -> str:
    """Return the checksum of the tensors of a safetensors file, in hexadecimal.

    `header` is the header of the file without metadata, and `data` yields the bytes of the tensors in blocks.
    """
    checksum = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for block in data:
        checksum.update(block)
    return checksum.hexdigest()


def split_header(content: memoryview) -> tuple[dict[str, Any], memoryview]:
    """Split the content of a safetensors file into the header, without metadata, and the bytes of the tensors."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(bytes(content[8 : 8 + size]))
    header.pop(METADATA, None)
    return header, content[8 + size :]


def check_finite(tensors: Mapping[str, Tensor], where: Path) -> None:
    """Raise an error that names the tensors with NaN or infinity, if there are any, and `where`, their file."""
    # A sum is several times as fast as checking each number, and finite only if all numbers are (unless it overflows).
    wide = {name: x.float() if x.element_size() == 1 else x for name, x in tensors.items() if x.is_floating_point()}
    suspects = [name for name, x in wide.items() if not torch.isfinite(x.sum(dtype=torch.float32))]
    bad = [name for name in suspects if not torch.isfinite(wide[name]).all()]
    if bad:
        listed = ", ".join(bad[:5]) + (f" and {len(bad) - 5} more" if len(bad) > 5 else "")
        cause = "because the weights are damaged or their training diverged"
        raise PretuneError(f"{where}: there is NaN or infinity in {listed}, {cause}; use other weights")
