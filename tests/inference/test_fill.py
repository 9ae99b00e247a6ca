"""Tests that masks in texts get the ids of `transformers`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from pretune.inference.fill import MaskFiller
from pretune.models.create_model import make_model
from pretune.text.corpus.documents import Document
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import Kind, train_on_documents
from tests.support.texts import RUSSIAN, english_documents, russian_pieces

TEXTS = [
    "The [MASK] of it.",
    "[MASK]",
    "a[MASK]b",
    "One  [MASK] [MASK], and [MASK]!",
    " [MASK] first",
    "last [MASK] ",
    "река [MASK]\n.",
]


def filler(tokenizer: Tokenizer) -> MaskFiller:
    model = make_model("bert-tiny", tokenizer.size)
    model.tokenizer = tokenizer
    return MaskFiller(model, torch.device("cpu"))


def byte_level(folder: Path) -> None:
    """Write the files of a RoBERTa tokenizer, whose mask includes the space before it."""
    texts = [Document(text, Path("x"), 1) for text in (*english_documents()[:3], *RUSSIAN)]
    content = json.loads(train_on_documents(texts, "byte-level-bpe", 500).backend.to_str())
    plain = [token for token in content["model"]["vocab"] if not token.startswith("[") or len(token) == 1]
    order = ["<s>", "<pad>", "</s>", "<unk>", *plain, "<mask>"]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(order)}), encoding="utf-8")
    merges = "\n".join(" ".join(pair) for pair in content["model"]["merges"])
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}\n", encoding="utf-8")
    mask = {"content": "<mask>", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False}
    (folder / "special_tokens_map.json").write_text(json.dumps({"mask_token": mask}))
    (folder / "config.json").write_text('{"model_type": "roberta"}')


def pieces(folder: Path) -> None:
    """Write the files of an XLM-R tokenizer."""
    (folder / "sentencepiece.bpe.model").write_bytes(russian_pieces())
    (folder / "config.json").write_text('{"model_type": "xlm-roberta"}')


@pytest.mark.parametrize("write", [byte_level, pieces])
def test_masks_include_the_preceding_space_if_the_tokenizer_says_so(write: object, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    assert callable(write)
    write(tmp_path)
    reference, ours = AutoTokenizer.from_pretrained(tmp_path), filler(Tokenizer.load(tmp_path))
    for text in TEXTS:
        expected = reference(text.replace("[MASK]", "<mask>"))["input_ids"]
        assert ours.encode(text) == expected, text
        assert ours.encode(text.replace("[MASK]", "<mask>")) == expected


@pytest.mark.parametrize("kind", ["wordpiece", "byte-level-bpe", "unigram"])
def test_exported_tokenizers_encode_masks_like_transformers(kind: Kind, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = train_on_documents(
        [Document(text, Path("x"), 1) for text in (*english_documents()[:3], *RUSSIAN)], kind, 500
    )
    ours = filler(tokenizer)
    tokenizer.save(tmp_path, ours.model.family.template)
    reference = AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert ours.encode(text) == reference(text)["input_ids"]
    if kind == "byte-level-bpe":  # there is no separate space before the mask
        assert tokenizer.tokens(ours.encode("a [MASK] b")) == ["[CLS]", "a", "[MASK]", "Ġb", "[SEP]"]
