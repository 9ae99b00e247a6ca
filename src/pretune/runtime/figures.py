"""Draw figures: choose fonts for all scripts, draw heat maps, and write files atomically."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pretune.runtime.arrays import Array
from pretune.runtime.atomic_io import write_bytes
from pretune.runtime.errors import make_printable
from pretune.runtime.progress import log_info

# Fonts of common systems for letters that DejaVu Sans, which comes with matplotlib, does not have.
FURTHER_FONTS = (
    "Noto Sans CJK JP", "Noto Sans CJK KR", "Noto Sans CJK SC", "Noto Sans KR", "NanumGothic", "Malgun Gothic",
    "Apple SD Gothic Neo", "AppleGothic", "Microsoft YaHei", "PingFang SC", "Hiragino Sans", "Yu Gothic", "WenQuanYi Zen Hei",
    "Noto Sans Arabic", "Noto Sans Hebrew", "Noto Sans Devanagari", "Noto Sans Thai", "Noto Emoji", "Segoe UI Symbol",
    "Arial Unicode MS", "Unifont",
)  # fmt: skip
PNG_DPI = 130
LABEL = 18  # characters of a label, at most
SPINE = "#c9cdd6"  # the color of frames


@contextmanager
def figure_fonts(texts: Iterable[str] = ()) -> Iterator[None]:
    """Use fonts that have all characters of `texts` for the matplotlib figures that are drawn in the `with` block.

    If some characters are in no installed font, .svg files contain texts instead of drawn letters, so that the program
    that shows the file chooses the fonts.
    """
    import matplotlib
    from matplotlib import font_manager

    installed = set(font_manager.get_font_names())
    families = ["DejaVu Sans", *(name for name in FURTHER_FONTS if name in installed)]
    missing = _missing_characters("".join(texts), families)
    style: dict[str, Any] = {"font.family": families, "axes.unicode_minus": False, "svg.fonttype": "path"}
    style |= {"svg.hashsalt": "pretune"}  # equal figures give equal files
    if missing:
        shown = "".join(missing[:5])
        log_info(
            f"no installed font has the characters {shown}: .png figures show boxes instead, and .svg figures leave them to the "
            "browser; install a font such as Noto Sans CJK"
        )
        style |= {"svg.fonttype": "none"}
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def _missing_characters(text: str, families: Sequence[str]) -> list[str]:
    """Return the characters of a text that none of the font families has, sorted."""
    from matplotlib import font_manager

    missing = {character for character in plain_label(text, len(text)) if not character.isspace()}
    for name in families:
        if not missing:
            break
        font = font_manager.get_font(font_manager.findfont(font_manager.FontProperties(family=name)))
        missing -= {character for character in missing if ord(character) in font.get_charmap()}
    return sorted(missing)


def plain_label(text: str, limit: int = LABEL) -> str:
    """Return a text as a matplotlib label: one printable line of up to `limit` characters, with $ escaped.

    >>> plain_label("costs $5 or $6, as everybody knows"), plain_label("\\n")
    ('costs \\\\$5 or \\\\$6, a…', '␣')
    """
    printable = " ".join(make_printable(text).split())
    short = printable if len(printable) <= limit else f"{printable[: limit - 1]}…"
    return short.replace("$", r"\$") or "␣"


def draw_heat_map(
    axes: Any, values: Array, *, rows: Sequence[str], columns: Sequence[str], title: str = "", **style: Any
) -> Any:
    """Draw a matrix as a heat map with labels of its rows and columns, and return the image for a color bar.

    Parameters
    ----------
    axes
        The axes of a matplotlib figure.
    values
        The matrix, (rows, columns); NaN is gray.
    rows, columns
        Labels. Where they would overlap, only some are shown.
    style
        Further options of `imshow`, such as `cmap`, `vmin`, and `vmax`.
    """
    import numpy as np

    image = axes.imshow(np.ma.masked_invalid(values), interpolation="nearest", **style)
    axes.set_facecolor("#e3e5ea")
    axes.set_xticks(*_some(columns), rotation=90 if max(map(len, columns), default=0) > 2 else 0)
    axes.set_yticks(*_some(rows))
    axes.tick_params(length=0)
    axes.spines[:].set_color(SPINE)
    if title:
        axes.set_title(title, fontsize="medium")
    return image


def _some(labels: Sequence[str], most: int = 64) -> tuple[list[int], list[str]]:
    """Return evenly spaced labels of an axis, at most `most`: their indices and their texts."""
    step = -(-len(labels) // most) or 1
    places = list(range(0, len(labels), step))
    return places, [plain_label(labels[place]) for place in places]


def save_figure(figure: Any, folder: Path, name: str) -> list[Path]:
    """Save a matplotlib figure as NAME.svg and NAME.png in a folder, and return the two paths."""
    files = []
    for kind, options in (("svg", {"metadata": {"Date": None}}), ("png", {"dpi": PNG_DPI})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, facecolor="white", **options)
        files.append(folder / f"{name}.{kind}")
        write_bytes(files[-1], buffer.getvalue())
    return files
