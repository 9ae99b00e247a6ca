"""Read the files of MovieLens that have no header: ratings.dat and movies.dat ("::"), u.data (tabs), u.item ("|")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pretune.runtime.errors import PretuneError
from pretune.text.corpus.files import file_suffix, open_stream, read_lines


class Layout(NamedTuple):
    """The layout of a file without a header: its separator, number of fields, and names of the first fields."""

    separator: str
    fields: int
    names: tuple[str, ...]


RATINGS = ("user", "item", "rating", "time")
RATING_LAYOUTS = {".dat": Layout("::", 4, RATINGS), ".data": Layout("\t", 4, RATINGS)}
TITLE_LAYOUTS = {".dat": Layout("::", 3, ("item", "title")), ".item": Layout("|", 24, ("item", "title"))}


def read_ratings(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, row) for each rating of a .dat or .data file, with the user, item, rating and time.

    Blank lines are skipped; rating and time must be numbers.
    """
    for line, row in _split_fields(file, read_lines(file), RATING_LAYOUTS[file_suffix(file)]):
        for name in ("rating", "time"):
            if not row[name].strip().removeprefix("-").replace(".", "", 1).isdecimal():
                raise PretuneError(
                    f"{file}, line {line}: the {name} {row[name]!r} is not a number; correct this line, or remove it"
                )
        yield line, row


def read_movies(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, row) for each movie of a .dat or .item file, with the item and its title.

    Blank lines are skipped. A file that is not valid UTF-8 is read as Latin-1, in which the older files are published.
    """
    with open_stream(file) as stream:
        data = b"".join(iter(lambda: bytes(stream.read(1 << 20)), b""))
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    lines = enumerate((line.removesuffix("\r") for line in text.split("\n")), 1)
    yield from _split_fields(file, lines, TITLE_LAYOUTS[file_suffix(file)])


def _split_fields(file: Path, lines: Iterable[tuple[int, str]], layout: Layout) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, row) for the lines of a file; a line with another number of fields is an error."""
    for line, text in lines:
        if not text.strip():
            continue
        cells = text.split(layout.separator)
        if len(cells) != layout.fields:
            raise PretuneError(
                f"{file}, line {line}: expected {layout.fields} fields separated by {layout.separator!r} "
                f"({', '.join(layout.names)}{' …' if layout.fields > len(layout.names) else ''}), but found {len(cells)}; "
                "correct this line, or remove it"
            )
        yield line, dict(zip(layout.names, cells, strict=False))
