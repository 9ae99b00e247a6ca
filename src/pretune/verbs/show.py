"""The `show` verb: describe presets, objectives, runs, stores, and model folders."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pretune.verbs import options as opt
from pretune.verbs.results import ResultSummary
from pretune.verbs.verb import Options, only, verb


class Description(ResultSummary):
    """Information to show about presets, objectives, a run, a store, or a model, as named values."""

    def table(self) -> dict[str, Any]:
        """Return the description to print in the terminal; an example's decoder inputs are left out as redundant."""
        if "run" in self.facts:
            from pretune.training.run_folder import arrange_results

            return arrange_results(self.facts, trained={name for line in self.facts["last"] for name in line})
        rows = self.facts.get("example")
        short = [{k: v for k, v in row.items() if k != "decoder_input"} for row in rows or ()]
        return {**self.facts, "example": short} if rows else self.facts


def shows_objectives(o: Options) -> bool:
    """Return whether the options `o` ask for examples of objectives."""
    return os.fspath(o.what) == "objectives" or _is_objective(os.fspath(o.what))


@verb(only("text", "seed", where="to objectives", when=shows_objectives))
def show(what: str | Path | opt.ModelHandle, *, text: str | None = None, seed: opt.Seed = 0) -> Description:
    """Show the presets, the objectives with examples, or the contents of a run, store, or model folder.

    Parameters
    ----------
    what
        `presets`, `objectives`, an objective such as "spans(noise_density=0.3)", or a folder.
    text
        Text to show objectives on, with blank lines between documents; objectives that take other data have their own example.

    Examples
    --------
    >>> [row["shape"] for row in show("presets").facts["presets"] if row["preset"] == "bert-base"]
    ['12x768']
    """
    name = os.fspath(what)
    if name == "presets":
        return Description({"presets": _presets()})
    if name == "objectives":
        return Description({"objectives": _objectives(), **_example(None, text, seed)})
    if _is_objective(name):
        return Description(_example([name], text, seed))
    return Description(_folder(Path(name)))


def _presets() -> list[dict[str, Any]]:
    """Return one row per preset: family, shape, parameters, objective, and source."""
    import torch

    from pretune.backbones.bidirectional import BidirectionalBackbone
    from pretune.models.create_model import make_model
    from pretune.models.presets import find_preset, preset_names
    from pretune.nn.initialization import SkipInitialization

    rows = []
    for name in preset_names():
        preset = find_preset(name)
        with torch.device("meta"), SkipInitialization():  # only shapes are needed
            backbone = make_model(name).backbone
        stacks: list[Any] = [backbone.encoder, backbone] if hasattr(backbone, "encoder") else [backbone]
        stacks = [way for one in stacks for way in (one.stacks if isinstance(one, BidirectionalBackbone) else [one])]
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
    """Return one row per objective: name, description, and options."""
    from dataclasses import fields

    from pretune.objectives import OBJECTIVES

    rows = []
    for name, kind in sorted(OBJECTIVES.items()):
        options = ", ".join(f"{f.name}={f.default!r}" for f in fields(kind) if not f.metadata.get("fitted"))
        module = __import__(kind.__module__, fromlist=["_"]).__doc__ or ""
        rows.append({"objective": name, "description": module.splitlines()[0], "options": options})
    return rows


def _is_objective(name: str) -> bool:
    """Return whether a string is an objective expression and not an existing path."""
    import re

    from pretune.objectives import OBJECTIVES

    first = re.match(r"\s*(?:[\d.]+\s*\*)?\s*(\w+)", name)
    return first is not None and first[1] in OBJECTIVES and not Path(name).exists()


def _example(expressions: list[str] | None, text: str | None, seed: int) -> dict[str, Any]:
    """Return an example of the model inputs and targets that objectives produce from a text."""
    from pretune.objectives.demo import SENTENCE, demonstrate

    text = SENTENCE if text is None else text
    return {"text": text, "example": demonstrate(text, expressions, seed)}


def _folder(folder: Path) -> dict[str, Any]:
    """Return information about the run, store, or model in a folder."""
    from pretune.models.hf_config import CONFIG_FILE
    from pretune.models.loading import load_model
    from pretune.models.sentence_transformers import MODULES
    from pretune.runtime.errors import PretuneError
    from pretune.text.store.store import MANIFEST, Store
    from pretune.training.run_folder import RECIPE, Run

    if (folder / RECIPE).is_file():
        run = Run(folder)
        metrics = run.metrics()
        return {**run.describe(), **_vectors(folder), "recipe": run.recipe, "last": metrics[-3:]}
    if (folder / MANIFEST).is_file():
        return Store(folder).describe()
    if (folder / CONFIG_FILE).is_file() or (folder / MODULES).is_file():
        model = load_model(folder)
        parameters = sum(p.numel() for p in model.backbone.parameters())
        facts = {"model": str(folder), "family": model.family.name, "parameters": parameters, "labels": model.labels}
        return {**facts, **_vectors(folder)}
    raise PretuneError(
        f"{folder}: nothing of this name can be shown; give `presets`, `objectives`, an objective, or the folder of a run, a store "
        "or a model"
    )


def _vectors(folder: Path) -> dict[str, Any]:
    """Return how the model in a folder computes text embeddings, if its files define it."""
    import torch

    from pretune.models.checkpoint_heads import text_embedding_of
    from pretune.models.hf_config import CONFIG_FILE, read_config
    from pretune.models.name_resolution import find_folder
    from pretune.models.sentence_transformers import read_layout

    if not (find_folder(folder) / CONFIG_FILE).is_file() or (embedding := text_embedding_of(folder)) is None:
        return {}
    family, content = read_config(find_folder(folder))
    with torch.device("meta"):
        hidden = family.build(family.read_config(content)).width
    layout = read_layout(find_folder(folder))
    limit = layout.max_length if layout is not None else content.get("pretune", {}).get("max_length")
    return {"vectors": embedding.describe(hidden) | ({"max_length": limit} if limit else {})}
