"""The page of the server: its files, which are read once at the start, so that no request reaches the file system."""

from __future__ import annotations

import mimetypes
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

STATIC = Path(__file__).parent / "static"
INDEX = "index.html"


@dataclass(frozen=True)
class StaticFile:
    """A static file of the server's web page, in memory."""

    content: bytes
    media_type: str
    etag: str


def read_static_files(folder: Path = STATIC) -> dict[str, StaticFile]:
    """Read the static files of the web page; return them by their path in the folder, with / as the separator."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix not in (".py", ".pyc"):
            content = path.read_bytes()
            kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            etag = f'"{sha256(content).hexdigest()[:16]}"'
            found[path.relative_to(folder).as_posix()] = StaticFile(content, kind, etag)
    return found
