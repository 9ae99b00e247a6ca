"""The FastAPI application of the server: it joins the routes and the guards, and turns errors into HTTP responses."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

import pretune
from pretune.runtime.errors import quote
from pretune.serving import compatible_apis, routes, schemas
from pretune.serving.errors import RequestError, error_response
from pretune.serving.guards import BodyGuard, HostGuard, ResponseGuard, TokenGuard
from pretune.serving.metrics import CONTENT_TYPE
from pretune.serving.model_registry import ModelRegistry
from pretune.serving.page import INDEX, StaticFile, read_static_files

ABOUT = "Models for text: predictions, tags, answers, masked words, embeddings, generated text, and translations."


def create_app(
    registry: ModelRegistry,
    *,
    token: str | None = None,
    allowed_hosts: Sequence[str] = (),
    cors_origins: Sequence[str] = (),
) -> FastAPI:
    """Return the FastAPI application that serves the models of a registry over HTTP.

    Parameters
    ----------
    registry
        The models, which are started with the application and closed with it.
    token
        The token that requests must have; None if there is none.
    allowed_hosts
        The host names that requests may be for; all by default.
    cors_origins
        Origins of other sites whose pages may use the server; none by default.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await registry.start()
        yield
        await registry.close()

    app = FastAPI(
        title="pretune",
        description=ABOUT,
        version=pretune.__version__,
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
        generate_unique_id_function=lambda route: f"{route.name}",
    )
    app.state.registry = registry
    app.include_router(routes.router)
    app.include_router(compatible_apis.router)
    add_operations_routes(app, registry)
    add_page(app)
    app.add_exception_handler(RequestError, answer_request_error)
    app.add_exception_handler(RequestValidationError, answer_invalid_body)
    app.add_exception_handler(HTTPException, answer_http_error)
    # The last one that is added sees a request first.
    app.add_middleware(BodyGuard, limits=registry.limits, stopping=registry.stopping)
    app.add_middleware(TokenGuard, token=token)
    if cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
    app.add_middleware(HostGuard, hosts=allowed_hosts)
    app.add_middleware(ResponseGuard, metrics=registry.metrics)
    return app


def add_operations_routes(app: FastAPI, registry: ModelRegistry) -> None:
    """Add the routes for operators of the server: health, readiness, and metrics."""

    @app.get("/health", response_model=schemas.StatusResponse)
    async def health() -> dict[str, str]:
        """Report that the server is alive."""
        return {"status": "alive"}

    @app.get("/ready", response_model=schemas.StatusResponse, responses={503: {"model": schemas.ErrorResponse}})
    async def ready() -> dict[str, str]:
        """Return `{"status": "ready"}` if all models can answer requests, else status 503 and the models that cannot."""
        if not registry.is_ready:
            waiting = [name for name, model in registry.models.items() if not model.is_ready]
            raise RequestError(503, f"not ready: {', '.join(waiting)}", headers={"Retry-After": "2"})
        return {"status": "ready"}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Return the metrics of the server in the text format of Prometheus."""
        return Response(registry.metrics.text(), headers={"Content-Type": CONTENT_TYPE})


def add_page(app: FastAPI) -> None:
    """Add the server's web page at / and its static files at /static."""
    files = read_static_files()

    def respond(path: str, request: Request) -> Response:
        found: StaticFile | None = files.get(path)
        if found is None:
            raise RequestError(404, f"there is no file {quote(path)}; open the page at /")
        headers = {"ETag": found.etag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == found.etag:
            return Response(status_code=304, headers=headers)
        return Response(found.content, media_type=found.media_type, headers=headers)

    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return respond(INDEX, request)

    @app.get("/static/{path:path}", include_in_schema=False)
    async def static(path: str, request: Request) -> Response:
        return respond(path, request)


# -- errors -----------------------------------------------------------------------------------------------------------


async def answer_request_error(request: Request, error: Exception) -> Response:
    """Return the HTTP response for an error that a route has raised."""
    assert isinstance(error, RequestError)
    return error.response()


async def answer_invalid_body(request: Request, error: Exception) -> Response:
    """Return the HTTP response for a request whose body or path is invalid; it describes the first problem."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "")
        return error_response(400, f"the body is not JSON ({reason}); check its syntax")
    path = [part for number, part in enumerate(first["loc"]) if number or part not in ("body", "path", "query")]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
    reason = re.sub(r"^(Value error|Assertion failed), ", "", first["msg"])
    match first["type"]:
        case "missing" if not field:
            message = "the body is empty; send a JSON object with the header Content-Type: application/json"
        case "missing":
            message = f"the field {field} is missing; add it"
        case "extra_forbidden":
            message = f"there is no field {quote(field)} in this request; remove the field"
        case "model_attributes_type" | "model_type" | "dict_type" if not field:
            message = "the body is not a JSON object; send one with the header Content-Type: application/json"
        case _:
            message = f"{field}: {reason[:1].lower()}{reason[1:]}"
    return error_response(422, message, field or None)


async def answer_http_error(request: Request, error: Exception) -> Response:
    """Return the HTTP response for an error of the framework, such as an unknown route or an unreadable body."""
    assert isinstance(error, HTTPException)
    match error.status_code:
        case 404:
            message = f"there is no route {quote(request.url.path)}; /openapi.json lists all"
        case 405:
            message = f"{quote(request.url.path)} does not take {request.method}; /openapi.json lists all routes"
        case 400:
            message = "the body cannot be read; send JSON in UTF-8"
        case _:
            message = str(error.detail)
    return error_response(error.status_code, message, headers=error.headers)
