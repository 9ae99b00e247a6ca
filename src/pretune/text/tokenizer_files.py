"""Reading the vocabulary layouts in which published models come."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from pretune.errors import PretuneError
from pretune.text.sentencepiece import CONTROL, NORMAL, UNKNOWN, build_backend, read_model

if TYPE_CHECKING:
    from pretune.text.sequences import Template

Loaded = tuple[tokenizers.Tokenizer, dict[str, Any]]
T5_SPECIALS = ["<pad>", "</s>", "<unk>"]  # the first pieces of T5 and its kin
# mBART's languages, which its files leave to the program: the first 25 are those of cc25.
LANGUAGES = [
    "ar_AR", "cs_CZ", "de_DE", "en_XX", "es_XX", "et_EE", "fi_FI", "fr_XX", "gu_IN", "hi_IN", "it_IT", "ja_XX",
    "kk_KZ", "ko_KR", "lt_LT", "lv_LV", "my_MM", "ne_NP", "nl_XX", "ro_RO", "ru_RU", "si_LK", "tr_TR", "vi_VN",
    "zh_CN", "af_ZA", "az_AZ", "bn_IN", "fa_IR", "he_IL", "hr_HR", "id_ID", "ka_GE", "km_KH", "mk_MK", "ml_IN",
    "mn_MN", "mr_IN", "pl_PL", "ps_AF", "pt_XX", "sv_SE", "sw_KE", "ta_IN", "te_IN", "th_TH", "tl_XX", "uk_UA",
    "ur_PK", "xh_ZA", "gl_ES", "sl_SI",
]  # fmt: skip
LANGUAGES_OF = {"MBartTokenizer": 25, "MBart50Tokenizer": 52}
BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BPE_PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))


def load_backend(path: Path) -> Loaded:
    """The tokenizer in a folder, or of one of its files, and its tokenizer_config.json where there is one."""
    if not path.exists():
        raise PretuneError(f"{path}: no such tokenizer file or folder")
    folder = path if path.is_dir() else path.parent
    config = _read_config(folder / "tokenizer_config.json")
    if path.is_file():
        return _load_file(path, config), config
    if (folder / "source.spm").is_file() and not (folder / "tokenizer.json").is_file():
        raise PretuneError(
            f"{path}: no tokenizer here that fits both sides: source.spm and target.spm cut texts each in its own way"
        )
    candidates = ["tokenizer.json", "vocab.txt", *(vocabulary for vocabulary, _ in BPE_PAIRS)]
    for name in candidates:
        if (folder / name).is_file():
            return _load_file(folder / name, config), config
    pieces = sorted(folder.glob("*.model"))
    if pieces:
        return _load_file(pieces[0], config), config
    raise PretuneError(
        f"{path}: no tokenizer here (looked for tokenizer.json, vocab.txt, vocab.json + merges.txt, *.model)"
    )


def _load_file(path: Path, config: dict[str, Any]) -> tokenizers.Tokenizer:
    if path.suffix == ".model":
        return _load_sentencepiece(path, config)
    if path.suffix == ".txt" and path.name != "merges.txt":
        return _load_wordpiece(path, config)
    for vocabulary, merges in BPE_PAIRS:
        if path.name in (vocabulary, merges):
            return _load_bpe(path.with_name(vocabulary), path.with_name(merges), config)
    if path.suffix == ".json":
        try:
            return tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exceptions
            raise PretuneError(f"{path}: not a tokenizer file ({error})") from error
    raise PretuneError(f"{path}: not a tokenizer file (tokenizer.json, vocab.txt, vocab.json, merges.txt or *.model)")


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise PretuneError(f"{path}: not valid JSON ({error})") from error
    return config if isinstance(config, dict) else {}


def _load_wordpiece(path: Path, config: dict[str, Any]) -> tokenizers.Tokenizer:
    """BERT's vocab.txt: a token a line. Without a configuration, a vocabulary with no capitals is an uncased one."""
    # Only \n ends a line: some published vocabularies hold other Unicode line separators as tokens.
    tokens = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    vocabulary = {token.rstrip("\r"): i for i, token in enumerate(tokens)}
    plain = (token for token in vocabulary if not token.startswith(("[", "<")))
    uncased = config.get("do_lower_case", not any(token.lower() != token for token in plain))
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=bool(uncased),
        strip_accents=config.get("strip_accents"),
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    specials = [token for token in BERT_SPECIALS if token in vocabulary]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    return backend


def _load_bpe(vocabulary_file: Path, merges_file: Path, config: dict[str, Any]) -> tokenizers.Tokenizer:
    """GPT-2's and RoBERTa's byte-level BPE; GPT's and XLM's, with </w> at word ends, where the vocabulary shows it."""
    for file in (vocabulary_file, merges_file):
        if not file.is_file():
            raise PretuneError(f"{file}: missing; a BPE vocabulary comes with its merges")
    vocabulary = json.loads(vocabulary_file.read_text(encoding="utf-8"))
    merges = []
    for line in merges_file.read_text(encoding="utf-8").split("\n"):
        left, _, right = line.partition(" ")
        if right and not line.startswith("#version"):
            merges.append((left, right))
    unknown = next((token for token in ("<unk>", "<|endoftext|>") if token in vocabulary), None)
    if any(token.endswith("</w>") for token in vocabulary):
        backend = tokenizers.Tokenizer(
            models.BPE(vocabulary, merges, unk_token=unknown, end_of_word_suffix="</w>", fuse_unk=False)
        )
        uncased = bool(config.get("do_lowercase_and_remove_accent", True))
        backend.normalizer = normalizers.BertNormalizer(lowercase=uncased, strip_accents=uncased)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.BPEDecoder(suffix="</w>")
    else:
        backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, fuse_unk=False))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(config.get("add_prefix_space", False)))
        backend.decoder = decoders.ByteLevel()
    names = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "<special1>", "<|endoftext|>", *BERT_SPECIALS)
    specials = [token for token in names if token in vocabulary]
    # RoBERTa's and DeBERTa's mask takes the space before it, so that a filled word stands where it should.
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False, lstrip=token in ("<mask>", "[MASK]")) for token in specials]
    )
    return backend


def _load_sentencepiece(path: Path, config: dict[str, Any]) -> tokenizers.Tokenizer:
    model = read_model(path)
    names = [piece for piece, _, _ in model.pieces]
    if path.name == "sentencepiece.bpe.model":
        # XLM-R and its kin number their pieces in fairseq's order: <s> <pad> </s> <unk>, the pieces, then <mask>.
        head = [("<s>", 0.0, CONTROL), ("<pad>", 0.0, CONTROL), ("</s>", 0.0, CONTROL), ("<unk>", 0.0, UNKNOWN)]
        pieces = [piece for piece in model.pieces if piece[2] == NORMAL]
        spoken = LANGUAGES_OF.get(str(config.get("tokenizer_class")).removesuffix("Fast"), 0)
        tail = [(token, 0.0, CONTROL) for token in (*LANGUAGES[:spoken], "<mask>")]
        model.pieces = [*head, *pieces, *tail]
    elif names[:3] == T5_SPECIALS and not any("<extra_id_0>" in name for name in names):
        # T5's sentinels come after all pieces, the first one last.
        extra = config.get("extra_ids")
        sentinels = range(100 if extra is None else int(extra))
        model.pieces += [(f"<extra_id_{number}>", 0.0, CONTROL) for number in reversed(sentinels)]
    elif {"[CLS]", "[SEP]"} <= set(names) and "[MASK]" not in names:
        # DeBERTa-v2's mask comes after all pieces.
        model.pieces.append(("[MASK]", 0.0, CONTROL))
    return build_backend(model)


def with_template(backend: tokenizers.Tokenizer, roles: Mapping[str, str], template: Template) -> tokenizers.Tokenizer:
    """The same tokenizer, which puts around texts what a template says; where it already does, the tokenizer itself."""
    used = {item for item, *_ in template.items(texts=2) if item not in "AB"}
    if not used <= roles.keys():
        return backend
    names = {"A": "$A", "B": "$B"}
    names |= {role: roles[role].replace(":", "_") for role in used}  # in a template a colon comes before a segment
    single, pair = ([f"{names[item]}:{own}" for item, _, own in template.items(texts)] for texts in (1, 2))
    copy = tokenizers.Tokenizer.from_str(backend.to_str())
    copy.post_processor = processors.TemplateProcessing(
        single=single,
        pair=pair,
        special_tokens=[
            {"id": names[role], "ids": [backend.token_to_id(roles[role])], "tokens": [roles[role]]}
            for role in sorted(used)
        ],
    )
    return backend if _around(backend) == _around(copy) else copy


def _around(backend: tokenizers.Tokenizer) -> list[tuple[list[int], list[int]]]:
    """What a tokenizer makes of a text and of a pair."""
    return [(made.ids, made.type_ids) for made in (backend.encode("a"), backend.encode("a", "b"))]
