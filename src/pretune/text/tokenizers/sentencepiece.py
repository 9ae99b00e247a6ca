"""Read SentencePiece .model files, which are protocol buffers, without the SentencePiece library.

Every field of sentencepiece_model.proto is read, known not to affect the ids of a text, or rejected by name.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from pretune.runtime.errors import PretuneError, quote
from pretune.text.tokenizers import backend as tokenizers_library
from pretune.text.tokenizers.backend import library_errors
from pretune.text.tokenizers.sentencepiece_normalizer import build_normalizers

UNIGRAM, BPE, WORD, CHARACTER = 1, 2, 3, 4
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
MARK = "▁"
PROTECTED = 0xE100  # first private-use character that stands in for user-defined symbols during normalization

# Fields of trainer_spec and normalizer_spec that are read: number → attribute of SentencePieceModel, type.
Fields = dict[int, tuple[str, type]]
TRAINER_FIELDS: Fields = {3: ("algorithm", int), 24: ("suffix", bool), 35: ("byte_fallback", bool)}
NORMALIZER_FIELDS: Fields = {
    1: ("rules", str), 2: ("charsmap", bytes), 3: ("dummy_prefix", bool), 4: ("remove_extra_spaces", bool),
    5: ("escape_spaces", bool),
}  # fmt: skip
# Fields about training or decoding, which do not affect the ids of a text.
TRAINING = {
    1: "input", 2: "model_prefix", 4: "vocab_size", 5: "accept_language", 6: "self_test_sample_size", 7: "input_format",
    10: "character_coverage", 11: "input_sentence_size", 12: "mining_sentence_size", 13: "training_sentence_size",
    14: "seed_sentencepiece_size", 15: "shrinking_factor", 16: "num_threads", 17: "num_sub_iterations",
    18: "max_sentence_length", 19: "shuffle_input_sentence", 20: "max_sentencepiece_length",
    21: "split_by_unicode_script", 22: "split_by_whitespace", 23: "split_by_number", 25: "split_digits",
    26: "allow_whitespace_only_pieces", 30: "control_symbols", 31: "user_defined_symbols",
    32: "vocabulary_output_piece_score", 33: "hard_vocab_limit", 34: "use_all_vocab", 36: "required_chars",
    40: "unk_id", 41: "bos_id", 42: "eos_id", 43: "pad_id", 44: "unk_surface", 45: "unk_piece", 46: "bos_piece",
    47: "eos_piece", 48: "pad_piece", 49: "train_extremely_large_corpus", 50: "enable_differential_privacy",
    51: "differential_privacy_noise_level", 52: "differential_privacy_clipping_threshold",
    53: "pretokenization_delimiter", 54: "seed_sentencepieces_file", 55: "auto_character_coverage",
}  # fmt: skip
COMPILED = {6: "normalization_rule_tsv"}  # the source of the compiled rules
AROUND = {4: "self_test_data", 5: "denormalizer_spec"}

Field = tuple[int, bytes | int]
Piece = tuple[str, float, int]  # text, score, type


@dataclass
class SentencePieceModel:
    """The contents of a SentencePiece .model file: pieces with scores and types, and the text normalization.

    `algorithm` is the type of the model, such as UNIGRAM. `suffix` says whether the space marker ends words instead of
    starting them; `rules` is the name of the normalization rules, and `charsmap` has the compiled rules.
    `dummy_prefix`, `remove_extra_spaces` and `escape_spaces` are SentencePiece's settings add_dummy_prefix,
    remove_extra_whitespaces and escape_whitespaces.
    """

    pieces: list[Piece] = field(default_factory=list)
    algorithm: int = UNIGRAM
    byte_fallback: bool = False
    suffix: bool = False  # whether the space marker ends words instead of starting them
    rules: str = ""  # name of the normalization rules
    charsmap: bytes = b""  # the compiled normalization rules
    dummy_prefix: bool = True
    remove_extra_spaces: bool = True
    escape_spaces: bool = True

    def pieces_of_type(self, *types: int) -> list[str]:
        """Return the texts of the vocabulary pieces that have one of the given types."""
        return [piece for piece, _, kind in self.pieces if kind in types]


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Parse a SentencePiece .model file; raise an error for any unsupported setting that would change token ids."""
    try:
        return _parse(path.read_bytes())
    except (IndexError, struct.error, UnicodeDecodeError, ValueError) as error:
        raise PretuneError(f"{path}: damaged, or not a SentencePiece model; restore it from its source") from error
    except PretuneError as error:
        raise PretuneError(f"{path}: {error}") from error


def _parse(data: bytes) -> SentencePieceModel:
    """Parse the bytes of a SentencePiece .model file, the message ModelProto of sentencepiece_model.proto."""
    model = SentencePieceModel()
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            model.pieces.append(_piece(value))
        elif number == 2 and isinstance(value, bytes):
            _read_spec(model, value, TRAINER_FIELDS, TRAINING, "trainer_spec")
        elif number == 3 and isinstance(value, bytes):
            _read_spec(model, value, NORMALIZER_FIELDS, COMPILED, "normalizer_spec")
        else:
            _check_known(number, AROUND, "the model")
    if not model.pieces:
        raise ValueError("the vocabulary of the model is empty; use another file")
    if not model.escape_spaces:
        raise PretuneError(
            "models with escape_whitespaces=false are not supported; train the model with escape_whitespaces=true"
        )
    return model


def _piece(data: bytes) -> Piece:
    """Parse a vocabulary entry (piece) of a SentencePiece model; return its text, score and type."""
    piece, score, kind = "", 0.0, NORMAL
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            piece = value.decode("utf-8")
        elif number == 2 and isinstance(value, bytes):
            (score,) = struct.unpack("<f", value)
        elif number == 3 and isinstance(value, int):
            kind = value
        else:
            _check_known(number, {}, f"piece {quote(piece)}")
    if kind == UNUSED:
        raise PretuneError(f"piece {quote(piece)} has the unsupported type UNUSED; remove it from the vocabulary")
    return piece, score, kind


def _read_spec(model: SentencePieceModel, data: bytes, fields: Fields, harmless: Mapping[int, str], name: str) -> None:
    """Set attributes of `model` from the bytes of a message in its protocol buffer, such as trainer_spec (`name`).

    `fields` maps the numbers of the fields to read to attributes and types. Fields in `harmless` are skipped, because
    they do not affect token ids; any other field raises an error.
    """
    for number, value in _fields(data):
        attribute, kind = fields.get(number, ("", int))
        if attribute and isinstance(value, bytes if kind in (str, bytes) else int):
            setattr(model, attribute, str(value, "utf-8") if isinstance(value, bytes) and kind is str else kind(value))
        else:
            _check_known(number, harmless, name)


def _check_known(number: int, harmless: Mapping[int, str], where: str) -> None:
    if number not in harmless:
        raise PretuneError(f"unknown field {number} in {where}, which may change token ids; use another model")


def _fields(data: bytes) -> Iterator[Field]:
    """Yield (field number, value) for each field of a protocol buffer; the value is an int for varints, else bytes."""
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
            raise ValueError(f"the file is not a protocol buffer, because {wire} is not a wire type; check the path")
        if position + size > len(data):
            raise ValueError("the file is truncated; restore it from its source")
        yield number, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the variable-length integer at `position` in a protocol buffer, and the position after the integer."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def build_sentencepiece_backend(
    model: SentencePieceModel, path: Path, before: Sequence[normalizers.Normalizer] = ()
) -> tokenizers.Tokenizer:
    """Build a tokenizer of the `tokenizers` library that tokenizes text exactly as a SentencePiece model does.

    `path` is the model's file, for error messages; `before` are normalizers that a published tokenizer applies first.
    """
    try:
        content = _tokenizer_json(model, before)
    except PretuneError as error:
        raise PretuneError(f"{path}: {error}") from error
    # Built from JSON so that scores equal those of a saved copy exactly.
    backend = tokenizers_library.build_backend(json.dumps(content), path)
    specials = model.pieces_of_type(UNKNOWN, CONTROL)
    backend.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in specials])
    return backend


def _tokenizer_json(model: SentencePieceModel, before: Sequence[normalizers.Normalizer]) -> dict[str, Any]:
    """Return the content of a tokenizer.json for a SentencePiece model, with the normalizers `before` applied first."""
    shell = tokenizers.Tokenizer(models.BPE())
    with library_errors("its rules or pieces", "not usable", "restore the file, which may be damaged"):
        shell.normalizer = normalizers.Sequence([*before, *_normalizers(model)])
        if cuts := _pre_tokenizers(model):
            shell.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    shell.decoder = _decoder(model)
    content: dict[str, Any] = json.loads(shell.to_str())
    return content | {"model": _segmentation(model)}


def _segmentation(model: SentencePieceModel) -> dict[str, Any]:
    """Return the part of a tokenizer.json that segments words as a SentencePiece model does: Unigram or BPE."""
    unknown = next((i for i, (_, _, kind) in enumerate(model.pieces) if kind == UNKNOWN), None)
    if model.algorithm == UNIGRAM:
        # SentencePiece's score for user-defined symbols, with which they almost always win.
        best = max((score for _, score, kind in model.pieces if kind == NORMAL), default=0.0)
        scores = [
            (piece, len(piece.encode()) * best - 0.1 if kind == USER_DEFINED else score)
            for piece, score, kind in model.pieces
        ]
        return {"type": "Unigram", "unk_id": unknown, "vocab": scores, "byte_fallback": model.byte_fallback}
    if model.algorithm not in (BPE, CHARACTER):
        raise PretuneError("SentencePiece word models are not supported; train a unigram, BPE or character model")
    return {
        "type": "BPE",
        "vocab": {piece: i for i, (piece, _, _) in enumerate(model.pieces)},
        "merges": _merges(model) if model.algorithm == BPE else [],
        "unk_token": None if unknown is None else model.pieces[unknown][0],
        "fuse_unk": True,
        "byte_fallback": model.byte_fallback,
        "ignore_merges": bool(model.pieces_of_type(USER_DEFINED)),  # no merges lead to user-defined symbols
    }


def _merges(model: SentencePieceModel) -> list[tuple[str, str]]:
    """Return the BPE merges of a SentencePiece model, sorted by the score of the merged piece, the highest first."""
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


def _normalizers(model: SentencePieceModel) -> list[normalizers.Normalizer]:
    """Return SentencePiece's normalization steps: rules, whitespace removal, the dummy prefix, and space markers."""
    steps = build_normalizers(model.rules, model.charsmap)
    if model.remove_extra_spaces:
        steps.append(normalizers.Replace(Regex(rf"\A +| +(?= |\z)|[ {MARK}]+\z"), ""))
    whole = normalizers.Sequence(steps)
    # SentencePiece does not normalize user-defined symbols.
    symbols = sorted(model.pieces_of_type(USER_DEFINED), key=len, reverse=True)
    changed = [symbol for symbol in symbols if whole.normalize_str(symbol) != symbol]
    protected = {symbol: chr(PROTECTED + number) for number, symbol in enumerate(changed)}
    steps = [normalizers.Replace(symbol, private) for symbol, private in protected.items()] + steps
    steps += [normalizers.Replace(private, symbol) for symbol, private in protected.items()]
    if model.dummy_prefix:
        last = normalizers.Replace(Regex(r"\z"), MARK)
        steps.append(last if model.suffix else normalizers.Prepend(MARK))
    return [*steps, normalizers.Replace(" ", MARK)]


def _pre_tokenizers(model: SentencePieceModel) -> list[pre_tokenizers.PreTokenizer]:
    """Return pre-tokenizers that split text only at positions that no piece of the vocabulary can extend across.

    They make tokenization faster without changing token ids.
    """
    cuts: list[pre_tokenizers.PreTokenizer] = []
    inside = slice(None, -1) if model.suffix else slice(1, None)
    names = [piece for piece, _, _ in model.pieces]
    if MARK in names and not any(MARK in name[inside] for name in names):
        cuts.append(pre_tokenizers.Split(MARK, "merged_with_previous" if model.suffix else "merged_with_next"))
    symbols = sorted(model.pieces_of_type(USER_DEFINED), key=len, reverse=True)
    if symbols and model.algorithm != UNIGRAM:
        cuts.append(pre_tokenizers.Split(Regex("|".join(map(re.escape, symbols))), "isolated"))
    if model.byte_fallback:  # text such as <0x41> must not match a byte piece
        cuts.append(pre_tokenizers.Split(Regex("<(?=0x[0-9A-F]{2}>)"), "merged_with_previous"))
    return cuts


def _decoder(model: SentencePieceModel) -> decoders.Decoder:
    """Return the decoder that turns space markers in pieces into spaces, and byte pieces into characters."""
    if not model.suffix:
        prepend = "always" if model.dummy_prefix else "never"
        decoder: decoders.Decoder = decoders.Metaspace(replacement=MARK, prepend_scheme=prepend)
    else:
        spaces = [decoders.Replace(MARK, " "), decoders.Fuse()]
        decoder = decoders.Sequence([*spaces, *([decoders.Strip(" ", 0, 1)] if model.dummy_prefix else [])])
    return decoders.Sequence([decoders.ByteFallback(), decoder]) if model.byte_fallback else decoder
