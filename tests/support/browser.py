"""The system's Chromium, driven by Playwright, for tests of the page of the server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = (
    "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
)  # fmt: skip
PATIENCE = 120_000.0  # milliseconds; a limit for hanging pages that slow and busy machines do not reach
PHONE = {"width": 360, "height": 740}
DESKTOP = {"width": 1000, "height": 760}


def find_browser() -> str | None:
    """Return the path of an installed Chromium, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Run a browser with a new, empty profile while the block runs; without Playwright or a browser, skip the test."""
    playwright = pytest.importorskip("playwright.sync_api", reason="browser tests need: pip install playwright")
    path = find_browser()
    if path is None:
        pytest.skip("browser tests need Chromium, such as: apt-get install chromium")
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=path, args=[*ARGUMENTS, *sandbox], headless=True, timeout=PATIENCE
        )
        yield browser
        browser.close()


class Visitor:
    """Someone who uses the page: it opens tabs of models, runs them, and reads the results; errors of scripts are kept."""

    def __init__(self, browser: Browser, url: str, **options: Any) -> None:
        """Open an empty page in a new context; `options` are those of Playwright's contexts, such as `locale`."""
        options = {"viewport": DESKTOP, "locale": "en-US", "color_scheme": "light"} | options
        self.url = url
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(PATIENCE)
        self.page: Page = self.context.new_page()
        self.problems: list[str] = []
        self.hosts: set[str] = set()
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", self._listen)
        self.page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))

    def _listen(self, message: Any) -> None:
        """Keep errors in the console, except that a request failed, which tests provoke."""
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.problems.append(message.text)

    def open(self, model: str, tab: str) -> Page:
        """Open a tab of a model, and return the page."""
        self.page.goto(f"{self.url}/#/{model}/{tab}")
        self.page.locator(f'[role="tab"][data-tab="{tab}"][aria-selected="true"]').wait_for()
        return self.page

    def type(self, **texts: str) -> None:
        """Type texts into the visible fields with the given names."""
        for name, text in texts.items():
            self.page.locator(f'[data-field="{name}"]:visible').fill(text)

    def run(self) -> None:
        """Press the button, and wait for the result."""
        with self.page.expect_response(lambda response: response.request.method == "POST"):
            self.page.locator("button.primary:visible").click()
        self.wait()  # the former result is gone since before the request

    def retry(self) -> None:
        """Press the button that repeats a failed request, and wait for the result instead of the alert."""
        self.page.get_by_role("button", name="Try again").click()
        self.page.locator('[role="alert"]:visible').first.wait_for(state="hidden")
        self.wait()

    def wait(self) -> None:
        """Wait for the result of a request, and fail if it is an error."""
        self.page.locator('[role="status"]:visible:not(:empty), [role="alert"]:visible').first.wait_for()
        assert self.error_texts() == []

    def error(self) -> str:
        """Wait for an alert, and return its sentence."""
        return self.page.locator('[role="alert"]:visible p').first.inner_text()

    def error_texts(self) -> list[str]:
        """Return the sentences of the alerts that are shown now."""
        return self.texts('[role="alert"] p')

    def texts(self, selector: str) -> list[str]:
        """Return the texts of the visible elements that match a selector."""
        return self.page.locator(f"{selector}:visible").all_inner_texts()

    def close(self) -> None:
        """Close the page, and fail if its scripts had errors, or if it asked another server for anything."""
        self.context.close()
        assert self.problems == []
        assert self.hosts <= {self.url.split("/")[2]}
