from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.text.corpus.sentences import LONGEST, split_sentences


def split(text: str, language: str = "en") -> list[str]:
    return [text[start:end] for start, end in split_sentences(text, language)]


def test_english_abbreviations_and_initials() -> None:
    text = "Dr. Smith met J. R. R. Tolkien on Jan. 5, i.e. in winter.  It cost $3.50! Did it?"
    assert split(text) == [
        "Dr. Smith met J. R. R. Tolkien on Jan. 5, i.e. in winter.",
        "It cost $3.50!",
        "Did it?",
    ]


def test_russian_abbreviations_and_initials() -> None:
    text = "А. С. Пушкин родился в 1799 г. в Москве. В 1837 г. он умер. Проф. И. И. Иванов пришёл."
    assert split(text, "ru") == [
        "А. С. Пушкин родился в 1799 г. в Москве.",
        "В 1837 г. он умер.",
        "Проф. И. И. Иванов пришёл.",
    ]


def test_korean_sentences() -> None:
    text = "안녕하세요. 저는 학생입니다. 오늘은 3.5 km를 걸었습니다! 정말요?"
    assert split(text, "ko") == ["안녕하세요.", "저는 학생입니다.", "오늘은 3.5 km를 걸었습니다!", "정말요?"]


@pytest.mark.parametrize(
    ("language", "text", "pieces"),
    [
        ("ru", "Он писал стихи, т. е. был поэтом.", ["Он писал стихи, т. е.", "был поэтом."]),
        ("ru", "Яблоки и т. п. Вот так.", ["Яблоки и т. п. Вот так."]),
        ("ru", "В 5 г. до н. э. жили.", ["В 5 г. до н. э.", "жили."]),
    ],
)
def test_known_errors_of_the_splitter(language: str, text: str, pieces: list[str]) -> None:
    """Records errors of the splitter: if one of these changes, update the notes."""
    assert split(text, language) == pieces


def test_lines_mode_treats_each_line_as_a_sentence() -> None:
    assert split("One. Two.\n\n  three \r\nfour", "lines") == ["One. Two.", "three", "four"]


@given(st.text(), st.sampled_from(["en", "ru", "ko", "lines"]))
def test_spans_cover_all_but_whitespace(text: str, language: str) -> None:
    spans = split_sentences(text, language)
    position = 0
    for start, end in spans:
        assert position <= start < end
        assert not text[position:start].strip()
        assert text[start:end] == text[start:end].strip()
        position = end
    assert not text[position:].strip()


def test_paragraphs_without_sentence_ends_are_split() -> None:
    assert all(end - start <= LONGEST for start, end in split_sentences("word " * 10_000))


@pytest.mark.not_fast
def test_unmatched_quotation_marks_take_linear_time() -> None:
    started = time.monotonic()
    split_sentences("«" * 200_000)
    assert time.monotonic() - started < 20  # without the limit, half an hour


@pytest.mark.parametrize("space", ["\xa0", "\u2009", "\u3000", "\x85", "\u2028"])
def test_wide_spaces_before_a_full_stop_are_supported(space: str) -> None:
    assert split(f"A{space}. So it is.") == [f"A{space}.", "So it is."]
