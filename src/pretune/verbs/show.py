"""`show`: presets, objectives, or a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pretune.training.runs import Run


@dataclass(frozen=True)
class Shown:
    """Facts to look at."""

    facts: dict[str, Any]

    def describe(self) -> dict[str, Any]:
        """For reports."""
        return self.facts


def show(what: str | Path | Run) -> Shown:
    """Show the presets, the objectives, or what a run, a store or a model folder is.

    Parameters
    ----------
    what
        `presets`, `objectives`, or a folder.

    Examples
    --------
    >>> [row["shape"] for row in show("presets").facts["presets"] if row["preset"] == "bert-base"]
    ['12x768']
    """
    import os

    name = os.fspath(what)
    if name == "presets":
        return Shown({"presets": _presets()})
    if name == "objectives":
        return Shown({"objectives": _objectives()})
    return Shown(_folder(Path(name)))


def _presets() -> list[dict[str, Any]]:
    import torch

    from pretune.backbones.encoder_decoder import EncoderDecoder
    from pretune.backbones.two_ways import TwoWays
    from pretune.model import make_model
    from pretune.presets import find_preset, preset_names

    rows = []
    for name in preset_names():
        preset = find_preset(name)
        with torch.device("meta"):
            backbone = make_model(name).backbone
        stacks: list[Any] = [backbone.encoder, backbone] if isinstance(backbone, EncoderDecoder) else [backbone]
        stacks = list(backbone.stacks) if isinstance(backbone, TwoWays) else stacks
        layers = "+".join(str(len(getattr(stack, "stack", stack.layers))) for stack in stacks)
        rows.append(
            {
                "preset": name,
                "family": preset["family"],
                "shape": f"{layers}x{backbone.width}",
                "parameters": sum(p.numel() for p in backbone.parameters()),
                "objective": preset["objective"],
                "source": preset["source"],
            }
        )
    return rows


def _objectives() -> list[dict[str, Any]]:
    from dataclasses import fields

    from pretune.objectives import OBJECTIVES

    rows = []
    for name, kind in sorted(OBJECTIVES.items()):
        options = ", ".join(f"{f.name}={f.default!r}" for f in fields(kind) if f.name != "labels")
        module = __import__(kind.__module__, fromlist=["_"]).__doc__ or ""
        rows.append({"objective": name, "what": module.splitlines()[0], "options": options})
    return rows


def _folder(folder: Path) -> dict[str, Any]:
    from pretune.errors import PretuneError
    from pretune.model import CONFIG, load_model
    from pretune.text.store import MANIFEST, Store
    from pretune.training.runs import RECIPE, Run

    if (folder / RECIPE).is_file():
        run = Run(folder)
        metrics = run.metrics()
        return {**run.describe(), "recipe": run.recipe, "last": metrics[-3:]}
    if (folder / MANIFEST).is_file():
        return Store(folder).describe()
    if (folder / CONFIG).is_file():
        model = load_model(folder)
        parameters = sum(p.numel() for p in model.backbone.parameters())
        return {"model": str(folder), "family": model.family.name, "parameters": parameters, "labels": model.labels}
    raise PretuneError(f"{folder}: neither `presets` nor `objectives`, nor the folder of a run, a store or a model")
