"""Tests that SentencePiece models tokenize like the SentencePiece library, with every training option."""

from __future__ import annotations

import io
import json
import unicodedata
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2 as proto

from pretune import PretuneError
from pretune.text.tokenizers import sentencepiece as ours
from pretune.text.tokenizers.tokenizer import Tokenizer
from tests.support.texts import KOREAN, RUSSIAN, T5_IDS, english_documents
from tests.support.tricky_strings import TRICKY

LINES = [
    line for text in (*english_documents()[:12], *RUSSIAN * 3, *KOREAN * 3, *TRICKY * 2) for line in text.splitlines()
]
SYMBOLS = ["(", "<x>", "newtoken", "\n", "１", "don't", "ﬁ"]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"byte_fallback": True},
    {"treat_whitespace_as_suffix": True},
    {"remove_extra_whitespaces": False},
    {"add_dummy_prefix": False},
    {"normalization_rule_name": "identity"},
    {"normalization_rule_name": "nfkc"},
    {"normalization_rule_name": "nmt_nfkc_cf"},
    {"normalization_rule_name": "nfkc_cf", "remove_extra_whitespaces": False},
    {"user_defined_symbols": SYMBOLS},
    {"user_defined_symbols": SYMBOLS, "treat_whitespace_as_suffix": True, "byte_fallback": True},
    {"split_digits": True, "allow_whitespace_only_pieces": True, "remove_extra_whitespaces": False,
     "normalization_rule_name": "identity"},
    {"split_by_whitespace": False},
    {"split_by_whitespace": False, "treat_whitespace_as_suffix": True},
    {"add_dummy_prefix": False, "treat_whitespace_as_suffix": True},
    {"remove_extra_whitespaces": False, "treat_whitespace_as_suffix": True, "byte_fallback": True},
    {"remove_extra_whitespaces": False, "add_dummy_prefix": False},
    {"control_symbols": ["[MASK]", "<extra_id_0>"], "pad_id": 3},
]  # fmt: skip
# When it folds case, the library does not change some letters with combining marks: İ, and ᾳ and similar ones.
UNFOLDED = ("I\u0307", "\u0345")


@cache
def train(algorithm: str, options: str) -> bytes:
    given: dict[str, Any] = json.loads(options)
    size = {"char": 350}.get(algorithm, 800) + 256 * given.get("byte_fallback", False)
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for line in LINES if line.strip() and "\0" not in line]),
        model_writer=written,
        model_type=algorithm,
        **{"vocab_size": size, "character_coverage": 0.99, "hard_vocab_limit": False, "minloglevel": 2} | given,
    )
    return written.getvalue()


def load(folder: Path, model: bytes, name: str = "some.model", **files: Any) -> Tokenizer:
    (folder / name).write_bytes(model)
    for file, content in files.items():
        (folder / f"{file}.json").write_text(json.dumps(content), encoding="utf-8")
    return Tokenizer.load(folder)


def same(tokenizer: Tokenizer, library: sentencepiece.SentencePieceProcessor, text: str, expected: list[int]) -> bool:
    """Return whether ids are as expected; of two segmentations with equal scores, either is accepted."""
    ids = tokenizer.encode(text)
    scores = [sum(map(library.get_score, row)) for row in (ids, expected)]
    tie = scores[0] == pytest.approx(scores[1], abs=1e-3) and library.decode(ids) == library.decode(expected)
    return ids == expected or (tokenizer.kind == "Unigram" and tie)


@pytest.mark.not_fast
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "default")
@pytest.mark.parametrize("algorithm", ["unigram", "bpe", "char"])
def test_every_option_of_the_library_gives_the_same_pieces(
    algorithm: str, options: dict[str, Any], tmp_path: Path
) -> None:
    model = train(algorithm, json.dumps(options))
    library, tokenizer = sentencepiece.SentencePieceProcessor(model_proto=model), load(tmp_path, model)
    assert tokenizer.size == library.get_piece_size()
    folds = options.get("normalization_rule_name", "").endswith("_cf")
    texts = [text for text in (*TRICKY, *LINES[::40]) if not (folds and any(odd in text for odd in UNFOLDED))]
    wrong = [text for text in texts if not same(tokenizer, library, text, library.encode(text))]
    assert not wrong
    tokenizer.save(tmp_path / "saved")
    again = Tokenizer.load(tmp_path / "saved")
    assert again.digest == tokenizer.digest
    assert all(again.encode(text) == tokenizer.encode(text) for text in TRICKY)


@pytest.mark.not_fast
@pytest.mark.parametrize("rule", ["nmt_nfkc", "nfkc_cf"])
def test_any_text_is_normalized_like_in_the_library(rule: str, tmp_path: Path) -> None:
    model = train("char", json.dumps({"normalization_rule_name": rule}))
    library, tokenizer = sentencepiece.SentencePieceProcessor(model_proto=model), load(tmp_path, model)
    assert tokenizer.backend.normalizer is not None
    # Letters with the marks of their script, composed and decomposed, in Unicode order and in typing order.
    letters = ["aé", "Ж\u0301Ёй", "ＡÅﬁ½²", "ｶﾞﾊﾟガば", "각한", "\u1100\u1161\u11a8", "שׁבּ", "ב\u05bc\u05b7", "م\u0651\u064e",
               "क़\u093f", "ঢ়ো", "ệ", "ê\u0301", "o\u0323\u0302", "ἄΆ", "Ａ\u0301", "Q\u0301", "ﬁ\u0301", "e\u0301\u0301",
               "👩\u200d👧\ufe0f", "ＩſK", " ", "\t", "\r\n", "\u200b", "\x01", "\u3000", "▁"]  # fmt: skip
    units = [*letters, *(unicodedata.normalize("NFD", text) for text in letters)]

    @given(st.lists(st.sampled_from(units), max_size=8).map("".join))
    def check(text: str) -> None:
        assert tokenizer.backend.normalizer.normalize_str(text) == library.normalize(text)

    check()


def test_custom_rules_are_applied_or_rejected(tmp_path: Path) -> None:
    rules = tmp_path / "rules.tsv"
    rules.write_text("41\t42\n2603\t73 6e 6f 77\n7f\t\n")  # A → B, ☃ → snow, DEL → nothing
    options = json.dumps({"normalization_rule_tsv": str(rules)})
    library = sentencepiece.SentencePieceProcessor(model_proto=train("bpe", options))
    tokenizer = load(tmp_path, train("bpe", options))
    for text in [*TRICKY, "A ☃A\u0301 ☃\u0301 B\x7f"]:
        assert same(tokenizer, library, text, library.encode(text)), text
    rules.write_text("2e 2e 2e\t2026\n")  # ... → …
    with pytest.raises(PretuneError, match=r"rules for several characters, such as '\.\.\.' → '…', are not supported"):
        load(tmp_path, train("bpe", json.dumps({"normalization_rule_tsv": str(rules), "vocab_size": 700})))


def edited(**fields: Any) -> bytes:
    model = proto.ModelProto.FromString(train("bpe", "{}"))
    for name, value in fields.items():
        part, field = name.split("__")
        setattr(getattr(model, part), field, value)
    return bytes(model.SerializeToString())


def unused() -> bytes:
    model = proto.ModelProto.FromString(train("bpe", "{}"))
    model.pieces[-1].type = proto.ModelProto.SentencePiece.UNUSED
    return bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: train("word", "{}"), "word models are not supported"),
        (lambda: edited(normalizer_spec__escape_whitespaces=False), "escape_whitespaces=false are not supported"),
        (unused, "has the unsupported type UNUSED"),
        (lambda: train("bpe", "{}") + b"\xba\x3e\x01x", "unknown field 999 in the model"),
    ],
)
def test_unsupported_settings_that_change_ids_raise_errors(
    model: Callable[[], bytes], message: str, tmp_path: Path
) -> None:
    with pytest.raises(PretuneError, match=message):
        load(tmp_path, model())


def test_every_field_of_the_format_is_read_or_known_to_be_harmless() -> None:
    read = {"trainer_spec": ours.TRAINER_FIELDS.keys(), "normalizer_spec": ours.NORMALIZER_FIELDS.keys()}
    harmless = {"trainer_spec": ours.TRAINING, "normalizer_spec": ours.COMPILED}
    fields = proto.ModelProto.DESCRIPTOR.fields_by_name
    for part, numbers in read.items():
        known = {field.number: field.name for field in fields[part].message_type.fields}
        assert known.keys() <= numbers | harmless[part].keys()
        assert all(known.get(number, name) == name for number, name in harmless[part].items())
    assert {field.number for field in fields.values()} <= {1, 2, 3} | ours.AROUND.keys()
    # Fields that only describe the training of a model change nothing.
    changed = edited(
        trainer_spec__split_digits=True, trainer_spec__unk_surface=" ?? ", trainer_spec__split_by_number=False
    )
    one, other = (ours._parse(model) for model in (train("bpe", "{}"), changed))
    assert one == other


# -- published classes on top of the library
# ----------------------------------------------------------------------------


def normalize_like_albert(text: str, lower: bool, accents: bool) -> str:
    """Normalize a text like ALBERT and XLNet."""
    text = " ".join(text.split()).replace("``", '"').replace("''", '"')
    if not accents:
        text = "".join(c for c in unicodedata.normalize("NFKD", text) if unicodedata.category(c)[0] != "M")
    return "".join(character.lower() for character in text) if lower else text


ALBERT = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]}
XLNET = {
    "unk_id": 0,
    "bos_id": 1,
    "eos_id": 2,
    "control_symbols": ["<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"],
}


@pytest.mark.parametrize(
    ("options", "config", "lower", "accents"),
    [
        (ALBERT, {"tokenizer_class": "AlbertTokenizer"}, True, False),
        (ALBERT, {"do_lower_case": False}, False, False),
        (ALBERT, {"do_lower_case": True, "keep_accents": True}, True, True),
        (ALBERT, {}, False, False),  # the vocabulary has capitals
        (ALBERT | {"normalization_rule_name": "nmt_nfkc_cf"}, {}, True, False),  # this one has none
        (XLNET, {}, False, False),
        (XLNET, {"do_lower_case": True}, True, False),
        (XLNET, {"keep_accents": True, "tokenizer_class": "XLNetTokenizer"}, False, True),
    ],
)
def test_albert_and_xlnet_normalize_before_the_library(
    options: dict[str, Any], config: dict[str, Any], lower: bool, accents: bool, tmp_path: Path
) -> None:
    model = train("unigram", json.dumps(options))
    library = sentencepiece.SentencePieceProcessor(model_proto=model)
    tokenizer = load(tmp_path, model, "spiece.model", tokenizer_config=config)
    for text in TRICKY:
        if "\x1f" in text:  # whitespace only in Python
            continue
        if lower and any(odd in unicodedata.normalize("NFD", text) for odd in UNFOLDED):
            continue
        expected = library.encode(normalize_like_albert(text, lower, accents))
        if not any(library.id_to_piece(i)[-2:-1].isdigit() and library.id_to_piece(i)[-1] == "," for i in expected):
            assert same(tokenizer, library, text, expected), text
    assert tokenizer.roles["mask"] == library.piece_to_id(
        "[MASK]" if "[MASK]" in options["control_symbols"] else "<mask>"
    )


def test_albert_splits_numbers_before_commas(tmp_path: Path) -> None:
    text = " ".join(f"{number}," for number in (1, 2, 1, 2, 1, 2, 3, 3))
    model = train("unigram", json.dumps(ALBERT | {"user_defined_symbols": [], "required_chars": "123,"}))
    changed = proto.ModelProto.FromString(model)
    changed.pieces[-1].piece, changed.pieces[-1].score = "▁1,", -0.5
    tokenizer = load(tmp_path, changed.SerializeToString(), "spiece.model")
    library = sentencepiece.SentencePieceProcessor(model_proto=changed.SerializeToString())
    assert "▁1," in library.encode(text, out_type=str)
    assert not any(token.endswith("1,") for token in tokenizer.tokens(tokenizer.encode(text)))
    assert load(tmp_path, changed.SerializeToString(), "spiece.model", config={"model_type": "big_bird"}).encode(
        "1,"
    ) == [len(changed.pieces) - 1]


@pytest.mark.parametrize(
    ("name", "options", "shift"),
    [
        ("T5Tokenizer", T5_IDS, lambda ids, size: ids),
        ("XLMRobertaTokenizer", {}, lambda ids, size: [3 if i == 0 else i + 1 for i in ids]),
        ("MBartTokenizer", {}, lambda ids, size: [3 if i == 0 else i + 1 for i in ids]),
        ("CamembertTokenizer", {}, lambda ids, size: [3 if i == 0 else i + 4 for i in ids]),
        ("BigBirdTokenizer", {"user_defined_symbols": ["[SEP]", "[MASK]", "[CLS]"]}, lambda ids, size: ids),
        ("ReformerTokenizer", {}, lambda ids, size: ids),
        ("LlamaTokenizer", {}, lambda ids, size: ids),
    ],
)
def test_published_classes_number_the_pieces_of_the_library(
    name: str, options: dict[str, Any], shift: Callable[[list[int], int], list[int]], tmp_path: Path
) -> None:
    algorithm = "bpe" if name in ("ReformerTokenizer", "LlamaTokenizer") else "unigram"
    model = train(algorithm, json.dumps(options))
    library = sentencepiece.SentencePieceProcessor(model_proto=model)
    tokenizer = load(tmp_path, model, "spiece.model", tokenizer_config={"tokenizer_class": name})
    size = library.get_piece_size()
    back = {new: old for old in range(size) for new in shift([old], size)}
    for text in TRICKY:
        if options.get("user_defined_symbols") and "[" in text:  # BigBird's special tokens are symbols in the library
            continue
        ids, expected = tokenizer.encode(text), library.encode(text)
        if ids != shift(expected, size):
            scores = [sum(map(library.get_score, row)) for row in ([back[i] for i in ids], expected)]
            assert algorithm == "unigram" and scores[0] == pytest.approx(scores[1], abs=1e-3), text


def test_whitespace_as_suffix_is_supported(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, train("bpe", json.dumps({"treat_whitespace_as_suffix": True})))
    text = "the statement expression of it"
    ids = np.array(tokenizer.encode(text))
    starts = tokenizer.word_starts(ids)
    words = ["".join(tokenizer.tokens(part)).rstrip("▁") for part in np.split(ids, starts.nonzero()[0][1:])]
    assert words == text.split()
    assert tokenizer.decode(ids) == text
    ids, _, places = tokenizer.encode_with_offsets([text])
    assert [text[a:b].strip() for a, b in places] == [token.rstrip("▁") for token in tokenizer.tokens(ids)]
