"""Readers of parallel texts as WMT and IWSLT publish them: SGML, XML, and plain text with parallel lines.

    newstest2014-deen-src.en.sgm, newstest2014-deen-ref.de.sgm        one file per language, with documents and segments
    IWSLT16.TED.tst2013.en-de.en.xml, IWSLT16.TED.tst2013.en-de.de.xml
    newstest2021.en-de.xml                                            both languages in one file
    europarl-v7.de-en.en, europarl-v7.de-en.de                        plain text
    train.tags.en-de.en, train.tags.en-de.de                          plain text with lines of metadata in tags

Segments are identified by document and number, so that files in a different order are not aligned by mistake. The first
reference is read where there are several, and submitted translations are not read.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from pretune.runtime.errors import PretuneError
from pretune.text.corpus.files import open_stream, read_lines

MARKED = (".sgm", ".sgml", ".xml")
TAGGED = "train.tags."  # begins the names of IWSLT's training files
DOCUMENT = re.compile(r"<doc\b([^>]*)>(.*?)</doc>", re.DOTALL | re.IGNORECASE)
SIDE = re.compile(r"<(src|ref)\b[^>]*>(.*?)</\1>", re.DOTALL | re.IGNORECASE)
SEGMENT = re.compile(r"<seg\b([^>]*)>(.*?)</seg>", re.DOTALL | re.IGNORECASE)
DOCUMENT_ID = re.compile(r"\b(?:doc)?id\s*=\s*[\"']?([^\"'\s>]+)", re.IGNORECASE)
Segment = tuple[str, str]  # its document and number, and its text


def read_parallel(paths: Sequence[Path]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (place such as "line 3", row) for each pair of texts; its fields are named 1 (source) and 2 (target).

    `paths` are one file with both languages, or one file per language. In plain text, pairs in which one text is empty
    are skipped, because training corpora contain some.
    """
    if len(paths) == 1 and paths[0].suffix.lower() in MARKED:
        first, second = both_sides(paths[0])
        names = [f"{paths[0]} (source)", f"{paths[0]} (reference)"]
    elif len(paths) == 2:
        first, second = map(segments, paths)
        names = [str(path) for path in paths]
    else:
        raise PretuneError(
            f"{paths[0]}: parallel texts need an XML file with both languages, or two files; give one per language"
        )
    for number, pair in enumerate(zip_longest(first, second), 1):
        if None in pair:
            short = pair.index(None)
            raise PretuneError(
                f"{names[short]} ends before text {number}, but {names[1 - short]} has it; download both files again"
            )
        (place, source), (other, target) = pair
        if place != other:
            raise PretuneError(
                f"{names[0]} has the text {place!r} where {names[1]} has the text {other!r}; give files with the same texts in the same order"
            )
        if source and target:
            yield place, {"1": source, "2": target}


def segments(path: Path) -> Iterator[Segment]:
    """Yield (place, text) for each text of a file in one language: each segment of SGML or XML, or each line.

    The place of a segment is its document and number, and that of a line its number. Lines of metadata, as in IWSLT's
    training files, are skipped and not counted.
    """
    if path.suffix.lower() in MARKED:
        yield from _marked_segments(path, _documents(path))
        return
    lines = (line.strip() for _, line in read_lines(path))
    if path.name.startswith(TAGGED):
        lines = (line for line in lines if not line.startswith("<"))
    yield from ((f"line {number}", line) for number, line in enumerate(lines, 1))


def both_sides(path: Path) -> tuple[Iterator[Segment], Iterator[Segment]]:
    """Return the segments of the source, and those of the first reference, from an XML file that contains both."""
    sides: dict[str, list[tuple[str, str]]] = {"src": [], "ref": []}
    for name, content in _documents(path):
        found: dict[str, str] = {}
        for kind, text in SIDE.findall(content):
            found.setdefault(kind.lower(), text)
        if missing := [kind for kind in sides if kind not in found]:
            raise PretuneError(
                f"{path}: document {name} has no <{missing[0]}>; give the file with source and reference"
            )
        for kind, parts in sides.items():
            parts.append((name, found[kind]))
    return _marked_segments(path, sides["src"]), _marked_segments(path, sides["ref"])


def _documents(path: Path) -> list[tuple[str, str]]:
    """Return (name, content) of each document in an SGML or XML file."""
    with open_stream(path) as stream:
        content = b"".join(iter(lambda: stream.read(1 << 20), b"")).decode("utf-8", "replace")
    found = []
    for number, (attributes, text) in enumerate(DOCUMENT.findall(content), 1):
        name = DOCUMENT_ID.search(attributes)
        found.append((name[1] if name else str(number), text))
    if not found:
        raise PretuneError(f"{path}: the file has no <doc> with segments; download it again")
    return found


def _marked_segments(path: Path, documents: Sequence[tuple[str, str]]) -> Iterator[Segment]:
    """Yield (document and number, text) for each segment, with entities replaced and spaces normalized."""
    for name, content in documents:
        for number, (attributes, text) in enumerate(SEGMENT.findall(content), 1):
            own = DOCUMENT_ID.search(attributes)
            yield f"{name}, segment {own[1] if own else number}", " ".join(html.unescape(text).split())
