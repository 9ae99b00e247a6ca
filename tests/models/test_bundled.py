"""The bundled model: small, documented, fills clozes, and gives the same results in `transformers`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import pretune as pt
from pretune.models.bundled import bundled_folder, bundled_names
from pretune.models.loading import load
from pretune.models.name_resolution import find_folder
from pretune.sample_data import clozes, example
from pretune.text.tokenizers.tokenizer import Tokenizer

NAME = "pretune-small-en"
STATED = 0.6  # accuracy after three epochs on the 400 sample messages; 0.705 was measured
PARIS = "The capital of France is [MASK]."


def first_five(texts: list[str]) -> list[list[str]]:
    return [[item["token"] for item in row["candidates"]][:5] for row in pt.fill(NAME, texts).rows]


def test_the_bundled_model_is_found_by_name_and_small_and_has_a_model_card() -> None:
    assert NAME in bundled_names() and find_folder(NAME) == bundled_folder(NAME)
    files = list(bundled_folder(NAME).iterdir())
    assert sum(file.stat().st_size for file in files) < 25_000_000
    card = (bundled_folder(NAME) / "README.md").read_text(encoding="utf-8")
    for part in ("license: ", "pretune pretrain modern-small", "CoLA", "MRPC", "SST-2", "--seed 0"):
        assert part in card


@pytest.mark.not_fast
def test_its_tokenizer_is_found_by_name_unless_a_folder_has_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.txt").write_text("A small text.", encoding="utf-8")
    made = pt.prepare(tmp_path / "text.txt", NAME, tmp_path / "store")
    assert made.tokenizer.vocabulary == load(NAME).require_tokenizer().vocabulary
    monkeypatch.chdir(tmp_path)
    pt.train_tokenizer("text.txt", kind="byte-level-bpe", vocab_size=300, out=NAME)
    assert Tokenizer.load(NAME).size < 1000


def test_its_vocabulary_has_one_token_per_id() -> None:
    """A duplicate entry in tokenizer.json would leave an id without a token, whose embedding is never used."""
    content = (bundled_folder(NAME) / "tokenizer.json").read_text(encoding="utf-8")
    pairs = json.loads(content, object_pairs_hook=list)
    model = dict(pairs)["model"]
    entries = dict(model)["vocab"]
    tokens, ids = zip(*entries, strict=True)
    assert len(set(tokens)) == len(tokens)
    assert sorted(ids) == list(range(len(ids)))
    assert {"watching", "monitor"} <= set(tokens)


@pytest.mark.not_fast
def test_it_fills_most_clozes_correctly() -> None:
    items = clozes()
    found = first_five([PARIS, *(text for text, _ in items)])
    assert "paris" in found[0]
    right = sum(
        bool({word.lower() for word in words} & set(row)) for (_, words), row in zip(items, found[1:], strict=True)
    )
    assert len(items) == 20 and right >= 12


@pytest.mark.not_fast
@pytest.mark.filterwarnings("ignore")
def test_transformers_fills_masks_identically() -> None:
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(bundled_folder(NAME))
    model = AutoModelForMaskedLM.from_pretrained(bundled_folder(NAME), dtype=torch.float32).eval()
    texts = [PARIS, *(text for text, _ in clozes()[:5])]
    for text, ours in zip(texts, first_five(texts), strict=True):
        given = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            logits = model(**given).logits[0]
        gap = given["input_ids"][0].tolist().index(tokenizer.mask_token_id)
        assert tokenizer.convert_ids_to_tokens(logits[gap].topk(5).indices.tolist()) == ours


@pytest.mark.end_to_end
def test_fine_tuning_on_the_sample_task_reaches_a_stated_accuracy(tmp_path: Path) -> None:
    """The majority class has 25 %, and a small network from random weights about 48 % (docs/studies/quick.md)."""
    data = example("messages_train.csv"), example("messages_test.csv")
    run = pt.finetune(
        NAME, data[0], dev=data[1], epochs=3, strategy="full", num_seeds=1, out=tmp_path / "run", device="cpu"
    )
    assert run.results["dev/accuracy"] >= STATED
