"""Tests of the routes of a running server: what they answer, and what they refuse."""

from __future__ import annotations

import http.client
import json
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
from huggingface_hub import InferenceClient
from openai import NotFoundError, OpenAI

from pretune.inference.embed import embed_texts
from tests.support.serving import PATIENCE, RunningServer, encoder, wait_until
from tests.support.tricky_strings import CONTROLS, EMOJI, SCRIPTS, SPACES

pytestmark = [pytest.mark.not_fast, pytest.mark.timeout(1800)]
ENCODER = "/api/models/encoder"
DECODER = "/api/models/decoder"


def ok(response: httpx.Response) -> Any:
    """Return the content of a response, which must be a success."""
    assert response.status_code == 200, response.text
    return response.json()


def refused(response: httpx.Response, status: int) -> str:
    """Return the message of a response, which must have the status of an error."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert {*error} == {"message", "field"} and error["message"].strip()
    return str(error["message"])


# -- own routes -------------------------------------------------------------------------------------------------------


def test_models_are_listed(server: RunningServer) -> None:
    first, second = ok(server.get("/api/models"))["models"]
    assert (first["name"], second["name"]) == ("encoder", "decoder")
    assert first["capabilities"] == ["predict", "tag", "answer", "fill", "embed", "neighbors", "attention"]
    assert first["version"] == 1 and not first["has_report"] and not first["has_curves"]


def test_every_operation_is_answered(server: RunningServer) -> None:
    texts = ["it is a dog", "the cat saw it"]
    rows = ok(server.post(f"{ENCODER}/predict", {"texts": texts}))["predictions"]
    assert [{*row["probabilities"]} for row in rows] == [{"no", "yes"}] * 2
    assert ok(server.post(f"{ENCODER}/predict", {"texts": texts, "pairs": texts}))["predictions"]
    assert [row["text"] for row in ok(server.post(f"{ENCODER}/tag", {"texts": texts}))["predictions"]] == texts
    body = {"questions": ["it is ?"], "contexts": ["the dog saw it"]}
    assert ok(server.post(f"{ENCODER}/answer", body))["answers"][0]["answer"]
    filled = ok(server.post(f"{ENCODER}/fill", {"texts": ["it is [MASK]"], "top_k": 3}))["results"]
    assert [len(mask) for mask in filled[0]["masks"]] == [3]
    found = ok(server.post(f"{ENCODER}/embed", {"texts": texts}))
    np.testing.assert_allclose(found["embeddings"], embed_texts(encoder(), texts), atol=1e-5)
    assert found["dimension"] == 16
    cosines = np.array(ok(server.post(f"{ENCODER}/similarity", {"texts": texts}))["similarities"])
    np.testing.assert_allclose(np.diag(cosines), 1, atol=1e-6)
    body = {"word": "dog", "text": "the dog", "texts": ["it is a dog"], "top_k": 1}
    assert len(ok(server.post(f"{ENCODER}/neighbors", body))["neighbors"]) == 1
    weights = np.array(ok(server.post(f"{ENCODER}/attention", {"text": "it is a dog"}))["attention"])
    assert weights.shape[:2] == (2, 2)
    written = ok(server.post(f"{DECODER}/generate", {"prompt": "it is", "max_new_tokens": 5}))
    assert written["text"] and written["tokens"] <= 5


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """Return the server-sent events of a response."""
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
    return [json.loads(part.removeprefix("data: ")) for part in response.text.strip().split("\n\n")]


def test_texts_are_streamed(server: RunningServer) -> None:
    body = {"prompt": "it is", "max_new_tokens": 12}
    *pieces, last = events(server.post(f"{DECODER}/generate", {**body, "stream": True}))
    assert last["done"] and "".join(piece["text"] for piece in pieces) == last["text"]
    assert last["text"] == ok(server.post(f"{DECODER}/generate", body))["text"]


def test_streams_of_several_clients_go_on_side_by_side(server: RunningServer) -> None:
    body = {"prompt": "it is", "max_new_tokens": 60, "stream": True}
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: events(server.post(f"{DECODER}/generate", body))[-1], range(4)))
    assert all(row["done"] for row in found) and len({row["text"] for row in found}) == 1


def test_clients_of_the_same_operation_get_their_own_answers(server: RunningServer) -> None:
    texts = [f"{word} saw the dog" for word in ("a", "it", "the", "cat", "and") for _ in range(8)]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda text: ok(server.post(f"{ENCODER}/embed", {"texts": [text]})), texts))
    expected = embed_texts(encoder(), texts)
    np.testing.assert_allclose([row["embeddings"][0] for row in found], expected, atol=1e-5)


def test_a_bad_text_fails_its_own_request_only(server: RunningServer) -> None:
    bodies = [{"texts": ["it is [MASK]" if number % 3 else "no mask"]} for number in range(18)]
    with ThreadPoolExecutor(9) as pool:
        found = list(pool.map(lambda body: server.post(f"{ENCODER}/fill", body).status_code, bodies))
    assert found == [200 if number % 3 else 422 for number in range(18)]


@pytest.mark.parametrize("operation", ["predict", "tag", "embed"])
def test_odd_unicode_is_read(server: RunningServer, operation: str) -> None:
    texts = [f"a{mark}b" for mark in (*SPACES, *CONTROLS)] + [*EMOJI, *SCRIPTS]
    ok(server.post(f"{ENCODER}/{operation}", {"texts": texts}))


def test_the_state_of_the_server_is_shown(server: RunningServer) -> None:
    assert ok(server.get("/health")) == {"status": "alive"}
    assert ok(server.get("/ready")) == {"status": "ready"}
    ok(server.post(f"{ENCODER}/embed", {"texts": ["a"]}))
    text = server.get("/metrics").text
    assert 'pretune_requests_total{route="/api/models/{name}/embed",code="200"}' in text
    assert 'pretune_batch_size_bucket{model="encoder",operation="embed",le="+Inf"}' in text
    assert 'pretune_queue_length{model="encoder"} 0' in text
    assert 'pretune_model_ready{model="encoder"} 1' in text


def test_every_response_has_security_headers(server: RunningServer) -> None:
    for response in (server.get("/health"), server.get("/nothing"), server.post("/v1/embeddings", [])):
        assert response.headers["content-security-policy"].startswith("default-src 'self'")
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in response.headers and "server" not in response.headers


def test_no_page_loads_outside_resources(server: RunningServer) -> None:
    assert [server.get(path).status_code for path in ("/docs", "/redoc")] == [404, 404]
    assert "/api/models/{name}/predict" in ok(server.get("/openapi.json"))["paths"]


@pytest.mark.parametrize("path", ["../page.py", "..%2fpage.py", "%2e%2e/page.py", "/etc/passwd", "a\x00b", ""])
def test_no_path_reaches_the_file_system(server: RunningServer, path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    connection.putrequest("GET", "/static/" + path.replace("\x00", "%00"))
    connection.endheaders()
    assert connection.getresponse().status == 404
    connection.close()


def test_models_without_a_run_have_no_curves_or_report(server: RunningServer) -> None:
    assert "only run folders" in refused(server.get(f"{ENCODER}/curves"), 404)
    assert "only run folders" in refused(server.get(f"{ENCODER}/report"), 404)


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/api/models/encodr/embed", {"texts": ["a"]}, 404, "did you mean 'encoder'?"),
        (f"{ENCODER}/translate", {"texts": ["a"]}, 404, "the model encoder cannot translate; it can: predict"),
        (f"{ENCODER}/embed", {}, 422, "the field texts is missing"),
        (f"{ENCODER}/embed", {"texts": []}, 422, "texts: "),
        (f"{ENCODER}/embed", {"texts": ["a", 3]}, 422, "texts[1]: input should be a valid string"),
        (f"{ENCODER}/embed", {"texts": ["a", " \n"]}, 422, "texts[1]: the text is empty"),
        (f"{ENCODER}/embed", {"texts": "a"}, 422, "texts: input should be a valid list"),
        (f"{ENCODER}/embed", {"texts": ["a"], "label": 1}, 422, "there is no field 'label'"),
        (f"{ENCODER}/embed", {"texts": ["a"] * 257}, 422, "there are 257 texts; send at most 256"),
        (f"{ENCODER}/embed", {"texts": ["a" * 1_000_000]}, 422, "the text has 1,000,000 characters"),
        (f"{ENCODER}/embed", {"texts": ["a" * 3_000_000]}, 413, "larger than 2,097,152 bytes"),
        (f"{ENCODER}/embed", {"texts": ["a"], "pooling": "../../x"}, 422, "pooling"),
        (f"{ENCODER}/embed", [], 422, "not a JSON object"),
        (f"{ENCODER}/embed", "a", 422, "not a JSON object"),
        (f"{ENCODER}/fill", {"texts": ["a"], "top_k": True}, 422, "top_k: "),
        (f"{ENCODER}/fill", {"texts": ["[MASK]", "a"]}, 422, "the text has no mask"),
        (f"{ENCODER}/fill", {"texts": ["[MASK]"], "top_k": 10**30}, 422, "top_k: "),
        (f"{ENCODER}/predict", {"texts": ["a"], "pairs": ["b", "c"]}, 422, "pairs has 2 entries; give exactly 1"),
        (f"{ENCODER}/answer", {"questions": ["a"], "contexts": []}, 422, "contexts"),
        (f"{ENCODER}/neighbors", {"word": "bird", "text": "the dog", "texts": ["a"]}, 422, "not in the text"),
        (
            f"{ENCODER}/neighbors",
            {"word": "dog", "text": "dog", "texts": ["a"], "layer": 9},
            422,
            "there is no layer 9",
        ),
        (f"{ENCODER}/attention", {"text": "a", "layers": [7]}, 422, "there is no layer 7; choose from 0 to 1"),
        (f"{DECODER}/generate", {"prompt": "a", "max_new_tokens": 10_000}, 422, "give at most 512"),
        (f"{DECODER}/generate", {"prompt": "a", "temperature": 0}, 422, "temperature: "),
        (f"{DECODER}/generate", {"prompt": "a", "num_beams": 2, "top_k": 1}, 422, "beam search does not sample"),
        (f"{DECODER}/generate", {"prompt": "a", "num_beams": 2, "stream": True}, 422, "remove num_beams or stream"),
        (f"{DECODER}/generate", {"prompt": "dog " * 200}, 422, "is too long; shorten the prompt"),
        (f"{DECODER}/generate", {"prompt": "dog " * 200, "stream": True}, 422, "is too long; shorten the prompt"),
        ("/models/encoder", {}, 422, "the field inputs is missing"),
        ("/models/encoder", {"inputs": {"question": "a"}}, 422, "question and context"),
        ("/models/encoder", {"inputs": "a", "parameters": {"top": 1}}, 422, "parameters.top=1 is not supported"),
        ("/models/encoder/pipeline/fill-masks", {"inputs": "a"}, 404, "did you mean 'fill-mask'?"),
        ("/", {"inputs": "a"}, 404, "the server has several models"),
        ("/v1/embeddings", {"model": "x", "input": "a"}, 404, "there is no model 'x'"),
        ("/v1/embeddings", {"model": "encoder", "input": [1, 2]}, 422, "input"),
        ("/v1/embeddings", {"model": "encoder", "input": "a", "dimensions": 5}, 422, "have 16 dimensions"),
        ("/api/models/encoder/embed/more", {}, 404, "there is no route"),
    ],
)
def test_wrong_requests_are_refused_with_a_clear_message(
    server: RunningServer, path: str, body: Any, status: int, message: str
) -> None:
    assert message in refused(server.post(path, body), status)


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (b'{"texts": [', 400, "the body is not JSON"),
        (b"", 422, "the body is empty"),
        (b'{"texts": ["\xff\xfe"]}', 400, "the body"),
        (b'{"texts": ["\\ud800"]}', 422, "texts[0]: the text is not valid Unicode"),
        (b"[" * 100_000, 400, "the body"),
        (b'{"texts": ["a"], "top_k": ' + b"9" * 10_000 + b"}", 400, "the body"),
        (b'{"texts": ["a"], "top_k": NaN}', 422, "top_k"),
        (b"\x00\x01\x02", 400, "the body is not JSON"),
    ],
)
def test_unreadable_bodies_are_refused(server: RunningServer, content: bytes, status: int, message: str) -> None:
    headers = {"content-type": "application/json"}
    response = httpx.post(f"{server.url}{ENCODER}/fill", content=content, headers=headers, timeout=PATIENCE)
    assert message in refused(response, status)
    assert ok(server.get("/ready"))


def test_forms_of_other_sites_are_refused(server: RunningServer) -> None:
    """A page of another site can send a body as text, without asking first; the server does not read it as JSON."""
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        headers = {"content-type": kind}
        response = httpx.post(f"{server.url}{ENCODER}/embed", content=b'{"texts": ["a"]}', headers=headers)
        assert "Content-Type: application/json" in refused(response, 422)


def test_other_methods_are_refused(server: RunningServer) -> None:
    assert "does not take GET" in refused(server.get(f"{ENCODER}/predict"), 405)


def test_a_body_without_a_length_is_bounded(server: RunningServer) -> None:
    response = httpx.post(f"{server.url}{ENCODER}/embed", content=(b"x" * 100_000 for _ in range(30)), timeout=PATIENCE)
    assert "larger than" in refused(response, 413)


def test_clients_that_stop_in_the_middle_do_no_harm(server: RunningServer) -> None:
    request = b"POST /api/models/encoder/embed HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    for part in (
        b"PO",
        request,
        request + b"Content-Length: 100\r\n\r\n{",
        request + b"Transfer-Encoding: chunked\r\n\r\nzz",
    ):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(part)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset, not closed
    assert ok(server.get("/ready"))


def test_slow_clients_do_not_hold_others_up(server: RunningServer) -> None:
    request = b"POST /api/models/encoder/embed HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
    slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(50)]
    try:
        for connection in slow:
            connection.sendall(request)
        ok(server.post(f"{ENCODER}/embed", {"texts": ["a"]}))
    finally:
        for connection in slow:
            connection.close()


def test_a_stream_ends_with_its_client(server: RunningServer) -> None:
    body = {"prompt": "it is", "max_new_tokens": 120, "stream": True}
    with httpx.stream("POST", f"{server.url}{DECODER}/generate", json=body, timeout=PATIENCE) as response:
        next(response.iter_lines())
    model = server.registry.models["decoder"]
    wait_until(lambda: model.streams == 0 and model.worker is not None and model.worker.is_idle)


# -- clients ----------------------------------------------------------------------------------------------------------


def test_the_client_of_hugging_face_understands_the_answers(server: RunningServer) -> None:
    client = InferenceClient(model=f"{server.url}/models/encoder")
    label = client.text_classification("it is a dog")
    assert {row.label for row in label} == {"no", "yes"} and label[0].score >= label[1].score
    assert client.question_answering(question="it is ?", context="the dog saw it").answer
    similar = client.sentence_similarity("it is a dog", other_sentences=["it is a dog", "the cat"])
    assert similar[0] == pytest.approx(1.0, abs=1e-5)
    marks = InferenceClient(model=f"{server.url}/models/encoder/pipeline/token-classification")
    spans = marks.token_classification("it is a dog", aggregation_strategy="simple")
    assert all("it is a dog"[span.start : span.end] == span.word for span in spans)
    masks = InferenceClient(model=f"{server.url}/models/encoder/pipeline/fill-mask")
    assert len(masks.fill_mask("it is [MASK]", top_k=3)) == 3
    features = InferenceClient(model=f"{server.url}/models/encoder/pipeline/feature-extraction")
    found = features.feature_extraction("it is a dog", normalize=True)
    assert found.shape == (1, 16) and np.linalg.norm(found) == pytest.approx(1, abs=1e-5)


def test_the_client_of_hugging_face_generates_texts(server: RunningServer) -> None:
    client = InferenceClient(model=f"{server.url}/models/decoder")
    whole = client.text_generation("it is", max_new_tokens=8)
    assert whole and "".join(client.text_generation("it is", max_new_tokens=8, stream=True)) == whole
    longer = client.text_generation("it is", max_new_tokens=8, return_full_text=True)
    assert longer == "it is" + whole
    sampled = client.text_generation("it is", max_new_tokens=8, do_sample=True, temperature=0.7, top_p=0.9, seed=1)
    assert sampled == client.text_generation("it is", max_new_tokens=8, temperature=0.7, top_p=0.9, seed=1)


def test_the_client_of_openai_gets_embeddings(server: RunningServer) -> None:
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=PATIENCE, max_retries=0)
    texts = ["it is a dog", "the cat"]
    for kind in ("float", "base64"):
        found = client.embeddings.create(model="encoder", input=texts, encoding_format=kind)  # type: ignore[arg-type]
        rows = [row.embedding for row in found.data]
        if kind == "base64":
            import base64

            rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in rows]  # type: ignore[arg-type]
        np.testing.assert_allclose(rows, embed_texts(encoder(), texts), atol=1e-5)
        assert found.usage.prompt_tokens > 2
    assert client.embeddings.create(model="encoder", input="it is a dog").data[0].embedding == pytest.approx(
        embed_texts(encoder(), texts[:1])[0].tolist(), abs=1e-5
    )
    assert [model.id for model in client.models.list()] == ["encoder", "decoder"]
    with pytest.raises(NotFoundError, match="there is no model 'x'"):
        client.embeddings.create(model="x", input="a")


def test_many_clients_leave_no_work_behind(server: RunningServer) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: ok(server.post(f"{ENCODER}/predict", {"texts": ["a dog"]})), range(40)))
    model = server.registry.models["encoder"]
    wait_until(lambda: model.queue.size == 0 and model.worker is not None and model.worker.is_idle)
