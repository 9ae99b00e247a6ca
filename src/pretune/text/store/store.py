"""The token store: a corpus as memory-mapped token ids, with documents and sentences addressable.

manifest.json           what is inside, with a checksum for each shard
tokenizer.json …        the tokenizer that made the ids
00000.safetensors …     shards, each with
    tokens     (t,)      ids, uint16 while the vocabulary fits, else uint32
    words      (t/8,)    bit k of byte j: token 8j + k starts a word (an annotated span is one)
    sentences  (s+1,)    where each sentence starts in tokens
    documents  (d+1,)    where each document starts in sentences
    bytes      (d,)      UTF-8 bytes of each document, for bits per byte
    files      (d,)      1 where a document is the first of its file, else 0
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Len
from typing_extensions import TypedDict

from pretune.runtime.errors import PretuneError, quote
from pretune.runtime.parsing import conform, is_file_name, parse_json, read_mapping, read_sealed_json
from pretune.text.tokenizers.tokenizer import Tokenizer

FORMAT = "pretune-store"
VERSION = 2  # 2: the manifest has a checksum of itself, and shards name the files of their documents
MANIFEST = "manifest.json"
VERIFY_UP_TO = 8 << 30  # bytes; larger stores are checked for size only when opened

Array = np.ndarray[Any, np.dtype[Any]]
Count = Annotated[int, Ge(0)]
_DTYPES = {"U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64}


class Shard(TypedDict):
    """What the manifest says of a shard."""

    file: str
    documents: Count
    sentences: Count
    tokens: Count
    bytes: Count
    size: Count
    sha256: str


class Entry(TypedDict):
    """What the header of a shard says of an array."""

    dtype: Literal["U8", "U16", "U32", "U64"]
    shape: Annotated[list[Count], Len(1, 1)]
    data_offsets: Annotated[list[Count], Len(2, 2)]


class Manifest(TypedDict):
    """What manifest.json holds."""

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
    shards: list[Shard]


class Store:
    """Read access to a token store. Shards are mapped, not loaded: a store larger than memory is normal.

    >>> store = Store("store/")  # doctest: +SKIP
    >>> store.tokenizer.decode(store.document(0))  # doctest: +SKIP
    """

    def __init__(self, folder: str | Path, verify: bool | None = None) -> None:
        """Open a store. Its checksums are verified unless it is larger than 8 GB or `verify` says otherwise."""
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
        self.spoken = [(str(self.manifest["settings"]["language"]), self.documents)]  # (language, documents) in turn

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the ids."""
        tokenizer = Tokenizer.load(self.folder / "tokenizer.json")
        if tokenizer.digest != self.manifest["tokenizer"]:
            raise PretuneError(f"{self.folder}: tokenizer.json is not the one that made this store; prepare it again")
        return tokenizer

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return int(self.manifest["tokens"])

    @property
    def documents(self) -> int:
        """Number of documents."""
        return int(self.manifest["documents"])

    @property
    def sentences(self) -> int:
        """Number of sentences."""
        return int(self.manifest["sentences"])

    @cached_property
    def _token_bounds(self) -> Array:
        return _running([shard["tokens"] for shard in self.shards])

    @cached_property
    def sentence_offsets(self) -> Array:
        """(sentences + 1,) int64: where each sentence starts, counted over all shards."""
        parts = [m["sentences"][:-1].astype(np.int64) + start for m, start in self._with_start(self._token_bounds)]
        return _rising(np.concatenate([*parts, [self.tokens]]), f"{self.folder}: sentences")

    @cached_property
    def document_offsets(self) -> Array:
        """(documents + 1,) int64: the first sentence of each document, counted over all shards."""
        bounds = _running([shard["sentences"] for shard in self.shards])
        parts = [m["documents"][:-1].astype(np.int64) + start for m, start in self._with_start(bounds)]
        return _rising(np.concatenate([*parts, [self.sentences]]), f"{self.folder}: documents")

    @cached_property
    def document_bytes(self) -> Array:
        """(documents,) int64: UTF-8 bytes of each document."""
        return np.concatenate([m["bytes"].astype(np.int64) for m in self._maps])

    @cached_property
    def document_files(self) -> Array:
        """(documents,) int64: the number of the file that each document comes from, counted over all stores joined."""
        return np.cumsum(np.concatenate([m["files"] for m in self._maps]), dtype=np.int64) - 1

    @property
    def languages(self) -> list[str]:
        """The languages of its documents, in the order of the alphabet."""
        return sorted({language for language, _ in self.spoken})

    @cached_property
    def document_languages(self) -> Array:
        """(documents,) which of the languages each document is in."""
        numbers = {language: number for number, language in enumerate(self.languages)}
        return np.repeat([numbers[language] for language, _ in self.spoken], [count for _, count in self.spoken])

    def in_language(self, language: str) -> Store:
        """The same documents, said to be in a language."""
        store = copy(self)
        store.__dict__.pop("document_languages", None)
        store.spoken = [(language, self.documents)]
        return store

    def cut_at(self, sentences: Array) -> Store:
        """Return the same text in more documents: a new one begins at each of these sentences, too.

        How many bytes each part of a document has is not kept: they are shared out by its tokens.
        """
        old = self.document_offsets
        offsets = np.sort(np.concatenate([old, np.setdiff1d(sentences, old)]))
        owner = np.clip(np.searchsorted(old, offsets[:-1], side="right") - 1, 0, self.documents - 1)
        tokens, whole = (np.diff(self.sentence_offsets[bounds]) for bounds in (offsets, old))
        store = copy(self)
        store.manifest = self.manifest | {"documents": len(offsets) - 1}
        store.spoken = [(self.languages[number], 1) for number in self.document_languages[owner]]
        store.__dict__.pop("document_languages", None)
        shares = self.document_bytes[owner] * tokens / np.maximum(1, whole[owner])
        store.__dict__ |= {"document_offsets": offsets, "document_bytes": shares.astype(np.int64)}
        store.__dict__["document_files"] = self.document_files[owner]
        return store

    def _with_start(self, bounds: Array) -> Any:
        return zip(self._maps, bounds[:-1], strict=True)

    def document(self, index: int) -> Array:
        """Ids of a document."""
        first, last = self.document_offsets[index], self.document_offsets[index + 1]
        return self.read(int(self.sentence_offsets[first]), int(self.sentence_offsets[last]))

    def sentence(self, index: int) -> Array:
        """Ids of a sentence."""
        return self.read(int(self.sentence_offsets[index]), int(self.sentence_offsets[index + 1]))

    def read(self, start: int, end: int) -> Array:
        """Ids of the tokens from start to end, which may lie in several shards."""
        return self.gather(np.array([start]), np.array([end - start]))

    def gather(self, starts: Array, lengths: Array) -> Array:
        """Ids of many spans end to end: (sum of lengths,)."""
        return self._gather("tokens", starts, lengths)

    def gather_words(self, starts: Array, lengths: Array) -> Array:
        """Word starts of many spans end to end, True where a token begins a word: (sum of lengths,)."""
        return self._gather("words", starts, lengths)

    def odd_words(self, starts: Array, lengths: Array) -> tuple[Array, Array]:
        """None: how unknown words were spelled is not kept."""
        return np.empty(0, dtype=np.int64), np.empty((0, self.tokenizer.characters), dtype=np.int16)

    def _gather(self, name: str, starts: Array, lengths: Array) -> Array:
        starts, lengths = np.asarray(starts, dtype=np.int64), np.asarray(lengths, dtype=np.int64)
        if len(starts) and (starts.min() < 0 or (starts + lengths).max() > self.tokens):
            raise IndexError("a span lies outside the store")
        bounds = self._token_bounds
        out = np.empty(int(lengths.sum()), dtype=bool if name == "words" else self._maps[0]["tokens"].dtype)
        places = np.cumsum(lengths) - lengths  # where each span goes
        first = np.searchsorted(bounds, starts, side="right") - 1
        crossing = (lengths > 0) & (starts + lengths > bounds[np.minimum(first + 1, len(bounds) - 1)])
        while crossing.any():  # cut spans at the end of their shard
            room = bounds[first[crossing] + 1] - starts[crossing]
            starts = np.concatenate([starts, starts[crossing] + room])
            places = np.concatenate([places, places[crossing] + room])
            lengths = np.concatenate([lengths, lengths[crossing] - room])
            lengths[: len(crossing)][crossing] = room
            first = np.searchsorted(bounds, starts, side="right") - 1
            crossing = starts + lengths > bounds[np.minimum(first + 1, len(bounds) - 1)]
        for shard in np.unique(first[lengths > 0]):
            mine = (first == shard) & (lengths > 0)
            local = spans_to_indices(starts[mine] - bounds[shard], lengths[mine])
            array = self._maps[shard][name]
            found = array[local] if name == "tokens" else (array[local >> 3] >> (local & 7)) & 1
            if mine.all():
                return found.astype(out.dtype, copy=False)
            out[spans_to_indices(places[mine], lengths[mine])] = found
        return out

    def describe(self) -> dict[str, Any]:
        """What there is to say about it, for reports."""
        names = ("documents", "sentences", "tokens", "bytes", "dtype", "vocabulary", "empty_documents", "settings")
        size = sum(shard["size"] for shard in self.shards)
        return {
            "store": str(self.folder),
            **{name: self.manifest[name] for name in names},
            "shards": len(self.shards),
            "size_on_disk": size,
            "tokens_per_sentence": self.tokens / max(1, self.sentences),
            "bytes_per_token": self.manifest["bytes"] / max(1, self.tokens),
        }


def join_stores(stores: Sequence[Store]) -> Store:
    """Several stores, made with one tokenizer, as one: their documents in turn, each in its own language.

    >>> join_stores([Store("english/"), Store("russian/")]).languages  # doctest: +SKIP
    ['en', 'ru']
    """
    first = stores[0]
    for store in stores[1:]:
        if store.manifest["tokenizer"] != first.manifest["tokenizer"]:
            raise PretuneError(
                f"{first.folder} and {store.folder} were made with different tokenizers; prepare one again"
            )
    if len(stores) == 1:
        return first
    joined = copy(first)
    for name in [name for name, value in vars(Store).items() if isinstance(value, cached_property)]:
        joined.__dict__.pop(name, None)
    counted = ("documents", "sentences", "tokens", "bytes", "empty_documents")
    joined.shards = [shard for store in stores for shard in store.shards]
    joined.manifest = first.manifest | {key: sum(store.manifest[key] for store in stores) for key in counted}
    joined._maps = [arrays for store in stores for arrays in store._maps]
    joined.spoken = [entry for store in stores for entry in store.spoken]
    return joined


def spans_to_indices(starts: Array, lengths: Array) -> Array:
    """Every index that some spans cover, span after span.

    >>> spans_to_indices(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    shift = np.repeat(np.asarray(starts, dtype=np.int64) - (ends - lengths), lengths)
    indices: Array = np.arange(total, dtype=np.int64) + shift
    return indices


def _running(counts: list[int]) -> Array:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _rising(offsets: Array, what: str) -> Array:
    """Return offsets if they start at 0 and never fall."""
    if offsets[0] != 0 or (np.diff(offsets) < 0).any():
        raise PretuneError(f"{what} begin outside the text, or before those in front of them; prepare the store again")
    return offsets


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a store, or a clear word on what the folder is instead."""
    path = folder / MANIFEST
    if not path.is_file():
        if partial_folder(folder).is_dir():
            raise PretuneError(f"{folder}: this store is unfinished; run the same `pretune prepare` again to finish it")
        raise PretuneError(f"{folder}: no token store here (no {MANIFEST}); make one with `pretune prepare`")
    content = read_mapping(path, "the manifest of a token store")
    if content.get("format") != FORMAT:
        raise PretuneError(f"{path}: not the manifest of a token store; make one with `pretune prepare`")
    if content.get("version") != VERSION:
        raise PretuneError(
            f"{path}: version {quote(content.get('version'))} of the format, but this pretune reads {VERSION}; "
            "prepare the store again"
        )
    manifest = conform(read_sealed_json(path, "the manifest of a token store"), Manifest, str(path))
    for key in ("documents", "sentences", "tokens", "bytes"):
        if manifest[key] != sum(shard[key] for shard in manifest["shards"]):  # type: ignore[literal-required]
            raise PretuneError(f"{path}: the number of {key} is not that of the shards; prepare the store again")
    conform(manifest["settings"].get("language"), str, f"{path}: settings.language")
    for shard in manifest["shards"]:
        if not is_file_name(shard["file"]):
            raise PretuneError(f"{path}: names {quote(shard['file'])}, which is not a file beside it")
    return dict(manifest)


def partial_folder(folder: Path) -> Path:
    """Where a store grows until it is whole."""
    return folder.with_name(folder.name + ".partial")


def check_shard(path: Path, entry: Mapping[str, Any], whole: bool) -> None:
    """Refuse a shard that is missing, cut off or altered."""
    again = "restore it, or prepare the store again"
    if not path.is_file():
        raise PretuneError(f"{path}: this shard is missing; {again}")
    if path.stat().st_size != entry["size"]:
        raise PretuneError(f"{path}: {path.stat().st_size} bytes where the manifest has {entry['size']}; {again}")
    if whole and file_digest(path) != entry["sha256"]:
        raise PretuneError(f"{path}: the contents do not match the checksum in the manifest; {again}")


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def map_shard(path: Path) -> dict[str, Array]:
    """Return the arrays of a safetensors file as memory maps."""
    header, start = read_header(path)
    room = path.stat().st_size - start
    header.pop("__metadata__", None)
    arrays: dict[str, Array] = {}
    for name, entry in conform(header, dict[str, Entry], str(path)).items():
        kind, (rows,), (begin, end) = np.dtype(_DTYPES[entry["dtype"]]), entry["shape"], entry["data_offsets"]
        if not begin <= end <= room or end - begin != rows * kind.itemsize:
            raise PretuneError(f"{path}: {name} is not inside the file; the shard is damaged: prepare the store again")
        arrays[name] = (
            np.memmap(path, dtype=kind, mode="r", offset=start + begin, shape=(rows,))
            if rows
            else np.zeros(0, dtype=kind)
        )
    return arrays


def check_arrays(path: Path, arrays: Mapping[str, Array], entry: Mapping[str, Any], vocabulary: int | None) -> None:
    """Refuse arrays that are not as long as the manifest says, or with ids outside the vocabulary, if that is given."""
    tokens, sentences, documents = entry["tokens"], entry["sentences"], entry["documents"]
    wanted = {"tokens": tokens, "words": -(-tokens // 8), "sentences": sentences + 1, "documents": documents + 1}
    wanted |= {"bytes": documents, "files": documents}
    for name, length in wanted.items():
        if name not in arrays or len(arrays[name]) != length:
            raise PretuneError(
                f"{path}: {name} does not have the {length} entries that the manifest says; prepare it again"
            )
    if vocabulary is not None and tokens and int(arrays["tokens"].max()) >= vocabulary:
        raise PretuneError(
            f"{path}: a token's id is not below the size of the vocabulary, {vocabulary}; prepare it again"
        )


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The JSON header of a safetensors file, and where its data start."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > 1 << 20:
            raise PretuneError(f"{path}: damaged shard; restore it, or prepare the store again")
        header = parse_json(file.read(size).decode("utf-8", "replace"), str(path))
    return conform(header, dict[str, Any], str(path)), 8 + size
