"""Reading and writing safetensors files that carry a checksum of their own contents.

The checksum is a metadata entry of the file's header, which other programs ignore: it covers the names, types, shapes and bytes
of all tensors. Files of other origin have none and are read as they are.
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
CHECKSUM = "pretune_sha256"  # key of the metadata
METADATA = "__metadata__"
LFS = b"version https://git-lfs"  # how a pointer begins that git-lfs left in place of a file
LARGEST_HEADER = 100_000_000  # bytes, as in the safetensors library
BLOCK = 1 << 24  # bytes hashed at once


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
    """Return the tensors of a safetensors file; refuse one that is damaged or does not match its checksum."""
    with readable(path):
        verify(path)
        return load_file(path)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what goes wrong while a safetensors file is read into an error that names the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise PretuneError(f"{path}: there is no such file") from error
    except (SafetensorError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise PretuneError(f"{path}: damaged or cut off ({error}); restore it from its source") from error
    except OSError as error:
        raise PretuneError(f"{path}: cannot be read ({error.strerror})") from error


def verify(path: Path) -> None:
    """Compare a file with the checksum that it carries, if it has one."""
    refuse_pointer(path)
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > LARGEST_HEADER:
            raise PretuneError(
                f"{path}: not a safetensors file, or one whose header is damaged; restore it from its source"
            )
        header = json.loads(file.read(size))
        metadata = header.pop(METADATA, None) or {}
        wanted = metadata.get(CHECKSUM)
        if wanted is not None and wanted != digest(header, iter(lambda: file.read(BLOCK), b"")):
            raise PretuneError(
                f"{path}: the tensors do not match their checksum; the file is damaged: restore it from its source"
            )


def refuse_pointer(path: Path) -> None:
    """Refuse the pointer that git-lfs left in place of a file."""
    with path.open("rb") as file:
        if file.read(len(LFS)) == LFS:
            raise PretuneError(f"{path}: a git-lfs pointer, not the weights; fetch these with `git lfs pull`")


def digest(header: Mapping[str, Any], data: Iterable[bytes | memoryview]) -> str:
    """Return the checksum of a file: the header without its metadata, and the bytes of the tensors."""
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
    """Return the header of a safetensors file, without metadata, and the bytes of its tensors."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(bytes(content[8 : 8 + size]))
    header.pop(METADATA, None)
    return header, content[8 + size :]


def check_finite(tensors: Mapping[str, Tensor], where: Path) -> None:
    """Refuse weights that contain NaN or infinity, by name."""
    # A sum is several times as fast as asking each number, and finite only if all numbers are (or it overflows).
    wide = {name: x.float() if x.element_size() == 1 else x for name, x in tensors.items() if x.is_floating_point()}
    suspects = [name for name, x in wide.items() if not torch.isfinite(x.sum(dtype=torch.float32))]
    bad = [name for name in suspects if not torch.isfinite(wide[name]).all()]
    if bad:
        listed = ", ".join(bad[:5]) + (f" and {len(bad) - 5} more" if len(bad) > 5 else "")
        raise PretuneError(f"{where}: NaN or infinity in {listed}; the weights are damaged or their training diverged")
