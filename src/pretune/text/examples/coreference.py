"""Read documents with clusters of coreferent mentions: CoNLL-2012, or .jsonl and .parquet with sentences and clusters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from pretune.runtime.errors import PretuneError, quote, suggest
from pretune.runtime.progress import log_info
from pretune.text.corpus.documents import NESTED_FORMATS, read_rows
from pretune.text.corpus.files import Errors, check_is_file, check_text, file_format
from pretune.text.corpus.sentences import split_sentences
from pretune.text.examples.annotated_spans import split_words
from pretune.text.examples.conll_annotations import Cluster, annotation_files, merge_clusters, read_annotated_documents
from pretune.text.examples.examples import Examples
from pretune.text.examples.labeled import Row, TableChunk, advise_options

SENTENCES = ("sentences", "text")
CLUSTERS = ("clusters", "label")
DOCUMENTS = ("document", "doc_key", "doc_id", "id")  # usual fields with the name of a document


@dataclass
class CoreferenceDocuments(Examples):
    """The documents of a file, in order: the words of their sentences and, if known, clusters of coreferent mentions.

    A mention is a pair with the indices of its first and its last word in the document. `names` has a name or an empty
    string for each document; `originals` has, for a document that was given as a text, the text and the start and end
    of each word, and otherwise None.
    """

    sentences: list[list[list[str]]] = field(default_factory=list)
    clusters: list[list[Cluster]] | None = None
    names: list[str] = field(default_factory=list)
    originals: list[tuple[str, list[tuple[int, int]]] | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.sentences)

    @property
    def words(self) -> list[list[str]]:
        """Return all words of each document."""
        return [list(chain.from_iterable(document)) for document in self.sentences]

    def duplicate_key(self, row: int) -> str:
        """Return a key that is equal for documents with the same words, to detect duplicates."""
        return " ".join(chain.from_iterable(self.sentences[row])).casefold()

    def inputs(self, row: int) -> dict[str, Any]:
        """Return the text of a document, for reports."""
        return {"text": " ".join(chain.from_iterable(self.sentences[row]))}

    def location(self, row: int) -> str:
        """Return the file and line of a document and its name, if it has one, for error messages."""
        name = f" ({self.names[row]})" if self.names and self.names[row] else ""
        return f"{super().location(row)}{name}"


def coreference_rows(file: str | Path, errors: Errors = "strict") -> Iterator[tuple[int, Row]]:
    """Yield (line number, row) for each document of a .jsonl or .parquet file, or of CoNLL-2012 files.

    Rows of CoNLL-2012 have the name of the document, its sentences and its clusters. A folder stands for all files of
    CoNLL-2012 in it and its subfolders.
    """
    path = Path(file)
    if not path.is_dir() and file_format(check_is_file(path)) in NESTED_FORMATS:
        yield from read_rows(path, errors)
        return
    for one in annotation_files(path):
        for document in read_annotated_documents(one, errors):
            try:
                row = document.coreference_row()
            except PretuneError as error:
                raise PretuneError(f"{one}, {error}; correct it, or download the file again") from None
            yield document.line, {"document": document.name, **row}


def read_coreference(
    file: str | Path | TableChunk,
    columns: Mapping[str, str] | None = None,
    *,
    clusters: bool = True,
    errors: Errors = "strict",
) -> CoreferenceDocuments:
    """Read documents and, with `clusters`, their clusters of coreferent mentions.

    The sentences of a row are lists of words, or one text, which is split into sentences and words. The clusters are
    lists of mentions, [first, last], with words counted from the start of the document. `columns` names the fields for
    `text` (sentences) and `label` (clusters).
    """
    path, rows = (
        (file.file, file.rows) if isinstance(file, TableChunk) else (Path(file), coreference_rows(file, errors))
    )
    requested = {role: str(name) for role, name in (columns or {}).items() if name}
    for role in requested.keys() - {"text", "label"}:
        raise PretuneError(
            f"{path}: documents have only the columns 'text' and 'label'; remove the option that sets {role!r}"
        )
    names: dict[str, str] = {}
    documents = CoreferenceDocuments(path, {}, clusters=[] if clusters else None)
    for line, row in rows:
        if not names:
            usual = {"text": SENTENCES, "label": CLUSTERS} if clusters else {"text": SENTENCES}
            found = {role: next((name for name in some if name in row), some[0]) for role, some in usual.items()}
            names = {role: requested.get(role, name) for role, name in found.items()}
            documents.columns = names
        place = f"{path}, line {line}"
        for name in names.values():
            if name not in row:
                known = ", ".join(map(repr, row)) or "none"
                advice = advise_options("choose another field", ("text", "label"))
                raise PretuneError(f"{place}: no field {name!r}; the fields are {known}; {suggest(name, row)}{advice}")
        given = row[names["text"]]
        if isinstance(given, str):
            sentences, original = _split(check_text(given, f"{place}: {names['text']!r}"))
            documents.originals.append(original)
        else:
            sentences = _sentences(given, f"{place}: {names['text']!r}")
            documents.originals.append(None)
        documents.sentences.append(sentences)
        documents.names.append(next((str(row[name]) for name in DOCUMENTS if name in row), ""))
        documents.lines.append(line)
        if documents.clusters is not None:
            total = sum(map(len, sentences))
            documents.clusters.append(_clusters(row, names, total, place))
    if not documents.sentences:
        raise PretuneError(f"{path}: the file contains no documents; pass a file with documents")
    if documents.clusters is not None and not isinstance(file, TableChunk):
        empty = [row for row, found in enumerate(documents.clusters) if not found]
        if empty:
            log_info(
                f"{documents.location(empty[0])}: the document has no coreferent mentions ({len(empty)} of {len(documents)} documents have none)"
            )
    return documents


def _split(text: str) -> tuple[list[list[str]], tuple[str, list[tuple[int, int]]]]:
    """Return the words of each sentence of a text, and the text with the start and end of each word."""
    sentences, bounds = [], []
    for start, end in split_sentences(text):
        found = [(start + first, start + last) for first, last in split_words(text[start:end])]
        sentences.append([text[first:last] for first, last in found])
        bounds += found
    return sentences, (text, bounds)


def _sentences(value: Any, place: str) -> list[list[str]]:
    """Return the sentences in a field of a row, lists of words; `place` names the field in errors."""
    if not isinstance(value, list) or not all(
        isinstance(sentence, list) and all(isinstance(word, str) for word in sentence) for sentence in value
    ):
        raise PretuneError(
            f'{place}: expected a text, or a list of sentences with their words, such as [["Ann", "fell", "."], ["She", "rose", "."]]'
        )
    check_text(" ".join(chain.from_iterable(value)), place)
    return value


def _clusters(row: Row, names: Mapping[str, str], words: int, where: str) -> list[Cluster]:
    """Return the clusters in a row, whose document has a number of words; `where` is the file and line, for errors."""
    value, place = row[names["label"]], f"{where}: {names['label']!r}"
    if not isinstance(value, list) or not all(isinstance(cluster, list) for cluster in value):
        raise PretuneError(f"{place}: expected a list of clusters, such as [[[0, 0], [4, 5]]]")
    clusters: dict[str, Cluster] = {}
    for number, given in enumerate(value):
        mentions: Cluster = clusters.setdefault(str(number), [])
        for mention in given:
            match mention:
                case [int() as first, int() as last] if 0 <= first <= last < words:
                    if (first, last) in mentions:
                        raise PretuneError(
                            f"{place}: the mention [{first}, {last}] is twice in a cluster; remove one of them"
                        )
                    mentions.append((first, last))
                case _:
                    raise PretuneError(
                        f"{place}: the mention {quote(mention)} must be [first, last] with indices of the {words} words in {names['text']!r}"
                    )
    return merge_clusters(clusters, place)
