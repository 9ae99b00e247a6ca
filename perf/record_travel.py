"""Pack folders for a machine that takes a few megabytes at a time, unpack them there, and bring models back in parts.

`pack` writes one compressed archive as numbered parts, each in a folder of its own with the checksum of the whole; `unpack` joins them.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

MIB = 1 << 20
PART, MANIFEST = "part", "manifest.json"
PACKED = ".packed.xz"  # the ending of the names of files that `pack` has compressed
# Token ids are pairs of bytes, which LZMA's default settings treat as text.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 64 * MIB, "lc": 0, "lp": 1, "pb": 1}]


class PartWriter(io.RawIOBase):
    """A stream that writes its bytes into numbered files of at most `limit` bytes."""

    def __init__(self, folder: Path, limit: int) -> None:
        """Write into `folder`/1/part, `folder`/2/part, and so on."""
        self.folder, self.limit, self.digest = folder, limit, hashlib.sha256()
        self.number, self.left = 0, 0
        self.stream: Any = None

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Write bytes, and begin another part where one is full."""
        view = memoryview(data).cast("B")
        self.digest.update(view)
        at = 0
        while at < len(view):
            if not self.left:
                self._next()
            size = min(self.left, len(view) - at)
            self.stream.write(view[at : at + size])
            at, self.left = at + size, self.left - size
        return len(view)

    def _next(self) -> None:
        if self.stream is not None:
            self.stream.close()
        self.number += 1
        folder = self.folder / str(self.number)
        folder.mkdir(parents=True, exist_ok=True)
        self.stream, self.left = (folder / PART).open("wb"), self.limit

    def close(self) -> None:
        """Close the last part, and write the manifest beside each of them."""
        if self.closed or self.stream is None:
            return
        self.stream.close()
        content = {"parts": self.number, "sha256": self.digest.hexdigest()}
        for number in range(1, self.number + 1):
            file = self.folder / str(number) / MANIFEST
            file.write_text(json.dumps(content | {"part": number}) + "\n", encoding="utf-8")
        super().close()


def pack(content: Mapping[str, Path], out: Path, limit: int) -> dict[str, Any]:
    """Pack files and folders, by their names in the archive, into parts of at most `limit` bytes; return the sizes.

    Files are compressed, unless they are already.
    """
    shutil.rmtree(out, ignore_errors=True)
    writer: Any = PartWriter(out, limit)
    size = 0
    with writer, tarfile.open(fileobj=writer, mode="w|") as archive:
        for name, path in content.items():
            for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                if file.is_file():
                    data = file.read_bytes()
                    size += len(data)
                    member = name if file == path else f"{name}/{file.relative_to(path)}"
                    if file.suffix != ".xz":
                        member, data = member + PACKED, lzma.compress(data, filters=FILTERS)
                    entry = tarfile.TarInfo(member)
                    entry.size = len(data)
                    archive.addfile(entry, io.BytesIO(data))
    packed = sum(file.stat().st_size for file in out.glob(f"*/{PART}"))
    return {"bytes": size, "packed": packed, "parts": writer.number}


def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return the entry of an archive without its owner and time, so that the same files give the same bytes."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.isdir() else 0o644
    return entry


def unpack(parts: Path, home: Path) -> bool:
    """Unpack the parts in a folder into `home`; return False if some have not arrived yet."""
    found = {int(file.parent.name): file.parent for file in parts.glob(f"*/{MANIFEST}")}
    if not found:
        raise FileNotFoundError(f"{parts}: there are no parts; write them with `record.py pack`.")
    manifest = json.loads((next(iter(found.values())) / MANIFEST).read_text(encoding="utf-8"))
    missing = [number for number in range(1, manifest["parts"] + 1) if number not in found]
    if missing:
        print(f"{parts}: waiting for parts {missing} of {manifest['parts']}", flush=True)
        return False
    files = [found[number] / PART for number in range(1, manifest["parts"] + 1)]
    digest = hashlib.sha256()
    for block in blocks(files):
        digest.update(block)
    if digest.hexdigest() != manifest["sha256"]:
        raise ValueError(f"{parts}: the parts are damaged or from different archives; copy them again.")
    home.mkdir(parents=True, exist_ok=True)
    joined: Any = io.BufferedReader(Joined(files))
    with tarfile.open(fileobj=joined, mode="r|") as archive:
        archive.extractall(home, filter="data")
    for file in home.rglob(f"*{PACKED}"):
        with lzma.open(file) as packed, file.with_name(file.name.removesuffix(PACKED)).open("wb") as stream:
            shutil.copyfileobj(packed, stream)
        file.unlink()
    return True


def blocks(files: list[Path]) -> Iterator[bytes]:
    """Yield the bytes of files, one after the other."""
    for file in files:
        with file.open("rb") as stream:
            while block := stream.read(MIB):
                yield block


class Joined(io.RawIOBase):
    """The bytes of several files as one stream."""

    def __init__(self, files: list[Path]) -> None:
        """Read `files` in their order."""
        self.source, self.rest = blocks(files), b""

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into a buffer, and return their number."""
        if not self.rest:
            self.rest = next(self.source, b"")
        size = min(len(buffer), len(self.rest))
        buffer[:size], self.rest = self.rest[:size], self.rest[size:]
        return size


def split(folder: Path, out: Path, limit: int) -> list[Path]:
    """Write the files of a folder as parts FOLDER.tar.NUMBER of at most `limit` bytes; `join` puts them together again."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(folder, folder.name, filter=anonymous)
    out.mkdir(parents=True, exist_ok=True)
    parts = []
    for number, at in enumerate(range(0, packed.getbuffer().nbytes, limit)):
        parts.append(out / f"{folder.name}.tar.{number:02}")
        parts[-1].write_bytes(packed.getbuffer()[at : at + limit])
    return parts


def join(parts: Path, name: str, out: Path) -> None:
    """Extract the folder NAME from its parts, wherever they are below `parts`, into `out`."""
    found = {file.name: file for file in parts.rglob(f"{name}.tar.[0-9][0-9]")}  # a part may have come back twice
    files = [found[part] for part in sorted(found)]
    if [file.name[-2:] for file in files] != [f"{number:02}" for number in range(len(files))] or not files:
        raise FileNotFoundError(f"{parts}: parts of {name} are missing; there are {[file.name for file in files]}.")
    with tarfile.open(fileobj=io.BytesIO(b"".join(file.read_bytes() for file in files))) as archive:
        archive.extractall(out, filter="data")
