"""Reading a sentencepiece .model file, a protocol buffer, without the library that wrote it.

Only the fields that decide how text is cut are read; their numbers are those of sentencepiece_model.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from pretune.errors import PretuneError

UNIGRAM, BPE = 1, 2
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
MARK = "▁"

Field = tuple[int, bytes | int]


@dataclass
class SentencePieceModel:
    """What a .model file holds: pieces with scores and types, and how text is normalized first."""

    pieces: list[tuple[str, float, int]] = field(default_factory=list)
    algorithm: int = UNIGRAM
    byte_fallback: bool = False
    character_map: bytes = b""
    dummy_prefix: bool = True
    remove_extra_whitespace: bool = True


def read_model(path: Path) -> SentencePieceModel:
    """Parse a .model file."""
    try:
        return _parse(path.read_bytes())
    except (IndexError, struct.error, UnicodeDecodeError, ValueError) as error:
        raise PretuneError(f"{path}: damaged or not a sentencepiece model") from error


def _parse(data: bytes) -> SentencePieceModel:
    model = SentencePieceModel()
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):  # a piece
            piece, score, kind = "", 0.0, NORMAL
            for inner, content in _fields(value):
                if inner == 1 and isinstance(content, bytes):
                    piece = content.decode("utf-8")
                elif inner == 2 and isinstance(content, bytes):
                    (score,) = struct.unpack("<f", content)
                elif inner == 3 and isinstance(content, int):
                    kind = content
            model.pieces.append((piece, score, kind))
        elif number == 2 and isinstance(value, bytes):  # how it was trained
            for inner, content in _fields(value):
                if inner == 3 and isinstance(content, int):
                    model.algorithm = content
                elif inner == 35:
                    model.byte_fallback = bool(content)
        elif number == 3 and isinstance(value, bytes):  # how text is normalized
            for inner, content in _fields(value):
                if inner == 2 and isinstance(content, bytes):
                    model.character_map = content
                elif inner == 3:
                    model.dummy_prefix = bool(content)
                elif inner == 4:
                    model.remove_extra_whitespace = bool(content)
    if not model.pieces:
        raise ValueError("no pieces")
    return model


def _fields(data: bytes) -> Iterator[Field]:
    """(number, value) of each field: an int for varints, the raw bytes for everything else."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, position = _varint(data, position)
            yield number, value
            continue
        if wire == 2:
            size, position = _varint(data, position)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if position + size > len(data):
            raise ValueError("cut off")
        yield number, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def build_backend(model: SentencePieceModel) -> tokenizers.Tokenizer:
    """The same segmentation on the `tokenizers` library."""
    if model.algorithm not in (UNIGRAM, BPE):
        raise PretuneError("sentencepiece word and character models are not supported, only unigram and BPE")
    names = [piece for piece, _, _ in model.pieces]
    unknown = next((i for i, (_, _, kind) in enumerate(model.pieces) if kind == UNKNOWN), None)
    if model.algorithm == UNIGRAM:
        scores = [(piece, score) for piece, score, _ in model.pieces]
        backend = tokenizers.Tokenizer(
            models.Unigram(scores, unk_id=unknown, byte_fallback=model.byte_fallback)  # type: ignore[call-arg]
        )
    else:
        backend = tokenizers.Tokenizer(
            models.BPE(
                {piece: i for i, piece in enumerate(names)},
                _merges(model),
                unk_token=None if unknown is None else names[unknown],
                fuse_unk=True,
                byte_fallback=model.byte_fallback,
            )
        )
    steps: list[normalizers.Normalizer] = []
    if model.character_map:
        steps.append(normalizers.Precompiled(model.character_map))
    if model.remove_extra_whitespace:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    backend.normalizer = normalizers.Sequence(steps)
    scheme = "always" if model.dummy_prefix else "never"
    crosses = any(MARK in name[1:].strip(MARK) for name in names)  # pieces of several words need the text uncut
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme=scheme, split=not crosses)
    metaspace = decoders.Metaspace(replacement=MARK, prepend_scheme=scheme)
    if model.byte_fallback:
        backend.decoder = decoders.Sequence([decoders.ByteFallback(), metaspace])
    else:
        backend.decoder = metaspace
    backend.add_special_tokens(
        [
            AddedToken(piece, special=True, normalized=False)
            for piece, _, kind in model.pieces
            if kind in (UNKNOWN, CONTROL)
        ]
    )
    if model.algorithm == BPE:  # Unigram takes user-defined pieces by their score, which is the best there is
        defined = [piece for piece, _, kind in model.pieces if kind == USER_DEFINED]
        backend.add_tokens([AddedToken(piece, normalized=False) for piece in defined])
    return backend


def _merges(model: SentencePieceModel) -> list[tuple[str, str]]:
    """BPE merges in the order of the merged pieces' scores (sentencepiece merges the best-scored pair first)."""
    ranks = {piece: i for i, (piece, _, _) in enumerate(model.pieces)}
    merges = []
    for piece, score, kind in model.pieces:
        if kind != NORMAL:
            continue
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in ranks and right in ranks:
                merges.append((-score, ranks[left], ranks[right], left, right))
    return [(left, right) for _, _, _, left, right in sorted(merges)]
