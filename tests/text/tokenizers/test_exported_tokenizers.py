"""Tests that exported tokenizers give the same ids in `transformers`, for texts, pairs and truncated inputs."""

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

# mBART's template has a language, which is not known before a text is given.
IN_TRANSFORMERS = sorted(name for name, family in FAMILIES.items() if family.in_transformers and name != "mbart")
TEXTS = [text for text in TRICKY if text not in SPECIALS][::6]
NONEMPTY = [
    text for text in TEXTS if text.isprintable() and text.strip()
]  # a second text without tokens is omitted here
LONGEST = 13


@cache
def trained(kind: Kind) -> Tokenizer:
    texts = [*english_documents()[:10], *RUSSIAN, *KOREAN, *TRICKY]
    return train_on_documents([Document(text, Path("test"), 1) for text in texts], kind, 800, extra_ids=3)


def arranged_rows(
    tokenizer: Tokenizer, template: Template, texts: list[str], pairs: list[str] | None, length: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the ids and segments of rows as the model reads them."""
    rows = TokenRows.make(LabeledRows(Path("x"), {}, texts, pairs), tokenizer)
    made = arrange_rows(rows, tokenizer, template, length, {}).take(np.arange(len(texts)))
    cuts = made.offsets[1:-1]
    return tuple([row.tolist() for row in np.split(column, cuts)] for column in (made.ids, made.columns["segment"]))  # type: ignore[return-value]


def load_in_transformers(folder: Path, model_type: str) -> Any:
    from transformers import AutoTokenizer

    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("kind", ["wordpiece", "byte-level-bpe", "unigram"])
@pytest.mark.parametrize("name", IN_TRANSFORMERS)
def test_templates_are_the_same_in_transformers(name: str, kind: Kind, tmp_path: Path) -> None:
    tokenizer, template = trained(kind), FAMILIES[name].template
    tokenizer.save(tmp_path, template, LONGEST)
    reference = load_in_transformers(tmp_path, name)
    assert reference.model_max_length == LONGEST
    assert reference.padding_side == ("left" if template.last else "right")
    assert ("token_type_ids" in reference.model_input_names) == template.segments
    pairs = [NONEMPTY[row % len(NONEMPTY)] for row in range(3, len(TEXTS) + 3)]
    for second in (None, pairs):
        for length in (LONGEST, LONGEST + 1, 10_000):
            ids, segments = arranged_rows(tokenizer, template, TEXTS, second, length)
            for row, text in enumerate(TEXTS):
                made = reference(text, second[row] if second else None, truncation=True, max_length=length)
                assert made["input_ids"] == ids[row], (text, length)
                if template.segments:
                    assert made["token_type_ids"] == segments[row]
    ids, _ = arranged_rows(tokenizer, template, TEXTS, pairs, LONGEST)
    assert [reference(text, pair, truncation=True)["input_ids"] for text, pair in zip(TEXTS, pairs, strict=True)] == ids


@pytest.mark.parametrize("name", IN_TRANSFORMERS)
def test_named_tokens_match_the_template(name: str, tmp_path: Path) -> None:
    tokenizer, template = trained("byte-level-bpe"), FAMILIES[name].template
    tokenizer.save(tmp_path, template)
    reference = load_in_transformers(tmp_path, name)
    single = reference("a")["input_ids"]
    if template.single[0] != "A":
        assert reference.bos_token_id == reference.cls_token_id == single[0]
    if template.last:
        assert reference.cls_token_id == single[-1]
    elif template.single[-1] != "A":
        assert single[-1] in (reference.eos_token_id, reference.sep_token_id)
    if template.document is not None:  # running text begins after the end token of the previous text
        assert reference.bos_token_id == reference.eos_token_id == tokenizer.role("end")
    if template.target and template.target[0] == "padding":  # T5 and Marian have no token at the start of a text
        assert reference.bos_token is None
    assert (reference.eos_token_id, reference.pad_token_id) == (tokenizer.role("end"), tokenizer.role("padding"))
    assert Tokenizer.load(tmp_path).roles == tokenizer.roles


def roberta(folder: Path) -> dict[str, str]:
    content = json.loads(trained("byte-level-bpe").backend.to_str())["model"]
    plain = [token for token in content["vocab"] if token not in trained("byte-level-bpe").role_tokens.values()]
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
def test_published_token_names_are_kept(name: str, write: Any, tmp_path: Path) -> None:
    names, template = write(tmp_path), FAMILIES[name].template
    (tmp_path / "config.json").write_text(json.dumps({"model_type": name}))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.names == names
    tokenizer.save(tmp_path / "out", template, 20)
    reference = load_in_transformers(tmp_path / "out", name)
    assert {key: getattr(reference, key) for key in names} == names
    texts = [*RUSSIAN, *NONEMPTY]
    for pairs in (None, texts[::-1]):
        ids, _ = arranged_rows(tokenizer, template, texts, pairs, 20)
        for row, text in enumerate(texts):
            assert reference(text, pairs[row] if pairs else None, truncation=True)["input_ids"] == ids[row], text
    again = Tokenizer.load(tmp_path / "out")
    assert again.digest == tokenizer.digest and again.names == names


@pytest.mark.not_fast
def test_saved_models_have_their_maximum_length_and_special_token_ids(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    from pretune.models.create_model import make_model

    for name in ("bert-tiny", "gpt2-tiny", "xlnet-tiny", "t5-tiny", "roberta-tiny"):
        model = make_model(name, trained("wordpiece").size, padding=trained("wordpiece").role("padding"))
        model.tokenizer = trained("wordpiece")
        model.save(tmp_path / name)
        reference, config = AutoTokenizer.from_pretrained(tmp_path / name), AutoConfig.from_pretrained(tmp_path / name)
        longest = model.backbone.max_positions
        assert reference.model_max_length == longest if longest else reference.model_max_length > 10**9
        assert config.pad_token_id == reference.pad_token_id
        for key in ("bos_token_id", "eos_token_id"):
            if isinstance(getattr(model.config, key, 0), type(None)):  # the family takes it from the tokenizer
                assert getattr(config, key) == getattr(reference, key), (name, key)


def test_different_template_is_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some RoBERTa models have BERT's tokenizer, which has one separator between two texts."""
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
    messages = capfd.readouterr().err
    assert "has the template '[CLS] A [SEP] B [SEP]', but '[CLS] A [SEP] [SEP] B [SEP]' of roberta" in messages
    assert messages.count("has the template") == 1
