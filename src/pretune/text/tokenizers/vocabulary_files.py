"""Load tokenizers from the vocabulary file formats of published models."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from pretune.models.bundled import bundled_names
from pretune.runtime.errors import PretuneError, quote, suggest
from pretune.runtime.parsing import read_text
from pretune.runtime.progress import log_info
from pretune.text.tokenizers import sentencepiece
from pretune.text.tokenizers import transformers_classes as classes
from pretune.text.tokenizers.backend import (
    MAX_VOCABULARY_BYTES,
    build_backend,
    check_usable,
    library_errors,
    read_vocabulary,
)
from pretune.text.tokenizers.settings import Token, TokenizerSettings, read_tokenizer_settings
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.transformers_classes import NAMES, TokenizerClass

BPE_PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
# Usual special tokens, for vocabularies without a configuration file.
SPELLINGS = {
    "pad_token": ("[PAD]", "<pad>"),
    "unk_token": ("[UNK]", "<unk>"),
    "cls_token": ("[CLS]", "<cls>", "<s>"),  # XLNet has both of the last
    "sep_token": ("[SEP]", "<sep>"),
    "bos_token": ("<s>", "<|endoftext|>"),
    "eos_token": ("</s>", "<|endoftext|>"),
    "mask_token": ("[MASK]", "<mask>", "<special1>"),
}
PROBE = "Don't SAY Éé  Ångström 中文字 1234 <tag>\tĐường"  # different normalizers and pre-tokenizers differ on it
QUOTES = ("``", "''")

Loaded = tuple[tokenizers.Tokenizer, dict[str, str], TokenizerSettings]
Content = dict[str, Any]


def load_backend(path: Path) -> Loaded:
    """Load the tokenizer in a folder or file.

    Return its backend (of the `tokenizers` library), its special tokens by name (cls_token, …), and its settings.
    """
    if not path.exists():
        hint = suggest(str(path), bundled_names(), "check the path")
        raise PretuneError(f"{path}: no such tokenizer file or folder; {hint}")
    settings = read_tokenizer_settings(path if path.is_dir() else path.parent)
    file = path if path.is_file() else _find_file(path, settings)
    kind, backend = _load_file(file, settings)
    _add_tokens(backend, settings)
    names = _find_names(backend, kind, settings)
    _mark_specials(backend, names, settings, None if file.name == "tokenizer.json" else kind)
    check_usable(backend, file)
    return backend, names, settings


def _find_file(folder: Path, settings: TokenizerSettings) -> Path:
    """Return the tokenizer file in a folder.

    This is tokenizer.json if it exists, else the file that the tokenizer class in `settings` reads, else any other
    vocabulary file.
    """
    if (folder / "tokenizer.json").is_file():
        return folder / "tokenizer.json"
    if (folder / "source.spm").is_file():
        raise PretuneError(
            f"{folder}: source.spm and target.spm are two tokenizers; pass the path of one of these files"
        )
    usual = [folder / name for name in ("vocab.txt", "vocab.json", "encoder.json") if (folder / name).is_file()]
    candidates = [*usual, *sorted(folder.glob("*.model"))]
    if not candidates:
        expected = "expected tokenizer.json, vocab.txt, vocab.json + merges.txt, or *.model"
        raise PretuneError(f"{folder}: no tokenizer found; {expected}")
    if settings.kind is None:
        return candidates[0]
    own = [file for file in candidates if _fits(settings.kind, file)]
    if own:
        return next((file for file in own if file.name == settings.kind.file), own[0])
    if settings.class_declared:
        reads = f"{settings.kind.name} reads {settings.kind.file}, which is missing (found {candidates[0].name})"
        raise PretuneError(
            f"{folder}: the tokenizer_class {reads}; add this file, or change tokenizer_class in tokenizer_config.json"
        )
    return candidates[0]


def _fits(kind: TokenizerClass, file: Path) -> bool:
    return Path(kind.file).suffix == (".json" if file.name in ("merges.txt", "vocab.bpe") else file.suffix)


def _load_file(path: Path, settings: TokenizerSettings) -> tuple[TokenizerClass | None, tokenizers.Tokenizer]:
    """Load a tokenizer file; return its tokenizer class, inferred from the vocabulary if necessary, and its backend."""
    kind = settings.kind if settings.kind is not None and _fits(settings.kind, path) else None
    if path.suffix == ".model":
        return _load_sentencepiece(path, kind, settings)
    if path.suffix == ".txt" and path.name != "merges.txt":
        return _load_wordpiece(path, kind, settings)
    for vocabulary, merges in BPE_PAIRS:
        if path.name in (vocabulary, merges):
            return _load_bpe(path.with_name(vocabulary), path.with_name(merges), kind, settings)
    if path.suffix == ".json":
        return settings.kind, _load_full(path, settings)
    expected = "expected tokenizer.json, vocab.txt, vocab.json, merges.txt or *.model"
    raise PretuneError(f"{path}: not a tokenizer file; {expected}")


# -- vocab.txt ----------------------------------------------------------------------------------------------------------


def _load_wordpiece(
    path: Path, kind: TokenizerClass | None, settings: TokenizerSettings
) -> tuple[TokenizerClass, tokenizers.Tokenizer]:
    """Load BERT's or MPNet's vocab.txt, with one token per line; return the tokenizer class and the backend."""
    # Only \n ends a line: some published vocabularies hold other Unicode line separators as tokens.
    tokens = read_text(path, MAX_VOCABULARY_BYTES).removesuffix("\n").split("\n")
    vocabulary = {token.rstrip("\r"): i for i, token in enumerate(tokens)}
    if kind is None:
        kind = classes.MPNET if {"<s>", "<mask>"} <= vocabulary.keys() else classes.BERT
    values = settings.with_defaults(kind)
    if not settings.class_declared and "do_lower_case" not in settings.explicit:
        values["do_lower_case"] = _is_uncased(vocabulary)
    unknown = str(settings.tokens.get("unk_token") or kind.tokens["unk_token"])
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unknown, max_input_chars_per_word=100))
    backend.normalizer = bert_normalizer(values)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return kind, backend


def _is_uncased(tokens: Iterable[str]) -> bool:
    return not any(token.lower() != token for token in tokens if not token.startswith(("[", "<")))


def bert_normalizer(values: Mapping[str, Any]) -> normalizers.Normalizer:
    """Return BERT's normalizer; `values` has the settings do_lower_case, strip_accents, and tokenize_chinese_chars."""
    return normalizers.BertNormalizer(
        lowercase=bool(values["do_lower_case"]),
        strip_accents=values["strip_accents"],
        handle_chinese_chars=bool(values["tokenize_chinese_chars"]),
    )


# -- vocab.json + merges.txt --------------------------------------------------------------------------------------------


def _load_bpe(
    vocabulary_file: Path, merges_file: Path, kind: TokenizerClass | None, settings: TokenizerSettings
) -> tuple[TokenizerClass, tokenizers.Tokenizer]:
    """Load a BPE tokenizer, either byte-level (GPT-2) or with </w> at the ends of words (GPT, XLM).

    Return its tokenizer class and its backend.
    """
    for file in (vocabulary_file, merges_file):
        if not file.is_file():
            both = f"{vocabulary_file.name} and {merges_file.name}"
            raise PretuneError(f"{file}: the file is missing; a BPE vocabulary needs both {both}")
    vocabulary = read_vocabulary(vocabulary_file)
    merges = []
    for line in read_text(merges_file, MAX_VOCABULARY_BYTES).split("\n"):
        pair = tuple(line.rstrip("\r").split(" ")[:2])  # in XLM's files a count follows the pair
        if len(pair) == 2 and pair[1] and not line.startswith("#version"):
            merges.append(pair)
    kind = kind or _bpe_class(vocabulary)
    values = settings.with_defaults(kind)
    if kind is classes.XLM:
        splits = "XLM was trained with the Moses tokenizer, but punctuation is split as in BERT here"
        log_info(f"{vocabulary_file}: {splits}, so ids differ around hyphens, quotes, apostrophes and abbreviations")
    marks_word_ends = kind in (classes.GPT, classes.XLM)
    unknown = str(settings.tokens.get("unk_token") or kind.tokens["unk_token"])
    options: dict[str, Any] = {"end_of_word_suffix": "</w>"} if marks_word_ends else {}
    if marks_word_ends and unknown in vocabulary:
        options["unk_token"] = unknown
    with library_errors(merges_file, f"the merges do not match {vocabulary_file.name}", "copy both files again"):
        model = models.BPE(vocabulary, merges, fuse_unk=False, **options)
    backend = tokenizers.Tokenizer(model)
    if marks_word_ends:
        uncased = bool(values.get("do_lowercase_and_remove_accent", True))
        backend.normalizer = normalizers.BertNormalizer(lowercase=uncased, strip_accents=uncased)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.BPEDecoder(suffix="</w>")
    else:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(values["add_prefix_space"]))
        backend.decoder = decoders.ByteLevel()
    return kind, backend


def _bpe_class(vocabulary: Mapping[str, int]) -> TokenizerClass:
    """Infer the tokenizer class of a BPE vocabulary from its tokens."""
    if any(token.endswith("</w>") for token in vocabulary):
        return classes.XLM if "<special1>" in vocabulary else classes.GPT
    if "[CLS]" in vocabulary:
        return classes.DEBERTA
    return classes.ROBERTA if {"<s>", "<mask>"} <= vocabulary.keys() else classes.GPT2


# -- sentencepiece ------------------------------------------------------------------------------------------------------


def _load_sentencepiece(
    path: Path, kind: TokenizerClass | None, settings: TokenizerSettings
) -> tuple[TokenizerClass | None, tokenizers.Tokenizer]:
    """Load a SentencePiece .model file; return its tokenizer class and the backend.

    The backend applies the normalizers, and orders the pieces as the tokenizer class does.
    """
    model = sentencepiece.read_sentencepiece(path)
    names = [piece for piece, _, _ in model.pieces]
    kind = kind or _sentencepiece_class(path, names)
    if kind is None:
        return None, sentencepiece.build_sentencepiece_backend(model, path)
    values = settings.with_defaults(kind)
    if kind is classes.ALBERT and not settings.class_declared and "do_lower_case" not in settings.explicit:
        values["do_lower_case"] = _is_uncased(names)
    if values.get("split_by_punct"):
        advice = "convert the tokenizer to a tokenizer.json"
        raise PretuneError(f"{settings.folder}: split_by_punct=true is not supported; {advice}")
    if settings.explicit.get("add_prefix_space") is False and model.dummy_prefix:
        where = settings.folder / "tokenizer_config.json"
        raise PretuneError(f"{where}: remove add_prefix_space=false, which contradicts add_dummy_prefix in {path.name}")
    model.pieces = kind.order(model.pieces, values)
    return kind, sentencepiece.build_sentencepiece_backend(model, path, kind.before(values))


def _sentencepiece_class(path: Path, names: list[str]) -> TokenizerClass | None:
    """Infer the tokenizer class of a SentencePiece model from its file name and its pieces (`names`).

    Return None if the class is unknown.
    """
    if path.name == classes.XLM_ROBERTA.file:
        return classes.XLM_ROBERTA
    for kind, first in classes.FIRST_PIECES:
        if names[: len(first)] == first:
            return kind
    return classes.DEBERTA_V2 if {"[CLS]", "[SEP]"} <= set(names) and "[MASK]" not in names else None


# -- tokenizer.json -----------------------------------------------------------------------------------------------------


def _load_full(path: Path, settings: TokenizerSettings) -> tokenizers.Tokenizer:
    """Load a tokenizer.json; the settings in tokenizer_config.json override those in the file."""
    backend = build_backend(read_text(path, MAX_VOCABULARY_BYTES), path)
    kind = settings.kind
    if kind is None:
        return backend
    values = settings.with_defaults(kind) if settings.class_declared else settings.explicit
    if kind in (classes.BERT, classes.MPNET):
        backend = _with_bert_settings(path, backend, kind, values, settings)
    elif kind in (classes.ROBERTA, classes.DEBERTA, classes.GPT2):
        backend = _with_prefix_space(path, backend, kind, values)
    elif kind in (classes.ALBERT, classes.XLNET, classes.DEBERTA_V2):
        backend = _with_case_settings(path, backend, kind, values)
    if kind.file.endswith(".model") and settings.explicit.get("add_prefix_space") is False:
        _check_no_prefix(path, backend)
    return backend


def _steps(part: Any, inside: str) -> list[Content]:
    """Return the steps of a normalizer or pre-tokenizer in a tokenizer.json, as a list.

    If `part` is of type Sequence, its steps are listed under the key `inside`; any other part is a single step.
    """
    if part is None:
        return []
    return list(part[inside]) if part["type"] == "Sequence" else [part]


def _with_bert_settings(
    path: Path,
    backend: tokenizers.Tokenizer,
    kind: TokenizerClass,
    values: Mapping[str, Any],
    settings: TokenizerSettings,
) -> tokenizers.Tokenizer:
    """Return a copy of a BERT backend with the normalizer settings in `values` and the unknown token in `settings`.

    `path` is the file of the tokenizer, for errors.
    """
    content = json.loads(backend.to_str())
    names = {
        "do_lower_case": "lowercase",
        "strip_accents": "strip_accents",
        "tokenize_chinese_chars": "handle_chinese_chars",
    }
    for step in _steps(content["normalizer"], "normalizers"):
        if step["type"] == "BertNormalizer":
            step |= {names[key]: value for key, value in values.items() if key in names}
    unknown = settings.tokens.get("unk_token")
    if settings.class_declared and unknown is not None and backend.token_to_id(str(unknown)) is not None:
        content["model"]["unk_token"] = str(unknown)
    backend = build_backend(json.dumps(content), path)
    if settings.class_declared:
        _check_same(path, backend, kind, bert_normalizer(values), pre_tokenizers.BertPreTokenizer())
    return backend


def _with_prefix_space(
    path: Path, backend: tokenizers.Tokenizer, kind: TokenizerClass, values: Mapping[str, Any]
) -> tokenizers.Tokenizer:
    """Return a copy of a byte-level BPE backend with the value of `add_prefix_space` in `values`, if there is one.

    `path` is the file of the tokenizer, for errors.
    """
    if "add_prefix_space" not in values:
        return backend
    space = bool(values["add_prefix_space"])
    content = json.loads(backend.to_str())
    cut = content["pre_tokenizer"]
    if cut is not None and cut["type"] == "ByteLevel":
        cut["add_prefix_space"] = space
    backend = build_backend(json.dumps(content), path)
    _check_same(path, backend, kind, None, pre_tokenizers.ByteLevel(add_prefix_space=space))
    return backend


def _with_case_settings(
    path: Path, backend: tokenizers.Tokenizer, kind: TokenizerClass, values: Mapping[str, Any]
) -> tokenizers.Tokenizer:
    """Return a backend of ALBERT, XLNet or DeBERTa-v2 that handles case and accents as `values` says.

    `path` is the file of the tokenizer, for errors.
    """
    content = json.loads(backend.to_str())
    steps = _steps(content["normalizer"], "normalizers")
    types = [step["type"] for step in steps]
    wanted = {"do_lower_case": "Lowercase" in types, "keep_accents": "StripAccents" not in types, **values}
    wanted["remove_space"] = False  # the pre-tokenizer in tokenizer.json does that
    cuts = [step["type"] for step in _steps(content["pre_tokenizer"], "pretokenizers")]
    if wanted.get("split_by_punct", False) != ("Punctuation" in cuts) and kind is classes.DEBERTA_V2:
        setting = f"split_by_punct={wanted.get('split_by_punct', False)} in tokenizer_config.json"
        raise PretuneError(f"{path}: the pre-tokenizer contradicts {setting}; change the setting, or the pre-tokenizer")
    if (wanted["do_lower_case"], wanted["keep_accents"]) == ("Lowercase" in types, "StripAccents" not in types):
        return backend
    own = [step for step in steps if not _is_class_normalizer(step)]
    before = [json.loads(step.__getstate__()) for step in kind.before(wanted)]
    content["normalizer"] = {"type": "Sequence", "normalizers": [*before, *own]}
    return build_backend(json.dumps(content), path)


def _is_class_normalizer(step: Content) -> bool:
    """Return whether a normalization step was added by a tokenizer class such as ALBERT's.

    The other steps come from the SentencePiece model.
    """
    quotes = step["type"] == "Replace" and step["pattern"].get("String") in QUOTES
    return quotes or step["type"] in ("NFKD", "NFD", "StripAccents", "Lowercase")


def _split_text(
    text: str, normalizer: normalizers.Normalizer | None, pre_tokenizer: pre_tokenizers.PreTokenizer | None
) -> list[str]:
    text = text if normalizer is None else str(normalizer.normalize_str(text))
    return [text] if pre_tokenizer is None else [word for word, _ in pre_tokenizer.pre_tokenize_str(text)]


def _check_no_prefix(path: Path, backend: tokenizers.Tokenizer) -> None:
    if _split_text("a", backend.normalizer, backend.pre_tokenizer)[0] != "a":
        setting = "add_prefix_space=false in tokenizer_config.json"
        raise PretuneError(
            f"{path}: the tokenizer prepends a space to texts, despite {setting}; remove the setting, or change the tokenizer"
        )


def _check_same(
    path: Path,
    backend: tokenizers.Tokenizer,
    kind: TokenizerClass,
    normalizer: normalizers.Normalizer | None,
    cut: pre_tokenizers.PreTokenizer,
) -> None:
    if _split_text(PROBE, backend.normalizer, backend.pre_tokenizer) != _split_text(PROBE, normalizer, cut):
        raise PretuneError(
            f"{path}: the tokenizer normalizes or splits text differently from {kind.name}, the class in tokenizer_config.json; to use "
            'tokenizer.json unchanged, set "tokenizer_class": "PreTrainedTokenizerFast"'
        )


# -- special and added tokens -------------------------------------------------------------------------------------------


def _add_tokens(backend: tokenizers.Tokenizer, settings: TokenizerSettings) -> None:
    """Add the added tokens that `settings` lists to a backend; raise an error if the id of a token is not as listed."""
    for identity, token in sorted(settings.added.items()):
        add = backend.add_special_tokens if token.special else backend.add_tokens
        add([token])
        if (actual := backend.token_to_id(token.content)) != identity:
            ids = f"is listed with id {quote(identity)} but gets id {actual}, because added ids must not leave gaps"
            raise PretuneError(
                f"{settings.folder}: the added token {quote(token.content)} {ids}; correct the id in the tokenizer files"
            )


def _find_names(
    backend: tokenizers.Tokenizer, kind: TokenizerClass | None, settings: TokenizerSettings
) -> dict[str, str]:
    """Return the special tokens that are in the vocabulary of a backend, by name (cls_token, …)."""
    found: dict[str, str] = {}
    for name in NAMES:
        if name in settings.tokens:
            candidates: tuple[str, ...] = (str(settings.tokens[name]),) if settings.tokens[name] is not None else ()
        else:
            own = (kind.tokens[name],) if kind is not None and name in kind.tokens else ()
            candidates = (*own, *(() if settings.tokens or settings.class_declared else SPELLINGS[name]))
        if present := [token for token in candidates if backend.token_to_id(token) is not None]:
            found[name] = present[0]
    return found


def _mark_specials(
    backend: tokenizers.Tokenizer, names: Mapping[str, str], settings: TokenizerSettings, kind: TokenizerClass | None
) -> None:
    """Mark the tokens in `names` as special tokens of a backend.

    Tokens that the tokenizer files list as added tokens keep the properties given there. The mask token strips the
    space before it if the tokenizer class `kind` says so.
    """
    known = backend.get_added_tokens_decoder()
    listed = {token.content for token in (known if kind is None else settings.added).values()}
    wanted: list[Token] = [*settings.extra]
    for name, content in names.items():
        takes_space = name == "mask_token" and kind is not None and kind.mask_lstrip
        token = AddedToken(content, special=True, normalized=False, lstrip=takes_space)
        listed_token = settings.tokens.get(name)
        wanted.append(listed_token if isinstance(listed_token, AddedToken) else token)
    for special in wanted:
        content = special if isinstance(special, str) else special.content
        identity = backend.token_to_id(content)
        if identity is None:
            continue
        if content in listed:
            special = known[identity]
        elif isinstance(special, str):
            special = AddedToken(content, special=True, normalized=False)
        special.special = True
        backend.add_special_tokens([special])


# -- templates -------------------------------------------------------------------------------------------


def with_template(backend: tokenizers.Tokenizer, roles: Mapping[str, str], template: Template) -> tokenizers.Tokenizer:
    """Return a copy of a backend that adds a template's special tokens around texts.

    If the backend already adds them, or lacks one of them, the backend itself is returned.
    """
    used = {item for item, *_ in template.items(texts=2) if item not in "AB"}
    if not used <= roles.keys():
        return backend
    # In the library's templates, a colon introduces the segment.
    names = {"A": "$A", "B": "$B"} | {role: roles[role].replace(":", "_") for role in used}
    single, pair = ([f"{names[item]}:{own}" for item, _, own in template.items(texts)] for texts in (1, 2))
    tokens = [(names[role], roles[role]) for role in sorted(used)]
    specials = [{"id": name, "ids": [backend.token_to_id(token)], "tokens": [token]} for name, token in tokens]
    template_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=specials)
    probe = tokenizers.Tokenizer(backend.model)  # shares the vocabulary, of which a copy takes long
    probe.normalizer, probe.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
    probe.post_processor = template_processor
    if _encode_probes(backend) == _encode_probes(probe):
        return backend
    copy = tokenizers.Tokenizer.from_str(backend.to_str())
    copy.post_processor = template_processor
    return copy


def special_token_frames(backend: tokenizers.Tokenizer) -> list[str]:
    """Return the special tokens that a backend adds around a text A and around a pair of texts A and B.

    An example is ["[CLS] A [SEP]", "[CLS] A [SEP] B [SEP]"]; the list is empty if no special tokens are added.
    """
    frames = []
    for encoding in (backend.encode("a"), backend.encode("a", "b")):
        parts = ["" if number is None else "AB"[number] for number in encoding.sequence_ids]
        names = [part or token for part, token in zip(parts, encoding.tokens, strict=True)]
        pairs = zip(names, ["", *names], strict=False)
        frames.append(" ".join(name for name, before in pairs if name != before or name not in "AB"))
    return frames if any(frame not in ("A", "A B") for frame in frames) else []


def _encode_probes(backend: tokenizers.Tokenizer) -> list[tuple[list[int], list[int]]]:
    return [(encoding.ids, encoding.type_ids) for encoding in (backend.encode("a"), backend.encode("a", "b"))]
