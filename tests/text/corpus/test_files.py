from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path

import pyarrow
import pytest

from pretune import PretuneError
from pretune.text.corpus.files import ByteMeter, file_format, find_files, open_stream, read_lines

TEXT = "первая строка\nsecond\r\n\n세 번째 no separator\u2028here\nlast without newline"
LINES = ["первая строка", "second", "", "세 번째 no separator\u2028here", "last without newline"]
PACKERS = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: pyarrow.compress(data, "zstd", asbytes=True),
}


@pytest.mark.parametrize("ending", PACKERS)
def test_compression_does_not_change_the_lines(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(PACKERS[ending](TEXT.encode()))
    meter = ByteMeter()
    assert list(read_lines(path, meter=meter)) == list(enumerate(LINES, 1))
    assert meter.bytes == path.stat().st_size


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("damage", ["cut", "empty", "garbage"])
def test_damaged_archives_are_reported(tmp_path: Path, ending: str, damage: str) -> None:
    path = tmp_path / f"a.txt{ending}"
    good = PACKERS[ending](TEXT.encode() * 500)
    path.write_bytes({"cut": good[: len(good) // 2], "empty": b"", "garbage": b"not packed at all" * 9}[damage])
    with pytest.raises(PretuneError, match=rf"a\.txt\{ending}: the compressed file is damaged or truncated"):
        list(read_lines(path))


def test_line_longer_than_a_block_stays_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    long = "é" * 3_000_000
    path.write_text(f"{long}\nshort", encoding="utf-8")
    assert [len(line) for _, line in read_lines(path)] == [3_000_000, 5]


def test_byte_order_mark_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfhello\n")
    assert list(read_lines(path)) == [(1, "hello")]


def test_invalid_utf8_is_reported_with_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"fine\nbad \xff here\n")
    with pytest.raises(
        PretuneError, match=r"a\.txt, line 2: not valid UTF-8 \(byte 0xff at column 5\).*--encoding-errors replace"
    ):
        list(read_lines(path))
    assert [line for _, line in read_lines(path, "replace")] == ["fine", "bad � here"]


def test_folders_and_globs_are_expanded_and_sorted(tmp_path: Path) -> None:
    for name in ("b.txt", "a.jsonl.gz", "notes.md", "deep/c.csv", ".hidden.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [p.name for p in find_files(tmp_path)] == ["a.jsonl.gz", "b.txt", "c.csv"]
    assert [p.name for p in find_files([str(tmp_path / "*.txt"), tmp_path / "deep"])] == ["b.txt", "c.csv"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.txt", "no such file or folder"),
        ("empty_folder", "the folder contains no .txt.* files"),
        ("*.tsv", "matches no"),
        ("notes.md", "unsupported file format"),
    ],
)
def test_missing_files_raise_errors(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty_folder").mkdir()
    (tmp_path / "notes.md").touch()
    with pytest.raises(PretuneError, match=message):
        find_files(str(tmp_path / name))


def test_empty_list_of_files_raises_an_error() -> None:
    with pytest.raises(PretuneError, match="no input files"):
        find_files([])


def test_reading_a_folder_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match="is a folder"), open_stream(tmp_path):
        pass


def test_format_ignores_the_compression_suffix() -> None:
    assert file_format(Path("x.en.JSONL.XZ")) == ".jsonl"
    assert file_format(Path("x.gz")) is None
