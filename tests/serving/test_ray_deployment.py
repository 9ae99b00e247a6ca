"""Tests of the server as a deployment of Ray Serve."""

from __future__ import annotations

import socket

import httpx
import pytest

from pretune.serving.ray_deployment import ray_application
from tests.support.serving import PATIENCE, encoder

pytestmark = [pytest.mark.slow]  # starting a cluster with replicas takes minutes on two cores


def test_replicas_answer_as_the_server_does(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed")
    serve = pytest.importorskip(
        "ray.serve", reason="Ray Serve is not installed: pip install 'pretune[cluster]'", exc_type=ImportError
    )
    monkeypatch.setenv("PRETUNE_TOKEN", "0123456789abcdef")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {"env_vars": {"PRETUNE_TOKEN": "0123456789abcdef"}}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(ray_application([f"model={encoder()}"], replicas=2))
        url = f"http://127.0.0.1:{port}"
        assert httpx.get(f"{url}/api/models", timeout=PATIENCE).status_code == 401
        client = httpx.Client(base_url=url, timeout=PATIENCE, headers={"authorization": "Bearer 0123456789abcdef"})
        for _ in range(4):
            response = client.post("/api/models/model/predict", json={"texts": ["a dog"]})
            assert {*response.json()["predictions"][0]["probabilities"]} == {"no", "yes"}
        assert client.post("/api/models/other/predict", json={"texts": ["a"]}).status_code == 404
    finally:
        serve.shutdown()
        ray.shutdown()
