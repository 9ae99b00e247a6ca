"""The files of the page: their references lead somewhere, both languages are complete, and nothing comes from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pretune.serving.page import STATIC

SCRIPTS = sorted(STATIC.rglob("*.js"))
STYLES = sorted(STATIC.rglob("*.css"))
STRINGS = (STATIC / "js" / "strings.js").read_text(encoding="utf-8")


def strings_of(language: str) -> dict[str, str]:
    """Return the sentences of a language by their key."""
    (block,) = re.findall(rf"^  {language}: {{\n(.*?)^  }},", STRINGS, re.MULTILINE | re.DOTALL)
    lines = [line.strip() for line in block.splitlines()]
    pairs = [re.fullmatch(r'"?([\w.]+)"?: "(.*)",', line) for line in lines if line and not line.startswith("//")]
    assert all(pairs), [line for line, pair in zip(lines, pairs, strict=False) if not pair]
    return {pair[1]: pair[2] for pair in pairs if pair}


def test_both_languages_have_the_same_sentences() -> None:
    english, russian = strings_of("en"), strings_of("ru")
    assert len(english) > 100
    assert list(english) == list(russian)
    for key, sentence in english.items():
        assert sorted(re.findall(r"{\w+}", sentence)) == sorted(re.findall(r"{\w+}", russian[key])), key


def test_every_sentence_is_there_and_used() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in SCRIPTS if path.name != "strings.js")
    used = set(re.findall(r'\bt\("([\w.]+)"', code))
    known = set(strings_of("en"))
    assert used <= known
    prefixes = ("theme.", "error.")  # the rest of the key is a name
    ends = (".tab", ".run", ".intro")
    unused = {key for key in known - used if not key.startswith(prefixes) and not key.endswith(ends)}
    assert {key for key in unused if f'"{key}"' not in code} == set()


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_are_safe_and_small(path: Path) -> None:
    code = path.read_text(encoding="utf-8")
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setAttribute\(\"style", code
    )
    assert len(code.splitlines()) <= 350
    for target in re.findall(r'from "(.+?)"', code):
        assert target.startswith(".")
        assert (path.parent / target).is_file(), target


def test_nothing_comes_from_elsewhere() -> None:
    for path in [*SCRIPTS, *STYLES, STATIC / "index.html", STATIC / "icon.svg"]:
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|@import|url\(", text), path.name


def test_index_has_no_inline_code_and_its_files_exist() -> None:
    text = (STATIC / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*src=)", text)
    for target in re.findall(r'(?:href|src)="(static/.+?)"', text):
        assert (STATIC.parent / target).is_file(), target


def test_colors_of_the_style_sheets_have_a_light_and_a_dark_value() -> None:
    sheet = (STATIC / "base.css").read_text(encoding="utf-8")
    assert set(re.findall(r"var\((--[\w-]+)", " ".join(path.read_text() for path in STYLES))) <= {
        *re.findall(r"(--[\w-]+):", sheet), "--share", "--hue", "--columns",
    }  # fmt: skip
