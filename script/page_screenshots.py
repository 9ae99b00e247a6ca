"""Take the screenshots of docs/guides/serve.md: python script/page_screenshots.py RUN, with a run of `pretune finetune` on data/train.csv.

Needs Playwright and Chromium, as the tests of the page do. Each picture is reduced to 64 colors, which leaves it legible and small.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from PIL import Image  # noqa: E402  (matplotlib needs it)

from tests.support.browser import Visitor, running_browser  # noqa: E402
from tests.support.serving import running_server  # noqa: E402

FOLDER = ROOT / "docs" / "assets" / "serving"
PHONE = {"width": 360, "height": 740}
DESKTOP = {"width": 900, "height": 560}
COLORS = 64
# name, model, tab, options of the browser
PICTURES: tuple[tuple[str, str, str, dict[str, object]], ...] = (
    ("classify", "messages", "classify", {}),
    ("fill", "pretune-small-en", "fill", {"color_scheme": "dark"}),
    ("attention", "pretune-small-en", "attention", {}),
    ("similarity", "pretune-small-en", "similarity", {"color_scheme": "dark"}),
    ("training", "messages", "training", {}),
    ("phone", "messages", "classify", {"viewport": PHONE, "device_scale_factor": 2}),
    ("phone", "pretune-small-en", "fill", {"viewport": PHONE, "device_scale_factor": 2, "locale": "ru-RU"}),
)  # those with one name stand side by side in one file


def take(visitor: Visitor, model: str, tab: str) -> bytes:
    """Return a picture of a tab with the result of its first example."""
    page = visitor.open(model, tab)
    if tab == "training":
        page.locator(".chart").first.wait_for()
    else:
        visitor.run()
    if tab == "attention":
        page.locator(".from .token").nth(4).hover()
    page.wait_for_timeout(400)  # the bars grow to their width
    return page.screenshot(full_page=True)


def beside(pictures: list[Image.Image]) -> Image.Image:
    """Return pictures side by side, at the top."""
    sheet = Image.new("RGB", (sum(one.width for one in pictures), max(one.height for one in pictures)), "white")
    left = 0
    for one in pictures:
        sheet.paste(one, (left, 0))
        left += one.width
    return sheet


def main(run: str) -> None:
    """Take all pictures."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (
        running_browser() as browser,
        running_server({"messages": run, "pretune-small-en": "pretune-small-en"}) as server,
    ):
        taken: dict[str, list[Image.Image]] = {}
        for name, model, tab, options in PICTURES:
            visitor = Visitor(browser, server.url, **{"viewport": DESKTOP, **options})
            taken.setdefault(name, []).append(Image.open(io.BytesIO(take(visitor, model, tab))).convert("RGB"))
            visitor.close()
        for name, pictures in taken.items():
            file, picture = FOLDER / f"{name}.png", beside(pictures)
            picture.quantize(COLORS, dither=Image.Dither.NONE).save(file, optimize=True)
            print(f"{file.relative_to(ROOT)}: {picture.width} × {picture.height}, {file.stat().st_size / 1000:.0f} KB")


if __name__ == "__main__":
    main(sys.argv[1])
