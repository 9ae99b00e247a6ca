"""Read files of texts without labels: one text per line of a .txt file, or per row of a table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pretune.runtime.errors import PretuneError
from pretune.text.corpus.files import file_format, find_files, read_lines
from pretune.text.examples.labeled import FORMATS as TABLE_FORMATS
from pretune.text.examples.labeled import read_labeled

FORMATS = (".txt", *TABLE_FORMATS)


class NumberedText(NamedTuple):
    """A text with its place: the number of its line or row, from 1, and its file, if it comes from one."""

    text: str
    line: int
    file: Path | None = None


def read_text_file(file: Path, column: str | None = None) -> Iterator[NumberedText]:
    """Yield the texts of a file: one per line of a .txt file, blank lines included, or one per row of a table.

    `column` names the column of a table that contains the texts.

    >>> list(read_text_file(Path("notes.txt")))  # doctest: +SKIP
    [NumberedText(text='Buy milk.', line=1, file=PosixPath('notes.txt'))]
    """
    (file,) = find_files(file, FORMATS)  # raises an error for another format
    if file_format(file) == ".txt":
        line = 0
        for line, text in read_lines(file):
            yield NumberedText(text, line, file)
        if not line:
            raise PretuneError(f"{file}: the file is empty; give a file with one text per line")
    else:
        rows = read_labeled(file, {"text": column} if column else {}, labels=False, pairs=False)
        yield from (NumberedText(text, line, file) for line, text in zip(rows.lines, rows.texts, strict=True))
