"""The `serve` verb: serve models over HTTP, with a page to try them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pretune.verbs import options as opt
from pretune.verbs.results import ResultSummary
from pretune.verbs.verb import verb


@verb(common=("models", "host", "port", "token_file", "timeout", "max_batch_size", "max_queue"))
def serve(
    models: Sequence[str] = (),
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token_file: str | Path | None = None,
    allowed_hosts: Sequence[str] = (),
    cors_origins: Sequence[str] = (),
    timeout: float = 60.0,
    max_batch_size: int = 32,
    max_delay: float = 0.002,
    max_queue: int = 512,
    max_texts: int = 256,
    max_characters: int = 100_000,
    max_body: int = 2 << 20,
    threads: int = 0,
    engine: opt.Engine = "auto",
    reload_every: float = 5.0,
) -> ResultSummary:
    """Serve models over HTTP until the command is stopped, with a page to try them in a browser.

    Texts of concurrent requests are computed together. A model whose files change is loaded again, while the old
    version continues to answer. With the environment variable PRETUNE_TOKEN or with --token-file, requests need the
    header `Authorization: Bearer TOKEN`. The server needs the extra `serve`.

    Parameters
    ----------
    models
        Run folders or model folders, each as PATH or, with a name for clients, as NAME=PATH.
    host
        Address to listen on; 0.0.0.0 lets other machines reach the server.
    port
        Port to listen on; 0 is any free port.
    token_file
        File with the token that requests must have, instead of PRETUNE_TOKEN.
    allowed_hosts
        Host names that clients may reach the server by; by default those of this machine if only it can reach the server, else all.
    cors_origins
        Other sites whose pages may use the server, such as https://example.org.
    timeout
        Seconds within which a request must be answered.
    max_batch_size
        Maximum number of texts that are computed together.
    max_delay
        Seconds that a text waits for others while its model is idle.
    max_queue
        Maximum number of texts that wait for a model; further requests are answered with 429.
    max_texts
        Maximum number of texts in a request.
    max_characters
        Maximum number of characters of a text.
    max_body
        Maximum number of bytes of a request.
    threads
        CPU threads of each model; by default, models share the cores of the machine evenly.
    reload_every
        Seconds between checks for changed model files; with 0, files are checked only after the signal SIGHUP.

    Examples
    --------
    >>> serve(["runs/classifier", "words=runs/mlm"], port=8080)  # doctest: +SKIP
    """
    from pretune.runtime.errors import PretuneError
    from pretune.runtime.optional_imports import import_optional

    import_optional("fastapi", "pretune serve")  # the package pretune.serving imports both
    import_optional("uvicorn", "pretune serve")

    from pretune.serving.limits import ServingLimits
    from pretune.serving.model_registry import parse_models
    from pretune.serving.server import ServerSettings, find_token, serve_models
    from pretune.verbs.shared_inputs import as_path_list

    if not models:
        raise PretuneError("no models were given; give run folders or model folders, as PATH or as NAME=PATH")
    limits = ServingLimits(
        max_batch_size=max_batch_size,
        max_delay=max_delay,
        max_queue=max_queue,
        timeout=timeout,
        max_body=max_body,
        max_texts=max_texts,
        max_characters=max_characters,
    )
    settings = ServerSettings(
        host=host,
        port=port,
        token=find_token(Path(token_file) if token_file is not None else None),
        allowed_hosts=allowed_hosts,
        cors_origins=cors_origins,
        threads=threads,
        engine=engine,
        reload_every=reload_every,
        limits=limits,
    )
    answered = serve_models(parse_models(as_path_list(models)), settings)
    return ResultSummary({"answered": sum(answered.values()), **{f"status {code}": n for code, n in answered.items()}})
