"""Tests of the command `pretune serve`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.support.cli import COMMAND, run_command
from tests.support.serving import PATIENCE, encoder


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    assert "no models were given" in run_command("serve", check=False).stderr
    assert "no such model folder" in run_command("serve", tmp_path / "nothing", check=False).stderr
    assert "timeout 0 is too small" in run_command("serve", encoder(), "--timeout", "0", check=False).stderr
    (tmp_path / "token").write_text("short")
    refused = run_command("serve", encoder(), "--token-file", tmp_path / "token", check=False)
    assert refused.returncode == 1 and "a token has at least 16" in refused.stderr


@pytest.mark.end_to_end
def test_a_server_runs_until_it_is_asked_to_end(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789abcdef\n")
    words = [
        "serve",
        f"a={encoder()}",
        f"b={encoder()}",
        "--port",
        "0",
        "--token-file",
        str(tmp_path / "token"),
        "--json",
    ]
    environment = {**os.environ, "PRETUNE_PROGRESS": "plain", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with subprocess.Popen(
        [*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stderr is not None and process.stdout is not None
        for line in process.stderr:
            if found := re.search(r"serving a, b at (http://\S+)", line):
                break
        else:
            pytest.fail("the server did not start")
        client = httpx.Client(base_url=found[1], timeout=PATIENCE)
        assert client.get("/api/models").status_code == 401
        client.headers["authorization"] = "Bearer 0123456789abcdef"
        names = [model["name"] for model in client.get("/api/models").json()["models"]]
        assert names == ["a", "b"]
        assert client.post("/api/models/b/predict", json={"texts": ["a dog"]}).status_code == 200
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
        assert json.loads(out)["answered"] == 3
        client.close()
