"""Routes for existing clients: the request shape of Hugging Face's inference API, and OpenAI's embeddings."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import numpy as np
from fastapi import APIRouter
from pydantic import TypeAdapter, ValidationError
from starlette.responses import Response

from pretune.runtime.errors import quote, suggest
from pretune.serving import schemas
from pretune.serving.errors import RequestError
from pretune.serving.routes import (
    ERRORS,
    Model,
    Registry,
    check_length,
    compute_embeddings,
    compute_texts,
    cosine_similarities,
    decoding_options,
    event,
    json_response,
    stream_response,
)
from pretune.serving.served_model import ServedModel

router = APIRouter(responses=ERRORS)
Parameters = Mapping[str, Any]
# The operation of each task, in the order in which a request without a task chooses.
TASKS = {
    "text-classification": "predict",
    "token-classification": "tag",
    "question-answering": "answer",
    "translation": "translate",
    "fill-mask": "fill",
    "text-generation": "generate",
    "feature-extraction": "embed",
    "sentence-similarity": "embed",
}
# Values of further parameters that stand for what the server does anyway.
HARMLESS: dict[str, tuple[Any, ...]] = {
    "aggregation_strategy": ("simple", "first", "average", "max"),
    "ignore_labels": (["O"], []),
    "truncate": (True,),
    "truncation_direction": ("Right", "right"),
    "watermark": (False,),
    "details": (False,),
    "decoder_input_details": (False,),
    "best_of": (1,),
}
SAMPLING = ("max_new_tokens", "temperature", "top_k", "top_p", "repetition_penalty", "seed", "stop", "num_beams")


# -- Hugging Face -----------------------------------------------------------------------------------------------------


@router.post("/models/{name}", response_class=Response)
async def infer(model: Model, body: schemas.InferenceBody) -> Response:
    """Run the default task of the model on the inputs, in the format of Hugging Face's inference API."""
    return await answer_task(model, guess_task(model, body.inputs), body)


@router.post("/models/{name}/pipeline/{task}", response_class=Response)
async def infer_task(model: Model, task: str, body: schemas.InferenceBody) -> Response:
    """Run a task such as feature-extraction on the inputs, in the format of Hugging Face's inference API."""
    if task not in TASKS:
        raise RequestError(404, f"there is no task {quote(task)}; {suggest(task, TASKS)}")
    return await answer_task(model, task, body)


@router.post("/", response_class=Response)
async def infer_only(registry: Registry, body: schemas.InferenceBody) -> Response:
    """Run the default task of the server's only model on the inputs, in the format of Hugging Face's inference API."""
    if len(registry.models) > 1:
        raise RequestError(
            404,
            f"the server has several models; post to /models/NAME, where NAME is one of: {', '.join(registry.models)}",
        )
    (model,) = registry.models.values()
    return await answer_task(model, guess_task(model, body.inputs), body)


def guess_task(model: ServedModel, inputs: Any) -> str:
    """Return the task of a request that does not name one, such as "text-classification".

    If the inputs are an object, its fields determine the task; for texts, it is the first task that the model can do.
    """
    can = model.facts["capabilities"]
    if isinstance(inputs, Mapping):
        return "sentence-similarity" if "source_sentence" in inputs else "question-answering"
    first = inputs[0] if isinstance(inputs, list) and inputs else inputs
    masked = isinstance(first, str) and any(mask in first for mask in ("[MASK]", "<mask>"))
    if "fill" in can and "embed" in can and not masked and not {"predict", "tag", "translate"} & {*can}:
        return "feature-extraction"  # of a masked language model, whose texts without a mask cannot be filled
    return next((task for task, operation in TASKS.items() if operation in can), "text-classification")


async def answer_task(model: ServedModel, task: str, body: schemas.InferenceBody) -> Response:
    """Return the HTTP response to a request for a task in the format of Hugging Face's inference API."""
    known = PARAMETERS.get(task, ())
    own = {**body.parameters, **(body.model_extra or {})}  # some clients send parameters beside the inputs
    parameters = {name: value for name, value in own.items() if value is not None}
    for name, value in parameters.items():
        if name not in known and value not in HARMLESS.get(name, ()):
            allowed = ", ".join(sorted(known)) or "none"
            message = f"parameters.{name}={quote(value)} is not supported for {task}; supported: {allowed}"
            raise RequestError(422, message, f"parameters.{name}")
    if task == "text-generation":
        return await generate(model, body, parameters)
    return json_response(await ANSWERS[task](model, body.inputs, parameters))


def parse(kind: Any, value: Any, field: str) -> Any:
    """Return a value unchanged if it has the type `kind`; otherwise raise an error that names its `field`."""
    try:
        return TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = field + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        raise RequestError(422, f"{place}: {first['msg'].removeprefix('Value error, ')}", place) from None


def parse_texts(inputs: Any) -> tuple[list[str], bool]:
    """Return the inputs of a request, a text or a list of texts, as a list; also return whether they were a list."""
    several = isinstance(inputs, list)
    texts: list[str] = parse(schemas.Texts, inputs, "inputs") if several else [parse(schemas.Text, inputs, "inputs")]
    return texts, several


def whole(parameters: Parameters, name: str, default: int) -> int:
    """Return the parameter `name` of a request, a positive integer; `default` is used if it is missing."""
    value: int = parse(int, parameters.get(name, default), f"parameters.{name}")
    if not 1 <= value <= schemas.MAX_TOP_K:
        raise RequestError(422, f"parameters.{name}: give a number from 1 to {schemas.MAX_TOP_K}", f"parameters.{name}")
    return value


async def classify(model: ServedModel, inputs: Any, parameters: Parameters) -> Any:
    """Return the labels of each text with their probabilities, the most probable label first."""
    texts, _ = parse_texts(inputs)
    found = []
    for row in map(json.loads, await compute_texts(model, "predict", texts, {"pairs": False})):
        if "value" in row:
            found.append([{"label": "LABEL_0", "score": row["value"]}])
        else:
            ranked = sorted(row["probabilities"].items(), key=lambda pair: -pair[1])
            found.append([{"label": label, "score": score} for label, score in ranked])
    return [rows[: whole(parameters, "top_k", schemas.MAX_TOP_K)] for rows in found]


async def tag(model: ServedModel, inputs: Any, parameters: Parameters) -> Any:
    """Return the labeled spans, such as entities, of each text."""
    texts, several = parse_texts(inputs)
    found = [
        [
            {
                "entity_group": span["label"],
                "score": span["probability"],
                "word": span["text"],
                "start": span["begin"],
                "end": span["end"],
            }
            for span in row["spans"]
        ]
        for row in map(json.loads, await compute_texts(model, "tag", texts))
    ]
    return found if several else found[0]


async def answer(model: ServedModel, inputs: Any, parameters: Parameters) -> Any:
    """Return the answer to a question about a context."""
    asked = parse(dict[str, schemas.Text], inputs, "inputs")
    if {*asked} != {"question", "context"}:
        raise RequestError(422, "inputs: give an object with the fields question and context", "inputs")
    for name, text in asked.items():
        check_length(text, f"inputs.{name}", model.limits)
    (row,) = map(json.loads, await model.compute("answer", [asked], {}, "inputs"))
    return {"answer": row["answer"], "score": row["score"], "start": row["begin"] or 0, "end": row["end"] or 0}


async def translate(model: ServedModel, inputs: Any, parameters: Parameters) -> Any:
    """Return the translation of each text."""
    texts, _ = parse_texts(inputs)
    body = parse(schemas.TranslateBody, {"texts": texts, **parameters}, "parameters")
    options = decoding_options(body, model.limits, ["num_beams"]) | {"num_beams": body.num_beams}
    return [{"translation_text": json.loads(row)} for row in await compute_texts(model, "translate", texts, options)]


async def fill(model: ServedModel, inputs: Any, parameters: Parameters) -> Any:
    """Return the most probable tokens for the mask of each text; a text with several masks has one list per mask."""
    texts, several = parse_texts(inputs)
    options = {"top_k": whole(parameters, "top_k", 5), "sequences": True}
    found = []
    for row in map(json.loads, await compute_texts(model, "fill", texts, options)):
        masks = [
            [
                {
                    "score": one["probability"],
                    "token": one["id"],
                    "token_str": one["token"],
                    "sequence": one["sequence"],
                }
                for one in candidates
            ]
            for candidates in row["masks"]
        ]
        found.append(masks if len(masks) > 1 else masks[0])
    return found if several else found[0]


async def embed(model: ServedModel, inputs: Any, parameters: Parameters) -> Any:
    """Return one embedding per text; with the parameter `normalize`, its norm is 1."""
    texts, _ = parse_texts(inputs)
    vectors = np.array([json.loads(row) for row in await compute_embeddings(model, texts)])
    if parse(bool, parameters.get("normalize", False), "parameters.normalize"):
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True) + 1e-12
    return vectors.tolist()


async def compare(model: ServedModel, inputs: Any, parameters: Parameters) -> Any:
    """Return the cosine similarities between a source sentence and each of several sentences."""
    if not isinstance(inputs, Mapping) or {*inputs} != {"source_sentence", "sentences"}:
        raise RequestError(422, "inputs: give an object with the fields source_sentence and sentences", "inputs")
    source = parse(schemas.Text, inputs["source_sentence"], "inputs.source_sentence")
    others = parse(schemas.Texts, inputs["sentences"], "inputs.sentences")
    vectors = np.array([json.loads(row) for row in await compute_embeddings(model, [source, *others])])
    return cosine_similarities(vectors[:1], vectors[1:])[0].tolist()


async def generate(model: ServedModel, body: schemas.InferenceBody, parameters: Parameters) -> Response:
    """Return the response with a generated text, either complete or as a stream of events."""
    known = {name: parameters[name] for name in SAMPLING if name in parameters}
    if parameters.get("do_sample") is False:
        known = {name: value for name, value in known.items() if name not in ("temperature", "top_k", "top_p")}
    if parameters.get("do_sample") is True and not {"temperature", "top_k", "top_p"} & {*known}:
        known["temperature"] = 1.0
    given = parse(schemas.GenerateBody, {"prompt": parse(schemas.Prompt, body.inputs, "inputs"), **known}, "parameters")
    check_length(given.prompt, "inputs", model.limits)
    options = decoding_options(given, model.limits, list(schemas.Decoding.model_fields))
    item = {"prompt": given.prompt}
    before = (
        given.prompt if parse(bool, parameters.get("return_full_text", False), "parameters.return_full_text") else ""
    )
    if body.stream:
        return await stream_response(model, item, options, huggingface_events)
    (row,) = map(json.loads, await model.compute("generate", [item], options, "inputs"))
    return json_response([{"generated_text": before + row["text"]}])


async def huggingface_events(messages: AsyncIterator[Mapping[str, Any]]) -> AsyncIterator[str]:
    """Yield the events of a generated text in the format of text-generation-inference, but without token ids."""
    try:
        async for message in messages:
            ended = message["kind"] == "end"
            token = {"id": 0, "text": "" if ended else message["text"], "logprob": 0.0, "special": ended}
            text = message["result"]["text"] if ended else None
            yield event({"token": token, "generated_text": text, "details": None})
    except RequestError as error:
        yield event({"error": error.message, "error_type": "generation"})


ANSWERS: dict[str, Callable[[ServedModel, Any, Parameters], Awaitable[Any]]] = {
    "text-classification": classify,
    "token-classification": tag,
    "question-answering": answer,
    "translation": translate,
    "fill-mask": fill,
    "feature-extraction": embed,
    "sentence-similarity": compare,
}
# The parameters that change the answer.
PARAMETERS: dict[str, Sequence[str]] = {
    "text-classification": ["top_k"],
    "translation": ["max_new_tokens", "num_beams"],
    "fill-mask": ["top_k"],
    "text-generation": [*SAMPLING, "do_sample", "return_full_text"],
    "feature-extraction": ["normalize"],
}


# -- OpenAI -----------------------------------------------------------------------------------------------------------


@router.get("/v1/models", response_class=Response)
async def list_openai_models(registry: Registry) -> Response:
    """Return the models of the server in the format of OpenAI's API."""
    names = registry.models
    return json_response(
        {"object": "list", "data": [{"id": n, "object": "model", "created": 0, "owned_by": "pretune"} for n in names]}
    )


@router.post("/v1/embeddings", response_class=Response)
async def openai_embeddings(registry: Registry, body: schemas.EmbeddingsBody) -> Response:
    """Compute embeddings of texts in the format of OpenAI's API."""
    model = registry.find(body.model)
    texts = [body.input] if isinstance(body.input, str) else body.input
    rows = await compute_texts(model, "embed", texts, {"count": True})
    found = list(map(json.loads, rows))
    width = len(found[0]["embedding"])
    if body.dimensions not in (None, width):
        raise RequestError(
            422, f"the embeddings of {body.model} have {width} dimensions; remove the field dimensions", "dimensions"
        )
    tokens = sum(row["tokens"] for row in found)
    data = [
        {"object": "embedding", "index": number, "embedding": encode_vector(row["embedding"], body.encoding_format)}
        for number, row in enumerate(found)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return json_response({"object": "list", "data": data, "model": body.model, "usage": usage})


def encode_vector(vector: Sequence[float], kind: str) -> str | Sequence[float]:
    """Return an embedding unchanged, or as base64 text of its 32-bit floats if `kind` is "base64".

    >>> encode_vector([1.0], "base64")
    'AACAPw=='
    """
    return base64.b64encode(np.array(vector, dtype="<f4").tobytes()).decode() if kind == "base64" else vector
