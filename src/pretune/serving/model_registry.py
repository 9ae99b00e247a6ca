"""The models of a server by name."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pretune.models.name_resolution import find_folder
from pretune.runtime.errors import PretuneError, quote
from pretune.serving.errors import unknown_model
from pretune.serving.limits import ServingLimits
from pretune.serving.metrics import ServerMetrics
from pretune.serving.served_model import ServedModel

if TYPE_CHECKING:
    from pretune.models.engines import Engine


class ModelRegistry:
    """The models of a server by name, which are started and closed together."""

    def __init__(
        self,
        references: Mapping[str, str],
        limits: ServingLimits,
        *,
        threads: int = 0,
        reload_every: float = 5.0,
        engine: Engine = "torch",
    ) -> None:
        """Register models, a mapping from names to model folders, without loading them.

        Each model gets `threads` threads, or an equal share of the machine's cores if it is 0. Every `reload_every`
        seconds, the files of the models are checked for changes. `engine` computes the models (see models/engines.py).
        """
        self.limits, self.metrics, self.reload_every = limits, ServerMetrics(), reload_every
        share = threads or max(1, (os.cpu_count() or 1) // len(references))
        self.models = {
            name: ServedModel(name, reference, limits, self.metrics, share, engine)
            for name, reference in references.items()
        }
        self.stopping = asyncio.Event()  # the server ends, and accepts nothing more
        self._started = False

    async def start(self) -> None:
        """Load all models; do nothing if they are already loaded."""
        if self._started:
            return
        self._started = True
        started = await asyncio.gather(
            *(model.start(self.reload_every) for model in self.models.values()), return_exceptions=True
        )
        for failure in started:
            if isinstance(failure, BaseException):
                await self.close()
                raise failure

    async def close(self) -> None:
        """End the worker processes of all models; do nothing if they have already ended."""
        await asyncio.gather(*(model.close() for model in self.models.values()))

    def look_for_changes(self) -> None:
        """Check the files of all models for changes now, instead of at the next interval."""
        for model in self.models.values():
            model.look_for_changes()

    def find(self, name: str) -> ServedModel:
        """Return the model called `name`; if there is none, raise an error that suggests a similar name."""
        if name not in self.models:
            raise unknown_model(name, self.models)
        return self.models[name]

    @property
    def is_ready(self) -> bool:
        """Return whether all models can answer requests."""
        return all(model.is_ready for model in self.models.values())


def parse_models(given: Sequence[str]) -> dict[str, str]:
    """Return a mapping from names to model folders, given as PATH or NAME=PATH.

    A model that is given without a name gets the name of its folder.

    >>> parse_models(["pretune-small-en", "words=pretune-small-en"])
    {'pretune-small-en': 'pretune-small-en', 'words': 'pretune-small-en'}
    """
    found: dict[str, str] = {}
    for text in given:
        named = re.fullmatch(r"([A-Za-z0-9._-]+)=(.+)", text)
        path = named[2] if named and not Path(text).exists() else text
        name = named[1] if path != text and named else re.sub(r"[^A-Za-z0-9._-]+", "-", Path(path).resolve().name)
        if name in found:
            raise PretuneError(
                f"two models have the name {quote(name)}; give one of them another name, as in another={path}"
            )
        find_folder(path)  # an error names the path, before anything is started
        found[name] = path
    return found
