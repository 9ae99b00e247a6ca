"""Tests of the version of a served model whose folder is replaced while its worker process starts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pretune.serving import served_model
from pretune.serving.limits import ServingLimits
from pretune.serving.metrics import ServerMetrics
from pretune.serving.served_model import ServedModel


class LateFolder:
    """A worker process in whose start the folder of the model comes back, if it was away."""

    is_idle = True

    def __init__(self, reference: str, name: str, threads: int, engine: str) -> None:
        self.folder = Path(reference)
        self.ended = asyncio.Event()

    async def start(self) -> dict[str, Any]:
        away = self.folder.with_name("away")
        if away.exists():
            away.rename(self.folder)
        return {"capabilities": []}

    async def close(self) -> None:
        """Do nothing: there is no process."""


def test_a_folder_that_comes_back_while_its_worker_starts_keeps_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    monkeypatch.setattr(served_model, "WorkerProcess", LateFolder)

    async def restart() -> list[int]:
        model, versions = ServedModel("model", str(folder), ServingLimits(), ServerMetrics(), 1), []
        for change in ("start", "away", "nothing", "edited"):
            if change == "away":
                folder.rename(folder.with_name("away"))
            elif change == "edited":
                (folder / "config.json").write_text('{"a": 1}')
            await model._replace_worker()
            versions.append(model.version)
        await model.close()
        return versions

    assert asyncio.run(restart()) == [1, 1, 1, 2]
