"""Tests of contamination: n-grams that are in a store and in a suite."""

from __future__ import annotations

from pathlib import Path

import pytest

import pretune as pt
from pretune.evaluation.contamination import ngram_overlap
from pretune.evaluation.suites.declaration import SuiteRows, find_suite
from pretune.text.store.store import Store

SEEN = "Heavy rain has flooded more than a thousand homes in the north of the country this week."
OTHER = "The old mill by the river has been turned into a museum of local history and craft."
TEXTS = [
    f"News of the day. {SEEN.upper()} More rain is expected!",
    "Nothing else happened.",
    "Small words stand here now.",
]


def make_store(folder: Path) -> Store:
    (folder / "a.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    tokenizer = pt.train_tokenizer(str(folder / "a.txt"), kind="byte-level-bpe", vocab_size=400)
    return pt.prepare(str(folder / "a.txt"), tokenizer, out=folder / "store")


def rows(*texts: str) -> SuiteRows:
    task = find_suite("glue").tasks["rte"]
    made = SuiteRows(
        task, "dev", Path("dev.tsv"), [{"text": text, "pair": "too short", "label": "a"} for text in texts]
    )
    made.places = [f"dev.tsv, line {number + 2}" for number in range(len(texts))]
    return made


@pytest.mark.not_fast
def test_overlapping_texts_are_found(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    found = ngram_overlap(store, [rows(SEEN, OTHER, "Small words, stand here — now", "Few words here")])
    text = next(row for row in found if row["role"] == "text")
    assert text["found"] == 2 and text["examples"] == 4 and text["too_short"] == 1
    assert text["first"] == ["dev.tsv, line 2", "dev.tsv, line 4"] and abs(text["contaminated"] - 2 / 3) < 1e-9
    assert text["mean_coverage"] == text["contaminated"]  # both are covered completely
    pair = next(row for row in found if row["role"] == "pair")
    assert pair["found"] == 0 and pair["too_short"] == 4 and pair["contaminated"] == 0.0


@pytest.mark.not_fast
def test_ngrams_do_not_cross_documents(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    across = "Nothing else happened. Small words stand here now."
    found = ngram_overlap(store, [rows(across)], size=8)[0]
    assert found["found"] == 0
    assert (
        ngram_overlap(store, [rows(across)], size=5)[0]["found"] == 1
        and ngram_overlap(store, [rows(across)], size=5)[0]["mean_coverage"] < 1
    )
