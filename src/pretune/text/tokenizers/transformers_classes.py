"""List the tokenizer classes of `transformers`: the files they read, their settings and their special tokens.

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

BRACKETS = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}
ANGLES = {
    "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>", "pad_token": "<pad>",
    "cls_token": "<s>", "mask_token": "<mask>",
}  # fmt: skip
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


def with_sentinels(pieces: PieceList, settings: Values) -> PieceList:
    """Return vocabulary pieces with T5's sentinels (<extra_id_99>, …, <extra_id_0>) appended, unless they have any."""
    if any("<extra_id_0>" in piece for piece, _, _ in pieces):
        return pieces
    extra = settings.get("extra_ids")
    sentinels = range(100 if extra is None else int(extra))
    return [*pieces, *((f"<extra_id_{number}>", 0.0, CONTROL) for number in reversed(sentinels))]


def with_mask(pieces: PieceList, settings: Values) -> PieceList:
    """Return vocabulary pieces with DeBERTa-v2's mask token appended, unless they contain it already."""
    present = any(piece == "[MASK]" for piece, _, _ in pieces)
    return pieces if present else [*pieces, ("[MASK]", 0.0, CONTROL)]


def in_fairseq_order(*languages: str) -> Callable[[PieceList, Values], PieceList]:
    """Return a function that puts vocabulary pieces into the order of XLM-R and mBART.

    This order is: <s> <pad> </s> <unk>, the pieces of the model, the tokens of `languages`, <mask>.
    """

    def order(pieces: PieceList, settings: Values) -> PieceList:
        first: PieceList = [(token, 0.0, CONTROL) for token in ("<s>", "<pad>", "</s>")]
        last: PieceList = [(token, 0.0, CONTROL) for token in (*languages, "<mask>")]
        kept = (piece for piece in pieces if piece[2] not in (CONTROL, UNKNOWN))
        return [*first, ("<unk>", 0.0, UNKNOWN), *kept, *last]

    return order


def in_camembert_order(pieces: PieceList, settings: Values) -> PieceList:
    """Return vocabulary pieces in CamemBERT's order: special tokens, the pieces of the model without <unk>, <mask>."""
    first: PieceList = [("<s>NOTUSED", 0.0, CONTROL), ("<pad>", 0.0, CONTROL), ("</s>NOTUSED", 0.0, CONTROL)]
    first += [("<unk>", 0.0, UNKNOWN), ("<unk>NOTUSED", 0.0, CONTROL)]
    return [*first, *(piece for piece in pieces if piece[2] != UNKNOWN), ("<mask>", 0.0, CONTROL)]


def penalize_digit_commas(pieces: PieceList, settings: Values) -> PieceList:
    """Return vocabulary pieces with lower scores for those that end in a digit and a comma.

    This reproduces the tokenizers of ALBERT and XLNet, which split such pieces.
    """

    def penalty(piece: str, kind: int) -> float:
        return COMMA_PENALTY if kind == NORMAL and piece[-1:] == "," and piece[-2:-1].isdigit() else 0.0

    return [(piece, score - penalty(piece, kind), kind) for piece, score, kind in pieces]


def albert_normalizers(settings: Values) -> list[normalizers.Normalizer]:
    """Return the normalizers of ALBERT and XLNet that the settings of a tokenizer switch on.

    They can replace quotation marks, remove accents, and convert text to lower case.
    """
    steps: list[normalizers.Normalizer] = []
    if settings["remove_space"]:
        steps += [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    steps += [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not settings["keep_accents"]:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    return [*steps, *lowercase_normalizers(settings)]


def lowercase_normalizers(settings: Values) -> list[normalizers.Normalizer]:
    """Return a list with a lowercase normalizer if the setting `do_lower_case` is true, else an empty list."""
    return [normalizers.Lowercase()] if settings["do_lower_case"] else []


@dataclass(frozen=True)
class TokenizerClass:
    """A tokenizer class of `transformers`: its vocabulary file, its special tokens, and the defaults of its settings.

    `mask_lstrip` says whether the mask token strips the space before it. `order` is a function that puts the pieces of
    a SentencePiece model into the order of their ids, and `before` returns the normalizers that precede those of the
    model.
    """

    name: str
    file: str  # vocabulary file, used if there is no tokenizer.json
    tokens: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)  # settings that affect ids, with their defaults
    mask_lstrip: bool = False  # whether the mask token strips the space before it
    # Changes of the pieces of a .model file, and normalizers applied before those of the file.
    order: Callable[[PieceList, Values], PieceList] = lambda pieces, settings: pieces
    before: Callable[[Values], list[normalizers.Normalizer]] = lambda settings: []


BERT_SETTINGS = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
TIDY_SETTINGS = {"do_lower_case": True, "keep_accents": False, "remove_space": True}

BERT = TokenizerClass("BertTokenizer", "vocab.txt", BRACKETS, BERT_SETTINGS)
MPNET = TokenizerClass("MPNetTokenizer", "vocab.txt", ANGLES | {"unk_token": "[UNK]"}, BERT_SETTINGS, True)
ROBERTA = TokenizerClass("RobertaTokenizer", "vocab.json", ANGLES, {"add_prefix_space": False}, True)
BRACKETS_WITH_ENDS = BRACKETS | {"bos_token": "[CLS]", "eos_token": "[SEP]"}
DEBERTA = TokenizerClass("DebertaTokenizer", "vocab.json", BRACKETS_WITH_ENDS, {"add_prefix_space": False}, True)
GPT2_TOKENS = dict.fromkeys(("unk_token", "bos_token", "eos_token"), "<|endoftext|>")
GPT2 = TokenizerClass("GPT2Tokenizer", "vocab.json", GPT2_TOKENS, {"add_prefix_space": False})
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
    BRACKETS_WITH_ENDS | {"unk_token": "<unk>", "pad_token": "<pad>"},
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
FAIRSEQ: Any = {"file": "sentencepiece.bpe.model", "tokens": ANGLES, "mask_lstrip": True}
XLM_ROBERTA = TokenizerClass("XLMRobertaTokenizer", **FAIRSEQ, order=in_fairseq_order())
MBART = TokenizerClass("MBartTokenizer", **FAIRSEQ, order=in_fairseq_order(*LANGUAGES[:25]))
MBART50 = TokenizerClass("MBart50Tokenizer", **FAIRSEQ, order=in_fairseq_order(*LANGUAGES))
CAMEMBERT = TokenizerClass("CamembertTokenizer", **FAIRSEQ, order=in_camembert_order)
DEBERTA_V2 = TokenizerClass(
    "DebertaV2Tokenizer",
    "spm.model",
    BRACKETS_WITH_ENDS,
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
# The first pieces of the .model files of some classes.
FIRST_PIECES = (
    (T5, ["<pad>", "</s>", "<unk>"]),
    (ALBERT, ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]),
    (XLNET, ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]),
)
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
