"""The errors that requests are answered with: an HTTP status and one sentence that says what is wrong and what to do."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from starlette.responses import Response

from pretune.runtime.errors import PretuneError, quote, suggest


class RequestError(Exception):
    """An error that becomes the response to a request; `field` is the wrong part of the body, such as texts[3]."""

    def __init__(
        self, status: int, message: str, field: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.field, self.headers = status, message, field, headers

    def response(self) -> Response:
        """Return the HTTP response that reports this error."""
        return error_response(self.status, self.message, self.field, self.headers)


def error_response(
    status: int, message: str, where: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an HTTP response with an error message as JSON; `where` is the field of the body that is wrong."""
    text = str(PretuneError(message))  # shortened, on one line
    content = json.dumps({"error": {"message": text, "field": where}})  # ASCII, so that any text can be sent
    return Response(content, status, headers, media_type="application/json")


def unknown_model(name: str, known: Iterable[str]) -> RequestError:
    """Return the error for a request that names a model that the server does not have."""
    return RequestError(404, f"there is no model {quote(name)}; {suggest(name, known)}")


def missing_capability(name: str, operation: str, known: Iterable[str]) -> RequestError:
    """Return the error for an operation that the model cannot do; `known` are the operations that it can do."""
    return RequestError(404, f"the model {name} cannot {operation}; it can: {', '.join(known)}")


def queue_full(name: str, seconds: int) -> RequestError:
    """Return the error for a request to a model whose queue is full; the client should try again after `seconds`."""
    message = f"the queue of the model {name} is full; try again in {seconds} s"
    return RequestError(429, message, headers={"Retry-After": str(seconds)})


def unavailable(name: str, seconds: int = 2) -> RequestError:
    """Return the error for a request whose model is being restarted; the client should try again after `seconds`."""
    message = f"the model {name} is being restarted; try again in {seconds} s"
    return RequestError(503, message, headers={"Retry-After": str(seconds)})


def timed_out(seconds: float) -> RequestError:
    """Return the error for a request that took longer than the time limit of `seconds`."""
    return RequestError(504, f"the request took longer than {seconds:g} s; send fewer or shorter texts, or try again")
