"""Read named entities given by character offsets, and convert them to words with BIO tags.

.jsonl and .parquet rows have a text and a list of spans (doccano, spaCy, Prodigy): [start, end, type], or objects with
start and end (or start_offset and end_offset) and a label. brat folders have pairs of files, NAME.txt and NAME.ann. Ends
are exclusive, and offsets count Unicode characters.

Tags mark each word once. Of spans that overlap or are nested, the longest is kept; of a discontinuous span of brat, each
part is a span of its own. Both are counted and logged.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import log_info
from pretune.text.corpus.files import Errors, check_text, decode_line, open_stream
from pretune.text.examples.tag_schemes import TaggedSpan, write_tags

Row = dict[str, Any]

ANNOTATIONS, TEXT = ".ann", ".txt"  # extensions of a document's two files in a brat folder
STARTS, ENDS, TYPES = ("start", "start_offset"), ("end", "end_offset"), ("label", "type", "tag")
MARK = "\ufeff"  # byte order mark
JOINER = "\u200d"  # zero-width joiner, as in emoji of several characters
SINGLE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")  # no spaces between words
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_ENTITY = re.compile(r"(T[^\t]*)\t(\S+) (\d{1,15} \d{1,15}(?:;\d{1,15} \d{1,15})*)(?:\t(.*))?")


class AnnotatedSpan(NamedTuple):
    """A span of a text, from the character `start` up to the character `end` (exclusive), with its type."""

    start: int
    end: int
    kind: str


def split_words(text: str, borders: Iterable[int] = ()) -> list[tuple[int, int]]:
    """Return the start and end of each word of a text; punctuation marks and symbols are words of their own.

    Apostrophes within words belong to the word, and separators within numbers to the number. Each Chinese character and
    each kana is a word. Words are also split at the character positions in `borders`.

    >>> text = "Don't pay $10,000!"
    >>> [text[start:end] for start, end in split_words(text)]
    ["Don't", 'pay', '$', '10,000', '!']
    """
    cuts = {0, len(text), *borders}
    cuts |= {at for at in range(1, len(text)) if not _joined(text, at)}
    return [(start, end) for start, end in pairwise(sorted(cuts)) if not text[start:end].isspace()]


def _joined(text: str, at: int) -> bool:
    """Return whether a text must not be split before the character with the index `at`.

    That is so if the characters on both sides belong to the same word, or if both are spaces.
    """
    before, here = text[at - 1], text[at]
    if before.isascii() and here.isascii() and before.isalnum() and here.isalnum():
        return True
    if before.isspace() or here.isspace():
        return before.isspace() and here.isspace()
    if (
        unicodedata.category(here) in ("Mn", "Mc", "Me", "Cf")
        or before == JOINER
        or "\U0001f3fb" <= here <= "\U0001f3ff"
    ):
        return True  # accents, vowel signs, emoji sequences
    if SINGLE.match(before) or SINGLE.match(here):
        return False
    after = text[at + 1 : at + 2]
    if here in "'’":
        return before.isalpha() and after.isalpha()
    if before in "'’":
        return here.isalpha() and text[at - 2 : at - 1].isalpha()
    if here in ".,":
        return before.isdigit() and after.isdigit()
    if before in ".,":
        return here.isdigit() and text[at - 2 : at - 1].isdigit()
    return not _is_symbol(before) and not _is_symbol(here)


def _is_symbol(character: str) -> bool:
    return character != "_" and unicodedata.category(character)[0] in "PS"


def tag_words(text: str, spans: Sequence[AnnotatedSpan]) -> tuple[list[tuple[int, int]], list[str]]:
    """Return the start and end of each word of a text, and the BIO tag of each word.

    Words are also split where a span begins or ends, so that each span consists of whole words. The spans must not
    overlap.

    >>> text = "Anti-Trump rally"
    >>> words, tags = tag_words(text, [AnnotatedSpan(5, 10, "PER")])
    >>> [text[start:end] for start, end in words], tags
    (['Anti', '-', 'Trump', 'rally'], ['O', 'O', 'B-PER', 'O'])
    """
    words = split_words(text, (border for span in spans for border in span[:2]))
    starts = {start: number for number, (start, _) in enumerate(words)}
    ends = {end: number for number, (_, end) in enumerate(words)}
    tagged = [TaggedSpan(span.kind, starts[span.start], ends[span.end]) for span in sorted(spans)]
    return words, write_tags(tagged, len(words), "BIO")


def is_span_list(value: Any) -> bool:
    """Return whether a field contains spans: a list of lists or objects, which may be empty.

    >>> is_span_list([[0, 5, "LOC"]]), is_span_list([]), is_span_list(["O", "B-LOC"])
    (True, True, False)
    """
    return isinstance(value, list) and all(isinstance(item, list | tuple | dict) for item in value)


def read_span_list(value: Any, text: str, place: str) -> list[AnnotatedSpan]:
    """Return the spans in a field of a row, without the whitespace at their ends; `place` names the field in errors.

    >>> read_span_list([[0, 6, "LOC"], {"start": 14, "end": 17, "label": "PER"}], "Paris invited Ann", "a.jsonl, line 1")
    [AnnotatedSpan(start=0, end=5, kind='LOC'), AnnotatedSpan(start=14, end=17, kind='PER')]
    """
    if not is_span_list(value):
        raise PretuneError(f'{place}: expected a list of spans, such as [[0, 5, "LOC"]]')
    return [_read_span(item, text, f"{place}, span {number}") for number, item in enumerate(value, 1)]


def _read_span(item: Any, text: str, place: str) -> AnnotatedSpan:
    if isinstance(item, Mapping):
        item = [next((item[name] for name in names if name in item), None) for names in (STARTS, ENDS, TYPES)]
    if (
        len(item) != 3
        or not (type(item[0]) is type(item[1]) is int)
        or not isinstance(item[2], str)
        or not item[2].strip()
    ):
        raise PretuneError(f'{place}: {str(item)[:60]} is not a span; write start, end and type, as in [0, 5, "LOC"]')
    check_text(item[2], f"{place}: the type")
    return check_span(AnnotatedSpan(item[0], item[1], item[2].strip()), text, place)


def check_span(span: AnnotatedSpan, text: str, place: str) -> AnnotatedSpan:
    """Return a span without the whitespace at its ends; raise an error if it lies outside the text or is blank.

    `place` names the span's field in errors.
    """
    start, end, kind = span
    if not 0 <= start < end <= len(text):
        problem = f"[{start}, {end}] is outside the text" if start < end else f"[{start}, {end}] is empty"
        raise PretuneError(f"{place}: {problem}; write 0 ≤ start < end ≤ {len(text)}, counted in characters")
    inside = text[start:end]
    if inside.isspace():
        raise PretuneError(f"{place}: [{start}, {end}] contains only whitespace; correct or remove it")
    start += len(inside) - len(inside.lstrip())
    return AnnotatedSpan(start, start + len(inside.strip()), kind)


def without_overlaps(spans: Sequence[AnnotatedSpan]) -> list[AnnotatedSpan]:
    """Return the spans sorted by position, without those that overlap a longer span.

    Of overlapping spans of equal length, the one that begins first is kept.

    >>> without_overlaps([AnnotatedSpan(14, 18, "LOC"), AnnotatedSpan(0, 18, "ORG")])
    [AnnotatedSpan(start=0, end=18, kind='ORG')]
    """
    kept: list[AnnotatedSpan] = []  # in order
    for span in sorted(spans, key=lambda span: (span.start - span.end, span.start)):
        at = bisect(kept, span.start, key=lambda other: other.start)
        if (at == 0 or kept[at - 1].end <= span.start) and (at == len(kept) or span.end <= kept[at].start):
            kept.insert(at, span)
    return kept


def brat_documents(path: Path) -> list[Path] | None:
    """Return the .ann files of the brat documents at a path; None if the path does not lead to brat documents.

    The path is a folder, or one of the two files (.txt and .ann) of a document.
    """
    if path.is_dir():
        files = (file for file in path.rglob(f"*{ANNOTATIONS}") if file.is_file())
        return sorted(f for f in files if not any(part.startswith(".") for part in f.relative_to(path).parts)) or None
    if path.suffix not in (ANNOTATIONS, TEXT):
        return None
    annotations = path.with_suffix(ANNOTATIONS)
    return [annotations] if annotations.is_file() else None


def brat_rows(files: Sequence[Path], errors: Errors = "strict") -> Iterator[tuple[int, Row]]:
    """Yield (line number, row) for each nonblank line of brat documents; `files` are their .ann files.

    A row has the keys file, text and entities. Lines that a single span extends across are joined into one row.
    """
    parts = 0
    for file in files:
        text, spans, discontinuous = _read_brat(file, errors)
        parts += discontinuous
        begin = end = 0
        first = 1  # line of the row
        for number, line in enumerate(_LINE.findall(text), 1):
            end += len(line)
            if any(span.start < end < span.end for span in spans):
                continue  # a span continues in the next line
            inside = [[span.start - begin, span.end - begin, span.kind] for span in spans if begin <= span.start < end]
            if not text[begin:end].isspace():
                yield first, {"file": file.with_suffix(TEXT).name, "text": text[begin:end].rstrip(), "entities": inside}
            begin, first = end, number + 1
    if parts:
        log_info(f"{files[0].parent}: {parts} spans are discontinuous; each of their parts is a span of its own")


def _read_brat(file: Path, errors: Errors) -> tuple[str, list[AnnotatedSpan], int]:
    """Return the text of a brat document, its spans, and the number of discontinuous spans."""
    source = file.with_suffix(TEXT)
    if not source.is_file():
        raise PretuneError(
            f"{file}: there is no text file {source.name} beside it; put both files into the same folder"
        )
    text, found, discontinuous = _read_whole(source, errors), list[tuple[int, AnnotatedSpan, str | None]](), 0
    for number, line in enumerate(_read_whole(file, errors).removeprefix(MARK).split("\n"), 1):
        line = line.removesuffix("\r")
        if not line.startswith("T"):
            continue  # relations, events, attributes and notes
        match = _ENTITY.fullmatch(line)
        if match is None:
            raise PretuneError(
                f"{file}, line {number}: not an entity in brat format; write it as in T1⇥LOC 0 5⇥Paris (⇥: tab)"
            )
        parts = [tuple(map(int, part.split())) for part in match[3].split(";")]
        discontinuous += len(parts) > 1
        covered = match[4] if len(parts) == 1 else None  # the text of a span, to check its offsets
        found += [(number, AnnotatedSpan(start, end, match[2]), covered) for start, end in parts]
    # Programs differ in whether they count the byte order mark and both characters of a Windows line end.
    variants = [
        text,
        text.removeprefix(MARK),
        text.replace("\r\n", "\n"),
        text.removeprefix(MARK).replace("\r\n", "\n"),
    ]
    text = next((variant for variant in variants if all(_agrees(variant, *entry[1:]) for entry in found)), text)
    spans = []
    for number, span, covered in found:
        place = f"{file}, line {number}"
        spans.append(check_span(span, text, place))
        if not _agrees(text, span, covered):
            there = text[span.start : span.end]
            raise PretuneError(
                f"{place}: characters {span.start} to {span.end} of {source.name} are {there!r}, not {covered!r}; correct the "
                "offsets"
            )
    return text.replace(MARK, " ", text.startswith(MARK)), spans, discontinuous


def _agrees(text: str, span: AnnotatedSpan, covered: str | None) -> bool:
    """Return whether the text at a span equals `covered`, the words in its annotation, apart from whitespace.

    If `covered` is None, there is nothing to compare.
    """
    return covered is None or text[span.start : span.end].split() == covered.split()


def _read_whole(path: Path, errors: Errors) -> str:
    """Return the text of a UTF-8 file without any change.

    Line endings and a byte order mark are kept, because the character offsets of annotations may count them.
    """
    with open_stream(path) as stream:
        data = b"".join(iter(lambda: bytes(stream.read(1 << 20)), b""))
    lines = data.split(b"\n")
    return "\n".join(decode_line(line, path, number, errors) for number, line in enumerate(lines, 1))
