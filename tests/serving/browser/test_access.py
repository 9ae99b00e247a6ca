"""The page on a phone, with the keyboard alone, in dark mode, and in Russian."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.browser import PHONE, Visitor
from tests.support.serving import RunningServer

pytestmark = pytest.mark.end_to_end
Visit = Callable[..., Visitor]

MODELS = ("reviews", "encoder", "decoder", "translator")
LONG_WORD = "Donaudampfschifffahrtsgesellschaftskapitän" * 4

# The elements with text of their own whose contrast to their background is below 4.5, the minimum of WCAG 2 for small text.
LOW_CONTRAST = """
() => {
  const context = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const paint = (colors) => {
    context.clearRect(0, 0, 1, 1);
    for (const color of colors) { context.fillStyle = color; context.fillRect(0, 0, 1, 1); }
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const luminance = ([red, green, blue]) => {
    const [r, g, b] = [red, green, blue].map((value) => value / 255)
      .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!own || !node.checkVisibility({visibilityProperty: true}) || node.matches("option, .skip")) continue;
    const layers = [];
    for (let at = node; at; at = at.parentElement) layers.unshift(getComputedStyle(at).backgroundColor);
    const ground = luminance(paint(layers));
    const text = luminance(paint([...layers, getComputedStyle(node).color]));
    const contrast = (Math.max(ground, text) + 0.05) / (Math.min(ground, text) + 0.05);
    if (contrast < 4.5) found.push(`${node.className} ${node.textContent}: ${contrast.toFixed(2)}`);
  }
  return found;
}
"""
UNNAMED = """
() => [...document.querySelectorAll("input, textarea, select, button, a, [role]")]
  .filter((node) => node.checkVisibility())
  .filter((node) => !(node.labels?.length || node.ariaLabel || node.hasAttribute("aria-labelledby") || node.textContent.trim()
                      || ["status", "presentation"].includes(node.role)))
  .map((node) => node.outerHTML)
"""


def run_every_tab(visitor: Visitor, models: tuple[str, ...] = MODELS) -> Any:
    """Run each tab of some models with its first example, and yield after each."""
    for model in models:
        page = visitor.page
        page.goto(f"{visitor.url}/#/{model}/")
        page.reload()
        page.locator('[role="tab"][aria-selected="true"]').wait_for()
        for tab in page.locator('[role="tab"]').all():
            tab.click()
            if tab.get_attribute("data-tab") == "training":
                page.locator(".chart").first.wait_for()
            else:
                if tab.get_attribute("data-tab") == "neighbors":  # words that all tokenizers have
                    visitor.type(word="the", text="the film was good", texts="the film was bad\nthe end")
                visitor.run()
            yield f"{model}/{tab.get_attribute('data-tab')}"


def test_phone_never_scrolls_sideways(visit: Visit) -> None:
    visitor = visit(viewport=PHONE, is_mobile=True, has_touch=True)
    for place in run_every_tab(visitor):
        page = visitor.page
        page.evaluate("document.querySelectorAll('details').forEach((node) => { node.open = true; })")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], place
    visitor.open("reviews", "classify")
    visitor.type(text=f"{LONG_WORD} {LONG_WORD}")
    visitor.run()
    assert visitor.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_buttons_are_large_enough_for_fingers(visit: Visit) -> None:
    visitor = visit(viewport=PHONE, is_mobile=True, has_touch=True)
    visitor.open("pretune-small-en", "fill")
    visitor.run()
    for node in visitor.page.locator("button:visible, select:visible").all():
        box = node.bounding_box()
        assert box is not None
        assert box["height"] >= 24, node.inner_text()


def test_keyboard_alone(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open("pretune-small-en", "fill")
    keyboard = page.keyboard

    def focused() -> str:
        return str(page.evaluate("document.activeElement.dataset.tab ?? document.activeElement.id"))

    for _ in range(10):
        keyboard.press("Tab")
        if focused() == "fill":
            break
    assert focused() == "fill"
    outline = page.evaluate("getComputedStyle(document.activeElement).outline")
    assert "solid 3px" in outline
    keyboard.press("ArrowRight")
    assert focused() == "similarity"
    assert visitor.texts('[role="tab"][aria-selected="true"]') == ["Similarity"]
    keyboard.press("End")
    assert focused() == "attention"
    keyboard.press("ArrowRight")  # around
    keyboard.press("ArrowLeft")
    keyboard.press("Home")
    assert focused() == "fill"
    keyboard.press("Tab")
    keyboard.press("Enter")  # the first example
    visitor.wait()
    page.locator("textarea:visible").focus()
    keyboard.press("Control+A")
    keyboard.type("Paris is the [MASK] of France.")
    keyboard.press("Control+Enter")
    page.get_by_text("capital").first.wait_for()
    page.locator(".candidate").nth(1).focus()
    keyboard.press("Enter")
    assert page.locator(".candidate").nth(1).get_attribute("aria-pressed") == "true"


def test_attention_with_the_keyboard(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open("pretune-small-en", "attention")
    visitor.run()
    page.get_by_role("button", name="Layer 1, head 1").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.get_by_label("Layer", exact=True).input_value() == "1"
    assert page.get_by_label("Head", exact=True).input_value() == "1"
    page.keyboard.press("Tab")  # the picker of layers: the grid is one stop
    assert page.evaluate("document.activeElement.tagName") == "SELECT"


def test_dark_mode_follows_the_system_and_can_be_chosen(visit: Visit) -> None:
    dark, light = "rgb(17, 20, 26)", "rgb(245, 246, 249)"

    def ground() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    visitor = visit(color_scheme="dark")
    page = visitor.open("reviews", "classify")
    assert ground() == dark
    page.get_by_label("Theme").select_option("Light")
    assert ground() == light
    page.reload()
    page.locator('[role="tab"]').first.wait_for()
    assert ground() == light
    page.get_by_label("Theme").select_option("System")
    assert ground() == dark


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_and_names(visit: Visit, scheme: str) -> None:
    visitor = visit(color_scheme=scheme, reduced_motion="reduce")
    for place in run_every_tab(visitor, ("reviews", "encoder", "decoder")):
        assert visitor.page.evaluate(LOW_CONTRAST) == [], place
        assert visitor.page.evaluate(UNNAMED) == [], place


def test_russian_examples_for_models_that_read_russian(visit: Visit, server: RunningServer) -> None:
    models = server.get("/api/models").json()
    for model in models["models"]:
        model["example_languages"] = ["en", "ru"] if model["name"] == "reviews" else ["en"]
    visitor = visit(locale="ru-RU")
    visitor.page.route("**/api/models", lambda route: route.fulfill(json=models))
    page = visitor.open("reviews", "classify")
    assert page.locator("textarea:visible").input_value().startswith("Заказали в восемь утра")
    page = visitor.open("pretune-small-en", "fill")
    assert page.locator("textarea:visible").input_value().startswith("She drank")


def test_russian_interface(visit: Visit) -> None:
    visitor = visit(locale="ru-RU")
    page = visitor.open("pretune-small-en", "fill")
    assert page.locator("html").get_attribute("lang") == "ru"
    assert visitor.texts('[role="tab"]') == ["Пропуски", "Сходство", "Соседи", "Внимание"]
    visitor.run()
    assert re.search(r"\d,\d\s%", " ".join(visitor.texts(".candidate .number")))
    visitor.type(text="")
    page.locator("button.primary:visible").click()
    assert visitor.error() == "Сначала заполните поле «Текст»."
    visitor.type(text="Paris is the [MASK] of France.")
    visitor.run()
    page.get_by_label("Язык").select_option("English")
    assert visitor.texts('[role="tab"]') == ["Fill in", "Similarity", "Neighbors", "Attention"]
    assert visitor.texts(".slot") == ["capital"]  # what was typed and answered stays
    assert page.locator("textarea:visible").input_value() == "Paris is the [MASK] of France."
    page.reload()
    page.get_by_role("tab", name="Fill in").wait_for()
    assert page.locator("html").get_attribute("lang") == "en"
