"""Readers of semantic roles in the formats of CoNLL-2005 and CoNLL-2012, and of coreference in that of CoNLL-2012.

CoNLL-2005 (Carreras and Màrquez, 2005, http://www.aclweb.org/anthology/W05-0620): the words, and in another file or in the last
columns of the same one the lemmas of predicates and one column per predicate:

    The        -      (A1*
    market     -         *)
    fell       fall    (V*)

CoNLL-2012 (Pradhan et al., 2012, http://www.aclweb.org/anthology/W12-4501): files of OntoNotes with the word in the fourth column
and, from the twelfth to the last but one, a column per predicate. The last column has the entities of mentions: (3, 3), (3) or (3|(5).
A folder is read with all of its files *_gold_conll.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pretune.evaluation.suites.file_formats import Rows
from pretune.runtime.errors import PretuneError
from pretune.text.corpus.files import read_lines

ROLE = re.compile(r"(?:\(([^()*]+))?\*(\))?")  # a cell of a predicate's column: (A1*, *, *) or (A1*)
PREDICATE = re.compile(r"\(V\*\)?")
ENTITY = re.compile(r"(\()?(\d+)(\))?")  # a part of a cell of the last column
WORD, FIRST_ROLES = 3, 11  # columns of CoNLL-2012
GOLD = "*_gold_conll"  # names of its files
ANTECEDENTS = 10  # nearest mentions before a mention that it is paired with
DISTANCE = 5  # sentences from the one to the other at most, but the nearest one always counts
Mention = tuple[int, int, int]  # its sentence, first and last word in the sentence


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
    for file, name in _files(paths[0]):
        for where, lines in _sentences([file]):
            place = f"{name}{where}"
            short = [len(cells) for cells in lines if len(cells) != len(lines[0]) or len(cells) <= FIRST_ROLES]
            if short:
                yield (
                    place,
                    PretuneError(f"a word has {short[0]} columns; CoNLL-2012 has 12 or more, equally many per word"),
                )
            else:
                columns = list(zip(*lines, strict=True))
                yield from _predicates(place, columns[WORD], columns[FIRST_ROLES:-1])


def _files(top: Path) -> list[tuple[Path, str]]:
    """Return (file, its name for messages) for a file of CoNLL-2012, or for all of these in a folder."""
    files = sorted(top.rglob(GOLD)) if top.is_dir() else [top]
    if not files:
        raise PretuneError(f"{top}: the folder has no files {GOLD}; give the folder with the annotations of CoNLL-2012")
    return [(file, f"{file.relative_to(top)}, " if top.is_dir() else "") for file in files]


def read_mention_pairs(paths: Sequence[Path]) -> Rows:
    """Yield pairs of mentions of CoNLL-2012: each mention with the nearest ones before it, in the text around both.

    The bounds of the mentions are character offsets in `text`, and the `label` is true if they are one entity. `group` is
    the document, and `gold` has the two mentions and their entities, so that entities can be compared.
    """
    for file, name in _files(paths[0]):
        documents: dict[str, list[tuple[str, list[list[str]]]]] = {}
        for where, lines in _sentences([file]):
            documents.setdefault(" ".join(lines[0][:2]), []).append((where, lines))
        for document, sentences in documents.items():
            place = f"{name}{sentences[0][0]}"
            try:
                found = _mentions([[cells[-1] for cells in lines] for _, lines in sentences])
                words = [[cells[WORD] for cells in lines] for _, lines in sentences]
            except (PretuneError, IndexError) as error:
                text = str(error) if isinstance(error, PretuneError) else "a word has fewer than four columns"
                yield place, PretuneError(f"document {document}: {text}")
                continue
            for number, (second, entity) in enumerate(found):
                for first, other in found[max(0, number - ANTECEDENTS) : number]:
                    if second[0] - first[0] <= DISTANCE or first == found[number - 1][0]:
                        gold = {"mentions": [list(first), list(second)], "entities": [other, entity]}
                        label = str(entity == other).lower()
                        row = {
                            **_context(words, first, second),
                            "label": label,
                            "group": f"{name}{document}",
                            "gold": gold,
                        }
                        yield place, row


def _mentions(columns: Sequence[Sequence[str]]) -> list[tuple[Mention, str]]:
    """Return (mention, entity) for each mention, in order of the text, given the cells of each sentence."""
    found: list[tuple[Mention, str]] = []
    for sentence, cells in enumerate(columns):
        begun: dict[str, list[int]] = {}
        for place, cell in enumerate(cells):
            for part in filter(None, cell.split("|")):
                match = ENTITY.fullmatch(part)
                if match is None:
                    continue
                begins, entity, ends = match.groups()
                if begins:
                    begun.setdefault(entity, []).append(place)
                if ends:
                    if not begun.get(entity):
                        raise PretuneError(
                            f"the mention of entity {entity} in sentence {sentence + 1} has no opening bracket; correct the brackets"
                        )
                    found.append(((sentence, begun[entity].pop(), place), entity))
        for entity, places in begun.items():
            if places:
                raise PretuneError(
                    f"the mention of entity {entity} in sentence {sentence + 1} has no closing bracket; correct the brackets"
                )
    return sorted(found)


def _context(words: Sequence[Sequence[str]], first: Mention, second: Mention) -> dict[str, Any]:
    """Return the text from the sentence of one mention to that of another, and their bounds in characters."""
    lines = [" ".join(sentence) for sentence in words[first[0] : second[0] + 1]]
    bounds = {}
    for number, (sentence, begin, end) in enumerate((first, second), 1):
        offset = sum(len(line) + 1 for line in lines[: sentence - first[0]])
        before = sum(len(word) + 1 for word in words[sentence][:begin])
        bounds[f"start{number}"] = offset + before
        bounds[f"end{number}"] = offset + before + len(" ".join(words[sentence][begin : end + 1]))
    return {"text": " ".join(lines), **bounds}


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
        if row and not row[0].startswith(("#begin", "#end")):
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


def bracketed_roles(column: Sequence[str]) -> list[str]:
    """Return the tags in the scheme BIO of a column with brackets around roles.

    >>> bracketed_roles(["(A1*", "*)", "(V*)", "*"])
    ['B-A1', 'I-A1', 'B-V', 'O']
    """
    tags, role = [], ""
    for cell in column:
        found = ROLE.fullmatch(cell)
        if found is None or (found[1] and role) or (found[2] and not (found[1] or role)):
            raise PretuneError(
                f"the brackets of the roles {' '.join(column)[:60]!r} do not match; write them as in (A1* *) (V*)"
            )
        begins, role = bool(found[1]), found[1] or role
        tags.append(f"{'B' if begins else 'I'}-{role}" if role else "O")
        role = "" if found[2] else role
    if role:
        raise PretuneError(f"the role {role!r} has no closing bracket; add one, as in (A1* *)")
    return tags
