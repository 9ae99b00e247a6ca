"""Tests of the guards of the application, and of the settings of the server."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from pretune import PretuneError
from pretune.serving.app import create_app
from pretune.serving.limits import ServingLimits
from pretune.serving.model_registry import ModelRegistry, parse_models
from pretune.serving.page import read_static_files
from pretune.serving.server import LOOPBACK, ServerSettings, announce, bind_socket, find_token
from tests.support.serving import encoder

SECRET = "0123456789abcdefЖ"


def request(method: str, path: str, *, headers: dict[str, str] | None = None, **options: Any) -> httpx.Response:
    """Send a request to an application whose models are not started; the options are those of `create_app`."""

    async def send() -> httpx.Response:
        app = create_app(ModelRegistry({"encoder": str(encoder())}, ServingLimits()), **options)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(send())


TOKEN = "0123456789abcdef"


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/health", {}, 200),
        ("GET", "/metrics", {}, 401),
        ("GET", "/openapi.json", {}, 401),
        ("POST", "/", {}, 401),
        ("POST", "/health", {}, 401),
        ("GET", "/metrics", {"authorization": f"Bearer {TOKEN}"}, 200),
        ("GET", "/metrics", {"authorization": f"bearer  {TOKEN}"}, 200),
        ("GET", "/metrics", {"authorization": f"Bearer {TOKEN}x"}, 401),
        ("GET", "/metrics", {"authorization": "Bearer "}, 401),
        ("GET", "/metrics", {"authorization": TOKEN}, 401),
        ("GET", "/metrics", {"authorization": "Basic !!!"}, 401),
        ("GET", "/metrics", {"cookie": f"pretune_token={TOKEN}"}, 401),
        ("GET", "/api/models/encoder/report", {"cookie": f"pretune_token={TOKEN}"}, 404),
        ("GET", "/api/models/encoder/report", {"cookie": "pretune_token=x"}, 401),
        ("POST", "/api/models/encoder/embed", {"cookie": f"pretune_token={TOKEN}"}, 401),
        ("GET", "/static/../metrics", {}, 401),
    ],
)
def test_requests_need_the_token(method: str, path: str, headers: dict[str, str], status: int) -> None:
    response = request(method, path, headers=headers, token=TOKEN)
    assert response.status_code == status
    if status == 401:
        assert response.headers["www-authenticate"].startswith("Bearer")
        assert "Authorization: Bearer TOKEN" in response.json()["error"]["message"]


def test_without_a_token_requests_need_none() -> None:
    assert request("GET", "/metrics").status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("127.0.0.1", 200),
        ("[::1]:8000", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
    ],
)
def test_other_host_names_are_refused(host: str, status: int) -> None:
    assert request("GET", "/health", headers={"host": host}, allowed_hosts=LOOPBACK).status_code == status


def test_other_sites_are_answered_only_if_they_are_named() -> None:
    headers = {"origin": "https://a.example", "access-control-request-method": "POST"}
    assert "access-control-allow-origin" not in request("OPTIONS", "/metrics", headers=headers).headers
    named = request("OPTIONS", "/metrics", headers=headers, cors_origins=["https://a.example"], token=TOKEN)
    assert named.headers["access-control-allow-origin"] == "https://a.example"
    other = request("OPTIONS", "/metrics", headers=headers, cors_origins=["https://b.example"])
    assert "access-control-allow-origin" not in other.headers


def test_a_server_that_is_starting_is_not_ready() -> None:
    response = request("GET", "/ready")
    assert response.status_code == 503 and response.headers["retry-after"]
    assert response.json()["error"]["message"] == "not ready: encoder"


# -- settings ---------------------------------------------------------------------------------------------------------


def test_the_token_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRETUNE_TOKEN", raising=False)
    assert find_token(None) is None
    monkeypatch.setenv("PRETUNE_TOKEN", TOKEN)
    assert find_token(None) == TOKEN
    (tmp_path / "token").write_text("another-token-0123\n")
    assert find_token(tmp_path / "token") == "another-token-0123"


@pytest.mark.parametrize("token", ["", "short", SECRET, "0123456789 abcdef\nx"])
def test_unsafe_tokens_are_refused(tmp_path: Path, token: str) -> None:
    (tmp_path / "token").write_text(token, encoding="utf-8")
    with pytest.raises(PretuneError, match="a token has at least 16 letters") as error:
        find_token(tmp_path / "token")
    assert not token or token not in str(error.value)


def test_an_open_server_is_warned_about(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)
    with bind_socket("0.0.0.0", 0) as bound:
        announce(ServerSettings(host="0.0.0.0"), bound, ["a"])
        assert "it asks for no token" in capsys.readouterr().err
        announce(ServerSettings(host="0.0.0.0", token=TOKEN), bound, ["a"])
        announce(ServerSettings(), bound, ["a"])
        assert "token" not in capsys.readouterr().err


def test_a_port_in_use_is_an_error() -> None:
    with bind_socket("127.0.0.1", 0) as bound:
        bound.listen()
        with pytest.raises(PretuneError, match=r"cannot listen on 127.0.0.1, port \d+ .*choose another --port"):
            bind_socket("127.0.0.1", bound.getsockname()[1])
    with pytest.raises(PretuneError, match="choose another --port"):
        bind_socket("127.0.0.1", 99_999)


def test_responses_are_sent_at_once() -> None:
    """Nagle's algorithm would hold back the body of a response, which follows its headers, for 40 ms."""

    async def accept() -> int:
        accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def look(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            accepted.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with bind_socket("127.0.0.1", 0) as bound:
            async with await asyncio.start_server(look, sock=bound):
                _, writer = await asyncio.open_connection(*bound.getsockname())
                writer.close()
                return await accepted

    assert asyncio.run(accept()) != 0


def test_models_have_names(tmp_path: Path) -> None:
    folder = str(encoder())
    assert parse_models([folder, f"two={folder}", "pretune-small-en"]) == {
        "encoder": folder,
        "two": folder,
        "pretune-small-en": "pretune-small-en",
    }
    with pytest.raises(PretuneError, match="two models have the name 'encoder'"):
        parse_models([folder, folder])
    with pytest.raises(PretuneError, match="no such model folder"):
        parse_models([f"x={tmp_path / 'nothing'}"])


def test_limits_are_positive() -> None:
    with pytest.raises(PretuneError, match="max_queue 0 is too small"):
        ServingLimits(max_queue=0)
    assert ServingLimits(max_delay=0).max_delay == 0


def test_the_files_of_the_page_are_read_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "js").mkdir()
    (tmp_path / "js" / "page.js").write_text("1")
    (tmp_path / "index.html").write_text("<p>")
    found = read_static_files(tmp_path)
    assert {path: file.media_type for path, file in found.items()} == {
        "index.html": "text/html",
        "js/page.js": "text/javascript",
    }
