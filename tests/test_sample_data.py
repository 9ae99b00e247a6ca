"""Tests of the example data."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from pretune.sample_data import clozes, example
from pretune.text.examples.labeled import LabeledRows, read_labeled


def messages(part: str) -> LabeledRows:
    return read_labeled(example(f"messages_{part}.csv"), {})


def test_messages_are_balanced_and_distinct() -> None:
    train, test = messages("train"), messages("test")
    assert Counter(train.labels) == dict.fromkeys(("praise", "complaint", "question", "request"), 100)
    assert Counter(test.labels) == dict.fromkeys(("praise", "complaint", "question", "request"), 50)
    texts = train.texts + test.texts
    assert len({text.casefold() for text in texts}) == 600
    runs: Counter[tuple[str, ...]] = Counter()
    for text in texts:
        words = re.findall(r"\w+", text.casefold())
        runs.update({tuple(words[i : i + 5]) for i in range(len(words) - 4)})
    assert max(runs.values()) <= 3


def test_keywords_do_not_determine_the_label() -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    train, test = messages("train"), messages("test")
    for pattern in (r"(?u)\b\w\w+\b", r"\w+|[^\w\s]"):
        words = TfidfVectorizer(ngram_range=(1, 2), token_pattern=pattern)
        model = make_pipeline(words, LogisticRegression(C=10, max_iter=1000)).fit(train.texts, train.labels)
        assert 0.3 < model.score(test.texts, test.labels) < 0.9


def test_clozes_have_one_mask_each() -> None:
    assert len(clozes()) == 20
    assert all(text.count("[MASK]") == 1 and answers for text, answers in clozes())


def test_sample_data_are_written_to_a_folder(tmp_path: Path) -> None:
    """The command names the files, which are the sample data and the manual of this Python."""
    result = subprocess.run(
        [sys.executable, "-m", "pretune.sample_data", str(tmp_path / "new" / "data")], capture_output=True, text=True
    )
    train, dev, texts, manual = map(Path, result.stdout.split())
    assert train.read_bytes() == example("messages_train.csv").read_bytes()
    assert texts.read_text(encoding="utf-8").splitlines() == messages("test").texts
    assert dev.name == "dev.csv" and manual.stat().st_size > 100_000
    refused = subprocess.run([sys.executable, "-m", "pretune.sample_data"], capture_output=True, text=True)
    assert refused.returncode == 1 and "usage: python -m pretune.sample_data FOLDER" in refused.stderr
