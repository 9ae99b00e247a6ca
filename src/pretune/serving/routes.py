"""The routes of pretune's own interface, under /api/models."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel
from starlette.responses import Response, StreamingResponse

from pretune.serving import schemas
from pretune.serving.errors import RequestError
from pretune.serving.limits import ServingLimits
from pretune.serving.model_registry import ModelRegistry
from pretune.serving.served_model import ServedModel

REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'; sandbox"
ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The body is not JSON."},
    401: {"description": "The token is missing or wrong."},
    404: {"description": "There is no such model, or it cannot do this."},
    408: {"description": "The body took too long to arrive."},
    413: {"description": "The body is too large."},
    422: {"description": "A part of the body is wrong."},
    429: {"description": "The queue is full; try again after the seconds in the header Retry-After."},
    503: {"description": "The model is being restarted."},
    504: {"description": "The request took longer than the time limit."},
}
for description in ERRORS.values():
    description["model"] = schemas.ErrorResponse

router = APIRouter(prefix="/api/models", responses=ERRORS)


def registry_of(request: Request) -> ModelRegistry:
    """Return the registry of models of the server that received a request."""
    registry: ModelRegistry = request.app.state.registry
    return registry


def find_model(name: str, request: Request) -> ServedModel:
    """Return the model that the path of a request names, or raise an error if there is none."""
    return registry_of(request).find(name)


Registry = Annotated[ModelRegistry, Depends(registry_of)]
Model = Annotated[ServedModel, Depends(find_model)]


def answered(model: type[BaseModel], **more: Any) -> dict[str, Any]:
    """Return the FastAPI options of a route that responds with JSON in the schema of the Pydantic model `model`.

    `more` are further OpenAPI fields of the response, such as `content` for other media types.
    """
    return {"response_class": Response, "responses": {200: {"model": model, **more}}}


def json_response(content: Any) -> Response:
    """Return a value as a JSON response."""
    return Response(json.dumps(content), media_type="application/json")


def list_response(field: str, rows: Sequence[bytes], **more: Any) -> Response:
    """Return a response with a JSON object, whose field called `field` contains the list of results `rows`.

    Each row is JSON already, and is not parsed again. `more` are further fields of the object.
    """
    rest = "".join(f", {json.dumps(key)}: {json.dumps(value)}" for key, value in more.items())
    content = b'{"%b": [%b]%b}' % (field.encode(), b", ".join(rows), rest.encode())
    return Response(content, media_type="application/json")


# -- limits -----------------------------------------------------------------------------------------------------------


def check_texts(texts: Sequence[str], field: str, limits: ServingLimits, count: int | None = None) -> None:
    """Raise an error if there are too many texts, if their number is not `count`, or if one of them is too long.

    `field` is the field of the request with the texts, for the error.
    """
    if len(texts) > limits.max_texts:
        message = f"there are {len(texts)} {field}; send at most {limits.max_texts} in a request"
        raise RequestError(422, message, field)
    if count is not None and len(texts) != count:
        raise RequestError(
            422, f"{field} has {len(texts)} entries; give exactly {count}, one for each text or question", field
        )
    for number, text in enumerate(texts):
        check_length(text, f"{field}[{number}]", limits)


def check_length(text: str, field: str, limits: ServingLimits) -> None:
    """Raise an error if a text is longer than the limit of the server; `field` is its field in the request."""
    if len(text) > limits.max_characters:
        message = f"{field}: the text has {len(text):,} characters; shorten it to {limits.max_characters:,}"
        raise RequestError(422, message, field)


def decoding_options(body: BaseModel, limits: ServingLimits, names: Sequence[str]) -> dict[str, Any]:
    """Return the decoding settings called `names` of a request body; raise an error if they exceed the limits."""
    options = body.model_dump(include=set(names), exclude_defaults=True)
    options["max_new_tokens"] = tokens = body.max_new_tokens  # type: ignore[attr-defined]
    if tokens > limits.max_new_tokens:
        message = f"max_new_tokens {tokens} is too large; give at most {limits.max_new_tokens}"
        raise RequestError(422, message, "max_new_tokens")
    sampling = [name for name in ("temperature", "top_k", "top_p") if options.get(name) is not None]
    if options.get("num_beams", 1) > 1 and sampling:
        message = f"beam search does not sample; remove num_beams, or remove {', '.join(sampling)}"
        raise RequestError(422, message, "num_beams")
    if sampling and options.get("seed") is None:
        options["seed"] = secrets.randbits(32)
    return options


# -- operations -------------------------------------------------------------------------------------------------------


@router.get("", response_model=schemas.ModelsResponse)
async def list_models(registry: Registry) -> Any:
    """Return the models of the server, and what each can do."""
    return {"models": [model.describe() for model in registry.models.values()]}


@router.post("/{name}/predict", **answered(schemas.PredictResponse))
async def predict(model: Model, body: schemas.PredictBody) -> Response:
    """Predict the label, the labels, or the number for each text or pair of texts."""
    check_texts(body.texts, "texts", model.limits)
    items: list[dict[str, str]] = [{"text": text} for text in body.texts]
    if body.pairs is not None:
        check_texts(body.pairs, "pairs", model.limits, len(items))
        items = [{**item, "pair": pair} for item, pair in zip(items, body.pairs, strict=True)]
    rows = await model.compute("predict", items, {"pairs": body.pairs is not None}, "texts")
    return list_response("predictions", rows)


@router.post("/{name}/tag", **answered(schemas.TagResponse))
async def tag(model: Model, body: schemas.TextsBody) -> Response:
    """Find the labeled spans of each text, with their character offsets."""
    return list_response("predictions", await compute_texts(model, "tag", body.texts))


@router.post("/{name}/answer", **answered(schemas.AnswerResponse))
async def answer(model: Model, body: schemas.AnswerBody) -> Response:
    """Answer each question with a part of its context."""
    check_texts(body.questions, "questions", model.limits)
    check_texts(body.contexts, "contexts", model.limits, len(body.questions))
    pairs = zip(body.questions, body.contexts, strict=True)
    items = [{"question": question, "context": context} for question, context in pairs]
    return list_response("answers", await model.compute("answer", items, {}, "questions"))


@router.post("/{name}/fill", **answered(schemas.FillResponse))
async def fill(model: Model, body: schemas.FillBody) -> Response:
    """Predict the tokens at the masks of each text."""
    return list_response("results", await compute_texts(model, "fill", body.texts, {"top_k": body.top_k}))


@router.post("/{name}/embed", **answered(schemas.EmbedResponse))
async def embed(model: Model, body: schemas.EmbedBody) -> Response:
    """Compute the embedding of each text."""
    rows = await compute_embeddings(model, body.texts, body.pooling)
    return list_response("embeddings", rows, dimension=rows[0].count(b",") + 1)


@router.post("/{name}/similarity", response_model=schemas.SimilarityResponse)
async def similarity(model: Model, body: schemas.EmbedBody) -> Any:
    """Compute the cosine similarity of every text with every other text."""
    vectors = np.array([json.loads(row) for row in await compute_embeddings(model, body.texts, body.pooling)])
    return {"similarities": cosine_similarities(vectors, vectors).tolist()}


@router.post(
    "/{name}/generate",
    **answered(schemas.GenerateResponse, content={"text/event-stream": {"schema": {"type": "string"}}}),
)
async def generate(model: Model, body: schemas.GenerateBody) -> Response:
    """Continue a prompt, or generate the output of an encoder-decoder; with `stream`, send the text in pieces."""
    check_length(body.prompt, "prompt", model.limits)
    options = decoding_options(body, model.limits, list(schemas.Decoding.model_fields))
    item = {"prompt": body.prompt}
    if body.stream:
        return await stream_response(model, item, options, own_events)
    (row,) = await model.compute("generate", [item], options, "prompt")
    return Response(row, media_type="application/json")


@router.post("/{name}/translate", **answered(schemas.TranslateResponse))
async def translate(model: Model, body: schemas.TranslateBody) -> Response:
    """Translate each text."""
    options = decoding_options(body, model.limits, ["num_beams"]) | {"num_beams": body.num_beams}
    return list_response("translations", await compute_texts(model, "translate", body.texts, options))


@router.post("/{name}/neighbors", **answered(schemas.NeighborsResponse))
async def neighbors(model: Model, body: schemas.NeighborsBody) -> Response:
    """Find the words in several texts that are used most similarly to a given word in its context."""
    check_texts(body.texts, "texts", model.limits)
    check_length(body.text, "text", model.limits)
    layers = model.facts["layers"]
    if not -layers - 1 <= body.layer <= layers:
        raise RequestError(422, f"there is no layer {body.layer}; choose from 0 to {layers}, or -1", "layer")
    (row,) = await model.compute("neighbors", [body.model_dump()], {}, "text")
    return Response(b'{"neighbors": %b}' % row, media_type="application/json")


@router.post("/{name}/attention", **answered(schemas.AttentionResponse))
async def attention(model: Model, body: schemas.AttentionBody) -> Response:
    """Return the attention weights between the tokens of a text."""
    check_length(body.text, "text", model.limits)
    (row,) = await model.compute("attention", [body.model_dump()], {}, "text")
    return Response(row, media_type="application/json")


@router.get("/{name}/curves", response_model=schemas.CurvesResponse)
async def curves(model: Model) -> Any:
    """Return the learning curves of a run: its metrics during training, by name."""
    series = model.files.curves
    if not series:
        raise RequestError(404, f"the model {model.name} has no curves; only run folders have them")
    return {"steps": sorted({point[0] for points in series.values() for point in points}), "series": series}


@router.get("/{name}/report", response_class=Response, responses={200: {"content": {"text/html": {}}}})
async def report(model: Model) -> Response:
    """Return the report of a run as an HTML page without scripts."""
    if model.files.report is None:
        raise RequestError(404, f"the model {model.name} has no report; only run folders have one")
    return Response(model.files.report, media_type="text/html", headers={"Content-Security-Policy": REPORT_POLICY})


# -- shared with other interfaces ---------------------------------------------------------------------------------------


async def compute_texts(
    model: ServedModel, operation: str, texts: Sequence[str], options: Mapping[str, Any] | None = None
) -> list[bytes]:
    """Run an operation on texts, and return one result per text as JSON."""
    check_texts(texts, "texts", model.limits)
    return await model.compute(operation, [{"text": text} for text in texts], options or {}, "texts")


async def compute_embeddings(model: ServedModel, texts: Sequence[str], pooling: str | None = None) -> list[bytes]:
    """Compute embeddings of texts, and return one embedding per text as JSON."""
    return await compute_texts(model, "embed", texts, {} if pooling is None else {"pooling": pooling})


def cosine_similarities(first: Any, second: Any) -> Any:
    """Return the cosine similarities of n vectors with m vectors, (n, m), given as the rows of two arrays."""
    units = [rows / (np.linalg.norm(rows, axis=1, keepdims=True) + 1e-12) for rows in (first, second)]
    return units[0] @ units[1].T


async def stream_response(
    model: ServedModel, item: Mapping[str, Any], options: Mapping[str, Any], events: Any
) -> Response:
    """Return a response that sends a generated text in pieces, as server-sent events.

    The function `events` formats the messages of the worker as events. An error that occurs before the first piece is
    reported by the HTTP status of the response.
    """
    if options.get("num_beams", 1) > 1:
        raise RequestError(
            422,
            "beam search knows its text only at the end, so it cannot be streamed; remove num_beams or stream",
            "num_beams",
        )
    messages = model.stream(item, options)
    first = await anext(messages)

    async def all_messages() -> AsyncIterator[Mapping[str, Any]]:
        yield first
        async for message in messages:
            yield message

    headers = {"X-Accel-Buffering": "no"}  # reverse proxies must not hold pieces back
    return StreamingResponse(events(all_messages()), media_type="text/event-stream", headers=headers)


def event(content: Any) -> str:
    """Return a value as a server-sent event in JSON."""
    return f"data: {json.dumps(content)}\n\n"


async def own_events(messages: AsyncIterator[Mapping[str, Any]]) -> AsyncIterator[str]:
    """Yield the events of a generated text in pretune's format: its pieces, then the whole text or an error."""
    try:
        async for message in messages:
            if message["kind"] == "end":
                yield event({"done": True, **message["result"]})
            else:
                yield event({"text": message["text"]})
    except RequestError as error:
        yield event({"error": {"message": error.message, "field": error.field}})
