"""Files of word vectors: word2vec's text and binary layouts, GloVe's text, fastText's .vec and .bin.

word2vec, .vec    a line "words width", then a line a word: the word and its numbers
GloVe             the same without the first line
word2vec .bin     the first line as text; a word, a space, its numbers as 32-bit floats
fastText .bin     settings, dictionary and a matrix of words and of pieces of words; a word is the mean of its own
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pretune.runtime.errors import PretuneError, quote

Array = np.ndarray[Any, np.dtype[Any]]
FASTTEXT = 793712314  # the number that its files begin with
LONGEST = 1 << 16  # bytes of a line, at most
DIGITS = 12  # of the numbers in a header
COMPRESSION = 1100  # gzip makes files at most so many times smaller
LONGEST_PIECE = 100  # letters of a piece of a word


@dataclass(frozen=True)
class WordVectors:
    """Words and their vectors, in the order of the file: frequent words first, as a rule."""

    words: list[str]
    vectors: Array  # (words, width) float32

    def __len__(self) -> int:
        return len(self.words)

    @property
    def width(self) -> int:
        """Of a vector."""
        return int(self.vectors.shape[1])


def read_vectors(path: str | Path, most: int | None = None) -> WordVectors:
    """Read a file in any of these layouts; `most` are the words to take, from its beginning.

    >>> read_vectors("glove.6B.300d.txt", most=50_000).width  # doctest: +SKIP
    300
    """
    path = Path(path)
    if not path.is_file():
        raise PretuneError(f"{path}: no such file of word vectors")
    with _open(path) as file:
        found = _read(file, path, most)
    finite = np.isfinite(found.vectors).all(1)
    if not finite.all():
        word = found.words[int(finite.argmin())]
        raise PretuneError(f"{path}: NaN or infinity in the vector of {quote(word)}; the file is damaged")
    return found


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    """Open a file, plain or compressed with gzip; what cannot be read becomes an error of one line."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise PretuneError(f"{path}: damaged or cut-off compressed file ({error}); fetch or pack it again") from error
    except OSError as error:
        raise PretuneError(f"{path}: cannot be read ({error.strerror or error})") from error


def _read(file: Any, path: Path, most: int | None) -> WordVectors:
    if file.peek(4)[:4] == struct.pack("<i", FASTTEXT):
        file.read(4)
        return _read_fasttext(file, path, most)
    first = file.readline(LONGEST)
    fields = first.split()
    if len(fields) != 2 or not all(field.isdigit() and len(field) <= DIGITS for field in fields):
        return _from_lines(_chain(first, 1, file), len(fields) - 1, path, most)
    count, width = map(int, fields)
    if _is_binary(file.peek(LONGEST), width):
        _check_room(path, count if most is None else min(count, most), width)
        return _read_binary(file, count, width, path, most)
    return _from_lines(_lines(file, 2), width, path, most)


def _check_room(path: Path, rows: int, width: int) -> None:
    """Refuse a header that promises more numbers than the file has room for, before memory is asked for."""
    room = path.stat().st_size * (COMPRESSION if path.suffix == ".gz" else 1)
    if width < 1 or rows < 0 or 4 * rows * width > room:
        raise PretuneError(
            f"{path}: its header promises {rows:,} vectors of {width:,} numbers, and the file has no room for them; is it "
            "whole?"
        )


def _is_binary(content: bytes, width: int) -> bool:
    """Whether what follows the first line is no line of a word and so many numbers; of a long line, its beginning."""
    line, whole, _ = content.partition(b"\n")
    fields = line.rstrip().rsplit(b" ", width)[1:] if whole else line.split(b" ")[1:-1]
    try:
        numbers = [float(field) for field in fields]
    except ValueError:
        return True
    return bool(whole) and len(numbers) != width


def _lines(file: BinaryIO, number: int) -> Iterator[tuple[int, bytes]]:
    for line in file:
        yield number, line
        number += 1


def _chain(first: bytes, number: int, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    yield number, first
    yield from _lines(file, number + 1)


def _from_lines(lines: Iterator[tuple[int, bytes]], width: int, path: Path, most: int | None) -> WordVectors:
    if width < 1:
        raise PretuneError(f"{path}: no word vectors in it (word2vec, GloVe or fastText, text or binary)")
    words: list[str] = []
    rows: list[Array] = []
    for number, line in lines:
        if most is not None and len(words) == most:
            break
        fields = line.rstrip().rsplit(b" ", width)  # a word of GloVe's may have spaces in it
        if len(fields) < 2 and not fields[0]:
            continue
        try:
            row = np.array(fields[1:], dtype=np.float32)
        except ValueError as error:
            raise PretuneError(f"{path}, line {number}: not a word and {width} numbers") from error
        if len(row) != width:
            raise PretuneError(f"{path}, line {number}: {len(row)} numbers, where the first line has {width}")
        words.append(fields[0].decode("utf-8", "replace"))
        rows.append(row)
    if not words:
        raise PretuneError(f"{path}: no word vectors in it")
    return WordVectors(words, np.stack(rows))


def _read_binary(file: BinaryIO, count: int, width: int, path: Path, most: int | None) -> WordVectors:
    words: list[str] = []
    count = count if most is None else min(count, most)
    vectors = np.empty((count, width), dtype=np.float32)
    for number in range(count):
        word = bytearray()
        while (letter := file.read(1)) not in (b" ", b""):
            word += letter if letter != b"\n" else b""  # some writers end rows with it
        content = file.read(4 * width)
        if len(content) < 4 * width:
            raise PretuneError(f"{path}: ends after {number} of {count} words; is it whole?")
        words.append(word.decode("utf-8", "replace"))
        vectors[number] = np.frombuffer(content, dtype="<f4")
    return WordVectors(words, vectors)


# -- fastText's own layout ------------------------------------------------------------------------------------------


def _read_fasttext(file: BinaryIO, path: Path, most: int | None) -> WordVectors:
    def numbers(layout: str) -> tuple[Any, ...]:
        content = file.read(struct.calcsize(f"<{layout}"))
        if len(content) < struct.calcsize(f"<{layout}"):
            raise PretuneError(f"{path}: ends too early; is it whole?")
        return struct.unpack(f"<{layout}", content)

    (version,) = numbers("i")
    # dim, ws, epoch, minCount, neg, wordNgrams, loss, model, bucket, minn, maxn, lrUpdateRate, t
    settings = numbers("12id")
    width, bucket, shortest, longest = settings[0], settings[8], settings[9], settings[10]
    size, known, _labels, _tokens, pruned = numbers("iiiqq")
    words: list[str] = []
    for _ in range(size):
        word = bytearray()
        while (letter := file.read(1)) not in (b"\0", b""):
            word += letter
        _count, kind = numbers("qb")
        if kind == 0:
            words.append(word.decode("utf-8", "replace"))
    if pruned > 0 or version < 11:
        raise PretuneError(f"{path}: a fastText model that is pruned, or of an old version; give its .vec file")
    (quantized,) = numbers("?")
    if quantized:
        raise PretuneError(f"{path}: a quantized fastText model; give its .vec file")
    rows, columns = numbers("qq")
    pieced = longest > 0 and bucket > 0
    if (
        columns != width
        or len(words) != known
        or not words
        or rows < known + (bucket if pieced else 0)
        or (pieced and not 0 < shortest <= longest <= LONGEST_PIECE)
    ):
        raise PretuneError(f"{path}: not a fastText model that can be read")
    _check_room(path, rows, columns)
    content = file.read(4 * rows * columns)
    if len(content) < 4 * rows * columns:
        raise PretuneError(f"{path}: ends too early; is it whole?")
    matrix = np.frombuffer(content, dtype="<f4").reshape(rows, columns)
    chosen = words[:most]
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused
        made = np.stack(
            [
                matrix[[number, *(known + h for h in pieces(word, shortest, longest, bucket))]].mean(0)
                for number, word in enumerate(chosen)
            ]
        )
    return WordVectors(chosen, made.astype(np.float32))


def pieces(word: str, shortest: int, longest: int, bucket: int) -> list[int]:
    """The numbers of a word's pieces, of `shortest` to `longest` letters of <word>."""
    marked = f"<{word}>"
    if longest <= 0 or bucket <= 0:
        return []
    found = []
    for start in range(len(marked)):
        for size in range(shortest, longest + 1):
            piece = marked[start : start + size]
            if len(piece) < size or (size == 1 and start in (0, len(marked) - 1)):
                continue
            found.append(_hash(piece.encode("utf-8")) % bucket)
    return found


def _hash(content: bytes) -> int:
    """FNV-1a of 32 bits, over signed bytes, as fastText has it."""
    h = 2166136261
    for byte in content:
        h = ((h ^ (byte | 0xFFFFFF00 if byte > 127 else byte)) * 16777619) & 0xFFFFFFFF
    return h
