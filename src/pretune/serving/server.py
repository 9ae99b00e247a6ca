"""The server process: it binds a socket, loads the models, and answers until it is stopped."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretune.runtime.errors import PretuneError, if_option
from pretune.runtime.parsing import read_text
from pretune.runtime.progress import log_info
from pretune.serving.limits import ServingLimits

if TYPE_CHECKING:
    from pretune.models.engines import Engine
    from pretune.serving.model_registry import ModelRegistry

TOKEN = "PRETUNE_TOKEN"  # environment variable with the token of requests
SHORTEST_TOKEN = 16  # characters
LONGEST_TOKEN_FILE = 4096  # bytes
MAX_CONNECTIONS = 2048
BACKLOG = 2048  # connections that wait to be accepted
KEEP_ALIVE = 75  # seconds; longer than the idle time of usual load balancers, which must not meet a closed connection
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True)
class ServerSettings:
    """The settings of a server: its address, its token and allowed hosts, its threads, its engine, and its limits."""

    host: str = "127.0.0.1"
    port: int = 8000  # 0: any free port
    token: str | None = None
    allowed_hosts: Sequence[str] = ()
    cors_origins: Sequence[str] = ()
    threads: int = 0  # of each model; 0: its share of the cores
    engine: Engine = "torch"  # of each model (see models/engines.py)
    reload_every: float = 5.0  # seconds; 0: only on SIGHUP
    limits: ServingLimits = field(default_factory=ServingLimits)

    @property
    def is_local(self) -> bool:
        """Return whether only this machine can reach the server."""
        return self.host in ("127.0.0.1", "::1", "localhost")


def find_token(file: Path | None) -> str | None:
    """Return the access token from a file or from the environment variable PRETUNE_TOKEN; None if neither is set."""
    token = read_text(file, LONGEST_TOKEN_FILE).strip() if file is not None else os.environ.get(TOKEN)
    source = str(file or TOKEN)
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise PretuneError(
            f"{source}: a token has at least {SHORTEST_TOKEN} letters and digits on one line; make one with: openssl rand -hex 32"
        )
    return token


def serve_models(models: Mapping[str, str], settings: ServerSettings) -> dict[str, int]:
    """Serve models until the process is stopped; return the number of responses by their HTTP status."""
    with bind_socket(settings.host, settings.port) as bound:
        return asyncio.run(_serve(models, settings, bound))


async def _serve(models: Mapping[str, str], settings: ServerSettings, bound: socket.socket) -> dict[str, int]:
    from pretune.serving.app import create_app
    from pretune.serving.model_registry import ModelRegistry

    registry = ModelRegistry(
        models, settings.limits, threads=settings.threads, reload_every=settings.reload_every, engine=settings.engine
    )
    hosts = settings.allowed_hosts or (LOOPBACK if settings.is_local else ())
    app = create_app(registry, token=settings.token, allowed_hosts=hosts, cors_origins=settings.cors_origins)
    log_info(f"loading {', '.join(models)}")
    try:
        await registry.start()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, registry.look_for_changes)
        bound.listen(BACKLOG)  # before the address is announced: clients that read it connect at once
        announce(settings, bound, list(models))
        with quiet_end():
            await http_server(app, registry).serve(sockets=[bound])
    finally:
        await registry.close()
    answered: dict[str, int] = {}
    for (_, code), number in registry.metrics.requests.values.items():
        answered[code] = answered.get(code, 0) + int(number)
    return answered


@contextmanager
def quiet_end() -> Iterator[None]:
    """Return a context manager that ignores signals which uvicorn raises again after a regular shutdown."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def http_server(app: Any, registry: ModelRegistry) -> Any:
    """Return the uvicorn server of an application, which tells the registry of its models when it begins to end."""
    import uvicorn

    class Server(uvicorn.Server):  # type: ignore[misc]
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            registry.stopping.set()
            await super().shutdown(sockets)

    return Server(http_settings(app, registry.limits))


def http_settings(app: Any, limits: ServingLimits) -> Any:
    """Return the uvicorn settings for an application; at a shutdown, requests that were accepted are still answered."""
    import uvicorn

    return uvicorn.Config(
        app,
        http="h11",
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=math.ceil(limits.timeout) + 5,
    )


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to a host and a port; raise an error with advice if this is impossible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio turns off Nagle's algorithm, which would hold the bodies of responses back for 40 ms.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except (OSError, OverflowError) as error:
        bound.close()
        reason = error.strerror if isinstance(error, OSError) else "no such port"
        raise PretuneError(
            f"cannot listen on {host}, port {port} ({reason}); choose another --port or --host"
        ) from None
    bound.set_inheritable(False)  # worker processes must not keep the port
    return bound


def announce(settings: ServerSettings, bound: socket.socket, names: Sequence[str]) -> None:
    """Log the address of the server, and warn if other machines can reach it without a token."""
    port = bound.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    log_info(f"serving {', '.join(names)} at http://{host}:{port} (Ctrl-C stops the server)")
    if not settings.is_local and settings.token is None:
        log_info(
            f"warning: others can reach this server at {settings.host}, and it asks for no token; set {TOKEN}"
            f"{if_option('token-file', ' or --token-file')}"
        )
