"""Shared test material: tiny, offline, real text."""

from __future__ import annotations

import io
import os
import tempfile
from functools import cache
from pathlib import Path
from pydoc_data import topics
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("pretune", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("pretune")
os.environ.setdefault("PRETUNE_PROGRESS", "none")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # two test processes on two cores; the models are tiny anyway

# Each file is one process's. Those that take minutes begin, so that no process waits long for another at the end.
LONG = ("test_verbs.py", "test_readme.py", "test_together.py", "test_canary.py", "test_tasks_end_to_end.py")


def pytest_configure(config: pytest.Config) -> None:
    """Folders that tests make for themselves are in one that goes when they end; pytest's own stay where they are."""
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    own = tempfile.TemporaryDirectory(prefix="pretune-tests-", ignore_cleanup_errors=True)
    tempfile.tempdir = own.name
    config.add_cleanup(own.cleanup)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG)


RUSSIAN = [
    "Поезд пришёл в Тверь с опозданием. На перроне было пусто, только дворник сметал снег.",
    "Мы варили варенье из крыжовника. Кот спал на подоконнике и ничего не слышал!",
    "Река обмелела к августу. Дети переходили её вброд, а старики качали головами.",
]
RUSSIAN_WORDS = [
    "дорога",
    "дорожный",
    "город",
    "городской",
    "вода",
    "водяной",
    "лес",
    "лесной",
    "зима",
    "зимний",
    "письмо",
    "писать",
]
KOREAN = [
    "아침에 비가 내렸습니다. 우산을 챙기지 않은 사람들은 처마 밑에서 기다렸습니다.",
    "도서관은 조용했습니다. 학생들은 저녁까지 책을 읽었고, 창밖에는 눈이 쌓였습니다.",
]


@cache
def russian_pieces(size: int = 80, **options: Any) -> bytes:
    """A sentencepiece model of Russian text."""
    import sentencepiece

    written = io.BytesIO()
    # Releases differ in how many pieces they find in the same text: give them more than any needs.
    texts = [*RUSSIAN, *(f"{word} {other}" for word in RUSSIAN_WORDS for other in RUSSIAN_WORDS if word != other)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts * 5), model_writer=written, vocab_size=size, minloglevel=2, **options
    )
    return written.getvalue()


T5_IDS = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}  # how T5's pieces begin


def english_documents() -> list[str]:
    """Python's own language reference, which every installation has: some 500 kB of prose."""
    return [text for _, text in sorted(topics.topics.items())]


@pytest.fixture(scope="session")
def english() -> list[str]:
    return english_documents()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> Path:
    """A folder with a blank-line-free .txt of English paragraphs, one document a line."""
    folder = tmp_path_factory.mktemp("corpus")
    lines = [" ".join(paragraph.split()) for text in english for paragraph in text.split("\n\n")]
    (folder / "english.txt").write_text("\n".join(line for line in lines if line), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def mixed_texts(english: list[str]) -> list[str]:
    return [*english[:40], *RUSSIAN, *KOREAN]


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """What compressed models cost is measured in one short round."""
    from pretune.compression import benchmark

    monkeypatch.setattr(benchmark, "ROUNDS", 1)
    monkeypatch.setattr(benchmark, "NUM_TEXTS", 8)
