"""Probe a model with a suite of tasks, and write tables, figures and a report.

representations/   cached vectors (see `representation_cache`)
tasks/             finished tasks, from which an interrupted command continues
scores.csv         one row per task and layer
scores.json        everything
layers.svg …       figures, also as .png
report.html
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError

from pretune.models.model import Model, Network
from pretune.probing.probe_figures import write_figures
from pretune.probing.probes.layer_scores import (
    ProbeSettings,
    TaskScores,
    check_task,
    layer_rows,
    probe_task,
    steps,
)
from pretune.probing.probing_task import ProbingTask
from pretune.probing.representation_cache import model_digest
from pretune.probing.representations import Pooling, TaskVectors, choose_layers, compute_representations, encoder_of
from pretune.runtime.atomic_io import write_bytes, write_json
from pretune.runtime.html_report import paragraph, render_page, render_table, section
from pretune.runtime.progress import log_info, progress
from pretune.text.corpus.table_writer import table_writer

MARKER = "probing.json"  # what was asked for
REPRESENTATIONS, TASKS = "representations", "tasks"
VERSION = 2  # of the method: results of other versions are not reused
DIGITS = 4  # of scores in files
# In tables of the report; figures show the last two.
NOT_SHOWN = {"group", "classes", "center_of_gravity", "expected_layer"}


@dataclass(frozen=True)
class ProbingJob:
    """A job that probes the layers of a model with a suite of tasks, and writes results to the folder `out`."""

    model: Model
    name: str  # of the model, for reports
    tasks: Sequence[ProbingTask]
    out: Path
    settings: ProbeSettings = field(default_factory=ProbeSettings)
    pooling: Pooling = "mean"
    layers: Sequence[int] | None = None  # None: all
    cache: Path | None = None  # of representations; None: in `out`

    def run(self) -> list[TaskScores]:
        """Compute representations, probe all tasks, write the results, and return the scores of each task.

        Tasks that an earlier, interrupted run finished are read from the folder.
        """
        for task in self.tasks:
            check_task(task)
        chosen = choose_layers(self.layers, layer_count(self.model))
        write_json(self.out / MARKER, self.describe(chosen))
        cache = self.cache or self.out / REPRESENTATIONS
        keys = [self.task_key(task, chosen) for task in self.tasks]
        known = [read_scores(self.task_file(task), key) for task, key in zip(self.tasks, keys, strict=True)]
        waiting = [task for task, scores in zip(self.tasks, known, strict=True) if scores is None]
        if done := len(self.tasks) - len(waiting):
            log_info(f"{done} of {len(self.tasks)} tasks are finished already and are read from {self.out / TASKS}")
        made: Iterator[tuple[TaskVectors, TaskVectors | None]] = iter(())
        if waiting:
            vectors = compute_representations(self.model, waiting, cache, self.pooling)
            others: Sequence[TaskVectors | None] = [None] * len(waiting)
            if self.settings.controls:
                random = untrained_copy(self.model, self.settings.seed)
                others = compute_representations(random, waiting, cache, self.pooling, "embedding, untrained model")
            made = zip(vectors, others, strict=True)
        scores: list[TaskScores] = []
        with progress("probing", len(waiting) * steps(len(chosen), self.settings)) as bar:
            step = 0

            def advance(note: str) -> None:
                nonlocal step
                step += 1
                bar.update(step, note)

            for task, key, found in zip(self.tasks, keys, known, strict=True):
                if found is None:
                    own, other = next(made)
                    check_task(own.task)  # again: examples may have been left out
                    found = probe_task(own, other, chosen, self.settings, advance)
                    write_json(self.task_file(task), {"key": key, "scores": asdict(found)})
                scores.append(found)
        write_results(self, scores)
        return scores

    def describe(self, layers: Sequence[int]) -> dict[str, Any]:
        """Return the settings of the job as the dictionary that is written to its output folder."""
        tasks = [task.name for task in self.tasks]
        return {
            "model": self.name,
            "tasks": tasks,
            "layers": list(layers),
            "pooling": self.pooling,
            **asdict(self.settings),
        }

    @cached_property
    def digest(self) -> str:
        """The SHA-256 digest of the model's weights, settings, and tokenizer."""
        return model_digest(self.model)

    def task_key(self, task: ProbingTask, layers: Sequence[int]) -> str:
        """Return a digest of everything that a task's scores depend on, to recognize scores of an earlier run."""
        examples = [[x.text, x.label, x.split, x.spans, x.pair] for x in task.examples]
        given = [VERSION, self.digest, self.pooling, list(layers), asdict(self.settings), examples]
        return hashlib.sha256(json.dumps(given).encode()).hexdigest()

    def task_file(self, task: ProbingTask) -> Path:
        """Return the path of the JSON file in the output folder that stores a finished task's scores."""
        safe = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in task.name)[:100]
        return self.out / TASKS / f"{safe}-{hashlib.sha256(task.name.encode()).hexdigest()[:8]}.json"


def layer_count(model: Model) -> int:
    """Return the number of layers to probe, including the embeddings; for an encoder-decoder, of its encoder."""
    return int(encoder_of(model.root).depth) + 1  # type: ignore[arg-type]


def untrained_copy(model: Model, seed: int) -> Model:
    """Return a model with the same architecture and tokenizer, and random weights.

    Some families initialize output matrices with 0, so that layers do nothing before training. Here, these matrices are
    drawn at random, too, since the copy serves as a control whose vectors depend on the context in a random way.
    """
    backbone = model.random_backbone(seed)
    generator = torch.Generator().manual_seed(seed)
    for weight in backbone.parameters():
        if weight.ndim > 1 and not weight.detach().any():
            drawn = (
                torch.randn(weight.shape, generator=generator) * weight.shape[-1] ** -0.5
            )  # outputs of the scale of inputs
            weight.data.copy_(drawn)
    return replace(model, root=Network(backbone))


def read_scores(path: Path, key: str) -> TaskScores | None:
    """Return the scores of a finished task; None if the file is missing, damaged, or written with another `key`."""
    try:
        content = json.loads(path.read_bytes())
        if content["key"] != key:
            return None
        scores: TaskScores = TypeAdapter(TaskScores).validate_python(content["scores"])
        return scores
    except (OSError, ValueError, KeyError, TypeError, RecursionError, ValidationError):
        return None


def summary_rows(scores: Sequence[TaskScores]) -> list[dict[str, Any]]:
    """Return one summary row per task: baselines, best layer, scalar mix, controls, and expected layer."""
    rows = []
    for task in scores:
        best = task.best
        row: dict[str, Any] = {
            "task": task.task,
            "group": task.group,
            "classes": task.classes,
            "majority": task.majority,
        }
        if task.layers[0].layer == 0:
            row["embeddings"] = task.layers[0].accuracy
        row |= {"best_layer": best.layer, "accuracy": best.accuracy, "ci": f"{best.low:.3f}–{best.high:.3f}"}
        optional = {
            "mix": task.mix,
            "untrained": None if best.untrained is None else max(x.untrained or 0.0 for x in task.layers),
            "control": best.control,
            "selectivity": best.selectivity,
            "compression": best.compression,
            "center_of_gravity": task.center_of_gravity,
            "expected_layer": task.expected_layer,
        }
        row |= {name: value for name, value in optional.items() if value is not None or name == "expected_layer"}
        rows.append(_rounded(row))
    return rows


def write_results(job: ProbingJob, scores: Sequence[TaskScores]) -> None:
    """Write scores.csv, scores.json, the figures, and report.html to the output folder of a job."""
    rows = [_rounded(row) for row in layer_rows(scores)]
    with table_writer(job.out / "scores.csv", safe=True) as write:
        write(rows)
    layers = [layer.layer for layer in scores[0].layers]
    summary = summary_rows(scores)
    write_json(job.out / "scores.json", {**job.describe(layers), "scores": [_rounded(asdict(task)) for task in scores]})
    figures = write_figures(scores, job.out)
    write_bytes(job.out / "report.html", render_report(job, summary, rows, figures).encode())


def render_report(
    job: ProbingJob, summary: list[dict[str, Any]], rows: list[dict[str, Any]], figures: dict[str, str]
) -> str:
    """Return an HTML report with a summary, the figures, and all scores."""
    titles = {
        "layers": "Accuracy by layer",
        "expected-layers": "Where in the layers",
        "controls": "Beside the controls",
    }
    about = f"A {job.settings.probe} probe predicts each property from frozen representations ({job.pooling} of the tokens)."
    notes = [
        "The best layer is chosen on dev; accuracies are on test, with 95 % bootstrap confidence intervals (ci).",
        "majority: the most frequent class. embeddings: layer 0, without context. mix: a learned weighted sum of the layers.",
    ]
    if job.settings.controls:
        notes.append(
            "control: accuracy on random labels, one per word or text; selectivity: accuracy minus control. untrained: the best "
            "layer of a model of the same shape with random weights."
        )
    if job.settings.mdl:
        notes.append("compression: how many times shorter the online code of the labels is than a uniform code.")
    parts = [section("Summary", paragraph(about), render_table(table_cells(summary)), *map(paragraph, notes))]
    parts += [section(titles[name], figure) for name, figure in figures.items()]
    parts.append(section("All scores", render_table(table_cells(rows))))
    return render_page(f"What {job.name} encodes", *parts)


def table_cells(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows as they are shown in a report, without empty columns and without those listed in `NOT_SHOWN`.

    >>> table_cells([{"task": "tense", "group": "semantics", "best_layer": 3, "mix": None}])
    [{'task': 'tense', 'best layer': 3}]
    """
    empty = {name for name in rows[0] if all(row[name] is None for row in rows)}
    kept = [name for name in rows[0] if name not in NOT_SHOWN | empty]
    return [{name.replace("_", " "): _cell(row[name]) for name in kept} for row in rows]


def _cell(value: Any) -> Any:
    """Return a value as it is shown in a table: None becomes a dash, and ranges such as 3–5 are kept on one line."""
    if value is None:
        return "–"
    return value.replace("–", "\u2060–\u2060") if isinstance(value, str) else value


def _rounded(value: Any) -> Any:
    """Return a JSON value, such as a nested dictionary, with all floats in it rounded for display."""
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value
