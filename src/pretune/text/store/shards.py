"""Build shards: split texts into sentences and tokenize them, in worker processes whose parts are then joined.

A worker reads frames of texts from stdin, writes a part of a shard to stdout for each, and ends when its parent does:
nothing keeps running in the background after a kill, and only the parent writes files.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import IO, Self

import numpy as np
from safetensors.numpy import load, save

from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError, if_option
from pretune.text.corpus.annotations import inside_spans
from pretune.text.corpus.sentences import split_sentences
from pretune.text.tokenizers.tokenizer import Tokenizer

DOCUMENTS_AT_ONCE = 32  # few enough to stay in the CPU cache
NO_SPANS = np.empty((0, 3), dtype=np.int64)


def build_part(texts: Sequence[str], tokenizer: Tokenizer, language: str, spans: Array = NO_SPANS) -> dict[str, Array]:
    """Tokenize texts; return arrays of token ids, word starts, sentence lengths, and sentences and bytes per text.

    The ids of a sentence include the whitespace before it, as in running text for tokenizers that keep spaces. `spans`
    (k, 3) lists the text index, start and end, sorted by text, of spans that count as one word within a sentence.
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
    """Join arrays of parts of a shard, as `build_part` returns them, into the arrays of the whole shard."""
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    whole["words"] = np.packbits(whole["words"], bitorder="little")
    for name in ("sentences", "documents"):
        whole[name] = np.concatenate([[0], np.cumsum(whole[name])]).astype(np.uint32)
    return whole


def sentences_with_spaces(text: str, language: str) -> list[str]:
    """Return the sentences of a text as strings, each with the whitespace before it."""
    bounds = [0, *(end for _, end in split_sentences(text, language))]
    return [text[start:end] for start, end in pairwise(bounds)]


def serialize_shard(arrays: dict[str, Array], source: str) -> bytes:
    """Return the bytes of a shard file; its header has `source`, the digest of its input, and the digest of its content."""
    # A single metadata key, because the library writes several in an unpredictable order.
    return save(arrays, metadata={"pretune": json.dumps({"source": source, "content": content_digest(arrays)})})


def content_digest(arrays: dict[str, Array]) -> str:
    """Return the SHA-256 digest of the arrays of a shard."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def pack_texts(texts: Sequence[str], spans: Array = NO_SPANS) -> bytes:
    """Serialize texts and their annotated spans (k, 3): the number of texts, their lengths, the texts, the spans."""
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


class ShardWorker:
    """A worker process that tokenizes texts into the arrays of a token store."""

    def __init__(self, tokenizer: Tokenizer, language: str) -> None:
        source = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"}
        # A new process, not a fork: it does not depend on the caller's threads and main module.
        # In a separate session, Ctrl-C reaches only the parent.
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from pretune.text.store.shards import serve_worker; serve_worker()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.to, self.back = self.process.stdin, self.process.stdout
        self._send(json.dumps({"tokenizer": tokenizer.state(), "language": language}).encode())

    def build(self, packed_texts: bytes) -> dict[str, Array]:
        """Tokenize texts, serialized by `pack_texts`, in the worker process; return the arrays of `build_part`."""
        self._send(packed_texts)
        if (part := _read_frame(self.back)) is None:
            raise self._ended()
        return load(part)

    def _send(self, frame: bytes) -> None:
        try:
            _write_frame(self.to, frame)
        except BrokenPipeError as error:
            raise self._ended() from error

    def _ended(self) -> PretuneError:
        advice = if_option("processes", "; try fewer --processes")
        code = self.process.wait()
        return PretuneError(f"a tokenizer process ended with exit code {code}, perhaps out of memory{advice}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.back.close()
        with suppress(BrokenPipeError):
            self.to.close()


def serve_worker() -> None:
    """Run a worker process: read a tokenizer and a language from stdin, then tokenize each message until stdin ends."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    setting = json.loads(_read_frame(source) or b"{}")
    tokenizer, language = Tokenizer.from_state(setting["tokenizer"]), setting["language"]
    while (packed := _read_frame(source)) is not None:
        _write_frame(sink, save(build_packed_part(packed, tokenizer, language)))


def _write_frame(stream: IO[bytes], content: bytes) -> None:
    stream.write(len(content).to_bytes(8, "little"))
    stream.write(content)
    stream.flush()


def _read_frame(stream: IO[bytes]) -> bytes | None:
    """Return the next message of a stream, which starts with its size; None if the stream ends before the message."""
    header = stream.read(8)
    if len(header) < 8:
        return None
    size = int.from_bytes(header, "little")
    content = stream.read(size)
    return content if len(content) == size else None
