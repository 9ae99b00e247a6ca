"""Tests of fonts and labels of figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from pretune.runtime import figures
from pretune.runtime.figures import draw_heat_map, figure_fonts, plain_label, save_figure
from pretune.runtime.html_report import embed_figure
from tests.support.tricky_strings import TRICKY


def test_labels_are_never_formulas(tmp_path: Path) -> None:
    labels = [r"$\frac{", "a$b$c", "x_{", "\n", *TRICKY]
    with figure_fonts(labels):
        figure = Figure()
        draw_heat_map(figure.subplots(), np.eye(len(labels)), rows=labels, columns=labels)
        assert save_figure(figure, tmp_path, "odd")[1].stat().st_size
    assert plain_label("a" * 100, 10) == "aaaaaaaaa…"


def test_letters_without_a_font_are_left_to_the_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    monkeypatch.setattr(figures, "log_info", messages.append)
    monkeypatch.setattr(figures, "FURTHER_FONTS", ())
    for word, missing in (("дом", False), ("정원", True)):
        with figure_fonts([word]):
            figure = Figure()
            figure.text(0.5, 0.5, word)
            assert (word in embed_figure(figure).replace(f"<!-- {word} -->", "")) == missing  # as text, or as outlines
        assert bool(messages) == missing
    assert "원" in messages[0] and "install a font" in messages[0]


def test_only_some_of_many_labels_are_drawn() -> None:
    axes = Figure().subplots()
    names = [str(number) for number in range(200)]
    draw_heat_map(axes, np.zeros((200, 3)), rows=names, columns=["a", "b", "c"])
    assert len(axes.get_yticks()) <= 64 and axes.get_yticklabels()[1].get_text() == "4"
    assert len(axes.get_xticks()) == 3
