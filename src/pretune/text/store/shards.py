"""Build shards: split texts into sentences and tokenize them, in worker processes whose parts are then joined."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from pretune.runtime.arrays import Array
from pretune.text.corpus.annotations import inside_spans
from pretune.text.corpus.sentences import split_sentences
from pretune.text.store.worker_process import WorkerProcess
from pretune.text.tokenizers.tokenizer import Tokenizer

DOCUMENTS_AT_ONCE = 32  # few enough to stay in the CPU cache
NO_SPANS = np.empty((0, 3), dtype=np.int64)


def build_part(texts: Sequence[str], tokenizer: Tokenizer, language: str, spans: Array = NO_SPANS) -> dict[str, Array]:
    """Tokenize texts, and return the arrays of a part of a shard.

    The arrays are: token ids (`tokens`), a mask of the tokens that begin a word (`words`), tokens per sentence
    (`sentences`), sentences per text (`documents`), and UTF-8 bytes per text (`bytes`).

    The ids of a sentence include those of the whitespace before it, as in running text, if the tokenizer keeps spaces.
    `spans` (k, 3) lists the text index, start and end of k annotated spans, sorted by text; each span counts as one
    word within a sentence.
    """
    ids, lengths, sentences = [], [], []
    split: list[list[str]] = []
    for start in range(0, len(texts), DOCUMENTS_AT_ONCE):
        documents = [sentences_with_spaces(text, language) for text in texts[start : start + DOCUMENTS_AT_ONCE]]
        flat, counts = tokenizer.encode_parts(documents)
        owners = np.repeat(np.arange(len(documents)), [len(sentences) for sentences in documents])
        real = counts > 0  # a sentence of only control characters may have no tokens
        ids.append(flat)
        lengths.append(counts[real])
        sentences.append(np.bincount(owners[real], minlength=len(documents)))
        split += documents
    tokens, counts = np.concatenate(ids), np.concatenate(lengths)
    per_text = np.concatenate(sentences)
    words = tokenizer.word_starts(tokens)
    if len(spans):
        first = np.append(0, np.cumsum(counts))[np.append(0, np.cumsum(per_text))]  # first token of each text
        bounds = np.searchsorted(spans[:, 0], np.arange(len(texts) + 1))
        for i in np.flatnonzero(np.diff(bounds)).tolist():
            inside = inside_spans(tokenizer.part_offsets(split[i]), spans[bounds[i] : bounds[i + 1], 1:])
            words[first[i] : first[i + 1]] &= ~inside
    words[np.cumsum(counts) - counts] = True  # every sentence starts a word
    return {
        "tokens": tokens,
        "words": words,
        "sentences": counts,
        "documents": per_text,
        "bytes": np.array([len(text.encode()) for text in texts], dtype=np.uint64),
    }


def join_parts(parts: Sequence[dict[str, Array]]) -> dict[str, Array]:
    """Join the arrays of the parts of a shard, which `build_part` returned, into the arrays of the whole shard."""
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    whole["words"] = np.packbits(whole["words"], bitorder="little")
    for name in ("sentences", "documents"):
        whole[name] = np.concatenate([[0], np.cumsum(whole[name])]).astype(np.uint32)
    return whole


def sentences_with_spaces(text: str, language: str) -> list[str]:
    """Return the sentences of a text as strings, each including the whitespace that precedes it."""
    bounds = [0, *(end for _, end in split_sentences(text, language))]
    return [text[start:end] for start, end in pairwise(bounds)]


def serialize_shard(arrays: dict[str, Array], source: str) -> bytes:
    """Return the bytes of a shard file, given its arrays.

    The header contains `source`, a digest of the input of the shard, and a digest of the arrays.
    """
    # A single metadata key, because the library writes several in an unpredictable order.
    return save(arrays, metadata={"pretune": json.dumps({"source": source, "content": content_digest(arrays)})})


def content_digest(arrays: dict[str, Array]) -> str:
    """Return the SHA-256 digest of the arrays of a shard."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def pack_texts(texts: Sequence[str], spans: Array = NO_SPANS) -> bytes:
    """Serialize texts and their annotated spans as bytes, for a worker process.

    The bytes contain the number of texts, their lengths, the texts, and the spans, (k, 3): text index, start and end of
    each of k spans.
    """
    encoded = [text.encode() for text in texts]
    sizes = np.array([len(encoded), *map(len, encoded)], dtype=np.uint64)
    return b"".join([sizes.tobytes(), *encoded, spans.tobytes()])


def unpack_texts(content: bytes) -> tuple[list[str], Array]:
    """Return the texts and spans that `pack_texts` serialized."""
    count = int.from_bytes(content[:8], "little")
    sizes = np.frombuffer(content, dtype=np.uint64, count=count, offset=8).astype(np.int64)
    ends = 8 * (count + 1) + np.cumsum(sizes)
    texts = [content[end - size : end].decode() for end, size in zip(ends.tolist(), sizes.tolist(), strict=True)]
    spans = content[8 * (count + 1) + int(sizes.sum()) :]
    return texts, np.frombuffer(spans, dtype=np.int64).reshape(-1, 3)


def build_packed_part(packed_texts: bytes, tokenizer: Tokenizer, language: str) -> dict[str, Array]:
    """Tokenize texts that were serialized by `pack_texts`; return the arrays of `build_part`."""
    texts, spans = unpack_texts(packed_texts)
    return build_part(texts, tokenizer, language, spans)


class ShardWorker(WorkerProcess):
    """A worker process that tokenizes texts into the arrays of a token store."""

    def __init__(self, tokenizer: Tokenizer, language: str) -> None:
        super().__init__(__name__, "tokenize_frames", {"tokenizer": tokenizer.state(), "language": language})

    def build(self, packed_texts: bytes) -> dict[str, Array]:
        """Tokenize texts, serialized by `pack_texts`, in the worker process; return the arrays of `build_part`."""
        return load(self.answer(packed_texts))


def tokenize_frames(settings: dict[str, Any]) -> Callable[[bytes], bytes]:
    """Return the function with which a worker process answers requests (frames).

    A request contains texts serialized by `pack_texts`; the answer contains the serialized arrays of `build_part`.
    """
    tokenizer, language = Tokenizer.from_state(settings["tokenizer"]), settings["language"]
    return lambda packed: save(build_packed_part(packed, tokenizer, language))
