"""Tests of language identification."""

from __future__ import annotations

import sys

import pytest

import pretune as pt
from pretune import PretuneError
from pretune.text.corpus.cleaning import language_identification
from pretune.text.corpus.cleaning.language_identification import check_languages, identify_language


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "py3langid", None)
    language_identification._identifier.cache_clear()
    message = r"identifying languages needs py3langid, which is not installed; install it with: pip install 'pretune\[languages\]'"
    with pytest.raises(PretuneError, match=message):
        pt.prepare("a.txt", "tokenizer", "store", keep_language=["en"])
    language_identification._identifier.cache_clear()


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The museum opens in spring and closes with the first snow of the year.", "en"),
        ("Музей открывается весной и закрывается с первым снегом.", "ru"),
        ("Das Museum öffnet im Frühling und schließt mit dem ersten Schnee.", "de"),
        ("Le musée ouvre au printemps et ferme avec les premières neiges de l'année.", "fr"),
        ("박물관은 봄에 문을 열고 첫눈이 오면 문을 닫는다.", "ko"),
    ],
)
def test_languages_are_identified(text: str, language: str) -> None:
    pytest.importorskip("py3langid")
    assert identify_language(text) == language
    assert identify_language(text + " " + "x " * 100_000) == identify_language(
        text + " " + "x " * 2000
    )  # the beginning decides


@pytest.mark.parametrize("text", ["", "?", "12345", "\x00", "😀", "\ufffd" * 10])
def test_texts_without_words_have_some_language(text: str) -> None:
    pytest.importorskip("py3langid")
    assert identify_language(text).isalpha()


class RecordingIdentifier:
    """An identifier that records the texts it gets; the model takes long telegrams in capitals for Nigerian Pidgin."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def classify(self, text: str) -> tuple[str, float]:
        self.texts.append(text)
        return "en", 0.0


def test_model_gets_texts_in_capitals_in_lower_case(monkeypatch: pytest.MonkeyPatch) -> None:
    identifier = RecordingIdentifier()
    monkeypatch.setattr(language_identification, "_identifier", lambda: identifier)
    assert identify_language("TO ALL POSTS: Urgent") == identify_language("A Letter from London") == "en"
    assert identifier.texts == ["to all posts: urgent", "A Letter from London"]


def test_unknown_languages_are_refused() -> None:
    pytest.importorskip("py3langid")
    check_languages(["en", "ru", "zh"])
    with pytest.raises(PretuneError, match="'english' is not the code of a language that can be identified"):
        check_languages(["en", "english"])
