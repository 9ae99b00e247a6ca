"""Damaged tokenizer files: whatever is accepted must also tokenize."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from pretune.text.tokenizers.tokenizer import Tokenizer
from tests.support.fuzz_harness import FEW, MANY, Kind, attack

TEXTS = [
    "the cat sat",
    "Élan 中文 \U0001f600 \ue000!",
    "",
    "[MASK] <s> </s> ▁<0x41>",
    "a\u0301ﬁ\u1100\u1161\u11a8\r\n\t\0",
]
WORDS = ["the", "cat", "sat", "##s", "a", "##t", "É", "中", "!"]
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# Without texts of several thousand sentences, the normalization rules of nmt_nfkc make up most of a .model file.
CORPUS = ["the cat sat on the mat", "a cat and a hat", "cats are fat", "the mat is flat"] * 5


def use(folder: Path) -> Tokenizer:
    """Load a tokenizer and do with it what training and inference do."""
    tokenizer = Tokenizer.load(folder)
    ids, _ = tokenizer.encode_parts([TEXTS])
    tokenizer.word_starts(ids)
    tokenizer.decode(ids)
    tokenizer.tokens(ids)
    tokenizer.encode_with_offsets(TEXTS)
    tokenizer.places(TEXTS)
    tokenizer.encode(TEXTS[3], marked=True)
    Tokenizer.from_state(tokenizer.state())
    assert tokenizer.digest
    return tokenizer


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False))


def settings(folder: Path, tokenizer_class: str, **more: Any) -> None:
    """Write the three files of settings."""
    tokens = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIALS, strict=True))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": tokenizer_class, **tokens, **more})
    mask = {"content": "[MASK]", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False}
    write_json(folder / "special_tokens_map.json", tokens | {"mask_token": mask, "additional_special_tokens": ["[X]"]})


def vocab_txt(folder: Path) -> None:
    tokens = [*SPECIALS, *WORDS]
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")
    settings(folder, "BertTokenizer", do_lower_case=False, strip_accents=None, never_split=["[MASK]"])
    write_json(folder / "added_tokens.json", {"[X]": len(tokens), "extra": len(tokens) + 1})


def byte_level(folder: Path) -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *letters, "Ġt", "he", "Ġthe", "at", "cat", "<mask>"]
    write_json(folder / "vocab.json", {token: number for number, token in enumerate(tokens)})
    (folder / "merges.txt").write_text("#version: 0.2\nĠ t\nh e\nĠt he\na t\nc at\n")
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": True})


def word_end(folder: Path) -> None:
    tokens = ["<unk>", "t", "h", "e</w>", "c", "a", "t</w>", "th", "the</w>", "at</w>", "cat</w>"]
    write_json(folder / "vocab.json", {token: number for number, token in enumerate(tokens)})
    (folder / "merges.txt").write_text("#version: 0.2\nt h\nth e</w>\na t</w>\nc at</w>\n")


def tokenizer_json(folder: Path, algorithm: str) -> None:
    if algorithm == "WordPiece":
        vocabulary = {token: number for number, token in enumerate([*SPECIALS, *WORDS])}
        backend = Backend(models.WordPiece(vocabulary, unk_token="[UNK]"))
        backend.normalizer = normalizers.BertNormalizer()
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece()
    elif algorithm == "BPE":
        vocabulary = {token: number for number, token in enumerate([*SPECIALS, *"thecas", "th", "the", "at"])}
        backend = Backend(models.BPE(vocabulary, [("t", "h"), ("th", "e"), ("a", "t")], unk_token="[UNK]"))
        backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("x", "y")])
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits()])
    else:
        pieces = [(token, 0.0) for token in SPECIALS] + [("▁", -1.0), ("▁the", -2.0), *((c, -3.0) for c in "thecas")]
        backend = Backend(models.Unigram(pieces, unk_id=1))
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(SPECIALS)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    backend.save(str(folder / "tokenizer.json"))
    settings(folder, "PreTrainedTokenizerFast")


def sentencepiece_model(folder: Path, model_type: str, rules: str = "identity", size: int = 40, **options: Any) -> None:
    import sentencepiece

    with (folder / "spiece.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS),
            model_writer=file,
            model_type=model_type,
            vocab_size=size,
            hard_vocab_limit=False,
            normalization_rule_name=rules,
            minloglevel=2,
            **options,
        )
    write_json(folder / "tokenizer_config.json", {"model_max_length": 512, "additional_special_tokens": ["<x>"]})


def kind(name: str, make: Callable[[Path], Any], *files: str) -> Kind:
    return Kind(name, make, files, use)


KINDS = [
    kind("vocab.txt", vocab_txt, "vocab.txt", "vocab.txt", "added_tokens.json"),
    kind("settings beside vocab.txt", vocab_txt, "tokenizer_config.json", "special_tokens_map.json"),
    kind("byte-level BPE", byte_level, "vocab.json", "merges.txt", "tokenizer_config.json"),
    kind("BPE with </w>", word_end, "vocab.json", "merges.txt"),
    *(
        kind(f"tokenizer.json, {name}", partial(tokenizer_json, algorithm=name), "tokenizer.json", "tokenizer.json", "tokenizer_config.json")
        for name in ("WordPiece", "BPE", "Unigram")
    ),
    *(
        kind(f"sentencepiece, {name}", partial(sentencepiece_model, model_type=name, byte_fallback=name == "bpe", size=300 if name == "bpe" else 40), "spiece.model", "spiece.model", "tokenizer_config.json")
        for name in ("unigram", "bpe", "char")
    ),
    kind("sentencepiece with rules", partial(sentencepiece_model, model_type="unigram", rules="nmt_nfkc", user_defined_symbols=["ﬁx"]), "spiece.model"),
]  # fmt: skip


@pytest.mark.end_to_end
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_damaged_tokenizers(kind: Kind, tmp_path: Path) -> None:
    report = attack(kind, tmp_path, FEW)
    assert not report.bad, str(report)
    assert report.counts["refused"] > FEW // 10


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_damaged_tokenizers_at_length(kind: Kind, tmp_path: Path) -> None:
    report = attack(kind, tmp_path, MANY, seed=1)
    print(report)
    assert not report.bad, str(report)
