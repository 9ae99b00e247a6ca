"""Exported tokenizers give the same ids in `transformers`, for texts, pairs and truncated inputs."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretune.families import FAMILIES
from pretune.text.corpus.documents import Document
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.token_rows import TokenRows, arrange_rows
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import Kind, train_on_documents
from tests.support.texts import KOREAN, RUSSIAN, T5_IDS, english_documents, russian_pieces
from tests.support.tricky_strings import SPECIALS, TRICKY

# mBART's template wants a language, which is not known before a text is.
THERE = sorted(name for name, family in FAMILIES.items() if family.elsewhere and name != "mbart")
TEXTS = [text for text in TRICKY if text not in SPECIALS][::6]
SOLID = [text for text in TEXTS if text.isprintable() and text.strip()]  # a second text without tokens is none here
LONGEST = 13


@cache
def trained(kind: Kind) -> Tokenizer:
    texts = [*english_documents()[:10], *RUSSIAN, *KOREAN, *TRICKY]
    return train_on_documents([Document(text, Path("test"), 1) for text in texts], kind, 800, sentinels=3)


def laid_out(
    tokenizer: Tokenizer, template: Template, texts: list[str], pairs: list[str] | None, length: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Ids and segments of rows as a model here gets them."""
    rows = TokenRows.make(LabeledRows(Path("x"), {}, texts, pairs), tokenizer)
    made = arrange_rows(rows, tokenizer, template, length, {}).take(np.arange(len(texts)))
    cuts = made.offsets[1:-1]
    return tuple([row.tolist() for row in np.split(column, cuts)] for column in (made.ids, made.columns["segment"]))  # type: ignore[return-value]


def load_peer(folder: Path, model_type: str) -> Any:
    from transformers import AutoTokenizer

    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("kind", ["wordpiece", "byte-bpe", "unigram"])
@pytest.mark.parametrize("name", THERE)
def test_every_familys_template_is_the_same_in_transformers(name: str, kind: Kind, tmp_path: Path) -> None:
    tokenizer, template = trained(kind), FAMILIES[name].template
    tokenizer.save(tmp_path, template, LONGEST)
    peer = load_peer(tmp_path, name)
    assert peer.model_max_length == LONGEST
    assert peer.padding_side == ("left" if template.last else "right")
    assert ("token_type_ids" in peer.model_input_names) == template.segments
    pairs = [SOLID[row % len(SOLID)] for row in range(3, len(TEXTS) + 3)]
    for second in (None, pairs):
        for length in (LONGEST, LONGEST + 1, 10_000):
            ids, segments = laid_out(tokenizer, template, TEXTS, second, length)
            for row, text in enumerate(TEXTS):
                made = peer(text, second[row] if second else None, truncation=True, max_length=length)
                assert made["input_ids"] == ids[row], (text, length)
                if template.segments:
                    assert made["token_type_ids"] == segments[row]
    ids, _ = laid_out(tokenizer, template, TEXTS, pairs, LONGEST)
    assert [peer(text, pair, truncation=True)["input_ids"] for text, pair in zip(TEXTS, pairs, strict=True)] == ids


@pytest.mark.parametrize("name", THERE)
def test_named_tokens_are_those_of_the_template(name: str, tmp_path: Path) -> None:
    tokenizer, template = trained("byte-bpe"), FAMILIES[name].template
    tokenizer.save(tmp_path, template)
    peer = load_peer(tmp_path, name)
    single = peer("a")["input_ids"]
    if template.single[0] != "A":
        assert peer.bos_token_id == peer.cls_token_id == single[0]
    if template.last:
        assert peer.cls_token_id == single[-1]
    elif template.single[-1] != "A":
        assert single[-1] in (peer.eos_token_id, peer.sep_token_id)
    if template.document is not None:  # running text begins after the end of the text before it
        assert peer.bos_token_id == peer.eos_token_id == tokenizer.role("end")
    if template.target and template.target[0] == "padding":  # T5 and Marian have no token that begins a text
        assert peer.bos_token is None
    assert (peer.eos_token_id, peer.pad_token_id) == (tokenizer.role("end"), tokenizer.role("padding"))
    assert Tokenizer.load(tmp_path).roles == tokenizer.roles


def roberta(folder: Path) -> dict[str, str]:
    content = json.loads(trained("byte-bpe").backend.to_str())["model"]
    plain = [token for token in content["vocab"] if token not in trained("byte-bpe").role_tokens.values()]
    order = ["<s>", "<pad>", "</s>", "<unk>", *plain, "<mask>"]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(order)}), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(map(" ".join, content["merges"])), encoding="utf-8")
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return names | {"cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}


def t5(folder: Path) -> dict[str, str]:
    (folder / "spiece.model").write_bytes(russian_pieces(**T5_IDS))
    return {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def xlnet(folder: Path) -> dict[str, str]:
    control = "<cls>,<sep>,<pad>,<mask>,<eod>,<eop>"
    (folder / "spiece.model").write_bytes(russian_pieces(unk_id=0, bos_id=1, eos_id=2, control_symbols=control))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return names | {"cls_token": "<cls>", "sep_token": "<sep>", "mask_token": "<mask>"}


@pytest.mark.parametrize(("name", "write"), [("roberta", roberta), ("bart", roberta), ("t5", t5), ("xlnet", xlnet)])
def test_published_names_come_out_as_they_went_in(name: str, write: Any, tmp_path: Path) -> None:
    names, template = write(tmp_path), FAMILIES[name].template
    (tmp_path / "config.json").write_text(json.dumps({"model_type": name}))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.names == names
    tokenizer.save(tmp_path / "out", template, 20)
    peer = load_peer(tmp_path / "out", name)
    assert {key: getattr(peer, key) for key in names} == names
    texts = [*RUSSIAN, *SOLID]
    for pairs in (None, texts[::-1]):
        ids, _ = laid_out(tokenizer, template, texts, pairs, 20)
        for row, text in enumerate(texts):
            assert peer(text, pairs[row] if pairs else None, truncation=True)["input_ids"] == ids[row], text
    again = Tokenizer.load(tmp_path / "out")
    assert again.digest == tokenizer.digest and again.names == names


def test_a_model_writes_its_maximum_length_and_the_ids_of_its_tokenizer(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    from pretune.models.create_model import make_model

    for name in ("bert-tiny", "gpt2-tiny", "xlnet-tiny", "t5-tiny", "roberta-tiny"):
        model = make_model(name, trained("wordpiece").size, padding=trained("wordpiece").role("padding"))
        model.tokenizer = trained("wordpiece")
        model.save(tmp_path / name)
        peer, config = AutoTokenizer.from_pretrained(tmp_path / name), AutoConfig.from_pretrained(tmp_path / name)
        longest = model.backbone.longest
        assert peer.model_max_length == longest if longest else peer.model_max_length > 10**9
        assert config.pad_token_id == peer.pad_token_id
        for key in ("bos_token_id", "eos_token_id"):
            if isinstance(getattr(model.config, key, 0), type(None)):  # the family leaves it to the tokenizer
                assert getattr(config, key) == getattr(peer, key), (name, key)


def test_a_different_template_is_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some RoBERTas come with BERT's tokenizer, which has one separator between two texts."""
    from pretune.models.create_model import make_model
    from pretune.models.loading import load_model

    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)
    tokenizer = trained("wordpiece")
    model = make_model("roberta-tiny", tokenizer.size, padding=tokenizer.role("padding"))
    model.tokenizer = tokenizer
    model.save(tmp_path)
    load_model(tmp_path)
    assert "has the template" not in capfd.readouterr().err
    tokenizer.save(tmp_path, FAMILIES["bert"].template)
    load_model(tmp_path)
    said = capfd.readouterr().err
    assert "has the template '[CLS] A [SEP] B [SEP]', but '[CLS] A [SEP] [SEP] B [SEP]' of roberta" in said
    assert said.count("has the template") == 1
