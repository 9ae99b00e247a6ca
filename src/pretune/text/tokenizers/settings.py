"""Read tokenizer settings from tokenizer_config.json, special_tokens_map.json, added_tokens.json and config.json.

Every key is honored, known not to affect ids, or rejected by name. Contradictions between files are resolved as
`transformers` does: tokenizer_config.json overrides tokenizer.json, and special_tokens_map.json overrides
tokenizer_config.json, unless the latter lists the added tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from pretune.runtime.errors import PretuneError, quote
from pretune.runtime.parsing import read_mapping, validate_schema
from pretune.text.corpus.files import check_text
from pretune.text.tokenizers.transformers_classes import (
    BRACKETS,
    CLASSES,
    GENERIC,
    KNOWN,
    MBART,
    MBART50,
    MISNAMED,
    NAMES,
    OF_MODEL,
    PROGRAMS,
    TokenizerClass,
)

CHARACTERS = "max_characters_per_token"  # as ELMo's options.json calls it
CONFIG, SPECIALS_MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
SETTINGS = {key for kind in KNOWN for key in kind.settings}
SOURCE_LANGUAGE = "src_lang"
GENERIC_CLASS = "PreTrainedTokenizerFast"
ENGLISH = "en_XX"  # mBART's default src_lang in `transformers`
TOKEN_LISTS = ("additional_special_tokens", "extra_special_tokens")

LENGTHS = "about sequence lengths, padding and model inputs, not about the ids of a text"
AROUND = "about the tokens around a text, which the model family defines"
DECODING = "about decoding"
PROVENANCE = "about where the tokenizer comes from or how it was loaded"
CHAT = "about formatting conversations"
# Keys of tokenizer_config.json that do not affect the ids of a text → the reason.
HARMLESS = {
    **dict.fromkeys(
        (
            "model_max_length", "max_len", "max_length", "stride", "truncation", "truncation_side", "truncation_strategy",
            "padding", "padding_side", "pad_to_multiple_of", "pad_token_type_id", "model_input_names",
            "return_token_type_ids", "return_tensors",
        ),
        LENGTHS,
    ),
    **dict.fromkeys(
        ("add_bos_token", "add_eos_token", SOURCE_LANGUAGE, "tgt_lang", "lang2id", "id2lang", "language_codes", "sep_style"), AROUND
    ),
    **dict.fromkeys(
        (
            "clean_up_tokenization_spaces", "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
            "spaces_between_special_tokens", "errors", "trim_offsets",
        ),
        DECODING,
    ),
    **dict.fromkeys(
        (
            "tokenizer_class", "name_or_path", "special_tokens_map_file", "tokenizer_file", "vocab_file", "merges_file",
            "spm_file", "full_tokenizer_file", "processor_class", "backend", "is_local", "local_files_only", "files_loaded",
            "from_slow", "use_fast", "revision", "_commit_hash", "_from_auto", "transformers_version", "verbose", "device_map",
            "vocab_size", "unk_id", "vocab_type", "is_fast", "trust_remote_code",
        ),
        PROVENANCE,
    ),
    **dict.fromkeys(
        ("chat_template", "response_template", "response_schema", "chat_control_tokens", "use_default_system_prompt"), CHAT
    ),
    "split_special_tokens": "about special tokens spelled out in text, which are always treated as text",
    "legacy": "about text after special tokens, which texts do not contain",
    CHARACTERS: "about spelling words by characters",
}  # fmt: skip
# Keys that only older versions of `transformers` honor → the values for which they have no effect.
ONLY: dict[str, tuple[Any, ...]] = {
    "do_basic_tokenize": (True, None),
    "clean_text": (True, None),
    "handle_chinese_chars": (True, None),
    "wordpieces_prefix": ("##", None),
    "init_inputs": ([], None),
    "fast_tokenizer_files": (["tokenizer.json"], [], None),
    "dropout": (None, 0, 0.0),
}

Token = str | AddedToken
# Types of the keys of tokenizer_config.json and special_tokens_map.json that are used here.
TYPES: dict[str, Any] = {
    "tokenizer_class": str | None,
    "added_tokens_decoder": dict[str, dict[str, Any]] | None,
    **dict.fromkeys(TOKEN_LISTS, list[Any] | dict[str, Any] | None),
    "never_split": list[str] | None,
    "sp_model_kwargs": dict[str, Any] | None,
    CHARACTERS: int,
    "extra_ids": int | None,
    **dict.fromkeys(SETTINGS - {"extra_ids"}, bool | None),
}
MOST = 10_000  # sentinels, or characters of a token


@dataclass(frozen=True)
class TokenizerSettings:
    """The settings and special tokens of a published tokenizer, as read from the files in its folder.

    `kind` is its tokenizer class, if known, and `class_declared` says whether a file names that class. `explicit` are
    the settings in the files that affect ids; `tokens` are the special tokens by name, `extra` further special tokens,
    and `added` the added tokens by id. `characters` is the number of characters per token of ELMo, else 0.
    """

    folder: Path
    kind: TokenizerClass | None = None  # the tokenizer class, if known
    class_declared: bool = False  # whether a file names the class; if model_type does, its defaults do not apply
    explicit: Mapping[str, Any] = field(default_factory=dict)  # settings in the files that affect ids
    tokens: Mapping[str, Token | None] = field(default_factory=dict)  # special tokens by name
    extra: tuple[Token, ...] = ()  # further special tokens
    added: Mapping[int, AddedToken] = field(default_factory=dict)  # added tokens by id
    characters: int = 0  # characters per token, for models that read characters (ELMo)
    language: str = ""  # the language of texts, for models whose template names it (mBART)

    def with_defaults(self, kind: TokenizerClass) -> dict[str, Any]:
        """Return all settings of the tokenizer class `kind`: as set in the tokenizer's files, else the defaults."""
        return {key: self.explicit.get(key, default) for key, default in kind.settings.items()}


def read_tokenizer_settings(folder: Path) -> TokenizerSettings:
    """Read the settings and special tokens of the tokenizer in a folder."""
    config, model = _read_typed(folder / CONFIG), read_optional_json(folder / "config.json")
    full = (folder / "tokenizer.json").is_file()
    kind, declared, generic = _find_class(folder, config, model, full)
    added = _read_added(config.get("added_tokens_decoder"), folder / CONFIG)
    named = dict(config)
    if "added_tokens_decoder" not in config:
        named |= _read_typed(folder / SPECIALS_MAP)
    tokens = {key: _token(value, folder) for key, value in named.items() if key in NAMES}
    extra = [_token(value, folder) for key, value in named.items() if key.endswith("_token") and key not in NAMES]
    for key in TOKEN_LISTS:
        values = named.get(key) or ()
        extra += (_token(value, folder) for value in (values.values() if isinstance(values, Mapping) else values))
    if "added_tokens_decoder" not in config:
        special = {str(token) for token in (*tokens.values(), *extra) if token is not None}
        listed = validate_schema(read_optional_json(folder / ADDED), dict[str, int], str(folder / ADDED))
        for content, identity in listed.items():
            is_special = content in special
            content = check_text(content, f"{folder / ADDED}: a token")
            added[identity] = AddedToken(content, special=is_special, normalized=not is_special)
    _check_keys(folder / CONFIG, config, allow_unknown=full and generic)
    _check_keys(folder / SPECIALS_MAP, dict.fromkeys(read_optional_json(folder / SPECIALS_MAP)), allow_unknown=False)
    return TokenizerSettings(
        folder,
        kind,
        declared,
        {key: config[key] for key in SETTINGS if key in config},
        tokens,
        tuple(token for token in extra if token is not None),
        added,
        config.get(CHARACTERS, 0),
        "" if kind is MBART50 else str(config.get(SOURCE_LANGUAGE) or (ENGLISH if kind is MBART else "")),
    )


def read_optional_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, or an empty dictionary if the file does not exist."""
    return read_mapping(path, "settings of a tokenizer") if path.is_file() else {}


def _read_typed(path: Path) -> dict[str, Any]:
    """Return the object in a tokenizer's settings file; raise an error if a known key has a value of the wrong type."""
    config = read_optional_json(path)
    for key in config.keys() & TYPES.keys():
        validate_schema(config[key], TYPES[key], f"{path}: {key}")
    for key in (CHARACTERS, "extra_ids"):
        if not 0 <= (config.get(key) or 0) <= MOST:
            value = quote(config[key])
            raise PretuneError(f"{path}: {key}={value} is out of range; expected a number between 0 and {MOST:,}")
    return config


def _find_class(
    folder: Path, config: Mapping[str, Any], model: Mapping[str, Any], has_tokenizer_json: bool
) -> tuple[TokenizerClass | None, bool, bool]:
    """Return the class of a tokenizer, and what the files in its folder say about that class.

    The three values are: the class, or None if it is unknown or generic; whether a file names a class, so that its
    defaults apply; and whether keys that pretune does not know are to be accepted. `config` is the content of
    tokenizer_config.json and `model` that of config.json.
    """
    name = str(config.get("tokenizer_class") or model.get("tokenizer_class") or "").removesuffix("Fast")
    name = GENERIC_CLASS if name == "PreTrainedTokenizer" else name
    model_type = model.get("model_type")
    if has_tokenizer_json and model_type in MISNAMED:
        return None, True, True
    if not name:
        return OF_MODEL.get(str(model_type)), False, False
    if name in CLASSES:
        return CLASSES[name], True, False
    if name in GENERIC:
        return None, False, True
    if name in PROGRAMS or not has_tokenizer_json:
        without = "" if has_tokenizer_json else " without a tokenizer.json"
        advice = f"convert it to a tokenizer.json with {GENERIC_CLASS}; supported classes: {', '.join(sorted(CLASSES))}"
        raise PretuneError(f"{folder}: tokenizer_class {name} is not supported{without}; {advice}")
    return None, True, True


def _read_added(listed: Any, path: Path) -> dict[int, AddedToken]:
    """Return the added tokens by id, given the value of the key `added_tokens_decoder` of tokenizer_config.json.

    `path` is the file, for errors.
    """
    added = {}
    for identity, content in (listed or {}).items():
        token = _token(content, path)
        if not isinstance(token, AddedToken) or not (identity.isascii() and identity.isdigit()):
            entry = f"{quote(identity)} to {quote(content)}"
            raise PretuneError(
                f"{path}: added_tokens_decoder must map ids to tokens, but maps {entry}; correct this entry"
            )
        added[int(identity[:20])] = token
    return added


def _token(value: Any, where: Path) -> Token | None:
    """Return the special token that a JSON string or object describes; None for values of other types.

    `where` is the file, for errors.
    """
    if not isinstance(value, Mapping):
        return check_text(value, f"{where}: a special token") if isinstance(value, str) else None
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    flags = {key: bool(value[key]) for key in names if key in value}
    return AddedToken(check_text(str(value.get("content", "")), f"{where}: an added token"), **flags)


def _check_keys(path: Path, config: Mapping[str, Any], allow_unknown: bool) -> None:
    """Raise an error if `config`, the settings of a tokenizer, contains an unsupported key or value.

    Unknown keys also raise an error, unless `allow_unknown`. `path` is the file, for errors.
    """
    known = {*HARMLESS, *SETTINGS, *TOKEN_LISTS, "added_tokens_decoder"}
    for key, value in config.items():
        problem, setting = "", f"{key}={quote(value)} is not supported"
        if key in ONLY:
            if value not in ONLY[key]:
                problem = f"{setting}; remove it or set it to {ONLY[key][0]!r}"
        elif key == "never_split":
            if value and not set(value) <= set(BRACKETS.values()):
                problem = f"{setting}; remove it and use added tokens instead"
        elif key == "sp_model_kwargs":
            if (value or {}).get("enable_sampling") or set(value or {}) - {"enable_sampling", "nbest_size", "alpha"}:
                problem = f"{setting}, as tokenization is never sampled; remove it"
        elif key == "auto_map":
            if not allow_unknown and (config.get("tokenizer_class") or "").removesuffix("Fast") not in CLASSES:
                problem = "auto_map refers to custom code, which is never executed; convert it to a tokenizer.json"
        elif not (allow_unknown or key in known or key.endswith("_token")):
            problem = f"unknown key {quote(key)}, which may change how text is tokenized; remove it if it does not"
        if problem:
            raise PretuneError(f"{path}: {problem}")
