"""Tests that vocabularies of published models get the special tokens that their files omit."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pretune import PretuneError
from pretune.text.corpus.documents import Document
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import train_on_documents
from tests.support.texts import KOREAN, RUSSIAN, T5_IDS, english_documents, russian_pieces


@pytest.mark.not_fast
@pytest.mark.parametrize("config", [None, {"extra_ids": 100, "eos_token": "</s>", "tokenizer_class": "T5Tokenizer"}])
def test_t5_gets_its_sentinels_from_the_pieces(config: dict[str, Any] | None, tmp_path: Path) -> None:
    from transformers import T5Tokenizer

    (tmp_path / "spiece.model").write_bytes(russian_pieces(**T5_IDS))
    if config is not None:
        names = {"pad_token": "<pad>", "unk_token": "<unk>"}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | names), encoding="utf-8")
    reference = T5Tokenizer.from_pretrained(tmp_path)
    reference.save_pretrained(tmp_path / "saved")
    for folder in (tmp_path, tmp_path / "saved"):
        tokenizer = Tokenizer.load(folder)
        assert tokenizer.size == len(reference) == 180
        assert {name: tokenizer.role(name) for name in ("padding", "end", "separator", "unknown")} == {
            "padding": 0, "end": 1, "separator": 1, "unknown": 2,
        }  # fmt: skip
        assert not tokenizer.has_role("start") and not tokenizer.has_role("mask")
        assert [tokenizer.role(f"sentinel {i}") for i in (0, 1, 99)] == [179, 178, 80]
        assert not tokenizer.has_role("sentinel 100")
        for text in (*RUSSIAN, "Кот, кот!", "<extra_id_0"):
            assert tokenizer.encode(text) == reference(text, add_special_tokens=False)["input_ids"]
        spelled = "Кот <extra_id_0> спал"
        assert (
            tokenizer.encode(spelled, allow_special=True) == reference(spelled, add_special_tokens=False)["input_ids"]
        )
        assert tokenizer.role("sentinel 0") not in tokenizer.encode(spelled)
        with pytest.raises(PretuneError, match=r"no 'mask' token \(it has: end, padding, separator, unknown, 100 sent"):
            tokenizer.role("mask")


def test_t5_without_sentinels_gets_none(tmp_path: Path) -> None:
    (tmp_path / "spiece.model").write_bytes(russian_pieces(**T5_IDS))
    (tmp_path / "tokenizer_config.json").write_text('{"extra_ids": 0}', encoding="utf-8")
    assert Tokenizer.load(tmp_path).size == 80
    (tmp_path / "spiece.model").write_bytes(russian_pieces())  # <unk> <s> </s>: not a T5 vocabulary
    (tmp_path / "tokenizer_config.json").unlink()
    assert Tokenizer.load(tmp_path).size == 80


def test_mt5_has_its_sentinels_among_the_pieces(tmp_path: Path) -> None:
    own = [f"▁<extra_id_{i}>" for i in reversed(range(5))]
    (tmp_path / "spiece.model").write_bytes(russian_pieces(85, user_defined_symbols=",".join(own), **T5_IDS))
    (tmp_path / "tokenizer_config.json").write_text('{"extra_ids": 0}', encoding="utf-8")
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.size == 85
    sentinels = [tokenizer.role(f"sentinel {i}") for i in range(5)]
    assert tokenizer.tokens(sentinels) == own[::-1]
    assert tokenizer.specials[sentinels].all()
    spelled = "Кот <extra_id_3> спал"
    assert tokenizer.encode(spelled, allow_special=True).count(sentinels[3]) == 1
    assert sentinels[3] not in tokenizer.encode(spelled)
    tokenizer.save(tmp_path / "again")
    again = Tokenizer.load(tmp_path / "again")
    assert again.roles == tokenizer.roles
    assert again.encode(RUSSIAN[0]) == tokenizer.encode(RUSSIAN[0])


@pytest.mark.parametrize(("kind", "languages"), [("MBartTokenizer", 25), ("MBart50Tokenizer", 52)])
def test_mbart_has_its_languages(kind: str, languages: int, tmp_path: Path) -> None:
    import transformers

    (tmp_path / "sentencepiece.bpe.model").write_bytes(russian_pieces())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}), encoding="utf-8")
    made = getattr(transformers, kind).from_pretrained(tmp_path)
    made.save_pretrained(tmp_path / "saved")
    alone = Tokenizer.load(tmp_path)
    assert alone.size == 81 + languages + 1  # <pad> is added
    assert (alone.role("start"), alone.role("padding"), alone.role("end"), alone.role("unknown")) == (0, 1, 2, 3)
    assert alone.role("mask") == alone.size - 1
    assert alone.role("language ar_AR") == 81
    assert alone.role("language ru_RU") == made.convert_tokens_to_ids("ru_RU") == 81 + 20
    # mBART's texts are English unless src_lang names another language; those of mBART-50 begin with it, which is not
    # supported.
    assert alone.roles.get("language") == (made.convert_tokens_to_ids("en_XX") if kind == "MBartTokenizer" else None)
    saved = Tokenizer.load(tmp_path / "saved")
    for tokenizer in (alone, saved):
        assert sum(role.startswith("language ") for role in tokenizer.roles) == languages
        assert tokenizer.roles == alone.roles
    for text in RUSSIAN:
        assert alone.encode(text) == made(text, add_special_tokens=False)["input_ids"]


@cache
def bart_vocabulary() -> tuple[str, str]:
    """Return vocab.json and merges.txt in BART's order: <s> <pad> </s> <unk>, the pieces, <mask>."""
    texts = [*english_documents()[:5], *RUSSIAN, *KOREAN]
    model = json.loads(
        train_on_documents([Document(t, Path("x"), 1) for t in texts], "byte-level-bpe", 600).backend.to_str()
    )["model"]
    plain = [token for token in model["vocab"] if not (token.startswith("[") and token.endswith("]") and token[1:-1])]
    order = ["<s>", "<pad>", "</s>", "<unk>", *plain, "<mask>"]
    merges = "\n".join(" ".join(pair) for pair in model["merges"])
    return json.dumps({token: i for i, token in enumerate(order)}), f"#version: 0.2\n{merges}\n"


def test_special_tokens_of_bart(tmp_path: Path) -> None:
    from transformers import BartTokenizer

    vocabulary, merges = bart_vocabulary()
    (tmp_path / "vocab.json").write_text(vocabulary, encoding="utf-8")
    (tmp_path / "merges.txt").write_text(merges, encoding="utf-8")
    reference = BartTokenizer.from_pretrained(tmp_path)
    reference.save_pretrained(tmp_path / "saved")
    for folder in (tmp_path, tmp_path / "saved"):
        tokenizer = Tokenizer.load(folder)
        assert tokenizer.roles == {
            "start": 0, "padding": 1, "end": 2, "separator": 2, "unknown": 3, "mask": tokenizer.size - 1,
        }  # fmt: skip
        for text in (*RUSSIAN, "Hello,  world's end"):
            assert tokenizer.encode(text) == reference(text, add_special_tokens=False)["input_ids"]


def test_special_tokens_of_deberta(tmp_path: Path) -> None:
    from transformers import DebertaTokenizer

    vocabulary, merges = bart_vocabulary()
    names = {"<pad>": "[PAD]", "<s>": "[CLS]", "</s>": "[SEP]", "<unk>": "[UNK]", "<mask>": "[MASK]"}
    renamed = {names.get(token, token): number for token, number in json.loads(vocabulary).items()}
    (tmp_path / "vocab.json").write_text(json.dumps(renamed), encoding="utf-8")
    (tmp_path / "merges.txt").write_text(merges, encoding="utf-8")
    reference, tokenizer = DebertaTokenizer.from_pretrained(tmp_path), Tokenizer.load(tmp_path)
    assert tokenizer.roles == {
        "start": 0, "padding": 1, "end": 2, "separator": 2, "unknown": 3, "mask": tokenizer.size - 1,
    }  # fmt: skip
    for text in (*RUSSIAN, "Hello,  world's end"):
        assert tokenizer.encode(text) == reference(text, add_special_tokens=False)["input_ids"]
    # The mask includes the space before it, like RoBERTa's.
    assert tokenizer.encode("Hello [MASK]", allow_special=True) == [*tokenizer.encode("Hello"), tokenizer.role("mask")]


def test_mask_of_deberta_follows_its_pieces(tmp_path: Path) -> None:
    from transformers import DebertaV2Tokenizer

    numbers = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}
    pieces = {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}
    (tmp_path / "spm.model").write_bytes(russian_pieces(**numbers, **pieces))
    reference, tokenizer = DebertaV2Tokenizer.from_pretrained(tmp_path), Tokenizer.load(tmp_path)
    assert tokenizer.size == len(reference) == 81
    assert tokenizer.roles == {"padding": 0, "start": 1, "end": 2, "separator": 2, "unknown": 3, "mask": 80}
    assert tokenizer.role("mask") == reference.mask_token_id
    for text in (*RUSSIAN, "Кот, кот!"):
        assert tokenizer.encode(text) == reference(text, add_special_tokens=False)["input_ids"]


def test_two_models_of_marian_are_rejected(tmp_path: Path) -> None:
    for name in ("source.spm", "target.spm"):
        (tmp_path / name).write_bytes(russian_pieces())
    (tmp_path / "vocab.json").write_text("{}", encoding="utf-8")
    with pytest.raises(PretuneError, match=r"source\.spm and target\.spm are two tokenizers"):
        Tokenizer.load(tmp_path)
