"""The tokenizer classes of `transformers`: the files they read, their settings and their special tokens.

tokenizer_config.json names one of them (`tokenizer_class`); settings that it omits have the defaults of that class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Regex, normalizers

from pretune.text.tokenizers.sentencepiece import CONTROL, NORMAL, UNKNOWN, Piece

# Names of special tokens in tokenizer_config.json and special_tokens_map.json.
NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

BRACKETS = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
ANGLES = {
    "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>", "pad_token": "<pad>",
    "cls_token": "<s>", "mask_token": "<mask>",
}  # fmt: skip
T5_SPECIALS = ["<pad>", "</s>", "<unk>"]  # the first pieces of T5 and its variants
ALBERT_SPECIALS = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
XLNET_SPECIALS = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
# mBART's languages, which its files do not list; the first 25 are those of mbart-large-cc25.
LANGUAGES = [
    "ar_AR", "cs_CZ", "de_DE", "en_XX", "es_XX", "et_EE", "fi_FI", "fr_XX", "gu_IN", "hi_IN", "it_IT", "ja_XX",
    "kk_KZ", "ko_KR", "lt_LT", "lv_LV", "my_MM", "ne_NP", "nl_XX", "ro_RO", "ru_RU", "si_LK", "tr_TR", "vi_VN",
    "zh_CN", "af_ZA", "az_AZ", "bn_IN", "fa_IR", "he_IL", "hr_HR", "id_ID", "ka_GE", "km_KH", "mk_MK", "ml_IN",
    "mn_MN", "mr_IN", "pl_PL", "ps_AF", "pt_XX", "sv_SE", "sw_KE", "ta_IN", "te_IN", "th_TH", "tl_XX", "uk_UA",
    "ur_PK", "xh_ZA", "gl_ES", "sl_SI",
]  # fmt: skip
COMMA_PENALTY = 100.0

Values = Mapping[str, Any]
PieceList = list[Piece]


def unchanged_pieces(pieces: PieceList, settings: Values) -> PieceList:
    """Return the pieces unchanged, as in the .model file."""
    return pieces


def with_sentinels(pieces: PieceList, settings: Values) -> PieceList:
    """Append T5's sentinels in reverse order, unless they are among the pieces already (mT5)."""
    if any("<extra_id_0>" in piece for piece, _, _ in pieces):
        return pieces
    extra = settings.get("extra_ids")
    sentinels = range(100 if extra is None else int(extra))
    return [*pieces, *((f"<extra_id_{number}>", 0.0, CONTROL) for number in reversed(sentinels))]


def with_mask(pieces: PieceList, settings: Values) -> PieceList:
    """Append DeBERTa-v2's mask token, which follows all pieces."""
    present = any(piece == "[MASK]" for piece, _, _ in pieces)
    return pieces if present else [*pieces, ("[MASK]", 0.0, CONTROL)]


def in_fairseq_order(*languages: str) -> Callable[[PieceList, Values], PieceList]:
    """Return a function that orders pieces as XLM-R and mBART do: <s> <pad> </s> <unk>, pieces, languages, <mask>."""

    def order(pieces: PieceList, settings: Values) -> PieceList:
        first: PieceList = [
            ("<s>", 0.0, CONTROL),
            ("<pad>", 0.0, CONTROL),
            ("</s>", 0.0, CONTROL),
            ("<unk>", 0.0, UNKNOWN),
        ]
        last: PieceList = [(token, 0.0, CONTROL) for token in (*languages, "<mask>")]
        return [*first, *(piece for piece in pieces if piece[2] not in (CONTROL, UNKNOWN)), *last]

    return order


def in_camembert_order(pieces: PieceList, settings: Values) -> PieceList:
    """Order pieces as CamemBERT does: its own special tokens, the model's pieces without <unk>, <mask>."""
    first: PieceList = [("<s>NOTUSED", 0.0, CONTROL), ("<pad>", 0.0, CONTROL), ("</s>NOTUSED", 0.0, CONTROL)]
    first += [("<unk>", 0.0, UNKNOWN), ("<unk>NOTUSED", 0.0, CONTROL)]
    return [*first, *(piece for piece in pieces if piece[2] != UNKNOWN), ("<mask>", 0.0, CONTROL)]


def penalize_digit_commas(pieces: PieceList, settings: Values) -> PieceList:
    """Lower the scores of pieces that end in a digit and a comma: ALBERT and XLNet split before such a comma."""
    found: PieceList = []
    for piece, score, kind in pieces:
        penalty = COMMA_PENALTY if kind == NORMAL and piece[-1:] == "," and piece[-2:-1].isdigit() else 0.0
        found.append((piece, score - penalty, kind))
    return found


def albert_normalizers(settings: Values) -> list[normalizers.Normalizer]:
    """Return the normalizers of ALBERT and XLNet (plain quotes, no accents, lowercase), as configured by the settings."""
    steps: list[normalizers.Normalizer] = []
    if settings["remove_space"]:
        steps += [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    steps += [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not settings["keep_accents"]:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    return [*steps, *lowercase_normalizers(settings)]


def lowercase_normalizers(settings: Values) -> list[normalizers.Normalizer]:
    """Return a lowercase normalizer if `do_lower_case` is set."""
    return [normalizers.Lowercase()] if settings["do_lower_case"] else []


def no_normalizers(settings: Values) -> list[normalizers.Normalizer]:
    """Return no normalizers."""
    return []


@dataclass(frozen=True)
class TokenizerClass:
    """A tokenizer class of `transformers`: its vocabulary file, its settings that affect ids, and its special tokens."""

    name: str
    file: str  # vocabulary file, used if there is no tokenizer.json
    tokens: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)  # settings that affect ids, with their defaults
    mask_lstrip: bool = False  # whether the mask token strips the space before it
    order: Callable[[PieceList, Values], PieceList] = unchanged_pieces  # order of the pieces of a .model file
    before: Callable[[Values], list[normalizers.Normalizer]] = (
        no_normalizers  # normalizers applied before those of a .model file
    )


BERT_SETTINGS = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
TIDY_SETTINGS = {"do_lower_case": True, "keep_accents": False, "remove_space": True}
END_OF_TEXT = "<|endoftext|>"

BERT = TokenizerClass("BertTokenizer", "vocab.txt", BRACKETS, BERT_SETTINGS)
MPNET = TokenizerClass("MPNetTokenizer", "vocab.txt", ANGLES | {"unk_token": "[UNK]"}, BERT_SETTINGS, True)
ROBERTA = TokenizerClass("RobertaTokenizer", "vocab.json", ANGLES, {"add_prefix_space": False}, True)
DEBERTA = TokenizerClass(
    "DebertaTokenizer",
    "vocab.json",
    BRACKETS | {"bos_token": "[CLS]", "eos_token": "[SEP]"},
    {"add_prefix_space": False},
    True,
)
GPT2 = TokenizerClass(
    "GPT2Tokenizer",
    "vocab.json",
    dict.fromkeys(("unk_token", "bos_token", "eos_token"), END_OF_TEXT),
    {"add_prefix_space": False},
)
GPT = TokenizerClass("OpenAIGPTTokenizer", "vocab.json", {"unk_token": "<unk>"})
XLM = TokenizerClass(
    "XLMTokenizer",
    "vocab.json",
    {
        "unk_token": "<unk>", "bos_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "cls_token": "</s>",
        "mask_token": "<special1>",
    },
    {"do_lowercase_and_remove_accent": True},
)  # fmt: skip
ALBERT = TokenizerClass(
    "AlbertTokenizer",
    "spiece.model",
    BRACKETS | {"bos_token": "[CLS]", "eos_token": "[SEP]", "unk_token": "<unk>", "pad_token": "<pad>"},
    TIDY_SETTINGS,
    mask_lstrip=True,
    order=penalize_digit_commas,
    before=albert_normalizers,
)
XLNET = TokenizerClass(
    "XLNetTokenizer",
    "spiece.model",
    ANGLES | {"sep_token": "<sep>", "cls_token": "<cls>"},
    TIDY_SETTINGS | {"do_lower_case": False},
    mask_lstrip=True,
    order=penalize_digit_commas,
    before=albert_normalizers,
)
T5 = TokenizerClass(
    "T5Tokenizer",
    "spiece.model",
    {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
    {"extra_ids": 100},
    order=with_sentinels,
)
XLM_ROBERTA = TokenizerClass(
    "XLMRobertaTokenizer", "sentencepiece.bpe.model", ANGLES, mask_lstrip=True, order=in_fairseq_order()
)
MBART = TokenizerClass(
    "MBartTokenizer", "sentencepiece.bpe.model", ANGLES, mask_lstrip=True, order=in_fairseq_order(*LANGUAGES[:25])
)
MBART50 = TokenizerClass(
    "MBart50Tokenizer", "sentencepiece.bpe.model", ANGLES, mask_lstrip=True, order=in_fairseq_order(*LANGUAGES)
)
CAMEMBERT = TokenizerClass(
    "CamembertTokenizer", "sentencepiece.bpe.model", ANGLES, mask_lstrip=True, order=in_camembert_order
)
DEBERTA_V2 = TokenizerClass(
    "DebertaV2Tokenizer",
    "spm.model",
    BRACKETS | {"bos_token": "[CLS]", "eos_token": "[SEP]"},
    {"do_lower_case": False, "split_by_punct": False},
    order=with_mask,
    before=lowercase_normalizers,
)
BIG_BIRD = TokenizerClass(
    "BigBirdTokenizer",
    "spiece.model",
    ANGLES | {"sep_token": "[SEP]", "mask_token": "[MASK]", "cls_token": "[CLS]"},
    mask_lstrip=True,
)
REFORMER = TokenizerClass("ReformerTokenizer", "spiece.model", {"eos_token": "</s>", "unk_token": "<unk>"})
LLAMA = TokenizerClass(
    "LlamaTokenizer", "tokenizer.model", {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
)

SAME_AS = (
    (
        BERT,
        (
            "DistilBertTokenizer", "ElectraTokenizer", "ConvBertTokenizer", "MobileBertTokenizer", "SqueezeBertTokenizer",
            "LayoutLMTokenizer", "LxmertTokenizer", "RetriBertTokenizer", "DPRContextEncoderTokenizer",
            "DPRQuestionEncoderTokenizer", "DPRReaderTokenizer", "ErnieTokenizer", "NezhaTokenizer",
        ),
    ),
    (ROBERTA, ("BartTokenizer", "LongformerTokenizer", "LEDTokenizer", "MvpTokenizer")),
    (T5, ("MT5Tokenizer",)),
)  # fmt: skip
KNOWN = (
    BERT, MPNET, ROBERTA, DEBERTA, GPT2, GPT, XLM, ALBERT, XLNET, T5, XLM_ROBERTA, MBART, MBART50, CAMEMBERT, DEBERTA_V2,
    BIG_BIRD, REFORMER, LLAMA,
)  # fmt: skip
CLASSES = {kind.name: kind for kind in KNOWN} | {name: kind for kind, names in SAME_AS for name in names}
# `model_type` in config.json → the class, if no file names one.
OF_MODEL = {
    "bert": BERT, "distilbert": BERT, "electra": BERT, "ernie": BERT, "mobilebert": BERT, "mpnet": MPNET, "roberta": ROBERTA,
    "bart": ROBERTA, "longformer": ROBERTA, "deberta": DEBERTA, "gpt2": GPT2, "openai-gpt": GPT, "xlm": XLM,
    "albert": ALBERT, "xlnet": XLNET, "t5": T5, "mt5": T5, "xlm-roberta": XLM_ROBERTA, "mbart": MBART,
    "camembert": CAMEMBERT, "deberta-v2": DEBERTA_V2, "big_bird": BIG_BIRD, "reformer": REFORMER,
}  # fmt: skip
# Classes without settings, for which tokenizer.json is complete.
GENERIC = {"PreTrainedTokenizerFast", "TokenizersBackend", "PreTrainedTokenizer", "PythonBackend"}
# Model types for which `transformers` ignores the class that tokenizer_config.json names.
MISNAMED = {"modernbert"}
# Classes that process text in Python code, which a tokenizer.json cannot represent.
PROGRAMS = {
    "BartphoTokenizer", "BertGenerationTokenizer", "BertJapaneseTokenizer", "BertweetTokenizer", "BioGptTokenizer",
    "BlenderbotSmallTokenizer", "ByT5Tokenizer", "CanineTokenizer", "CpmAntTokenizer", "CpmTokenizer", "CTRLTokenizer",
    "EsmTokenizer", "FlaubertTokenizer", "FSMTTokenizer", "GPTNeoXJapaneseTokenizer", "GPTSw3Tokenizer",
    "M2M100Tokenizer", "MyT5Tokenizer", "PhobertTokenizer", "PLBartTokenizer", "ProphetNetTokenizer",
    "RoCBertTokenizer", "RoFormerTokenizer", "Speech2TextTokenizer", "TapasTokenizer",
}  # fmt: skip
