"""Each tab of the page, used with the mouse against a real server; what it shows is what the server answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.browser import Visitor
from tests.support.serving import RunningServer

pytestmark = pytest.mark.end_to_end
Visit = Callable[..., Visitor]

# Characters outside of the basic plane, combining ones, markup, and what a tokenizer does not know.
TRICKY = "🎬🎬 the <b>film</b> & the café\u0301 was good ﷽"
ENDLESS = """
const real = window.fetch;
window.fetch = (url, options) => {
  if (!String(url).endsWith("/generate")) return real(url, options);
  const stream = new ReadableStream({
    start(controller) {
      controller.enqueue(new TextEncoder().encode('data: {"text": "once"}\\n\\ndata: {"text": " up'));
      controller.enqueue(new TextEncoder().encode('on"}\\n\\n'));
      options.signal.addEventListener("abort", () => controller.error(new DOMException("stopped", "AbortError")));
    },
  });
  return Promise.resolve(new Response(stream));
};
"""


def ask(server: RunningServer, model: str, route: str, **body: Any) -> Any:
    """Return what the server answers to a request."""
    response = server.post(f"/api/models/{model}/{route}", body)
    assert response.status_code == 200, response.text
    return response.json()


def percent(share: float) -> str:
    """Return a share as the page writes it in English."""
    if 0 < share < 0.0005:
        return "<0.1%"
    digits = 1 if 0 < share < 0.1 else 0
    return f"{share * 100:.{digits}f}".removesuffix(".0") + "%"


def test_tabs_are_those_of_the_model(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open("reviews", "classify")
    assert visitor.texts('[role="tab"]') == ["Classify", "Similarity", "Neighbors", "Attention", "Training"]
    page.get_by_label("Model").select_option("decoder")
    page.locator('[data-tab="generate"]').wait_for()
    assert "Classify" not in visitor.texts('[role="tab"]')
    assert page.url.split("#")[1].startswith("/decoder/")


def test_classify(visit: Visit, server: RunningServer) -> None:
    visitor = visit()
    visitor.open("reviews", "classify")
    visitor.type(text="the film was good")
    visitor.run()
    assert visitor.texts(".headline") == ["praise"]
    shares = ask(server, "reviews", "predict", texts=["the film was good"])["predictions"][0]["probabilities"]
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    assert visitor.texts(".bars .name") == [label for label, _ in ranked]
    assert visitor.texts(".bars .number") == [percent(share) for _, share in ranked]
    visitor.type(text="the film was awful")
    visitor.run()
    assert visitor.texts(".headline") == ["complaint"]


def test_pairs_of_texts(visit: Visit, server: RunningServer) -> None:
    visitor = visit()
    page = visitor.open("reviews", "classify")
    page.get_by_text("Options").click()
    visitor.type(text="the film was good", pair="the film was bad")
    with page.expect_request("**/predict") as request:
        visitor.run()
    body = json.loads(request.value.post_data or "")
    assert body == {"texts": ["the film was good"], "pairs": ["the film was bad"]}
    assert visitor.texts(".headline") == [ask(server, "reviews", "predict", **body)["predictions"][0]["label"]]


def test_first_click_shows_something(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open("pretune-small-en", "fill")
    for name in visitor.texts('[role="tab"]'):
        page.get_by_role("tab", name=name).click()
        visitor.run()
        assert visitor.error_texts() == []


def test_examples_run_at_once(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open("pretune-small-en", "fill")
    page.locator(".chip:visible").nth(1).click()
    visitor.wait()
    assert page.locator("textarea:visible").input_value() == "Paris is the [MASK] of France."
    assert visitor.texts(".slot") == ["capital"]


def test_fill(visit: Visit, server: RunningServer) -> None:
    visitor = visit()
    page = visitor.open("pretune-small-en", "fill")
    text = "The [MASK] drank a cup of [MASK] with milk."
    visitor.type(text=text)
    visitor.run()
    (result,) = ask(server, "pretune-small-en", "fill", texts=[text])["results"]
    first, second = ([one["token"] for one in mask] for mask in result["masks"])
    assert visitor.texts(".candidate .name") == [*first, *second]
    assert visitor.texts(".slot") == [first[0], second[0]]
    page.locator(".gap").nth(1).locator(".candidate").nth(2).click()
    assert visitor.texts(".slot") == [first[0], second[2]]
    assert visitor.texts('.candidate[aria-pressed="true"] .name') == [first[0], second[2]]


def test_mask_is_inserted_at_the_cursor(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open("pretune-small-en", "fill")
    visitor.type(text="a cup of ")
    page.keyboard.press("End")
    page.get_by_role("button", name="Insert [MASK]").click()
    assert page.locator("textarea:visible").input_value() == "a cup of [MASK]"


def test_tags(visit: Visit, server: RunningServer) -> None:
    visitor = visit()
    page = visitor.open("encoder", "tag")
    visitor.type(text=TRICKY)
    visitor.run()
    (answer,) = ask(server, "encoder", "tag", texts=[TRICKY])["predictions"]
    assert visitor.texts(".tagged .tag") == [span["text"] + span["label"] for span in answer["spans"]]
    canned = {"predictions": [{"text": TRICKY, "spans": [
        {"begin": 3, "end": 6, "label": "DET", "text": "the", "probability": 1.0},
        {"begin": 7, "end": 18, "label": "<i>X</i>", "text": "<b>film</b>", "probability": 1.0},
        {"begin": 25, "end": 30, "label": "DET", "text": "café\u0301", "probability": 1.0},
    ]}]}  # fmt: skip
    page.route("**/tag", lambda route: route.fulfill(json=canned))
    visitor.run()
    page.locator(".tag").nth(2).wait_for()
    assert visitor.texts(".tagged .tag") == ["theDET", "<b>film</b><i>X</i>", "café\u0301DET"]
    assert visitor.texts(".legend li") == ["DET · 2", "<i>X</i> · 1"]


def test_questions(visit: Visit, server: RunningServer) -> None:
    visitor = visit()
    page = visitor.open("encoder", "answer")
    question = "What was good?"
    visitor.type(question=question, context=TRICKY)
    visitor.run()
    (found,) = ask(server, "encoder", "answer", questions=[question], contexts=[TRICKY])["answers"]
    assert visitor.texts(".headline") == [found["answer"] or "The context has no answer."]
    assert visitor.texts(".reading mark") == [found["answer"]] * bool(found["answer"])
    page.route("**/answer", lambda route: route.fulfill(json={
        "answers": [{"answer": "film", "begin": 10, "end": 14, "score": 0.5}]
    }))  # fmt: skip
    visitor.run()
    page.get_by_text("score 50%").wait_for()
    assert visitor.texts(".reading mark") == ["film"]
    assert page.locator(".reading:visible").text_content() == TRICKY
    page.route("**/answer", lambda route: route.fulfill(json={
        "answers": [{"answer": "", "begin": None, "end": None, "score": 0.9}]
    }))  # fmt: skip
    visitor.run()
    page.get_by_text("The context has no answer., score 90%").wait_for()
    assert visitor.texts(".reading mark") == []


def test_generate(visit: Visit, server: RunningServer) -> None:
    visitor = visit()
    page = visitor.open("decoder", "generate")
    page.get_by_text("Options").click()
    visitor.type(prompt="In the", maxNewTokens="12")
    visitor.run()
    text = ask(server, "decoder", "generate", prompt="In the", max_new_tokens=12)["text"]
    shown = page.locator(".written").text_content()
    assert shown is not None
    assert shown.startswith("In the")
    assert shown.removeprefix("In the").lstrip() == text.lstrip()
    visitor.type(temperature="0.8", seed="7", topK="20")
    with page.expect_request("**/generate") as request:
        visitor.run()
    sent = json.loads(request.value.post_data or "")
    assert sent == {
        "prompt": "In the",
        "max_new_tokens": 12,
        "temperature": 0.8,
        "top_k": 20,
        "seed": 7,
        "stream": True,
    }


def test_generation_streams_and_can_be_stopped(visit: Visit) -> None:
    visitor = visit()
    visitor.page.add_init_script(ENDLESS)
    page = visitor.open("decoder", "generate")
    visitor.type(prompt="It was")
    page.get_by_role("button", name="Generate", exact=True).click()
    page.get_by_text("once upon").wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped").wait_for()
    assert page.locator(".written").text_content() == "It was once upon"
    assert page.get_by_role("button", name="Generate", exact=True).is_visible()


def test_translate(visit: Visit) -> None:
    visitor = visit()
    visitor.open("translator", "translate")
    visitor.type(text="the cat sees a dog\n\nthe bird sees a red cat\n")
    visitor.run()
    assert visitor.texts(".source") == ["the cat sees a dog", "the bird sees a red cat"]
    assert visitor.texts(".target") == ["die Katze sieht eine Hund", "die Vogel sieht eine rote Katze"]


def test_similarity(visit: Visit, server: RunningServer) -> None:
    visitor = visit()
    visitor.open("pretune-small-en", "similarity")
    texts = ["I want my money back.", "Please refund me.", "It rains."]
    visitor.type(texts="\n".join(texts))
    visitor.run()
    values = ask(server, "pretune-small-en", "similarity", texts=texts)["similarities"]
    assert visitor.texts(".matrix tbody td") == [f"{value:.2f}" for row in values for value in row]
    pairs = sorted((values[a][b] for a in range(3) for b in range(a)), reverse=True)
    assert visitor.texts(".pairs .number") == [f"{value:.2f}" for value in pairs]


def test_neighbors(visit: Visit, server: RunningServer) -> None:
    visitor = visit()
    page = visitor.open("pretune-small-en", "neighbors")
    visitor.run()
    body = {name: page.locator(f'[data-field="{name}"]:visible').input_value() for name in ("word", "text")}
    texts = page.locator('[data-field="texts"]:visible').input_value().splitlines()
    found = ask(server, "pretune-small-en", "neighbors", **body, texts=texts)["neighbors"]
    assert visitor.texts(".pairs .reading") == [one["text"] for one in found]
    marked = [one["text"][one["begin"] : one["end"]] for one in found if one["begin"] is not None]
    assert visitor.texts(".pairs mark") == marked


def test_attention(visit: Visit, server: RunningServer) -> None:
    visitor = visit()
    page = visitor.open("pretune-small-en", "attention")
    text = "The cat sat on the mat."
    visitor.type(text=text)
    visitor.run()
    answer = ask(server, "pretune-small-en", "attention", text=text)
    tokens, weights = answer["tokens"], answer["attention"]
    assert visitor.texts(".from .word") == visitor.texts(".to .word") == tokens
    assert page.locator(".head canvas").count() == sum(len(heads) for heads in weights)
    sizes = f"tokens: {len(tokens)}, layers: {len(weights)}, heads per layer: {len(weights[0])}"
    assert visitor.texts(".status")[0].startswith(sizes)

    def shown() -> list[str]:
        return visitor.texts(".to .share")

    def expected(row: list[float]) -> list[str]:
        return [percent(weight) if weight >= 0.01 else "" for weight in row]

    page.get_by_role("button", name="Layer 2, head 3").click()
    page.locator(".from .token").nth(2).hover()
    assert shown() == expected(weights[1][2][2])
    page.locator(".from .token").nth(2).focus()
    page.keyboard.press("ArrowDown")
    assert shown() == expected(weights[1][2][3])
    page.get_by_label("Layer", exact=True).select_option("0")
    page.get_by_label("Head", exact=True).select_option("mean of all heads")
    means = [sum(head[3][key] for head in weights[0]) / len(weights[0]) for key in range(len(tokens))]
    numbers = [float(number.rstrip("%") or 0) for number in shown()]
    assert numbers == pytest.approx([100 * mean if mean >= 0.01 else 0 for mean in means], abs=0.6)
    page.locator(".to .token").nth(1).hover()
    page.get_by_label("Head", exact=True).select_option("1")
    page.locator(".to .token").nth(1).hover()
    assert visitor.texts(".from .share") == expected([row[1] for row in weights[0][0]])


def test_training_curves_and_report(visit: Visit, server: RunningServer) -> None:
    visitor = visit()
    page = visitor.open("reviews", "training")
    page.locator(".chart").first.wait_for()
    series = server.get("/api/models/reviews/curves").json()["series"]
    assert set(visitor.texts(".chart strong")) == set(series) - {"tokens", "flops", "seconds"}
    chart = page.locator(".chart svg").first
    chart.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    name = visitor.texts(".chart strong")[0]
    step = f"{series[name][1][0]:,.0f}"
    assert re.fullmatch(rf"{re.escape(name)}: \S+ at step {step}", visitor.texts(".chart .readout")[0])
    with page.expect_popup() as popup:
        page.get_by_role("link", name="Open the report").click()
    popup.value.locator("h1").wait_for()
    assert popup.value.url == f"{server.url}/api/models/reviews/report"


def test_run_without_curves(visit: Visit, server: RunningServer) -> None:
    """A run that only trained a linear model on frozen features has a report, but no curves."""
    visitor = visit()
    models = server.get("/api/models").json()
    models["models"][0]["has_curves"] = False
    visitor.page.route("**/api/models", lambda route: route.fulfill(json=models))
    page = visitor.open("reviews", "training")
    assert visitor.texts(".hint")[0].startswith("This run has no curves")
    assert page.get_by_role("link", name="Open the report").is_visible()


def test_request_as_a_command(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open("reviews", "classify")
    visitor.type(text="it's 'good'")
    visitor.run()
    page.get_by_text("The same request on the command line").click()
    (command,) = visitor.texts(".command code")
    assert command.startswith(f"curl '{visitor.url}/api/models/reviews/predict'")
    assert r"it'\''s '\''good'\''" in command


def test_address_keeps_model_and_tab(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open("pretune-small-en", "fill")
    page.get_by_role("tab", name="Attention").click()
    page.reload()
    page.locator('[data-tab="attention"][aria-selected="true"]').wait_for()
    page.goto(f"{visitor.url}/#/no%20such%ZZmodel/<b>")
    page.locator('[role="tab"][aria-selected="true"]').wait_for()
