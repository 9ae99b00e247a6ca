"""Read the annotations of CoNLL-2012 (OntoNotes): documents of sentences with columns of roles and coreference in brackets.

The format is that of Pradhan et al., 2012, http://www.aclweb.org/anthology/W12-4501. A document is between two lines:

    #begin document (bc/cctv/00/cctv_0001); part 000
    bc/cctv/00/cctv_0001   0   0   Ann    NNP   (TOP(S(NP*)   -     -   -   -   *   (ARG0*)   (1)
    bc/cctv/00/cctv_0001   0   1   fell   VBD   (VP*)))       fall  01  -   -   *   (V*)      -

    #end document

The fourth column has the words. From the twelfth to the last but one, there is a column per predicate; the last column has the
numbers of coreferent mentions in brackets: (1 opens a mention, 1) closes it, (1) is a mention of one word, | separates several.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import log_info
from pretune.text.corpus.files import Errors, read_lines

GOLD = "*_gold_conll"  # names of the files
WORD, FIRST_ROLES = 3, 11  # columns
BEGIN, END = "#begin", "#end"  # beginnings of the lines around a document
ROLE = re.compile(r"(?:\(([^()*]+))?\*(\))?")  # a cell of a predicate's column: (A1*, *, *) or (A1*)
MENTION = re.compile(r"(\()?([0-9]{1,9})(\))?")  # a part of a cell of the column of coreference: (1, 1) or (1)
NO_MENTIONS = ("-", "_", "*")

Mention = tuple[int, int]  # the indices of its first and its last word
Cluster = list[Mention]


class AnnotatedSentence(NamedTuple):
    """A sentence of a file: the cells of each word, with the line numbers."""

    lines: list[int]
    cells: list[list[str]]

    def columns(self) -> list[tuple[str, ...]]:
        """Return the columns of the sentence; raise an error if a word has too few of them."""
        for line, cells in zip(self.lines, self.cells, strict=True):
            if len(cells) != len(self.cells[0]) or len(cells) <= FIRST_ROLES:
                raise PretuneError(
                    f"line {line}: this word has {len(cells)} columns; give all words of a sentence the same number of columns, at least 12"
                )
        return list(zip(*self.cells, strict=True))


@dataclass
class AnnotatedDocument:
    """A document of a file, with its name, such as "bc/cctv/00/cctv_0001, part 0", and the number of its first line."""

    name: str
    line: int
    sentences: list[AnnotatedSentence] = field(default_factory=list)

    def words(self) -> list[list[str]]:
        """Return the words of each sentence."""
        return [list(sentence.columns()[WORD]) for sentence in self.sentences]

    def clusters(self) -> list[Cluster]:
        """Return the clusters of coreferent mentions, with words counted from the start of the document."""
        return coreference_clusters(
            [(sentence.lines, sentence.columns()[-1]) for sentence in self.sentences], self.name
        )

    def coreference_row(self) -> dict[str, Any]:
        """Return the words of the `sentences`, and the `clusters`, lists of mentions [first, last], as JSON data."""
        clusters = [[list(mention) for mention in cluster] for cluster in self.clusters()]
        return {"sentences": self.words(), "clusters": clusters}


def annotation_files(path: Path) -> list[Path]:
    """Return the file itself, or all files of CoNLL-2012 in a folder and its subfolders, sorted."""
    if not path.is_dir():
        return [path]
    files = sorted(path.rglob(GOLD))
    if not files:
        raise PretuneError(
            f"{path}: the folder has no files {GOLD}; give the folder with the annotations of CoNLL-2012"
        )
    return files


def read_annotated_documents(file: Path, errors: Errors = "strict") -> Iterator[AnnotatedDocument]:
    """Yield the documents of a file; a file without lines `#begin document` is one document."""
    document: AnnotatedDocument | None = None
    begun = False  # whether the document has begun with a line #begin
    sentence = AnnotatedSentence([], [])
    for number, line in read_lines(file, errors):
        cells = line.split()
        if cells and cells[0] not in (BEGIN, END):
            if document is None:
                document = AnnotatedDocument(file.name, number)
            if not sentence.cells:
                document.sentences.append(sentence)
            sentence.lines.append(number)
            sentence.cells.append(cells)
            continue
        sentence = AnnotatedSentence([], [])
        if cells and cells[0] == BEGIN:
            if begun and document is not None:
                raise PretuneError(
                    f"{file}, line {number}: the document {document.name} has no line '#end document' before this one; "
                    "add it, or download the file again"
                )
            if document is not None:
                yield document
            document, begun = AnnotatedDocument(_name(line), number), True
        elif cells and document is not None:
            yield document
            document, begun = None, False
    if begun and document is not None:
        raise PretuneError(
            f"{file}: the document {document.name}, which begins in line {document.line}, has no line '#end document'; "
            "the file is incomplete, so download it again"
        )
    if document is not None:
        yield document


def _name(line: str) -> str:
    """Return the name of a document, given its first line.

    >>> _name("#begin document (bc/cctv/00/cctv_0001); part 002")
    'bc/cctv/00/cctv_0001, part 2'
    """
    name = re.search(r"\((.*)\)", line)
    part = re.search(r"part\s+0*(\d+)\s*$", line)
    return (name[1] if name else line.removeprefix(BEGIN).strip()) + (f", part {part[1]}" if part else "")


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


def coreference_clusters(sentences: Sequence[tuple[Sequence[int], Sequence[str]]], name: str = "") -> list[Cluster]:
    """Return the clusters of a document from the column of coreference, in the order of their first mentions.

    `sentences` has the line numbers and the cells of each sentence, and `name` is the document's name for messages.

    >>> coreference_clusters([([1, 2, 3], ["(0", "0)", "(1)"]), ([5, 6], ["(0)", "(1)"])])
    [[(0, 1), (3, 3)], [(2, 2), (4, 4)]]
    """
    mentions: dict[str, Cluster] = {}
    begin = 0
    for lines, cells in sentences:
        opened: dict[str, list[tuple[int, int]]] = {}  # cluster → first word and line of its open mentions
        for index, (line, cell) in enumerate(zip(lines, cells, strict=True), begin):
            for part in () if cell in NO_MENTIONS else cell.split("|"):
                found = MENTION.fullmatch(part)
                if found is None or not (found[1] or found[3]):
                    raise PretuneError(
                        f"line {line}: {cell!r} is not a list of mentions, as in (1|(2) or 1), or - for none"
                    )
                cluster = found[2]
                if found[1]:
                    opened.setdefault(cluster, []).append((index, line))
                if found[3]:
                    if not opened.get(cluster):
                        raise PretuneError(f"line {line}: {part!r} closes a mention that is not open in its sentence")
                    mention = opened[cluster].pop()[0], index
                    if mention in mentions.setdefault(cluster, []):
                        raise PretuneError(f"line {line}: the cluster {cluster} opens twice around the same words")
                    mentions[cluster].append(mention)
        begin += len(cells)
        for cluster, left in opened.items():
            if left:
                raise PretuneError(f"line {left[-1][1]}: '({cluster}' opens a mention that its sentence does not close")
    return merge_clusters(mentions, name)


def merge_clusters(mentions: Mapping[str, Sequence[Mention]], name: str = "") -> list[Cluster]:
    """Return clusters sorted by their first mentions; clusters with the same mention are merged, and the merge is logged.

    OntoNotes annotates some mentions twice, in two clusters. `name` is the document's name for the message.
    """
    groups: list[set[Mention]] = []
    merged = 0
    for cluster in mentions.values():
        group = set(cluster)
        for other in [other for other in groups if not other.isdisjoint(group)]:
            groups.remove(other)
            group |= other
            merged += 1
        groups.append(group)
    if merged:
        log_info(f"{name}: {merged} clusters share a mention with another cluster, and are merged with it")
    return sorted(sorted(group) for group in groups if group)
