"""Tests of the operations of models, and of the worker's loop around them, in this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from functools import cache
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretune import PretuneError
from pretune.inference.embed import embed_texts
from pretune.inference.predict import predict_texts
from pretune.models.open_model import OpenModel
from pretune.serving.limits import MAX_ATTENTION_TOKENS, MAX_MASKS
from pretune.serving.model_runner import ModelRunner
from pretune.serving.operations import load_tag, locate_word, word_bounds
from pretune.serving.worker import Worker
from tests.support.serving import decoder, encoder, save_encoder, translator
from tests.support.tiny_models import save_random_model

pytestmark = pytest.mark.not_fast
TEXTS = ["it is a dog", "the dog and the cat saw it, and it saw them", "я"]
KINDS = {"encoder": encoder, "decoder": decoder, "translator": translator}


@cache
def runner(kind: str) -> ModelRunner:
    return ModelRunner(str(KINDS[kind]()), kind)


def compute(kind: str, operation: str, items: list[dict[str, Any]], **options: Any) -> list[Any]:
    """Compute a batch, and check that its results can be sent."""
    found = runner(kind).compute(operation, items, options)
    assert len(found) == len(items)
    json.dumps([row for row in found if not isinstance(row, Exception)], allow_nan=False)
    return found


def test_models_say_what_they_can_do() -> None:
    facts = runner("encoder").facts()
    assert facts["capabilities"] == ["predict", "tag", "answer", "fill", "embed", "neighbors", "attention"]
    assert (facts["labels"], facts["task"], facts["layers"], facts["heads"]) == (["no", "yes"], "classify", 2, 2)
    assert runner("decoder").facts()["capabilities"] == ["embed", "generate", "neighbors", "attention"]
    assert runner("translator").facts()["capabilities"] == ["embed", "generate", "translate", "attention"]
    assert json.dumps(facts)


def test_predictions_are_those_of_the_verb() -> None:
    (expected,) = [predict_texts(encoder(), TEXTS, task="kind")]
    found = compute("encoder", "predict", [{"text": text} for text in TEXTS])
    for one, other in zip(found, expected, strict=True):
        assert one["label"] == other["label"]
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-6)


def test_a_text_without_tokens_is_an_error_of_its_own() -> None:
    found = compute("encoder", "predict", [{"text": "a dog"}, {"text": "\u200b"}, {"text": "a cat"}])
    assert isinstance(found[1], PretuneError) and "give a text with words" in str(found[1])
    assert found[0]["label"] and found[2]["label"]


def test_pairs_are_read() -> None:
    (alone,) = compute("encoder", "predict", [{"text": "a dog"}], pairs=False)
    (both,) = compute("encoder", "predict", [{"text": "a dog", "pair": "the cat saw it"}], pairs=True)
    assert alone["probabilities"] != both["probabilities"]


@pytest.mark.parametrize("text", ["it is, a dog", " 👩‍👩‍👧‍👦 family\n\tÀÉ.", "中文 a", "a" * 500])
def test_tagged_spans_are_parts_of_the_text(text: str) -> None:
    (found,) = compute("encoder", "tag", [{"text": text}])
    assert found["text"] == text
    for span in found["spans"]:
        assert text[span["begin"] : span["end"]] == span["text"] == span["text"].strip() != ""
        assert span["label"] == "X" and 0 <= span["probability"] <= 1


def test_plain_tags_give_one_span_per_word(tmp_path: Path) -> None:
    save_encoder(tmp_path / "model", "marks: tag", {"marks": {"labels": ["D", "N"], "scheme": "plain"}})
    (found,) = load_tag(OpenModel(tmp_path / "model"))([{"text": "the  dog"}], {})
    assert [(span["begin"], span["end"]) for span in found["spans"]] == [(0, 3), (5, 8)]
    assert {span["label"] for span in found["spans"]} <= {"D", "N"}


def test_words_are_split_as_the_task_says() -> None:
    assert word_bounds("no. 5 ", "spaces") == [(0, 3), (4, 5)]
    assert word_bounds("no. 5 ", "punctuation") == [(0, 2), (2, 3), (4, 5)]


def test_answers_are_parts_of_the_context() -> None:
    context = "the dog saw it , and the cat " * 5
    found = compute(
        "encoder", "answer", [{"question": "it ?", "context": context}, {"question": "a ?", "context": "a"}]
    )
    assert context[found[0]["begin"] : found[0]["end"]] == found[0]["answer"] != ""
    assert 0 <= found[0]["score"] <= 1


def test_masks_are_filled_as_one_by_one() -> None:
    texts = ["it is [MASK]", "[MASK] saw [MASK] and it", "the [MASK] saw the cat and the dog and it"]
    together = compute("encoder", "fill", [{"text": text} for text in texts], top_k=3)
    alone = [compute("encoder", "fill", [{"text": text}], top_k=3)[0] for text in texts]
    for one, other in zip(together, alone, strict=True):
        assert one["filled"] == other["filled"]
        for many, few in zip(one["masks"], other["masks"], strict=True):
            assert [c["id"] for c in many] == [c["id"] for c in few]
            assert [c["probability"] for c in many] == pytest.approx([c["probability"] for c in few], abs=1e-6)
    assert [len(row["masks"]) for row in together] == [1, 2, 1]


def test_candidates_can_have_their_sequences() -> None:
    (row,) = compute("encoder", "fill", [{"text": "it is [MASK]"}], top_k=2, sequences=True)
    assert row["masks"][0][0]["sequence"] == row["filled"]


def test_a_bad_text_does_not_fail_its_neighbors() -> None:
    texts = ["it is [MASK]", "no mask", "[MASK] " * (MAX_MASKS + 1), "a [MASK]", "[MASK]" + " dog" * 100]
    found = compute("encoder", "fill", [{"text": text} for text in texts], top_k=1)
    assert [isinstance(row, PretuneError) for row in found] == [False, True, True, False, True]
    assert f"{MAX_MASKS + 1} masks; use at most {MAX_MASKS}" in str(found[2])


def test_embeddings_are_those_of_the_verb() -> None:
    found = compute("encoder", "embed", [{"text": text} for text in TEXTS], pooling="cls")
    np.testing.assert_allclose(found, embed_texts(encoder(), TEXTS, "cls"), atol=1e-6)
    counted = compute("encoder", "embed", [{"text": text} for text in TEXTS], count=True)
    assert [row["tokens"] > 0 for row in counted] == [True] * 3


def test_an_unknown_pooling_is_an_error() -> None:
    (error,) = compute("encoder", "embed", [{"text": "a"}], pooling="cube")
    assert isinstance(error, PretuneError) and "cube" in str(error)


@pytest.mark.parametrize("kind", ["decoder", "translator"])
def test_streams_are_the_generated_texts(kind: str) -> None:
    options = {"max_new_tokens": 12}
    (whole,) = compute(kind, "generate", [{"prompt": "it is a dog"}], **options)
    stream = runner(kind).start_stream({"prompt": "it is a dog"}, options)
    pieces: list[str] = []

    def collect() -> Generator[str, None, dict[str, Any]]:
        result = yield from stream
        assert result == whole
        return result

    pieces.extend(collect())
    assert "".join(pieces) == whole["text"] != ""


def test_sampled_texts_do_not_depend_on_the_batch() -> None:
    options = {"max_new_tokens": 8, "temperature": 1.0, "seed": 3}
    prompts = [{"prompt": "it is"}, {"prompt": "a dog saw"}]
    together = compute("decoder", "generate", prompts, **options)
    assert together == [compute("decoder", "generate", [prompt], **options)[0] for prompt in prompts]


def test_translations_are_texts() -> None:
    (found,) = compute("translator", "translate", [{"text": "it is a dog"}], max_new_tokens=4, num_beams=2)
    assert isinstance(found, str)


def test_neighbors_have_their_places() -> None:
    item = {"word": "dog", "text": "the dog", "texts": ["the it is a dog", "the cat"], "top_k": 9, "layer": -1}
    (found,) = compute("encoder", "neighbors", [item])
    first = next(row for row in found if row["word"] == "dog")
    assert first["text"][first["begin"] : first["end"]] == "dog"
    (error,) = compute("encoder", "neighbors", [{**item, "word": "bird"}])
    assert isinstance(error, PretuneError) and "not in the text" in str(error)


def test_a_word_that_is_spelled_differently_has_no_place() -> None:
    found = locate_word({"word": "unk", "similarity": 0.1, "text": "a b"})
    assert (found["begin"], found["end"]) == (None, None)


def test_attention_weights_sum_to_one() -> None:
    (found,) = compute("encoder", "attention", [{"text": "it is a dog", "layers": [1]}])
    weights = np.array(found["attention"])
    count = len(found["tokens"])
    assert weights.shape == (1, 2, count, count)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=count * 1e-4)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"text": "a", "layers": [2]}, "there is no layer 2; choose from 0 to 1"),
        ({"text": "a", "layers": [-1]}, "there is no layer -1"),
        ({"text": "dog " * 200, "layers": None}, f"shorten it to {MAX_ATTENTION_TOKENS}"),
    ],
)
def test_attention_is_bounded(item: dict[str, Any], message: str) -> None:
    (error,) = compute("encoder", "attention", [item])
    assert isinstance(error, PretuneError) and message in str(error)


# -- errors -----------------------------------------------------------------------------------------------------------


def test_errors_do_not_name_folders() -> None:
    status, message = runner("encoder").describe_error(PretuneError(f"{encoder()}: no such thing"))
    assert (status, message) == (422, "encoder: no such thing")


def test_clients_learn_no_details_of_unexpected_errors(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)
    status, message = runner("encoder").describe_error(ValueError("secret"))
    assert status == 500 and "secret" not in message
    assert "secret" in capsys.readouterr().err


def test_a_model_without_anything_to_do_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match="no such model folder"):
        ModelRunner(str(tmp_path / "nothing"), "nothing")


# -- the loop ---------------------------------------------------------------------------------------------------------


def test_streams_advance_in_turn_and_can_be_cancelled() -> None:
    near, far = Pipe()
    thread = threading.Thread(target=lambda: swallow_end(Worker(far, runner("decoder"))), daemon=True)
    for job, tokens in ((0, 40), (1, 10)):
        item, options = {"prompt": "it is"}, {"max_new_tokens": tokens}
        near.send_bytes(json.dumps({"kind": "stream", "job": job, "item": item, "options": options}).encode())
    batch = {"kind": "batch", "job": 2, "operation": "embed", "items": [{"text": "a"}], "options": {}}
    near.send_bytes(json.dumps(batch).encode())
    thread.start()
    headers = []
    while not headers or headers[-1]["kind"] != "end":
        headers.append(json.loads(near.recv_bytes().split(b"\n")[0]))
    near.send_bytes(json.dumps({"kind": "cancel", "job": 0}).encode())
    near.send_bytes(json.dumps({**batch, "job": 3}).encode())
    while headers[-1].get("job") != 3:
        headers.append(json.loads(near.recv_bytes().split(b"\n")[0]))
    near.close()
    thread.join(60)
    assert not thread.is_alive()
    assert headers[0]["job"] == 2, "a batch does not wait for streams"
    assert {h["job"] for h in headers if h["kind"] == "piece"} == {0, 1}
    assert [h["job"] for h in headers if h["kind"] == "end"] == [1]


def swallow_end(worker: Worker) -> None:
    """Run a worker until its connection is closed."""
    with pytest.raises((EOFError, OSError)):
        worker.run()


def test_a_model_without_a_head_for_masks_is_served_without_a_message_about_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRETUNE_PROGRESS", "plain")
    found = ModelRunner(str(save_random_model(tmp_path, "bert", "contrast")), "model")
    assert "fill" not in found.operations and "embed" in found.operations
    assert "is new" not in capsys.readouterr().err
