"""Define the settings of a token store, and read its input and divide it into groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from pretune.text.corpus.cleaning.cleaner import CleaningSettings
from pretune.text.corpus.documents import Document, SplitBy, read_documents
from pretune.text.corpus.files import ByteMeter, Errors
from pretune.text.corpus.ngram_hashes import NgramSet

SHARD_BYTES = 32 << 20  # text per shard
PART_BYTES = 1 << 20  # text passed to a worker at once
Item = TypeVar("Item")


@dataclass(frozen=True)
class StoreSettings:
    """The settings that, together with the input files and the tokenizer, determine the content of a token store.

    `language` is the language of the texts, by which sentences are split; `split_by` says how .txt files are split into
    documents; `text_field` and `span_field` name the fields of text and annotated spans; `encoding_errors` says how
    invalid UTF-8 is handled; `shard_bytes` is the size of text per shard.
    """

    language: str = "en"  # of the sentence splitter; "lines": one sentence per line
    split_by: SplitBy = "auto"
    text_field: str | None = None
    encoding_errors: Errors = "strict"
    shard_bytes: int = SHARD_BYTES
    span_field: str | None = None  # a field with annotated spans, each of which counts as one word
    cleaning: CleaningSettings | None = None

    def describe(self) -> dict[str, Any]:
        """Return the settings that produced a token store as a dictionary, for the manifest of the store."""
        return {key: value for key, value in self.state().items() if key not in ("span_field", "cleaning") or value}

    def state(self) -> dict[str, Any]:
        """Return the settings as JSON-serializable values, from which `from_state` rebuilds them."""
        values = {key.name: getattr(self, key.name) for key in fields(self)}
        return values | {"cleaning": self.cleaning.describe() if self.cleaning is not None else None}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], benchmark: Path) -> StoreSettings:
        """Rebuild settings from the result of `state`; `benchmark` is the file with the n-grams of the benchmark."""
        cleaning = state["cleaning"]
        if cleaning is not None:
            ngrams = NgramSet.load(benchmark) if "benchmark" in cleaning else None
            cleaning = CleaningSettings.from_description(cleaning, ngrams)
        return cls(**{**state, "cleaning": cleaning})

    def read_documents(self, files: Sequence[Path], meter: ByteMeter | None = None) -> Iterator[Document]:
        """Yield the documents of files, read according to these settings, before cleaning."""
        return read_documents(
            files,
            split_by=self.split_by,
            text_field=self.text_field,
            span_field=self.span_field,
            encoding_errors=self.encoding_errors,
            meter=meter,
        )


def text_size(document: Document) -> int:
    """Return the size of a document's text in UTF-8, in bytes."""
    return len(document.text.encode())


def group_by_size(items: Iterable[Item], size: Callable[[Item], int], least: int) -> Iterator[list[Item]]:
    """Yield consecutive items in groups; a group ends as soon as the sizes of its items add up to at least `least`.

    `size` is the function that returns the size of an item. The last group may be smaller.
    """
    group: list[Item] = []
    total = 0
    for item in items:
        group.append(item)
        total += size(item)
        if total >= least:
            yield group
            group, total = [], 0
    if group:
        yield group
