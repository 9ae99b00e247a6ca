"""What the page says when an input is bad, and when the server is busy, gone, restarting, or asks for a token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.browser import Visitor
from tests.support.serving import running_server

pytestmark = pytest.mark.end_to_end
Visit = Callable[..., Visitor]

TOKEN = "a token of the tests"
# status, headers, what the page says
FAILURES = [
    (429, {"Retry-After": "3"}, "The server is busy and its queue is full. Try again in 3 s."),
    (429, {}, "The server is busy and its queue is full. Try again in 1 s."),
    (503, {}, "The model is restarting. Try again in a few seconds."),
    (504, {}, "The server took too long. Try a shorter text."),
    (500, {}, "The server failed. the reason"),
]


@pytest.mark.parametrize(("status", "headers", "sentence"), FAILURES)
def test_server_trouble(visit: Visit, status: int, headers: dict[str, str], sentence: str) -> None:
    visitor = visit()
    page = visitor.open("reviews", "classify")
    body = {"error": {"message": "the reason", "field": None}}
    page.route("**/predict", lambda route: route.fulfill(status=status, headers=headers, json=body))
    page.locator("button.primary:visible").click()
    assert visitor.error() == sentence
    page.unroute("**/predict")
    visitor.retry()
    assert visitor.error_texts() == []


def test_proxy_that_answers_with_a_page(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open("reviews", "classify")
    page.route("**/predict", lambda route: route.fulfill(status=502, body="<h1>Bad gateway</h1>"))
    page.locator("button.primary:visible").click()
    assert visitor.error() == "The model is restarting. Try again in a few seconds."


def test_server_that_is_gone(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open("reviews", "classify")
    visitor.context.set_offline(True)
    page.locator("button.primary:visible").click()
    assert visitor.error().startswith("The server does not answer.")
    visitor.context.set_offline(False)
    visitor.retry()


def test_stream_that_breaks_off(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open("decoder", "generate")
    page.route("**/generate", lambda route: route.fulfill(body='data: {"text": "once"}\n\n'))
    page.locator("button.primary:visible").click()
    assert visitor.error().startswith("The server does not answer.")
    error = 'data: {"text": "once"}\n\ndata: {"error": {"message": "the reason", "field": null}}\n\n'
    page.unroute("**/generate")
    page.route("**/generate", lambda route: route.fulfill(body=error))
    page.get_by_role("button", name="Try again").click()
    page.get_by_text("The server failed. the reason").wait_for()


def test_page_without_its_server(visit: Visit) -> None:
    visitor = visit()
    visitor.page.route("**/api/models", lambda route: route.abort())
    visitor.page.goto(visitor.url)
    assert visitor.error().startswith("The server does not answer.")
    visitor.page.unroute("**/api/models")
    visitor.page.get_by_role("button", name="Try again").click()
    visitor.page.locator('[role="tab"]').first.wait_for()


def test_server_without_models(visit: Visit) -> None:
    visitor = visit()
    visitor.page.route("**/api/models", lambda route: route.fulfill(json={"models": []}))
    visitor.page.goto(visitor.url)
    visitor.page.get_by_text("No model is served").wait_for()


@pytest.mark.parametrize("text", ["", " \n\t "])
def test_empty_input(visit: Visit, text: str) -> None:
    visitor = visit()
    page = visitor.open("reviews", "classify")
    visitor.type(text=text)
    page.locator("button.primary:visible").click()
    assert visitor.error() == "Fill in “Text” first."
    assert page.evaluate("document.activeElement.getAttribute('aria-invalid')") == "true"


def test_inputs_that_do_not_fit(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open("pretune-small-en", "fill")

    def refused(tab: str, **texts: str) -> str:
        page.locator(f'[data-tab="{tab}"]').click()
        visitor.type(**texts)
        page.locator("button.primary:visible").click()
        return visitor.error()

    assert refused("fill", text="no gap").startswith("Put [MASK] where a word is to be filled in")
    assert refused("similarity", texts="one line") == "Give at least two sentences, one per line."
    assert refused("neighbors", word="tree") == "The word “tree” does not occur in the sentence."
    page.get_by_text("Options").locator("visible=true").click()
    assert refused("neighbors", word="bank", topK="0").startswith("“Number of neighbors” must be a number from 1 to")
    long = refused("attention", text="word " * 200)
    assert long.startswith("The server could not use this input. ")
    assert "128" in long  # the server's own sentence


def test_markup_in_names_is_text(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open("reviews", "classify")
    name = "<img src=x onerror=alert(1)>"
    canned = {"predictions": [{"label": name, "probabilities": {name: 0.75, "</ul>": 0.25}}]}
    page.route("**/predict", lambda route: route.fulfill(json=canned))
    visitor.run()
    assert visitor.texts(".headline") == [name]
    assert visitor.texts(".bars .name") == [name, "</ul>"]


def test_access_token(visit: Visit, run_folder: Path) -> None:
    with running_server({"reviews": run_folder}, token=TOKEN) as server:
        visitor = visit(server.url)
        page = visitor.page
        page.goto(f"{server.url}/#/reviews/training")
        page.get_by_label("Token", exact=True).fill("wrong")
        page.get_by_role("button", name="Continue").click()
        page.get_by_text("The server did not accept this token.").wait_for()
        page.get_by_role("button", name="Cancel").click()
        assert visitor.error() == "The server needs an access token."
        page.get_by_role("button", name="Try again").click()
        page.get_by_label("Token", exact=True).fill(TOKEN)
        page.keyboard.press("Enter")
        page.locator(".chart").first.wait_for()
        with page.expect_popup() as popup:
            page.get_by_role("link", name="Open the report").click()
        popup.value.locator("h1").wait_for()
        page.reload()  # the token is kept
        page.get_by_role("tab", name="Classify").click()
        visitor.run()
        assert TOKEN not in page.content()
        assert page.evaluate("JSON.stringify(localStorage)") == "{}"
