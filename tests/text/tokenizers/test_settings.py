"""Tests that tokenizer folders give the ids of `transformers`, even if their files contradict each other."""

from __future__ import annotations

import inspect
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import transformers

from pretune import PretuneError
from pretune.text.corpus.documents import Document
from pretune.text.tokenizers import settings
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import train_on_documents
from pretune.text.tokenizers.transformers_classes import CLASSES, KNOWN, NAMES
from tests.support.texts import KOREAN, RUSSIAN, T5_IDS, english_documents, russian_pieces
from tests.support.tricky_strings import TRICKY

BRACKETS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
Files = dict[str, Any]


def documents() -> list[Document]:
    return [Document(text, Path("x"), 1) for text in (*english_documents()[:8], *RUSSIAN, *KOREAN, *TRICKY)]


@cache
def words(lowercase: bool) -> tuple[str, ...]:
    vocabulary = train_on_documents(documents(), "wordpiece", 800, lowercase=lowercase).vocabulary
    return tuple(token for token in vocabulary if token not in BRACKETS)


def vocab_txt(first: list[str], last: list[str], lowercase: bool = False) -> Files:
    return {"vocab.txt": "\n".join([*first, *words(lowercase), *last]) + "\n"}


@cache
def byte_level() -> tuple[list[str], str]:
    model = json.loads(train_on_documents(documents(), "byte-level-bpe", 700).backend.to_str())["model"]
    merges = "\n".join(map(" ".join, model["merges"]))
    return [token for token in model["vocab"] if token not in BRACKETS], f"#version: 0.2\n{merges}\n"


def vocab_json(first: list[str], last: list[str]) -> Files:
    tokens, merges = byte_level()
    numbered = {token: number for number, token in enumerate([*first, *tokens, *last])}
    return {"vocab.json": numbered, "merges.txt": merges}


CASED, UNCASED = vocab_txt(BRACKETS, []), vocab_txt(BRACKETS, [], lowercase=True)
CUSTOM = ["<p>", "<u>", "<c>", "<e>", "<m>"]
CUSTOM_NAMES = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), CUSTOM, strict=True))
MPNET = vocab_txt(["<s>", "<pad>", "</s>", "<unk>", "[UNK]"], ["<mask>"], lowercase=True)
ROBERTA = vocab_json(["<s>", "<pad>", "</s>", "<unk>"], ["<mask>"])
DEBERTA = vocab_json(["[CLS]", "[PAD]", "[SEP]", "[UNK]"], ["[MASK]"])
GPT2 = vocab_json([], ["<|endoftext|>"])
TAKES_SPACE = {"content": "<mask>", "lstrip": True, "rstrip": False, "single_word": False, "normalized": False}


def write(folder: Path, files: Files, config: Files | None, model: str = "", **others: Any) -> Path:
    """Write files, tokenizer_config.json, and config.json with a model_type."""
    content = dict(files) | {f"{name}.json": other for name, other in others.items()}
    if config is not None:
        content["tokenizer_config.json"] = config
    if model:
        content["config.json"] = {"model_type": model}
    folder.mkdir(exist_ok=True, parents=True)
    for name, value in content.items():
        data = value if isinstance(value, bytes) else (value if isinstance(value, str) else json.dumps(value)).encode()
        (folder / name).write_bytes(data)
    return folder


def full_tokenizer_json(folder: Path, files: Files, config: Files, model: str) -> Files:
    """Return tokenizer.json as `transformers` saves it for a folder."""
    transformers.AutoTokenizer.from_pretrained(write(folder / "made", files, config, model)).save_pretrained(
        folder / "saved"
    )
    return {"tokenizer.json": (folder / "saved" / "tokenizer.json").read_text(encoding="utf-8")}


def added(*tokens: tuple[int, str, bool]) -> Files:
    """Return added_tokens_decoder for (id, text, special)."""
    flags = {"lstrip": False, "rstrip": False, "single_word": False}
    return {
        str(number): {"content": text, "special": special, "normalized": not special, **flags}
        for number, text, special in tokens
    }


def check(folder: Path, marked: bool = True) -> Tokenizer:
    """Compare the ids of plain texts, of texts with recognized special tokens, and the names of special tokens."""
    ours, reference = Tokenizer.load(folder), transformers.AutoTokenizer.from_pretrained(folder)
    for text in TRICKY:
        assert ours.encode(text) == reference(text, add_special_tokens=False, split_special_tokens=True)["input_ids"], (
            text
        )
        if marked:
            assert ours.encode(text, allow_special=True) == reference(text, add_special_tokens=False)["input_ids"], text
    theirs = {name: getattr(reference, name) for name in NAMES if getattr(reference, name) is not None}
    assert ours.names == {name: token for name, token in theirs.items() if token in ours.vocabulary}
    assert all(ours.vocabulary.index(token) == reference.convert_tokens_to_ids(token) for token in ours.names.values())
    return ours


# -- vocab.txt ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [
    {"tokenizer_class": "BertTokenizer"},
    {"tokenizer_class": "BertTokenizer", "do_lower_case": False},
    {"do_lower_case": True},
    {"do_lower_case": False, "strip_accents": True},
    {"do_lower_case": True, "strip_accents": False, "tokenizer_class": "DistilBertTokenizerFast"},
    {"do_lower_case": False, "tokenize_chinese_chars": False},
    {"do_lower_case": False, "do_basic_tokenize": True, "never_split": None, "model_max_length": 512,
     "padding_side": "left", "truncation_side": "left", "clean_up_tokenization_spaces": True, "trim_offsets": True},
    {"do_lower_case": False, "pad_token": "[SEP]", "unk_token": "[PAD]", "tokenizer_class": "BertTokenizer"},
    {"do_lower_case": False, "split_special_tokens": False, "added_tokens_decoder": added(
        *((number, token, True) for number, token in enumerate(BRACKETS)), (len(words(False)) + 5, "newtoken", False))},
])  # fmt: skip
@pytest.mark.parametrize("files", [CASED, UNCASED], ids=["cased", "uncased"])
def test_settings_with_vocab_txt(files: Files, config: Files, tmp_path: Path) -> None:
    if files is UNCASED and "added_tokens_decoder" in config:
        config = config | {
            "added_tokens_decoder": added((len(words(True)) + 5, "NewToken", False), (4, "[MASK]", True))
        }
    check(write(tmp_path, files, config, "bert"))


@pytest.mark.not_fast
def test_added_tokens_and_custom_names_with_vocab_txt(tmp_path: Path) -> None:
    count = len(words(True)) + 5
    tokenizer = check(
        write(
            tmp_path / "added",
            UNCASED,
            {"tokenizer_class": "BertTokenizer"},
            "bert",
            added_tokens={"NewToken": count, "[X]": count + 1},
            special_tokens_map={"additional_special_tokens": ["[X]"]},
        )
    )
    assert tokenizer.size == count + 2 and tokenizer.specials.tolist()[-2:] == [False, True]
    assert tokenizer.tokens(tokenizer.encode("a newtoken [X]")) == ["a", "NewToken", "[", "x", "]"]
    own = vocab_txt(CUSTOM, [], lowercase=True)
    names = CUSTOM_NAMES | {"mask_token": {"content": "<m>", "lstrip": True}}
    for config, mapped in (({}, names), (CUSTOM_NAMES, {}), ({"cls_token": "<e>", "sep_token": "<c>"}, names)):
        folder = write(
            tmp_path / "own", own, config | {"tokenizer_class": "BertTokenizer"}, "bert", special_tokens_map=mapped
        )
        tokenizer = check(folder)
        assert tokenizer.role_tokens["start"] == "<c>" and tokenizer.role_tokens["separator"] == "<e>"
        assert tokenizer.role("unknown") in tokenizer.encode("\U0001fae0")


@pytest.mark.parametrize("config", [None, {}, {"do_lower_case": False, "tokenizer_class": "MPNetTokenizer"}])
def test_vocab_txt_of_mpnet(config: Files | None, tmp_path: Path) -> None:
    tokenizer = check(write(tmp_path, MPNET, config, "mpnet"))
    assert tokenizer.tokens(tokenizer.encode("a <mask>", allow_special=True)) == ["a", "<mask>"]
    assert Tokenizer.load(write(tmp_path / "bare", MPNET, None)).roles == tokenizer.roles


# -- vocab.json + merges.txt --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", [None, False, True])
@pytest.mark.parametrize(("model", "name", "files"), [
    ("roberta", "RobertaTokenizer", ROBERTA), ("bart", "BartTokenizer", ROBERTA), ("longformer", "LongformerTokenizer", ROBERTA),
    ("deberta", "DebertaTokenizer", DEBERTA), ("gpt2", "GPT2Tokenizer", GPT2),
])  # fmt: skip
def test_settings_with_vocab_json(model: str, name: str, files: Files, space: bool | None, tmp_path: Path) -> None:
    config = {} if space is None else {"add_prefix_space": space}
    # Without it, `transformers` 5 loses that these masks include the space before them; their published files have it.
    mask = {"roberta": TAKES_SPACE, "bart": TAKES_SPACE, "longformer": TAKES_SPACE,
            "deberta": TAKES_SPACE | {"content": "[MASK]"}}.get(model)  # fmt: skip
    mapped = {"mask_token": mask} if mask else {}
    for declared in ({}, {"tokenizer_class": name}):
        folder = write(tmp_path, files, config | declared, model, special_tokens_map=mapped)
        tokenizer = check(folder)
        (folder / "special_tokens_map.json").unlink()
        bare = Tokenizer.load(folder)
        assert bare.roles == tokenizer.roles
        assert all(
            bare.encode(text, allow_special=True) == tokenizer.encode(text, allow_special=True) for text in TRICKY
        )
        assert Tokenizer.load(write(tmp_path / "bare", files, config or None)).roles == tokenizer.roles


def word_ends(first: list[str]) -> Files:
    """Return a vocabulary like GPT's: letters, letters that end words, and a word."""
    letters = sorted({letter for text in (*RUSSIAN, *TRICKY) for letter in text.lower() if not letter.isspace()})
    tokens = [*first, *letters, *(f"{letter}</w>" for letter in letters), "th", "the</w>"]
    merges = "#version: 0.2\nt h 17\nth e</w> 5\n"  # XLM's merges are followed by a count
    return {"vocab.json": {token: number for number, token in enumerate(tokens)}, "merges.txt": merges}


@pytest.mark.parametrize("config", [None, {"tokenizer_class": "OpenAIGPTTokenizer", "unk_token": "<unk>"}])
def test_word_ends_of_gpt(config: Files | None, tmp_path: Path) -> None:
    files = word_ends(["<unk>"])
    files["merges.txt"] = files["merges.txt"].replace(" 17", "").replace(" 5", "")
    tokenizer = check(write(tmp_path, files, config, "openai-gpt"))
    assert tokenizer.tokens(tokenizer.encode("The")) == ["the</w>"]


def test_xlm_reports_that_its_ids_differ(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)
    files = word_ends(["<s>", "</s>", "<pad>", "<unk>", "<special0>", "<special1>"])
    tokenizer = Tokenizer.load(write(tmp_path, files, {"tokenizer_class": "XLMTokenizer"}, "xlm"))
    assert "with the Moses tokenizer" in capfd.readouterr().err
    assert tokenizer.tokens(tokenizer.encode("The end")) == ["the</w>", "e", "n", "d</w>"]


def test_tokens_added_to_gpt2(tmp_path: Path) -> None:
    size = len(GPT2["vocab.json"])
    names = {"pad_token": "[PAD]", "bos_token": "<|endoftext|>"}
    for files in ({"added_tokens": {"[PAD]": size, "newtoken": size + 1}, "special_tokens_map": names}, {}):
        config: Files = {"tokenizer_class": "GPT2Tokenizer"}
        if not files:
            config |= names | {"added_tokens_decoder": added((size, "[PAD]", True), (size + 1, "newtoken", False))}
        tokenizer = check(write(tmp_path, GPT2, config, "gpt2", **files))
        assert tokenizer.role("padding") == size and tokenizer.size == size + 2
        for name in ("added_tokens", "special_tokens_map"):
            (tmp_path / f"{name}.json").unlink(missing_ok=True)


# -- tokenizer.json -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [
    {"tokenizer_class": "BertTokenizer"},
    {"tokenizer_class": "BertTokenizerFast", "do_lower_case": True},
    {"tokenizer_class": "BertTokenizer", "do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False},
    {"tokenizer_class": "DistilBertTokenizer", "do_lower_case": True},
    {"do_lower_case": True},
    {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True, "what": "ever", **dict(zip(
        ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), BRACKETS, strict=True))},
    {"tokenizer_class": "TheirOwnTokenizer", "do_lower_case": True, "cls_token": "[CLS]"},
])  # fmt: skip
@pytest.mark.parametrize("model", ["bert", "distilbert", "electra"])
def test_settings_override_tokenizer_json_if_the_class_has_them(model: str, config: Files, tmp_path: Path) -> None:
    files = full_tokenizer_json(tmp_path, CASED, {"tokenizer_class": "BertTokenizer", "do_lower_case": False}, "bert")
    check(write(tmp_path / "config", files, config, model))


def test_tokenizer_json_with_all_other_files(tmp_path: Path) -> None:
    files = full_tokenizer_json(tmp_path, CASED, {"tokenizer_class": "BertTokenizer", "do_lower_case": False}, "bert")
    size = len(words(False)) + 5
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    more = {"added_tokens": {"newtoken": size}, "special_tokens_map": {"cls_token": "[SEP]"}}
    tokenizer = check(write(tmp_path / "all", files | UNCASED, config, "bert", **more))
    assert tokenizer.size == size + 1 and tokenizer.role_tokens["start"] == "[SEP]"
    # A list of all added tokens in tokenizer_config.json takes precedence over the other two files.
    mask = {"4": {"content": "[MASK]", "lstrip": True, "special": True, "normalized": False}}
    for name in ("BertTokenizer", "PreTrainedTokenizerFast"):
        config = {"tokenizer_class": name, "do_lower_case": False, "added_tokens_decoder": mask, "cls_token": "[CLS]"}
        tokenizer = check(write(tmp_path / name, files, config, "bert", **more))
        assert tokenizer.size == size and tokenizer.role_tokens["start"] == "[CLS]"
        assert tokenizer.encode("a [MASK]", allow_special=True) == [*tokenizer.encode("a"), 4]


@pytest.mark.parametrize("config", [
    None, {}, {"add_prefix_space": True}, {"tokenizer_class": "RobertaTokenizer"}, {"tokenizer_class": "RobertaTokenizer",
    "add_prefix_space": True}, {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": True, "bos_token": "<s>"},
])  # fmt: skip
def test_prefix_space_with_tokenizer_json(config: Files | None, tmp_path: Path) -> None:
    files = full_tokenizer_json(tmp_path, ROBERTA, {"tokenizer_class": "RobertaTokenizer"}, "roberta")
    content = json.loads(files["tokenizer.json"])
    content["added_tokens"][-1]["lstrip"] = True  # as published
    tokenizer = check(write(tmp_path / "config", {"tokenizer.json": content}, config, "roberta"))
    assert tokenizer.encode("a <mask>", allow_special=True)[1:] == [tokenizer.vocabulary.index("<mask>")]


@pytest.mark.parametrize(("model", "name"), [("albert", "AlbertTokenizer"), ("xlnet", "XLNetTokenizer")])
@pytest.mark.parametrize("config", [{}, {"do_lower_case": True}, {"do_lower_case": False}])
def test_case_settings_of_albert_and_xlnet_with_tokenizer_json(
    model: str, name: str, config: Files, tmp_path: Path
) -> None:
    marks = {"albert": "[CLS],[SEP],[MASK]", "xlnet": "<cls>,<sep>,<pad>,<mask>,<eod>,<eop>"}[model]
    ids = {"albert": {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1}}.get(model, {})
    pieces = {"spiece.model": russian_pieces(control_symbols=marks, **ids)}
    for saved in (True, False):
        files = full_tokenizer_json(
            tmp_path / str(saved), pieces, {"tokenizer_class": name, "do_lower_case": saved}, model
        )
        check_without_special_tokens(write(tmp_path / "config", files, {"tokenizer_class": name} | config, model))


def check_without_special_tokens(folder: Path) -> None:
    """Like `check`, for texts without special tokens, which `transformers` finds among the pieces of a Unigram model."""
    ours, reference = Tokenizer.load(folder), transformers.AutoTokenizer.from_pretrained(folder)
    for text in TRICKY:
        expected = reference(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        if not set(reference.all_special_ids) - {reference.unk_token_id} & set(expected):
            assert ours.encode(text) == expected, text


@pytest.mark.not_fast
def test_t5_with_all_its_files(tmp_path: Path) -> None:
    pieces = {"spiece.model": russian_pieces(**T5_IDS)}
    files = full_tokenizer_json(tmp_path, pieces, {"tokenizer_class": "T5Tokenizer", "extra_ids": 7}, "t5")
    listed = [f"<extra_id_{number}>" for number in range(7)]
    config = {"tokenizer_class": "T5Tokenizer", "extra_ids": 7, "legacy": True, "additional_special_tokens": listed}
    config |= {"sp_model_kwargs": {}}
    for layout in (files, pieces, files | pieces):
        folder = write(tmp_path / "t5", layout, config, "t5")
        check_without_special_tokens(folder)
        assert Tokenizer.load(folder).role("sentinel 6") == 80
        for file in layout:
            (folder / file).unlink()


# -- errors
# -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("config", "others", "message"), [
    ({"what": "ever"}, {}, r"tokenizer_config\.json: unknown key 'what'"),
    ({"do_basic_tokenize": False}, {}, r"do_basic_tokenize=False is not supported; remove it or set it to True"),
    ({"never_split": ["New"]}, {}, r"never_split=\['New'\] is not supported"),
    ({"clean_text": False}, {}, "clean_text=False is not supported"),
    ({"handle_chinese_chars": False}, {}, "handle_chinese_chars=False is not supported"),
    ({"wordpieces_prefix": "@@"}, {}, "wordpieces_prefix='@@' is not supported"),
    ({"sp_model_kwargs": {"enable_sampling": True, "nbest_size": -1, "alpha": 0.1}}, {}, "sp_model_kwargs=.* is not supported"),
    ({"fast_tokenizer_files": ["tokenizer.4.0.0.json"]}, {}, "fast_tokenizer_files=.* is not supported"),
    ({"auto_map": {"AutoTokenizer": ["x.py", None]}}, {}, "auto_map refers to custom code"),
    ({"tokenizer_class": "BertJapaneseTokenizer"}, {}, "tokenizer_class BertJapaneseTokenizer is not supported"),
    ({"tokenizer_class": "AlbertTokenizer"}, {}, r"AlbertTokenizer reads spiece\.model, which is missing"),
    ({}, {"special_tokens_map": {"what": "ever"}}, r"special_tokens_map\.json: unknown key 'what'"),
    ({}, {"added_tokens": {"newtoken": 2000}}, r"'newtoken' is listed with id 2000 but gets id"),
    ({}, {"added_tokens": {"[MASK]": 3}}, r"'\[MASK\]' is listed with id 3 but gets id 4"),
])  # fmt: skip
def test_unsupported_keys_that_change_ids_raise_errors(
    config: Files, others: Files, message: str, tmp_path: Path
) -> None:
    with pytest.raises(PretuneError, match=message):
        Tokenizer.load(write(tmp_path, CASED, config, "bert", **others))


def test_contradicting_class_and_tokenizer_json_are_rejected(tmp_path: Path) -> None:
    content = json.loads(
        full_tokenizer_json(tmp_path, CASED, {"tokenizer_class": "BertTokenizer"}, "bert")["tokenizer.json"]
    )
    content["normalizer"] = {"type": "NFC"}
    files = {"tokenizer.json": content}
    folder = write(tmp_path / "odd", files, {"tokenizer_class": "BertTokenizer"}, "bert")
    with pytest.raises(PretuneError, match="splits text differently from BertTokenizer, the class in tokenizer_config"):
        Tokenizer.load(folder)
    check(write(folder, files, {"tokenizer_class": "PreTrainedTokenizerFast", "cls_token": "[CLS]"}, "bert"))
    cut = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}]}
    byte = json.loads(
        full_tokenizer_json(tmp_path / "gpt2", GPT2, {"tokenizer_class": "GPT2Tokenizer"}, "gpt2")["tokenizer.json"]
    )
    cut["pretokenizers"].append(byte["pre_tokenizer"])  # type: ignore[attr-defined]
    files = {"tokenizer.json": byte | {"pre_tokenizer": cut}}
    with pytest.raises(PretuneError, match="splits text differently from GPT2Tokenizer"):
        Tokenizer.load(write(tmp_path / "digits", files, {"tokenizer_class": "GPT2Tokenizer"}, "gpt2"))
    pieces = {"spm.model": russian_pieces()}
    with pytest.raises(PretuneError, match="split_by_punct=true is not supported"):
        Tokenizer.load(write(tmp_path / "deberta", pieces, {"split_by_punct": True}, "deberta-v2"))
    with pytest.raises(PretuneError, match="add_prefix_space=false, which contradicts"):
        Tokenizer.load(write(tmp_path / "t5", pieces, {"add_prefix_space": False}, "t5"))


# -- completeness
# -------------------------------------------------------------------------------------------------------


def test_every_argument_of_the_classes_in_transformers_is_handled() -> None:
    known = {*settings.SETTINGS, *settings.HARMLESS, *settings.ONLY, *NAMES}
    known |= {*settings.TOKEN_LISTS, "never_split", "sp_model_kwargs", "added_tokens_decoder"}
    built = {"self", "vocab", "merges", "kwargs", "args", "_spm_precompiled_charsmap"}  # contents of files
    found = 0
    for kind in KNOWN:
        made = getattr(transformers, kind.name)
        arguments = {name for name in inspect.signature(made.__init__).parameters if name not in built}
        assert arguments <= known, kind.name
        defaults = {name: value.default for name, value in inspect.signature(made.__init__).parameters.items()}
        for key, value in kind.settings.items():
            if key in defaults:
                assert defaults[key] == value, (kind.name, key)
        for name, token in kind.tokens.items():
            if name in defaults:
                assert defaults[name] == token, (kind.name, name)
        found += len(arguments)
    assert found > 100 and len(CLASSES) > len(KNOWN)


def test_every_ignored_key_has_a_reason_and_changes_no_ids(tmp_path: Path) -> None:
    values: Files = {
        "model_input_names": ["input_ids"],
        "src_lang": "en_XX",
        "padding_side": "left",
        "truncation_side": "left",
    }
    values |= {"model_max_length": 7, "max_len": 7, "chat_template": "{{ x }}", "tokenizer_class": "BertTokenizer"}
    config = {key: values.get(key) for key in settings.HARMLESS}
    assert all(" " in reason for reason in settings.HARMLESS.values())
    config = {
        key: value for key, value in config.items() if value is not None or key not in ("max_characters_per_token",)
    }
    plain = Tokenizer.load(write(tmp_path / "plain", CASED, {"tokenizer_class": "BertTokenizer"}))
    with_all = Tokenizer.load(write(tmp_path / "all", CASED, config))
    assert with_all.digest == plain.digest
