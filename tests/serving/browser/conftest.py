"""A browser, and a server of tiny models of several kinds, for all tests of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.browser import Visitor, running_browser
from tests.support.serving import RunningServer, decoder, encoder, running_server
from tests.support.tiny_models import read, tiny, tune
from tests.support.translation_models import trained

if TYPE_CHECKING:
    from playwright.sync_api import Browser

WORDS = {"praise": ("good", "fine", "lovely", "great"), "complaint": ("bad", "poor", "awful", "dull")}


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with running_browser() as found:
        yield found


@pytest.fixture(scope="package")
def run_folder(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that has memorized a few reviews; it needs the browser, so that nothing is trained without one."""
    folder = tmp_path_factory.mktemp("run")
    rows = [(f"the film was {word}", label) for label, words in WORDS.items() for word in words] * 4
    (folder / "rows.csv").write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    start = tiny("bert-tiny", read([text for text, _ in rows]), folder / "start")
    tune(start, folder / "rows.csv", folder / "run", "classify", report=True)
    return folder / "run"


@pytest.fixture(scope="package")
def server(browser: Browser, run_folder: Path) -> Iterator[RunningServer]:
    models = {
        "reviews": run_folder,
        "pretune-small-en": "pretune-small-en",
        "encoder": encoder(),
        "decoder": decoder(),
        "translator": trained("rnn"),
    }
    with running_server(models) as found:
        yield found


@pytest.fixture
def visit(browser: Browser, server: RunningServer) -> Iterator[Callable[..., Visitor]]:
    """Return a function that opens the page; afterwards, no page may have had errors."""
    visitors: list[Visitor] = []

    def visit(url: str = server.url, **options: Any) -> Visitor:
        visitors.append(Visitor(browser, url, **options))
        return visitors[-1]

    yield visit
    for visitor in visitors:
        visitor.close()
