"""Readers of CoNLL-2005 and CoNLL-2012: semantic roles, one row per sentence and predicate, and coreference, one per document.

CoNLL-2005 (Carreras and Màrquez, 2005, http://www.aclweb.org/anthology/W05-0620): the words, and in another file or in the last
columns of the same one the lemmas of predicates and one column per predicate:

    The        -      (A1*
    market     -         *)
    fell       fall    (V*)

CoNLL-2012 is the format of pretune.text.examples.conll_annotations. A folder is read with all of its files *_gold_conll.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from pretune.evaluation.suites.file_formats import Rows
from pretune.runtime.errors import PretuneError
from pretune.text.corpus.files import read_lines
from pretune.text.examples.conll_annotations import (
    FIRST_ROLES,
    WORD,
    AnnotatedDocument,
    annotation_files,
    bracketed_roles,
    read_annotated_documents,
)

PREDICATE = re.compile(r"\(V\*\)?")


def read_roles_2005(paths: Sequence[Path]) -> Rows:
    """Yield the predicates of a CoNLL-2005 file, or of a file of words and one of predicates with parallel lines.

    Rows have the `words` of a sentence, the index of the `predicate`, and the `tags` of its roles in the scheme BIO.
    """
    for place, lines in _sentences(paths):
        uneven = [len(cells) for cells in lines if len(cells) != len(lines[0])]
        if uneven:
            yield place, PretuneError(f"a word has {uneven[0]} columns instead of {len(lines[0])}")
        else:
            columns = list(zip(*lines, strict=True))
            roles = [column for column in columns if any(map(PREDICATE.fullmatch, column))]
            yield from _predicates(place, columns[0], roles)


def read_roles_2012(paths: Sequence[Path]) -> Rows:
    """Yield the predicates of a CoNLL-2012 file, or of all files of this format in a folder and its subfolders.

    The rows are those of `read_roles_2005`.
    """
    for file, document in _documents(paths[0]):
        for sentence in document.sentences:
            place = f"{file}line {sentence.lines[0]}"
            try:
                columns = sentence.columns()
            except PretuneError as error:
                yield place, error
            else:
                yield from _predicates(place, columns[WORD], columns[FIRST_ROLES:-1])


def read_coreference_2012(paths: Sequence[Path]) -> Rows:
    """Yield the documents of a CoNLL-2012 file, or of all files of this format in a folder and its subfolders.

    Rows have the `sentences` of a document, lists of words, and its `clusters`, lists of mentions [first, last].
    """
    for file, document in _documents(paths[0]):
        place = f"{file}document {document.name}"
        try:
            yield place, {"id": document.name, **document.coreference_row()}
        except PretuneError as error:
            yield place, error


def _documents(top: Path) -> Iterator[tuple[str, AnnotatedDocument]]:
    """Yield the documents of a CoNLL-2012 file or folder, each with the name of its file, if it is in a folder."""
    for file in annotation_files(top):
        name = f"{file.relative_to(top)}, " if top.is_dir() else ""
        for document in read_annotated_documents(file):
            yield name, document


def _sentences(paths: Sequence[Path]) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield (place, cells of each word) for each sentence of a file; the columns of parallel files are joined."""
    sentence: list[list[str]] = []
    start = 0
    parts = ((line.split() for _, line in read_lines(path)) for path in paths)
    for number, cells in enumerate(zip_longest(*parts), 1):
        row = [cell for part in cells for cell in part or ()]
        if None in cells or (row and not all(cells)):
            raise PretuneError(
                f"{paths[0]}, line {number}: {paths[-1].name} has no word here; give files of the same sentences"
            )
        if row:
            start = start if sentence else number
            sentence.append(row)
        elif sentence:
            yield f"line {start}", sentence
            sentence = []
    if sentence:
        yield f"line {start}", sentence


def _predicates(place: str, words: Sequence[str], columns: Sequence[Sequence[str]]) -> Rows:
    """Yield (place, row) for each predicate of a sentence, given the column of the roles of each."""
    for number, column in enumerate(columns, 1):
        where = f"{place}, predicate {number}"
        marked = [index for index, cell in enumerate(column) if PREDICATE.fullmatch(cell)]
        if len(marked) != 1:
            yield where, PretuneError(f"the column has {len(marked)} predicates (V*); mark exactly one")
            continue
        try:
            yield where, {"words": list(words), "predicate": marked[0], "tags": bracketed_roles(column)}
        except PretuneError as error:
            yield where, error
