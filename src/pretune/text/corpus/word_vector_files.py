"""Read files of word vectors: word2vec text and binary, GloVe, fastText .vec and .bin.

word2vec, .vec    a line "words width", then one line per word: the word and its numbers
GloVe             the same without the first line
word2vec .bin     the first line as text, then per word: the word, a space, its numbers as 32-bit floats
fastText .bin     settings, dictionary, and a matrix of word and character n-gram vectors; a word's vector is their mean
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError, quote

FASTTEXT = 793712314  # magic number of fastText .bin files
LONGEST = 1 << 16  # maximum bytes of the first line
DIGITS = 12  # maximum digits of a number in the header
COMPRESSION = 1100  # gzip's maximum compression ratio
LONGEST_NGRAM = 100  # characters


@dataclass(frozen=True)
class NgramVectors:
    """The vectors of character n-grams of a fastText model, from which vectors of unknown words are computed.

    The hash of an n-gram is the index of its row in `matrix`, (buckets, width). N-grams have from `shortest` to
    `longest` characters.
    """

    matrix: Array  # (buckets, width) float32
    shortest: int
    longest: int

    def vector(self, word: str) -> Array | None:
        """Return the mean vector of the n-grams of an out-of-vocabulary word, (width,); None if it has no n-grams."""
        rows = ngram_rows(word, self.shortest, self.longest, len(self.matrix))
        return self.matrix[rows].mean(0) if rows else None


@dataclass(frozen=True)
class WordVectors:
    """Words and their vectors, (words, width), in the order of a file, which usually is by decreasing frequency.

    Only a fastText .bin model has `ngrams`, from which the vectors of out-of-vocabulary words are computed.
    """

    words: list[str]
    vectors: Array  # (words, width) float32
    ngrams: NgramVectors | None = None

    def __len__(self) -> int:
        return len(self.words)

    @property
    def width(self) -> int:
        """Return the dimension of the word vectors."""
        return int(self.vectors.shape[1])

    @cached_property
    def row(self) -> dict[str, int]:
        """Return a mapping from words to rows in `vectors`; a word that occurs more than once has its first row."""
        return {word: number for number, word in reversed(list(enumerate(self.words)))}

    def vector(self, word: str) -> Array | None:
        """Return the vector of a word, (width,), computed from n-grams if it is unknown; None if it has no vector.

        >>> vectors = WordVectors(["cat"], np.ones((1, 2), dtype=np.float32))
        >>> vectors.vector("cat").tolist(), vectors.vector("dog")
        ([1.0, 1.0], None)
        """
        if word in self.row:
            return self.vectors[self.row[word]]
        return None if self.ngrams is None else self.ngrams.vector(word)

    def with_words(self, words: Iterable[str]) -> WordVectors:
        """Return a copy with additional words, whose vectors are computed from their n-grams.

        Words for which this is not possible are left out.
        """
        new = {word: self.vector(word) for word in dict.fromkeys(words) if word not in self.row}
        found = {word: vector for word, vector in new.items() if vector is not None}
        rows = np.concatenate([self.vectors, np.stack(list(found.values()))]) if found else self.vectors
        return WordVectors([*self.words, *found], rows, self.ngrams)


def read_word_vectors(path: str | Path, max_words: int | None = None) -> WordVectors:
    """Read the first `max_words` word vectors (default: all) of a file in word2vec, GloVe or fastText format."""
    path = Path(path)
    if not path.is_file():
        raise PretuneError(f"{path}: no such word vector file; check the path")
    with _open(path) as file:
        loaded = _read(file, path, max_words)
    finite = np.isfinite(loaded.vectors).all(1)
    if not finite.all():
        word = loaded.words[int(finite.argmin())]
        raise PretuneError(
            f"{path}: the vector of {quote(word)} contains NaN or infinity, so the file is damaged; download it again"
        )
    if loaded.ngrams is not None and not np.isfinite(loaded.ngrams.matrix.sum(dtype=np.float64)):
        raise PretuneError(
            f"{path}: the vector of an n-gram contains NaN or infinity, so the file is damaged; download it again"
        )
    return loaded


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    """Open a file, plain or compressed with gzip, and convert read errors to PretuneErrors."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        advice = "download or compress it again"
        raise PretuneError(f"{path}: the compressed file is damaged or truncated ({error}); {advice}") from error
    except OSError as error:
        reason = error.strerror or error
        raise PretuneError(f"{path}: the file cannot be read ({reason}); check the path and the disk") from error


def _read(file: Any, path: Path, max_words: int | None) -> WordVectors:
    """Read up to `max_words` word vectors from an open file, whose format is recognized by its first bytes.

    The format is that of word2vec, GloVe or fastText; `path` is the file, for errors.
    """
    if file.peek(4)[:4] == struct.pack("<i", FASTTEXT):
        file.read(4)
        return _read_fasttext(file, path, max_words)
    first = file.readline(LONGEST)
    fields = first.split()
    if len(fields) != 2 or not all(field.isdigit() and len(field) <= DIGITS for field in fields):
        return _from_lines(enumerate(chain([first], file), 1), len(fields) - 1, path, max_words)
    count, width = map(int, fields)
    if _is_binary(file.peek(LONGEST), width):
        count = count if max_words is None else min(count, max_words)
        _check_size(path, count, width)
        return _read_binary(file, count, width, path)
    return _from_lines(enumerate(file, 2), width, path, max_words)


def _check_size(path: Path, rows: int, width: int) -> None:
    """Raise an error if the header declares more vectors than the file has bytes for.

    `rows` is the declared number of vectors, and `width` their dimension.
    """
    available = path.stat().st_size * (COMPRESSION if path.suffix == ".gz" else 1)
    if width < 1 or rows < 0 or 4 * rows * width > available:
        raise PretuneError(
            f"{path}: the header declares {rows:,} vectors of {width:,} numbers, more than the file contains; "
            "the file may be truncated, so download it again"
        )


def _is_binary(content: bytes, width: int) -> bool:
    """Return whether the `content` that follows the header of a word2vec file is binary.

    It is text if it begins with a line that consists of a word and `width` numbers.
    """
    line, whole, _ = content.partition(b"\n")
    fields = line.rstrip().rsplit(b" ", width)[1:] if whole else line.split(b" ")[1:-1]
    try:
        numbers = [float(field) for field in fields]
    except ValueError:
        return True
    return bool(whole) and len(numbers) != width


def _from_lines(lines: Iterator[tuple[int, bytes]], width: int, path: Path, max_words: int | None) -> WordVectors:
    """Read word vectors from (line number, line) pairs; each line has a word and `width` numbers."""
    if width < 1:
        raise PretuneError(f"{path}: the file contains no word vectors; expected word2vec, GloVe or fastText")
    words: list[str] = []
    rows: list[Array] = []
    for number, line in lines:
        if len(words) == max_words:
            break
        fields = line.rstrip().rsplit(b" ", width)  # words in GloVe files may contain spaces
        if len(fields) < 2 and not fields[0]:
            continue
        try:
            row = np.array(fields[1:], dtype=np.float32)
        except ValueError as error:
            raise PretuneError(
                f"{path}, line {number}: expected a word and {width} numbers; correct the line"
            ) from error
        if len(row) != width:
            raise PretuneError(
                f"{path}, line {number}: expected {width} numbers, but found {len(row)}; correct the line"
            )
        words.append(fields[0].decode("utf-8", "replace"))
        rows.append(row)
    if not words:
        raise PretuneError(f"{path}: the file contains no word vectors; expected a word and its numbers per line")
    return WordVectors(words, np.stack(rows))


def _read_binary(file: BinaryIO, count: int, width: int, path: Path) -> WordVectors:
    """Read `count` word vectors of dimension `width` in word2vec's binary format; the header has already been read."""
    words: list[str] = []
    vectors = np.empty((count, width), dtype=np.float32)
    for number in range(count):
        word = bytearray()
        while (byte := file.read(1)) not in (b" ", b""):
            word += byte if byte != b"\n" else b""  # some programs end each vector with a line break
        content = file.read(4 * width)
        if len(content) < 4 * width:
            raise PretuneError(
                f"{path}: the file ends after {number} of {count} words; it may be truncated, so download it again"
            )
        words.append(word.decode("utf-8", "replace"))
        vectors[number] = np.frombuffer(content, dtype="<f4")
    return WordVectors(words, vectors)


# -- fastText's binary format ------------------------------------------------------------------------------------------


def _read_fasttext(file: BinaryIO, path: Path, max_words: int | None) -> WordVectors:
    """Read the word vectors of a fastText .bin model; the magic number at its beginning has already been read."""

    def read(size: int) -> bytes:
        if len(content := file.read(size)) < size:
            raise PretuneError(f"{path}: the file ends too early; it may be truncated, so download it again")
        return content

    def numbers(layout: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{layout}", read(struct.calcsize(f"<{layout}")))

    (version,) = numbers("i")
    # dim, ws, epoch, minCount, neg, wordNgrams, loss, model, bucket, minn, maxn, lrUpdateRate, t
    settings = numbers("12id")
    width, bucket, shortest, longest = settings[0], settings[8], settings[9], settings[10]
    size, known, _labels, _tokens, pruned = numbers("iiiqq")
    words: list[str] = []
    for _ in range(size):
        word = bytearray()
        while (byte := file.read(1)) not in (b"\0", b""):
            word += byte
        _count, kind = numbers("qb")
        if kind == 0:
            words.append(word.decode("utf-8", "replace"))
    unsupported = pruned > 0 or version < 11
    if unsupported or numbers("?")[0]:
        kind = "pruned fastText models and old versions" if unsupported else "quantized fastText models"
        raise PretuneError(f"{path}: {kind} are not supported; use the model's .vec file")
    rows, columns = numbers("qq")
    has_ngrams = longest > 0 and bucket > 0
    if (
        columns != width
        or len(words) != known
        or not words
        or rows < known + (bucket if has_ngrams else 0)
        or (has_ngrams and not 0 < shortest <= longest <= LONGEST_NGRAM)
    ):
        raise PretuneError(f"{path}: not a valid fastText model; the file may be damaged, so download it again")
    _check_size(path, rows, columns)
    matrix = np.frombuffer(read(4 * rows * columns), dtype="<f4").reshape(rows, columns)
    chosen = words[:max_words]
    parts = ([i, *(known + h for h in ngram_rows(word, shortest, longest, bucket))] for i, word in enumerate(chosen))
    with np.errstate(over="ignore", invalid="ignore"):  # the caller rejects values that are not finite
        means = np.stack([matrix[part].mean(0) for part in parts])
    ngrams = NgramVectors(matrix[known : known + bucket], shortest, longest) if has_ngrams else None
    return WordVectors(chosen, means.astype(np.float32), ngrams)


def ngram_rows(word: str, shortest: int, longest: int, bucket: int) -> list[int]:
    """Return the row numbers of a word's character n-grams in fastText's n-gram matrix, which has `bucket` rows.

    The n-grams have from `shortest` to `longest` characters.
    """
    marked = f"<{word}>"
    if longest <= 0 or bucket <= 0:
        return []
    return [
        _hash(marked[start : start + size].encode("utf-8")) % bucket
        for start in range(len(marked))
        for size in range(shortest, min(longest, len(marked) - start) + 1)
        if size > 1 or start not in (0, len(marked) - 1)
    ]


def _hash(content: bytes) -> int:
    """Return fastText's 32-bit hash of a byte string: FNV-1a over signed bytes."""
    h = 2166136261
    for byte in content:
        h = ((h ^ (byte | 0xFFFFFF00 if byte > 127 else byte)) * 16777619) & 0xFFFFFFFF
    return h
