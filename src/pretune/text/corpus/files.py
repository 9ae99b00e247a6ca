"""Find input files and read them as streams, plain or compressed."""

from __future__ import annotations

import glob
import lzma
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, Protocol

from pretune.runtime.errors import PretuneError, if_option

FORMATS = (".txt", ".jsonl", ".csv", ".tsv", ".parquet")
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".xz": "xz"}
BLOCK = 1 << 20
IN_MEMORY = "in-memory-table-"  # start of the names of files that hold tables passed from Python

Errors = Literal["strict", "replace"]
Paths = str | Path | Iterable[str | Path]


class ByteStream(Protocol):
    """A protocol for readable streams of bytes, such as files that are open for reading."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes of a stream, at most `size` bytes."""


def file_format(path: Path) -> str | None:
    """Return the supported format that a file name indicates, ignoring compression; None for other formats.

    >>> file_format(Path("news.jsonl.xz"))
    '.jsonl'
    """
    return found if (found := file_suffix(path)) in FORMATS else None


def file_suffix(path: Path) -> str:
    """Return the suffix of a file name in lower case, ignoring the suffix of a compression format.

    >>> file_suffix(Path("dev.conllu.gz"))
    '.conllu'
    """
    suffixes = [s.lower() for s in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def find_files(paths: Paths, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Return the input files in the given formats that `paths` name; raise an error for a path without such files.

    Each path is a file, a folder to search recursively, or a glob pattern.
    """
    if isinstance(paths, str | Path):
        paths = [paths]
    found, endings = list[Path](), f"each uncompressed or as {', '.join(COMPRESSIONS)}"
    for name in paths:
        path = Path(name)
        if path.is_dir():
            files = (p for p in path.rglob("*") if p.is_file() and file_suffix(p) in formats)
            inside = sorted(p for p in files if not any(part.startswith(".") for part in p.relative_to(path).parts))
            if not inside:
                raise PretuneError(
                    f"{path}: the folder contains no {', '.join(formats)} files ({endings}); check the path"
                )
            found += inside
        elif path.exists():
            if file_suffix(path) not in formats:
                expected = f"expected one of {', '.join(formats)}, {endings}"
                raise PretuneError(f"{path}: unsupported file format; {expected}")
            found.append(path)
        elif glob.has_magic(str(name)):
            matches = map(Path, glob.glob(str(name), recursive=True))
            inside = sorted(p for p in matches if p.is_file() and file_suffix(p) in formats)
            if not inside:
                raise PretuneError(f"{name}: the pattern matches no {', '.join(formats)} file; check the pattern")
            found += inside
        elif path.name.startswith(IN_MEMORY):
            raise PretuneError(
                f"{path}: this table was passed from Python and existed in memory only; pass it again, or save it to a file"
            )
        else:
            raise PretuneError(f"{path}: no such file or folder; check the path")
    if not found:
        raise PretuneError("no input files were given; pass files, folders or glob patterns")
    return found


def check_is_file(path: str | Path) -> Path:
    """Return `path` as a Path; raise an error if it is a folder or does not exist."""
    path = Path(path)
    if path.is_dir() or not path.exists():
        raise PretuneError(
            f"{path}: {'expected a file, but this is a folder; pass a file' if path.is_dir() else 'no such file; check the path'}"
        )
    return path


class ByteMeter:
    """A counter of the bytes read from disk, for progress bars."""

    def __init__(self) -> None:
        self.bytes = 0


class _Metered:
    """A binary file that adds the number of bytes read from it to a `ByteMeter`."""

    closed = False

    def __init__(self, raw: IO[bytes], meter: ByteMeter) -> None:
        self.raw, self.meter = raw, meter

    def read(self, size: int = -1) -> bytes:
        data = self.raw.read(size)
        self.meter.bytes += len(data)
        return data

    def close(self) -> None:
        self.raw.close()


@contextmanager
def open_stream(path: Path, meter: ByteMeter | None = None) -> Iterator[ByteStream]:
    """Open a file for reading bytes, decompressing it according to its suffix; errors become PretuneErrors."""
    compression = COMPRESSIONS.get(path.suffix.lower())
    advice = "download or compress it again"
    try:
        with path.open("rb") as file:
            raw: Any = _Metered(file, meter or ByteMeter())
            if compression is None:
                yield raw
            elif path.stat().st_size == 0:
                raise EOFError("the file is empty")
            elif compression == "xz":
                with lzma.LZMAFile(raw) as stream:
                    yield stream
            else:
                import pyarrow

                with pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, mode="r"), compression) as stream:
                    yield stream
    except (lzma.LZMAError, EOFError) as error:
        raise PretuneError(f"{path}: the compressed file is damaged or truncated ({error}); {advice}") from error
    except IsADirectoryError as error:
        raise PretuneError(f"{path}: expected a file, but this is a folder; pass a file") from error
    except PermissionError as error:
        raise PretuneError(f"{path}: permission denied; make the file readable") from error
    except OSError as error:
        if error.errno is None and compression is not None:  # how pyarrow reports bad data
            reason = str(error).splitlines()[0]
            raise PretuneError(f"{path}: the compressed file is damaged or truncated ({reason}); {advice}") from error
        reason = error.strerror or str(error)
        raise PretuneError(f"{path}: the file cannot be read ({reason}); check the path and the disk") from error


def read_lines(path: Path, errors: Errors = "strict", meter: ByteMeter | None = None) -> Iterator[tuple[int, str]]:
    """Yield (line number, line) for a UTF-8 file, without byte order mark; lines end with \\n or \\r\\n only.

    Invalid bytes raise an error if `errors` is "strict", else they are replaced. `meter` counts the bytes read.
    """
    with open_stream(path, meter) as stream:
        for number, line in enumerate(_split_lines(stream), 1):
            if number == 1 and line.startswith(b"\xef\xbb\xbf"):
                line = line[3:]
            yield number, decode_line(line, path, number, errors)


def _split_lines(stream: ByteStream) -> Iterator[bytes]:
    """Yield the lines of a stream of bytes, without their line endings."""
    rest: list[bytes] = []  # parts of a line that is longer than a block
    while block := stream.read(BLOCK):
        *lines, last = bytes(block).split(b"\n")
        if lines:
            lines[0] = b"".join([*rest, lines[0]])
            rest = []
            for line in lines:
                yield line.removesuffix(b"\r")
        rest.append(last)
    if end := b"".join(rest):
        yield end.removesuffix(b"\r")


def decode_line(data: bytes, path: Path, line: int, errors: Errors) -> str:
    """Decode a line of a UTF-8 file; invalid bytes raise an error if `errors` is "strict", else they are replaced.

    `path` and `line` (the line number) are named in the error.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        if errors == "replace":
            return data.decode("utf-8", errors="replace")
        raise PretuneError(
            f"{path}, line {line}: not valid UTF-8 (byte 0x{data[error.start]:02x} at column {error.start + 1}); "
            f"convert the file to UTF-8{if_option('encoding-errors', ', or replace invalid bytes with --encoding-errors replace')}"
        ) from error


def check_text(text: str, place: str) -> str:
    """Return `text` unchanged, or raise an error that names its `place` if it contains lone surrogates."""
    if not is_valid_text(text):
        raise PretuneError(f"{place} contains a lone surrogate, which is not valid text; correct the file")
    return text


def is_valid_text(text: str) -> bool:
    """Return whether a string is free of lone surrogates.

    >>> is_valid_text("\\ud83d"), is_valid_text("👍")
    (False, True)
    """
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)
