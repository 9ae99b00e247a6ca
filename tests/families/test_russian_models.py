"""Folders like those of published Russian models: pretune and `transformers` read them with the same results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import models, normalizers, pre_tokenizers, trainers

from pretune.inference.fill import MASK, MaskFiller
from pretune.models.loading import load
from pretune.packed import Packed, pack
from tests.support.parity import close
from tests.support.texts import RUSSIAN, T5_IDS, russian_pieces

SENTENCES = [sentence for text in RUSSIAN for sentence in text.replace("! ", ". ").split(". ")]
SHAPE = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 50, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


def rubert(folder: Path) -> Any:
    """Save a model like ruBERT: vocab.txt of a cased WordPiece tokenizer, without decomposing й and ё."""
    from transformers import BertConfig, BertForMaskedLM

    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))  # type: ignore[call-arg]
    backend.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=900, special_tokens=specials, show_progress=False)
    backend.train_from_iterator(SENTENCES, trainer)
    vocabulary = sorted(backend.get_vocab().items(), key=lambda item: item[1])
    (folder / "vocab.txt").write_text("\n".join(token for token, _ in vocabulary) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False, "model_max_length": 50}))
    return BertForMaskedLM(BertConfig(vocab_size=len(vocabulary), **SHAPE))


def ruroberta(folder: Path) -> Any:
    """Save a model like ruRoBERTa: vocab.json and merges.txt of a byte-level BPE, and no other tokenizer file."""
    from transformers import RobertaConfig, RobertaForMaskedLM

    backend = tokenizers.ByteLevelBPETokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    backend.train_from_iterator(
        SENTENCES, vocab_size=900, min_frequency=1, special_tokens=specials, show_progress=False
    )
    backend.save_model(str(folder))
    return RobertaForMaskedLM(RobertaConfig(vocab_size=backend.get_vocab_size(), type_vocab_size=1, **SHAPE))


def rugpt(folder: Path) -> Any:
    """Save a model like ruGPT: GPT-2 with vocab.json and merges.txt of a byte-level BPE."""
    from transformers import GPT2Config, GPT2LMHeadModel

    backend = tokenizers.ByteLevelBPETokenizer()
    specials = ["<pad>", "<s>", "</s>", "<unk>", "<|endoftext|>"]
    backend.train_from_iterator(
        SENTENCES, vocab_size=700, min_frequency=1, special_tokens=specials, show_progress=False
    )
    backend.save_model(str(folder))
    names = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", **names}))
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 50}
    return GPT2LMHeadModel(GPT2Config(vocab_size=backend.get_vocab_size(), **sizes))


def rut5(folder: Path) -> Any:
    """Save a model like ruT5: spiece.model of a unigram tokenizer, gated layers and untied embeddings."""
    from transformers import T5Config, T5ForConditionalGeneration

    (folder / "spiece.model").write_bytes(russian_pieces(80, **T5_IDS))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer", "extra_ids": 100}))
    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0}
    how = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    return T5ForConditionalGeneration(T5Config(vocab_size=192, decoder_start_token_id=0, **sizes, **how))


def packed(ids: list[int]) -> Packed:
    return pack(np.array(ids), np.array([len(ids)]))


@pytest.mark.parametrize("make", [rugpt, rut5])
def test_ids_and_logits_of_generative_models_match_transformers_before_and_after_export(
    make: Any, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

    torch.manual_seed(0)
    folder, out = tmp_path / "published", tmp_path / "ours"
    folder.mkdir()
    make(folder).save_pretrained(folder)
    model = load(folder)
    model.export(out)
    writes = make is rut5
    text = "Кот спал на подоконнике, а ёж — под крыльцом."
    target = [0, 17, 23, 5]
    for place in (folder, out):
        inputs = AutoTokenizer.from_pretrained(place)(text, return_tensors="pt")
        ids = inputs["input_ids"][0].tolist()
        tokenizer = model.require_tokenizer()
        assert ids == tokenizer.encode(text) + [tokenizer.role("end")] * writes
        assert tokenizer.decode(ids).strip() == tokenizer.decode(tokenizer.encode(text)).strip()
        reference = (AutoModelForSeq2SeqLM if writes else AutoModelForCausalLM).from_pretrained(place).eval()
        more = {"decoder_input_ids": torch.tensor([target])} if writes else {}
        model.root.eval().requires_grad_(False)
        states = model.backbone(packed(ids), packed(target)) if writes else model.backbone(packed(ids))
        head = model.root.heads["spans" if writes else "lm"]
        with torch.no_grad():
            close(head(states.last, model.backbone.embed.tokens), reference(**inputs, **more).logits[0])


def teach(reference: Any, tokenizer: Any) -> None:
    """Train until the sentences are memorized, masking each of their tokens in turn."""
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    plain = ~torch.isin(batch["input_ids"], torch.tensor(tokenizer.all_special_ids))
    row, place = plain.nonzero(as_tuple=True)
    ids, seen = batch["input_ids"][row], batch["attention_mask"][row]
    hidden = torch.arange(ids.shape[1]) == place[:, None]
    optimizer = torch.optim.Adam(reference.parameters(), lr=1e-2)
    for _ in range(50):
        masked = ids.masked_fill(hidden, tokenizer.mask_token_id)
        reference(masked, attention_mask=seen, labels=ids.masked_fill(~hidden, -100)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def fills_in_transformers(folder: Path, text: str) -> list[tuple[int, float]]:
    """Return the most probable tokens according to `transformers`, without special tokens, as pretune does."""
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    # The space before a mask belongs to it; `transformers` knows that only from a tokenizer.json.
    inputs = tokenizer(text.replace(f" {MASK}", MASK).replace(MASK, tokenizer.mask_token), return_tensors="pt")
    with torch.no_grad():
        logits = AutoModelForMaskedLM.from_pretrained(folder).eval()(**inputs).logits[0]
    row = logits[inputs["input_ids"][0] == tokenizer.mask_token_id][0]
    row[tokenizer.all_special_ids] = -torch.inf
    best = row.softmax(-1).topk(3)
    return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))


@pytest.mark.not_fast
@pytest.mark.parametrize("make", [rubert, ruroberta])
def test_filled_masks_match_transformers_before_and_after_export(make: Any, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    torch.manual_seed(0)
    folder, out = tmp_path / "published", tmp_path / "ours"
    folder.mkdir()
    reference = make(folder)
    reference.config.save_pretrained(folder)
    teach(reference, AutoTokenizer.from_pretrained(folder))
    reference.save_pretrained(folder)

    filler = MaskFiller.load(folder)
    filler.model.save(out)
    again = MaskFiller.load(out)
    tokenizer = filler.model.require_tokenizer()
    assert {"start", "separator", "mask", "padding", "unknown"} <= set(tokenizer.roles)
    right = 0
    for text, answer in [
        ("Поезд пришёл в [MASK] с опозданием", "Тверь"),
        ("Мы варили варенье [MASK] крыжовника", "из"),
        ("Река [MASK] к августу", "обмелела"),
        ("[MASK] переходили её вброд, а старики качали головами", "Дети"),
    ]:
        theirs = fills_in_transformers(folder, text)
        assert [i for i, _ in fills_in_transformers(out, text)] == [i for i, _ in theirs]
        for ours in (filler, again):
            found = ours.fill(text, top_k=3)["gaps"][0]
            assert [c["token"] for c in found] == [tokenizer.decode([i]).strip() for i, _ in theirs]
            assert [c["probability"] for c in found] == pytest.approx([p for _, p in theirs], abs=1e-5)
        right += found[0]["token"] == answer
    assert right >= 3  # the model has learned something, so that the agreement is not that of noise


@pytest.mark.parametrize("make", [rubert, ruroberta])
def test_ids_of_texts_and_pairs_match_transformers_before_and_after_export(make: Any, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    from pretune.models.length_bucketing import text_batches

    folder, out = tmp_path / "published", tmp_path / "ours"
    folder.mkdir()
    make(folder).save_pretrained(folder)
    filler = MaskFiller.load(folder)
    filler.model.save(out)
    texts, pairs = ["Ёжик нашёл гриб!", SENTENCES[0]], ["Йод — не яд.", SENTENCES[1]]
    for second in (None, pairs):
        expected = AutoTokenizer.from_pretrained(folder)(texts, second)["input_ids"]
        encoded = AutoTokenizer.from_pretrained(out)(texts, second)
        assert encoded["input_ids"] == expected
        assert ("token_type_ids" in encoded) == (make is rubert)
        (batch,) = text_batches(filler.model, texts, second)
        ids, offsets = batch.packed[0].ids.tolist(), batch.packed[0].offsets.tolist()
        ours = {int(row): ids[a:b] for row, a, b in zip(batch.rows, offsets[:-1], offsets[1:], strict=True)}
        assert [ours[row] for row in range(2)] == expected
        if make is rubert and second is not None:
            segments = batch.packed[0].columns["segment"].tolist()
            by_row = {int(r): segments[a:b] for r, a, b in zip(batch.rows, offsets[:-1], offsets[1:], strict=True)}
            assert [by_row[row] for row in range(2)] == encoded["token_type_ids"]
