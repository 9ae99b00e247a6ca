"""Small real texts for tests: Russian, Korean, and the English of Python's own documentation."""

from __future__ import annotations

import io
from functools import cache
from pydoc_data import topics
from typing import Any

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
    """Return a sentencepiece model of Russian text."""
    import sentencepiece

    written = io.BytesIO()
    # Releases find different numbers of pieces in the same text: give them more text than any needs.
    texts = [*RUSSIAN, *(f"{word} {other}" for word in RUSSIAN_WORDS for other in RUSSIAN_WORDS if word != other)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts * 5), model_writer=written, vocab_size=size, minloglevel=2, **options
    )
    return written.getvalue()


T5_IDS = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}  # the first ids of T5's vocabulary


def english_documents() -> list[str]:
    """Return the language reference of Python, which every installation has: about 500 kB of prose."""
    return [text for _, text in sorted(topics.topics.items())]
