"""The `show` verb: describe presets, objectives, families, suites, runs, stores, and model folders."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from pretune.runtime.output_paths import check_any_folder
from pretune.verbs import options as opt
from pretune.verbs.results import ResultSummary
from pretune.verbs.verb import Options, only, verb


class Description(ResultSummary):
    """Information to show about presets, objectives, families, suites, a run, a store, or a model, as named values."""

    def table(self) -> dict[str, Any]:
        """Return the description to print in the terminal, in which examples have targets but no decoder inputs."""
        if "run" in self.facts:
            from pretune.training.run_folder import arrange_results

            return arrange_results(self.facts, trained={name for line in self.facts["last"] for name in line})
        rows = self.facts.get("example")
        short = [{k: v for k, v in row.items() if k != "decoder_input"} for row in rows or ()]
        return {**self.facts, "example": short} if rows else self.facts


def shows_objectives(o: Options) -> bool:
    """Return whether the options `o` ask for examples of objectives."""
    return os.fspath(o.what) == "objectives" or _is_objective(os.fspath(o.what))


def can_be_plotted(o: Options) -> bool:
    """Return whether the options `o` name a single preset or a single objective."""
    return _is_objective(os.fspath(o.what)) or is_one_preset(o)


def is_one_preset(o: Options) -> bool:
    """Return whether the options `o` name a single preset."""
    from pretune.models.presets import preset_names

    name = os.fspath(o.what)
    return name in preset_names() and not Path(name).exists()


@verb(
    only("text", "seed", where="to objectives", when=shows_objectives),
    only("plot", where="to a preset, such as bert-base, or an objective, such as plm", when=can_be_plotted),
    only("memory", where="to a preset, such as bert-base", when=is_one_preset),
    plot=check_any_folder,
)
def show(
    what: str | Path | opt.ModelHandle,
    *,
    text: str | None = None,
    seed: opt.Seed = 0,
    plot: str | Path | None = None,
    memory: bool = False,
) -> Description:
    """Show the presets, objectives, model families, or benchmark suites, one of them, or what a folder contains.

    Parameters
    ----------
    what
        `presets`, `objectives`, `families`, or `suites`; the name of one of them, such as bert-base, "spans(noise_density=0.3)", bert, or
        glue; or the folder of a run, a store, or a model.
    text
        Text to show objectives on, with blank lines between documents; objectives that take other data have their own example.
    plot
        Folder for figures, as .svg and .png: of a preset, its learning rate, attention patterns, and sinusoidal position codes; of an
        objective, which tokens attend to which.
    memory
        Show the memory that training a preset needs, by optimizer, in MB (10^6 bytes): parameters, gradients, and optimizer state in
        fp32, and an estimate of the activations of one microbatch in bf16 on a GPU.

    Examples
    --------
    >>> [row["shape"] for row in show("presets").facts["presets"] if row["preset"] == "bert-base"]
    ['12x768']
    >>> [row["task"] for row in show("superglue").facts["tasks"]][:3]
    ['boolq', 'cb', 'copa']
    """
    from pretune.evaluation.suites import suite_names
    from pretune.families import known_families
    from pretune.models.presets import find_preset, preset_names

    name = os.fspath(what)
    if name == "presets":
        return Description({"presets": _presets()})
    if name == "objectives":
        return Description({"objectives": _objectives(), **_example(None, text, seed)})
    if name == "families":
        return Description({"families": _families()})
    if name == "suites":
        return Description({"suites": _suites()})
    if _is_objective(name):
        return Description({**_example([name], text, seed), **_figures(name, text, seed, plot)})
    if not Path(name).exists():
        if name in preset_names():
            facts = {"preset": name, **find_preset(name), **_figures(name, text, seed, plot)}
            return Description(facts | _memory(name) if memory else facts)
        if name in known_families():
            return Description(_family(name))
        if name in suite_names():
            return Description(_suite(name))
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
        rows.append({"objective": name, "description": _first_line(kind), "options": options})
    return rows


def _families() -> list[dict[str, Any]]:
    """Return one row per model family: name, presets, whether `transformers` reads its checkpoints, and description."""
    from pretune.families import known_families
    from pretune.models.presets import find_preset, preset_names

    presets: dict[str, list[str]] = {}
    for preset in preset_names():
        presets.setdefault(find_preset(preset)["family"], []).append(preset)
    return [
        {
            "family": name,
            "transformers": family.in_transformers,
            "description": _first_line(family.build),
            "presets": ", ".join(presets.get(name, ())),
        }
        for name, family in known_families().items()
    ]


def _family(name: str) -> dict[str, Any]:
    """Return a model family's description, its task heads, and the keys of its configuration with their defaults."""
    from dataclasses import fields

    from pretune.families import known_families

    family = known_families()[name]
    config = family.config()
    return {
        "family": name,
        "description": _first_line(family.build),
        "heads": sorted({head for heads in family.classes for head in heads}),
        "config": {key.name: getattr(config, key.name) for key in fields(config)},
    }


def _suites() -> list[dict[str, Any]]:
    """Return one row per benchmark suite: name, title, tasks, and source."""
    from pretune.evaluation.suites import suite_names
    from pretune.evaluation.suites.declaration import find_suite

    suites = {name: find_suite(name) for name in suite_names()}
    return [
        {"suite": name, "title": suite.title, "tasks": ", ".join(suite.tasks), "source": suite.source}
        for name, suite in suites.items()
    ]


def _suite(name: str) -> dict[str, Any]:
    """Return a benchmark suite's title and source, and the objective, metrics, and files of each of its tasks."""
    from pretune.evaluation.suites.declaration import find_suite

    suite = find_suite(name)
    rows = [
        {
            "task": task.name,
            "objective": task.kind,
            "metrics": ", ".join(task.metrics),
            "dev_files": ", ".join([dev] if isinstance(dev := task.files.get("dev", ""), str) else dev),
        }
        for task in suite.tasks.values()
    ]
    return {"suite": name, "title": suite.title, "source": suite.source, "tasks": rows}


def _first_line(part: Any) -> str:
    """Return the first line of the docstring of the module in which a function or class is defined."""
    return (sys.modules[part.__module__].__doc__ or "").partition("\n")[0]


def _is_objective(name: str) -> bool:
    """Return whether a string is an objective expression and not an existing path."""
    import re

    from pretune.objectives import OBJECTIVES

    first = re.match(r"\s*(?:[\d.]+\s*\*)?\s*(\w+)", name)
    return first is not None and first[1] in OBJECTIVES and not Path(name).exists()


def _example(expressions: list[str] | None, text: str | None, seed: int) -> dict[str, Any]:
    """Return an example of the inputs and targets that objectives make from a text; None stands for all objectives."""
    from pretune.objectives.demo import SENTENCE, demonstrate

    text = SENTENCE if text is None else text
    return {"text": text, "example": demonstrate(text, expressions, seed)}


def _figures(name: str, text: str | None, seed: int, folder: str | Path | None) -> dict[str, Any]:
    """Draw the figures of a preset or an objective into a folder, if one is given, and return their paths."""
    from pretune.objectives.demo import SENTENCE
    from pretune.verbs.show_figures import plot_objective, plot_preset

    if folder is None:
        return {}
    objective = _is_objective(name)
    files = plot_objective(name, text or SENTENCE, seed, Path(folder)) if objective else plot_preset(name, Path(folder))
    return {"plots": [str(file) for file in files]}


def _memory(name: str) -> dict[str, Any]:
    """Return the memory that training a preset needs, by optimizer."""
    from pretune.training.memory import preset_memory

    return preset_memory(name)


def _folder(folder: Path) -> dict[str, Any]:
    """Return information about the run, store, or model in a folder."""
    from pretune.evaluation.suites import suite_names
    from pretune.families import known_families
    from pretune.models.hf_config import CONFIG_FILE
    from pretune.models.loading import load_model
    from pretune.models.presets import preset_names
    from pretune.models.sentence_transformers import MODULES
    from pretune.objectives import OBJECTIVES
    from pretune.runtime.errors import PretuneError, suggest
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
    kinds = ("presets", "objectives", "families", "suites")
    known = {*kinds, *OBJECTIVES, *known_families(), *preset_names(), *suite_names()}
    instead = f"give one of {', '.join(kinds)}, the name of one of them, or the folder of a run, a store, or a model"
    raise PretuneError(f"{folder}: nothing with this name can be shown; {suggest(str(folder), known, instead)}")


def _vectors(folder: Path) -> dict[str, Any]:
    """Return how the model in a folder computes text embeddings, such as its pooling; {} if its files do not say."""
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
