"""Middleware that checks every request before it reaches a route, and adds security headers to every response.

The checks are of the host name, the access token, and the size and the duration of the body.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Any
from urllib.parse import unquote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pretune.runtime.progress import log_info
from pretune.serving.errors import RequestError
from pretune.serving.limits import ServingLimits
from pretune.serving.metrics import ServerMetrics

PAGE_POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
SECURITY_HEADERS = {
    "Content-Security-Policy": PAGE_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
OPEN = re.compile(r"/(health|ready|static/.*)?")  # paths that need no token: for load balancers, and the page
REPORT = re.compile(r"/api/models/[^/]+/report")
COOKIE = "pretune_token"
LAST_SECONDS = 1.0  # for bodies to arrive when the server ends


class ResponseGuard:
    """Middleware that adds security headers to responses, counts them, and handles errors of the other guards."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and add the headers to its response; an error becomes an error response."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0

        async def send_guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self.app(scope, receive, send_guarded)
        except RequestError as error:
            if not status:
                await error.response()(scope, receive, send_guarded)
        except Exception as error:
            log_info(f"{scope['method']} {route_of(scope)}: {type(error).__name__}: {error}")
            if not status:
                message = "the server failed to answer; its log has the details"
                await RequestError(500, message).response()(scope, receive, send_guarded)
        finally:
            route = route_of(scope)
            self.metrics.requests.values[route, str(status or 499)] += 1  # 499: the client was gone
            self.metrics.latency.observe(time.perf_counter() - start, route)


def route_of(scope: Mapping[str, Any]) -> str:
    """Return the path of a request's route, such as /api/models/{name}/predict, or "other"."""
    return str(getattr(scope.get("route"), "path", "other"))


class HostGuard:
    """Middleware that refuses requests for unknown host names, as a protection against DNS rebinding."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        """Allow requests for the host names in `hosts`, or for all names if it is empty."""
        self.app, self.hosts = app, {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or raise an error if its host name is not allowed."""
        if scope["type"] == "http" and self.hosts:
            host = re.sub(r":\d*$", "", Headers(scope=scope).get("host", "")).lower()
            if host not in self.hosts:
                raise RequestError(
                    421,
                    "the server does not answer requests for this host name; use the address that it was started with",
                )
        await self.app(scope, receive, send)


class TokenGuard:
    """Middleware that refuses requests without the token in the Authorization header.

    The report of a run, which a browser opens by a link, may have the token in a cookie.
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self.app, self.digest = app, None if token is None else sha256(token.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or raise an error if its token is missing or wrong."""
        if scope["type"] == "http" and self.digest is not None and not is_open(scope):
            given = presented_token(scope).encode("utf-8", "replace")
            # Digests have one length, and their comparison takes the same time wherever they differ.
            if not hmac.compare_digest(sha256(given).digest(), self.digest):
                message = "the token is missing or wrong; send the header Authorization: Bearer TOKEN"
                raise RequestError(401, message, headers={"WWW-Authenticate": 'Bearer realm="pretune"'})
        await self.app(scope, receive, send)


def is_open(scope: Scope) -> bool:
    """Return whether a request needs no token, because it is for the page, health, or readiness."""
    return scope["method"] in ("GET", "HEAD") and OPEN.fullmatch(scope["path"]) is not None


def presented_token(scope: Scope) -> str:
    """Return the token in the Authorization header or the cookie of a request, or "" if there is none."""
    request = HTTPConnection(scope)
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scope["method"] == "GET" and REPORT.fullmatch(scope["path"]):
        return unquote(request.cookies.get(COOKIE, ""))
    return ""


class BodyGuard:
    """Middleware that reads the whole body of a request, with limits on its size and on the time it takes.

    It cancels the request if the client disconnects.
    """

    def __init__(self, app: ASGIApp, limits: ServingLimits, stopping: asyncio.Event) -> None:
        """Read bodies within `limits`; once the event `stopping` is set, within `LAST_SECONDS`, as the server ends."""
        self.app, self.limits, self.stopping = app, limits, stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request with its complete body on, or raise an error if the body is too large or too slow."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body = await self._read(Headers(scope=scope), receive)
        if body is None:  # the client is gone
            return
        left = asyncio.ensure_future(receive())  # the next message is that the client is gone
        whole: Message | None = {"type": "http.request", "body": body, "more_body": False}

        async def receive_again() -> Message:
            nonlocal whole
            if whole is not None:
                message, whole = whole, None
                return message
            return await asyncio.shield(left)

        answer = asyncio.ensure_future(self.app(scope, receive_again, send))
        try:
            await asyncio.wait({answer, left}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                answer.cancel()
            await asyncio.wait({answer})
            if not answer.cancelled():
                answer.result()  # raises its error
        finally:
            answer.cancel()
            left.cancel()

    async def _read(self, headers: Headers, receive: Receive) -> bytes | None:
        """Return the body of a request, or None if the client has disconnected."""
        limit = self.limits.max_body
        too_large = RequestError(
            413,
            f"the body is larger than {limit:,} bytes; send fewer or shorter texts",
            headers={"Connection": "close"},
        )
        stated = headers.get("content-length", "")
        if stated.isdecimal() and int(stated[:20]) > limit:
            raise too_large
        parts: list[bytes] = []
        size, more = 0, True
        try:
            async with asyncio.timeout(self.limits.body_timeout) as deadline:
                hurry = asyncio.ensure_future(self._hurry(deadline))
                try:
                    while more:
                        message = await receive()
                        if message["type"] == "http.disconnect":
                            return None
                        parts.append(message.get("body", b""))
                        size, more = size + len(parts[-1]), message.get("more_body", False)
                        if size > limit:
                            raise too_large
                finally:
                    hurry.cancel()
        except TimeoutError:
            seconds = f"{self.limits.body_timeout:g}"
            text = f"the body did not arrive within {seconds} s; send it faster"
            raise RequestError(408, text, headers={"Connection": "close"}) from None
        return b"".join(parts)

    async def _hurry(self, deadline: asyncio.Timeout) -> None:
        """Bring the deadline of a body forward as soon as the server ends, so that it does not wait for lost clients."""
        await self.stopping.wait()
        soon = asyncio.get_running_loop().time() + LAST_SECONDS
        deadline.reschedule(min(soon, deadline.when() or soon))
