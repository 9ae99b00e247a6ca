"""Read a token store: a corpus as memory-mapped token ids, with addressable documents and sentences.

manifest.json           contents of the store, with a checksum of each shard
cleaning.json           what cleaning removed, if the corpus was cleaned
tokenizer.json …        the tokenizer that produced the ids
00000.safetensors …     shards, each with
    tokens     (t,)      token ids, uint16 if the vocabulary fits, else uint32
    words      (t/8,)    bit k of byte j: token 8j + k starts a word (an annotated span counts as one word)
    sentences  (s+1,)    first token of each sentence
    documents  (d+1,)    first sentence of each document
    bytes      (d,)      UTF-8 bytes of each document, for bits per byte
    files      (d,)      1 if a document is the first of its file, else 0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Len
from typing_extensions import TypedDict

from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError, quote
from pretune.runtime.parsing import (
    file_digest,
    is_file_name,
    parse_json,
    read_checksummed_json,
    read_mapping,
    validate_schema,
)
from pretune.text.spans import span_indices
from pretune.text.tokenizers.tokenizer import Tokenizer

FORMAT = "pretune-store"
VERSION = 2  # 2: the manifest has a checksum, and shards mark the first document of each file
MANIFEST = "manifest.json"
CLEANING_REPORT = "cleaning.json"
VERIFY_UP_TO = 8 << 30  # bytes; of larger stores only the file sizes are checked on opening

Count = Annotated[int, Ge(0)]
_DTYPES = {"U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64}


class ShardEntry(TypedDict):
    """The entry of a shard in the manifest of a token store: its file, sizes and checksum."""

    file: str
    documents: Count
    sentences: Count
    tokens: Count
    bytes: Count
    size: Count
    sha256: str


class ArrayEntry(TypedDict):
    """The entry of an array in the header of a shard, which is a safetensors file."""

    dtype: Literal["U8", "U16", "U32", "U64"]
    shape: Annotated[list[Count], Len(1, 1)]
    data_offsets: Annotated[list[Count], Len(2, 2)]


class CleaningRow(TypedDict):
    """What one cleaning rule removed: documents, characters, their share of the corpus, and the first examples."""

    rule: str
    documents: Count
    characters: Count
    share: float
    examples: list[str]


class CleaningSummary(TypedDict):
    """The content of cleaning.json: what cleaning removed from the corpus of a token store."""

    documents: Count
    characters: Count
    removed_documents: Count
    removed_characters: Count
    rules: list[CleaningRow]


class Manifest(TypedDict):
    """The content of manifest.json, which describes the files and settings of a token store."""

    format: str
    version: int
    tokenizer: str
    settings: dict[str, Any]
    sources: list[dict[str, Any]]
    vocabulary: Count
    dtype: str
    documents: Count
    sentences: Count
    tokens: Count
    bytes: Count
    empty_documents: Count
    shards: list[ShardEntry]


class Store:
    """A token store that is open for reading; its shards are memory-mapped, so that it may be larger than memory.

    >>> store = Store("store/")  # doctest: +SKIP
    >>> store.tokenizer.decode(store.document(0))  # doctest: +SKIP
    """

    def __init__(self, folder: str | Path, verify: bool | None = None) -> None:
        """Open a token store; `verify` says whether to compare its files with their checksums.

        By default, the files are compared if the store has at most 8 GB.
        """
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder)
        self.shards = self.manifest["shards"]
        if verify is None:
            verify = sum(shard["size"] for shard in self.shards) <= VERIFY_UP_TO
        for shard in self.shards:
            check_shard(self.folder / shard["file"], shard, whole=verify)
        self._maps = [map_shard(self.folder / shard["file"]) for shard in self.shards]
        for shard, arrays in zip(self.shards, self._maps, strict=True):
            check_arrays(self.folder / shard["file"], arrays, shard, self.manifest["vocabulary"] if verify else None)
        # (language, number of documents), in the order of the documents
        self.language_runs = [(str(self.manifest["settings"]["language"]), self.documents)]
        self.part_tokens = [self.tokens]  # of each store that it was joined from, in their order

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer that produced the token ids of the store."""
        tokenizer = Tokenizer.load(self.folder / "tokenizer.json")
        if tokenizer.digest != self.manifest["tokenizer"]:
            path = self.folder / "tokenizer.json"
            raise PretuneError(
                f"{path}: the file has changed since this store was prepared with it; restore the original file, or prepare the store again"
            )
        return tokenizer

    @property
    def tokens(self) -> int:
        """Return the number of tokens in the store."""
        return int(self.manifest["tokens"])

    @property
    def documents(self) -> int:
        """Return the number of documents in the store."""
        return int(self.manifest["documents"])

    @property
    def sentences(self) -> int:
        """Return the number of sentences in the store."""
        return int(self.manifest["sentences"])

    @cached_property
    def _token_bounds(self) -> Array:
        return _running_totals([shard["tokens"] for shard in self.shards])

    @cached_property
    def sentence_offsets(self) -> Array:
        """Return the index of the first token of each sentence in the store, and the number of all tokens at the end.

        The array is int64 of shape (sentences + 1,).
        """
        parts = [m["sentences"][:-1].astype(np.int64) + start for m, start in self._with_start(self._token_bounds)]
        return _check_offsets(np.concatenate([*parts, [self.tokens]]), f"{self.folder}: sentences")

    @cached_property
    def document_offsets(self) -> Array:
        """Return the index of the first sentence of each document, and the number of all sentences at the end.

        The array is int64 of shape (documents + 1,).
        """
        bounds = _running_totals([shard["sentences"] for shard in self.shards])
        parts = [m["documents"][:-1].astype(np.int64) + start for m, start in self._with_start(bounds)]
        return _check_offsets(np.concatenate([*parts, [self.sentences]]), f"{self.folder}: documents")

    @cached_property
    def document_bytes(self) -> Array:
        """Return the number of UTF-8 bytes of each document, int64 of shape (documents,)."""
        return np.concatenate([m["bytes"].astype(np.int64) for m in self._maps])

    @cached_property
    def document_files(self) -> Array:
        """Return the index of the file that each document comes from, int64 of shape (documents,)."""
        return np.cumsum(np.concatenate([m["files"] for m in self._maps]), dtype=np.int64) - 1

    @property
    def has_annotated_spans(self) -> bool:
        """Return whether the documents have annotated spans, each of which counts as one word."""
        return bool(self.manifest["settings"].get("span_field"))

    @property
    def languages(self) -> list[str]:
        """Return the languages of the documents in the store, sorted."""
        return sorted({language for language, _ in self.language_runs})

    @cached_property
    def document_languages(self) -> Array:
        """Return the language of each document, (documents,), as an index into `languages`."""
        numbers = {language: number for number, language in enumerate(self.languages)}
        runs = [(numbers[language], count) for language, count in self.language_runs]
        return np.repeat(*np.array(runs, dtype=np.int64).reshape(-1, 2).T)

    def with_language(self, language: str) -> Store:
        """Return a copy of a token store in which all documents have the given language."""
        store = copy(self)
        store.__dict__.pop("document_languages", None)
        store.language_runs = [(language, self.documents)]
        return store

    def split_documents_at(self, sentences: Array) -> Store:
        """Return a copy of the token store in which a new document begins at each sentence in `sentences`.

        `sentences` are sentence indices; the documents also begin where they did before.
        """
        old = self.document_offsets
        offsets = np.sort(np.concatenate([old, np.setdiff1d(sentences, old)]))
        owner = np.clip(np.searchsorted(old, offsets[:-1], side="right") - 1, 0, self.documents - 1)
        tokens, whole = (np.diff(self.sentence_offsets[bounds]) for bounds in (offsets, old))
        store = copy(self)
        store.manifest = self.manifest | {"documents": len(offsets) - 1}
        store.language_runs = [(self.languages[number], 1) for number in self.document_languages[owner]]
        store.__dict__.pop("document_languages", None)
        shares = self.document_bytes[owner] * tokens / np.maximum(1, whole[owner])
        store.__dict__ |= {"document_offsets": offsets, "document_bytes": shares.astype(np.int64)}
        store.__dict__["document_files"] = self.document_files[owner]
        return store

    def with_tokens(self, tokens: Array, words: Array, sentence_lengths: Array) -> Store:
        """Return a copy of the token store, held in memory, whose sentences consist of other tokens.

        `tokens` (t,) are the token ids of all sentences, `words` (t,) is the mask of those that begin a word, and
        `sentence_lengths` (sentences,) has the number of tokens of each sentence.
        """
        store = copy(self)
        offsets = _running_totals(sentence_lengths)
        kept = ("document_offsets", "document_bytes", "document_files", "document_languages")
        store.__dict__ |= {name: getattr(self, name) for name in kept} | {"sentence_offsets": offsets}
        store.__dict__["_token_bounds"] = np.array([0, len(tokens)])
        store.manifest = self.manifest | {"tokens": len(tokens)}
        store.part_tokens = [len(tokens)]
        store._maps = [{"tokens": tokens, "words": np.packbits(words, bitorder="little")}]
        return store

    def _with_start(self, bounds: Array) -> Any:
        return zip(self._maps, bounds[:-1], strict=True)

    def document(self, index: int) -> Array:
        """Return the token ids of the document with the given index."""
        first, last = self.document_offsets[index], self.document_offsets[index + 1]
        return self.read(int(self.sentence_offsets[first]), int(self.sentence_offsets[last]))

    def sentence(self, index: int) -> Array:
        """Return the token ids of the sentence with the given index."""
        return self.read(int(self.sentence_offsets[index]), int(self.sentence_offsets[index + 1]))

    def read(self, start: int, end: int) -> Array:
        """Return the ids of the tokens from `start` to `end` (exclusive), which may lie in several shards."""
        return self.gather(np.array([start]), np.array([end - start]))

    def gather(self, starts: Array, lengths: Array) -> Array:
        """Return the token ids of spans, concatenated, given the first token and the length of each span."""
        return self._gather("tokens", starts, lengths)

    def gather_words(self, starts: Array, lengths: Array) -> Array:
        """Return a mask of the tokens that begin a word, for the concatenated spans with given starts and lengths."""
        return self._gather("words", starts, lengths)

    def unknown_words(self, starts: Array, lengths: Array) -> tuple[Array, Array]:
        """Return two empty arrays, because a store does not keep the spelling of out-of-vocabulary words."""
        return np.empty(0, dtype=np.int64), np.empty((0, self.tokenizer.characters), dtype=np.int16)

    def _gather(self, name: str, starts: Array, lengths: Array) -> Array:
        starts, lengths = np.asarray(starts, dtype=np.int64), np.asarray(lengths, dtype=np.int64)
        if len(starts) and (starts.min() < 0 or (starts + lengths).max() > self.tokens):
            raise IndexError(
                f"a span is outside the store, which has {self.tokens} tokens; correct its start and its length"
            )
        bounds = self._token_bounds
        out = np.empty(int(lengths.sum()), dtype=bool if name == "words" else self._maps[0]["tokens"].dtype)
        places = np.cumsum(lengths) - lengths  # position of each span in the output
        first = np.searchsorted(bounds, starts, side="right") - 1
        crossing = (lengths > 0) & (starts + lengths > bounds[np.minimum(first + 1, len(bounds) - 1)])
        while crossing.any():  # split spans at the end of their shard
            room = bounds[first[crossing] + 1] - starts[crossing]
            starts = np.concatenate([starts, starts[crossing] + room])
            places = np.concatenate([places, places[crossing] + room])
            lengths = np.concatenate([lengths, lengths[crossing] - room])
            lengths[: len(crossing)][crossing] = room
            first = np.searchsorted(bounds, starts, side="right") - 1
            crossing = starts + lengths > bounds[np.minimum(first + 1, len(bounds) - 1)]
        for shard in np.unique(first[lengths > 0]):
            mine = (first == shard) & (lengths > 0)
            local = span_indices(starts[mine] - bounds[shard], lengths[mine])
            array = self._maps[shard][name]
            values = array[local] if name == "tokens" else (array[local >> 3] >> (local & 7)) & 1
            if mine.all():
                return values.astype(out.dtype, copy=False)
            out[span_indices(places[mine], lengths[mine])] = values
        return out

    def cleaning(self) -> CleaningSummary | None:
        """Return what cleaning removed from the corpus, by rule; None if the corpus was not cleaned."""
        path = self.folder / CLEANING_REPORT
        if "cleaning" not in self.manifest["settings"]:
            return None
        return validate_schema(read_checksummed_json(path, "the report on cleaning"), CleaningSummary, str(path))

    def _summarize(self, cleaning: CleaningSummary) -> dict[str, Any]:
        """Return a short form of the report on cleaning: only the rules that removed something, without examples."""
        rows = [
            {key: value for key, value in row.items() if key != "examples"}
            for row in cleaning["rules"]
            if row["characters"]
        ]
        return {**cleaning, "rules": rows, "examples": str(self.folder / CLEANING_REPORT)}

    def describe(self) -> dict[str, Any]:
        """Return a summary of the store for reports: sizes, settings, statistics, and what cleaning removed."""
        names = ("documents", "sentences", "tokens", "bytes", "dtype", "vocabulary", "empty_documents", "settings")
        size = sum(shard["size"] for shard in self.shards)
        cleaning = self.cleaning()
        return {
            "store": str(self.folder),
            **{name: self.manifest[name] for name in names},
            "shards": len(self.shards),
            "size_on_disk": size,
            "tokens_per_sentence": self.tokens / max(1, self.sentences),
            "bytes_per_token": self.manifest["bytes"] / max(1, self.tokens),
            **({"cleaning": self._summarize(cleaning)} if cleaning is not None else {}),
        }


def join_stores(stores: Sequence[Store]) -> Store:
    """Return one store that contains the documents of several stores, in order; they must have the same tokenizer.

    >>> join_stores([Store("english/"), Store("russian/")]).languages  # doctest: +SKIP
    ['en', 'ru']
    """
    first = stores[0]
    for store in stores[1:]:
        if store.manifest["tokenizer"] != first.manifest["tokenizer"]:
            advice = "prepare one of the two stores again with the tokenizer of the other"
            raise PretuneError(f"{first.folder} and {store.folder} have different tokenizers; {advice}")
    if len(stores) == 1:
        return first
    joined = copy(first)
    for name in [name for name, value in vars(Store).items() if isinstance(value, cached_property)]:
        joined.__dict__.pop(name, None)
    counted = ("documents", "sentences", "tokens", "bytes", "empty_documents")
    joined.shards = [shard for store in stores for shard in store.shards]
    joined.manifest = first.manifest | {key: sum(store.manifest[key] for store in stores) for key in counted}
    for store in stores:
        if store.has_annotated_spans:
            own = {"span_field": store.manifest["settings"]["span_field"]}
            joined.manifest["settings"] = first.manifest["settings"] | own
    joined._maps = [arrays for store in stores for arrays in store._maps]
    joined.language_runs = [entry for store in stores for entry in store.language_runs]
    joined.part_tokens = [tokens for store in stores for tokens in store.part_tokens]
    return joined


def _running_totals(counts: Sequence[int] | Array) -> Array:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _check_offsets(offsets: Array, what: str) -> Array:
    if offsets[0] != 0 or (np.diff(offsets) < 0).any():
        raise PretuneError(f"{what} are not in increasing order; the store is damaged, so prepare it again")
    return offsets


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read and check the manifest of a store; raise an error if the folder is not a complete store."""
    path = folder / MANIFEST
    if not path.is_file():
        if partial_folder(folder).is_dir():
            advice = "run the same `pretune prepare` command again to finish it"
            raise PretuneError(f"{folder}: the store is incomplete; {advice}")
        raise PretuneError(
            f"{folder}: not a token store, because it has no {MANIFEST}; create a store with `pretune prepare`"
        )
    content = read_mapping(path, "the manifest of a token store")
    if content.get("format") != FORMAT:
        raise PretuneError(
            f"{path}: the file is not the manifest of a token store; create a store with `pretune prepare`"
        )
    if content.get("version") != VERSION:
        versions = f"format version {quote(content.get('version'))}, but this version of pretune reads {VERSION}"
        raise PretuneError(f"{path}: the store has {versions}; prepare the store again")
    manifest = validate_schema(read_checksummed_json(path, "the manifest of a token store"), Manifest, str(path))
    for key in ("documents", "sentences", "tokens", "bytes"):
        if manifest[key] != sum(shard[key] for shard in manifest["shards"]):  # type: ignore[literal-required]
            raise PretuneError(
                f"{path}: the number of {key} differs from the sum over the shards, so the file is damaged; prepare the store again"
            )
    validate_schema(manifest["settings"].get("language"), str, f"{path}: settings.language")
    for shard in manifest["shards"]:
        if not is_file_name(shard["file"]):
            name = quote(shard["file"])
            raise PretuneError(f"{path}: the shard {name} is not a plain file name; prepare the store again")
    return dict(manifest)


def partial_folder(folder: Path) -> Path:
    """Return the temporary folder in which a store is built before it is renamed to `folder`."""
    return folder.with_name(folder.name + ".partial")


def check_shard(path: Path, entry: Mapping[str, Any], whole: bool) -> None:
    """Raise an error if a shard file is missing or does not match its `entry` in the manifest.

    Its size is compared and, if `whole`, its checksum, for which the whole file is read.
    """
    again = "restore it from a backup, or prepare the store again"
    if not path.is_file():
        raise PretuneError(f"{path}: the shard is missing; {again}")
    if (size := path.stat().st_size) != entry["size"]:
        raise PretuneError(f"{path}: the shard has {size} bytes, but {entry['size']} in the manifest; {again}")
    if whole and file_digest(path) != entry["sha256"]:
        raise PretuneError(f"{path}: the shard does not match its checksum in the manifest; {again}")


def map_shard(path: Path) -> dict[str, Array]:
    """Return the arrays of a shard by name, as memory maps."""
    header, start = read_header(path)
    room = path.stat().st_size - start
    header.pop("__metadata__", None)
    arrays: dict[str, Array] = {}
    for name, entry in validate_schema(header, dict[str, ArrayEntry], str(path)).items():
        kind, (rows,), (begin, end) = np.dtype(_DTYPES[entry["dtype"]]), entry["shape"], entry["data_offsets"]
        if not begin <= end <= room or end - begin != rows * kind.itemsize:
            raise PretuneError(
                f"{path}: the array {name} extends past the end of the file, which is damaged; prepare the store again"
            )
        arrays[name] = np.zeros(0, dtype=kind)
        if rows:  # an empty array cannot be mapped
            arrays[name] = np.memmap(path, dtype=kind, mode="r", offset=start + begin, shape=(rows,))
    return arrays


def check_arrays(path: Path, arrays: Mapping[str, Array], entry: Mapping[str, Any], vocabulary: int | None) -> None:
    """Raise an error if the arrays of a shard are inconsistent with the manifest of the store.

    Their lengths must be those in `entry`, the manifest entry of the shard, and token ids must be below `vocabulary`,
    the vocabulary size, unless it is None.
    """
    tokens, sentences, documents = entry["tokens"], entry["sentences"], entry["documents"]
    wanted = {"tokens": tokens, "words": -(-tokens // 8), "sentences": sentences + 1, "documents": documents + 1}
    wanted |= {"bytes": documents, "files": documents}
    for name, length in wanted.items():
        if name not in arrays or len(arrays[name]) != length:
            rule = f"{length} entries as in the manifest"
            raise PretuneError(f"{path}: the array {name} does not have {rule}; prepare the store again")
    if vocabulary is not None and tokens and int(arrays["tokens"].max()) >= vocabulary:
        raise PretuneError(f"{path}: a token id is not below the vocabulary size {vocabulary}; prepare the store again")


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """Return the JSON header of a safetensors file, and the offset in bytes at which the data begins."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > 1 << 20:
            raise PretuneError(f"{path}: the shard is damaged; restore it from a backup, or prepare the store again")
        header = parse_json(file.read(size).decode("utf-8", "replace"), str(path))
    return validate_schema(header, dict[str, Any], str(path)), 8 + size
