"""Run folders: the model, recipe, metrics, results, and environment of a training."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pretune.models.model_card import CONFIG, TrainingHistory, write_card
from pretune.models.open_model import ModelHandle, OpenModel
from pretune.runtime.atomic_io import write_bytes, write_json
from pretune.runtime.errors import PretuneError, if_option
from pretune.runtime.notebook import as_dataframe, as_html
from pretune.runtime.optional_imports import installed_version
from pretune.runtime.output_paths import RECIPE as RECIPE
from pretune.runtime.output_paths import RESULTS as RESULTS
from pretune.runtime.output_paths import check_run
from pretune.runtime.parsing import read_json_lines, read_mapping, read_text
from pretune.runtime.recipe import read_recipe, write_recipe
from pretune.training.checkpoints import list_checkpoints
from pretune.training.metrics_log import METRICS

if TYPE_CHECKING:
    from pandas import DataFrame

    from pretune import LoadedModel

ENVIRONMENT = "environment.json"
SECONDS = ("loading_seconds", "compilation_seconds", "evaluation_seconds")
COST = ("step", "tokens", "flops", "tokens_per_second", "mfu", "lr", *SECONDS)  # results shown last


class Run(ModelHandle):
    """A training run in its folder, finished or not; Python functions accept it in place of a model's path.

    >>> Run("runs/mine").results["dev/mlm"]  # doctest: +SKIP
    2.13
    """

    def __init__(self, folder: str | Path, *, keep_alive: Any = None) -> None:
        """Open a run; `keep_alive` is an object, such as a temporary folder, that must outlive the run."""
        self.folder, self.keep_alive = Path(folder), keep_alive
        self._opened: OpenModel | None = None
        if not (self.folder / RECIPE).is_file():
            raise PretuneError(f"{self.folder}: this is not a run folder, because it has no {RECIPE}; check the path")

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, {'finished' if self.finished else 'unfinished'})"

    @property
    def reference(self) -> str:
        """The path of the run folder."""
        return str(self.folder)

    @property
    def open_model(self) -> OpenModel:
        """The model of the run; if the run is finished, its weights stay in memory, else they are read each time."""
        if not self.finished:
            return OpenModel(self.folder, keep_alive=self.keep_alive)
        if self._opened is None:
            self._opened = OpenModel(self.folder, keep_alive=self.keep_alive)
        return self._opened

    def load(self) -> LoadedModel:
        """Load the model of the run, to predict, embed, generate, … with it.

        >>> Run("runs/mine").load().embed(["one", "two"]).shape  # doctest: +SKIP
        (2, 128)
        """
        from pretune import load

        return load(self)

    @property
    def recipe(self) -> dict[str, Any]:
        """The resolved settings of the run, from recipe.yaml."""
        return read_recipe(self.folder / RECIPE)

    def metrics(self) -> list[dict[str, float]]:
        """Return the metrics of the run, one dictionary per line of metrics.jsonl."""
        path = self.folder / METRICS
        return list(read_json_lines(path, torn=True)) if path.is_file() else []

    @property
    def results(self) -> dict[str, Any]:
        """The final metrics and other results of the run; empty while the run is unfinished."""
        path = self.folder / RESULTS
        return read_mapping(path, "the results of a run") if path.is_file() else {}

    @property
    def finished(self) -> bool:
        """Whether the training run is complete."""
        return (self.folder / RESULTS).is_file()

    @property
    def history(self) -> TrainingHistory:
        """The recipe, results, and date of the run, for the model card."""
        verb = re.match(r"# pretune (\w+)", read_text(self.folder / RECIPE))
        path = self.folder / ENVIRONMENT
        known = read_mapping(path, "the environment of a run") if path.is_file() else {}
        return TrainingHistory(verb[1] if verb else "", self.recipe, self.results, str(known.get("date", "")))

    def predict(self, texts: Any, **options: Any) -> list[dict[str, Any]]:
        """Return a prediction for each text with the run's model, whose weights are read once, as a list of dictionaries.

        The options are those of `predict_texts`: pairs, ignore_mismatched, and task. For a table that can become a data
        frame, and for predictions on files, use `run.load().predict(…)`.

        >>> [row["label"] for row in Run("runs/task").predict(["a delightful film"])]  # doctest: +SKIP
        ['positive']
        """
        from pretune.inference.predict import predict_texts

        return predict_texts(self.open_model, texts, **options)

    def to_pandas(self) -> DataFrame:
        """Return the metrics of the run as a pandas data frame with one row per line of metrics.jsonl.

        >>> Run("runs/mine").to_pandas().plot(x="step", y="mlm")  # doctest: +SKIP
        """
        return as_dataframe(self.metrics())

    def _repr_html_(self) -> str:
        """Return the results of the run as HTML for notebooks: one table of values, and every result that is a table."""
        facts = self.table()
        facts |= facts.pop("details", {})
        tables = {name: value for name, value in facts.items() if is_table(value)}
        values = [{"": name, "value": value} for name, value in facts.items() if name not in tables]
        return as_html(values, str(self.folder)) + "".join(as_html(rows, name) for name, rows in tables.items())

    def describe(self) -> dict[str, Any]:
        """Return the folder, the status, and the results of the run by name."""
        facts = {"run": str(self.folder), "finished": self.finished, **self.results}
        if not self.finished:
            facts["checkpoints"] = len(list_checkpoints(self.folder))
        return facts

    def table(self) -> dict[str, Any]:
        """Return the results of the run arranged for display."""
        return arrange_results(self.describe(), trained={name for line in self.metrics() for name in line})


def is_table(value: Any) -> bool:
    """Return whether a result is a table: a list of rows, which are mappings.

    >>> is_table([{"model": "int8"}]), is_table(["int8"]), is_table([])
    (True, False, False)
    """
    return isinstance(value, list) and bool(value) and all(isinstance(row, Mapping) for row in value)


def finished_run(folder: Path) -> Run | None:
    """Return the run in a folder, or None if the folder has no run or its run is unfinished."""
    return Run(folder) if (folder / RECIPE).is_file() and (folder / RESULTS).is_file() else None


def copy_run_files(source: Path, folder: Path) -> None:
    """Copy the files of one run folder to another, except the recipe and the results."""
    for path in source.iterdir():
        if path.is_file() and path.name not in (RECIPE, RESULTS):
            shutil.copy2(path, folder / path.name)


def arrange_results(results: Mapping[str, Any], trained: Collection[str] = ()) -> dict[str, Any]:
    """Return results in the order of display: scores first, costs last under the name `details`.

    The names in `trained`, other than scores and costs, get the prefix train/.

    >>> facts = {"run": "a", "rows": 4, "mlm": 2.1, "flops": 1e9, "dev/f1": 0.5, "positive_class": "yes"}
    >>> list(arrange_results(facts, trained=["mlm", "flops"]))
    ['run', "dev/f1 (of 'yes')", 'rows', 'train/mlm', 'details']
    """
    labels = results.get("positive_class", {})  # of the task, or by task
    by_task = isinstance(labels, Mapping)
    positive = {f"dev/{name}/f1": label for name, label in labels.items()} if by_task else {"dev/f1": labels}
    first, scores, rest, details = {}, {}, {}, {}
    for name, value in results.items():
        if name == "run":
            first[name] = value
        elif name.startswith(("dev/", "interval/", "baseline/", "warning")):
            scores[f"{name} (of {positive[name]!r})" if name in positive else name] = value
        elif name in COST or name.startswith("gradient_norm"):
            details[name] = value
        elif name != "positive_class":
            rest[f"train/{name}" if name in trained and name != "seconds" else name] = value
    return {**first, **scores, **rest, **({"details": details} if details else {})}


def start_run(folder: Path, verb: str, recipe: Mapping[str, Any], resume: bool) -> bool:
    """Create the run folder of the command `verb`; if it exists, check that the run can be resumed.

    Return whether the folder has a checkpoint to resume from.
    """
    if check_run(folder, resume):
        check_same_recipe(folder, recipe)
        return bool(list_checkpoints(folder))
    write_run_recipe(folder, verb, recipe)  # first, because it makes the folder a run, even if the process is killed
    write_json(folder / ENVIRONMENT, environment())
    return False


def check_same_recipe(folder: Path, recipe: Mapping[str, Any]) -> None:
    """Raise an error if the run in a folder was started with a recipe other than `recipe`."""
    if not (folder / RECIPE).is_file():
        return
    saved = read_recipe(folder / RECIPE)
    wanted = json.loads(json.dumps(recipe))
    different = sorted(key for key in {*saved, *wanted} if saved.get(key) != wanted.get(key))
    if different:
        raise PretuneError(
            f"{folder}: this run was started with other settings ({', '.join(different)}); resume it with the same "
            f"settings{if_option('init-from', ', or start from its weights with --init-from and another --out')}"
        )


@contextmanager
def remove_if_refused(folder: Path, new: bool) -> Iterator[None]:
    """Return a context manager that removes a new run folder if its block raises an error about the input.

    The folder stays if `new` is false, or if it already has metrics or partially tokenized text.
    """
    try:
        yield
    except PretuneError:
        worth_keeping = (path for name in (METRICS, "*.partial") for path in folder.rglob(name))
        if new and not any(worth_keeping):
            shutil.rmtree(folder, ignore_errors=True)
        raise


def write_run_recipe(folder: Path, verb: str, recipe: Mapping[str, Any]) -> None:
    """Write the file recipe.yaml of a run, with which the command `verb` repeats the run."""
    comment = f"# pretune {verb} --recipe {RECIPE} --out FOLDER does this again\n"
    write_bytes(folder / RECIPE, (comment + write_recipe(json.loads(json.dumps(recipe)))).encode())


def finish_run(folder: Path, results: Mapping[str, Any]) -> Run:
    """Write the results and the model card of the run in a folder, and return the run."""
    write_json(folder / RESULTS, results)
    run = Run(folder)
    if (folder / CONFIG).is_file():
        write_card(folder, run.history)
    return run


def environment() -> dict[str, Any]:
    """Return the versions of packages and the properties of the machine, for reproducibility."""
    from pretune import __version__

    versions = {name: installed_version(name) for name in ("torch", "tokenizers", "numpy", "safetensors")}
    packages = {name: found for name, found in versions.items() if found is not None}
    revision = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent, check=False
    )
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "pretune": __version__,
        "revision": revision.stdout.strip() or None,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "packages": packages,
    }
