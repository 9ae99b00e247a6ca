"""`quickstart`: what transfer is worth, shown in minutes on a laptop."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretune.runtime.output_paths import folder_of
from pretune.verbs.verb import verb

if TYPE_CHECKING:
    from pretune.text.examples.labeled import Labeled
    from pretune.training.jobs.adapting import Adapted
    from pretune.training.run_folder import Run

BOXED = "pretune-small-en"
REPORT, MARK = "report.html", "quickstart.json"
DOCUMENTATION = 1_500_000  # letters of documentation strings to adapt to
# Few labels: small steps, many passes, and little change in the lower layers where they know something already. Chosen on
# messages of the training file alone.
RATE, ROWS, OBJECTIVE = 3e-4, 16, "classify(pooling=mean)"
LAYER_DECAY = {"pretrained": 0.8, "scratch": 1.0}
STEP = 2048  # tokens of a step of adapting
NAMES = {
    "pretrained": "the pretrained encoder",
    "scratch": "the same network, random weights",
    "bag_of_words": "bag of words",
}


@dataclass
class Outcome:
    """One way to learn from few labels, over several seeds."""

    accuracies: list[float] = field(default_factory=list)
    curves: list[list[tuple[float, float]]] = field(default_factory=list)  # (epoch, accuracy)

    def describe(self) -> dict[str, float]:
        """Mean and standard deviation."""
        from statistics import mean, stdev

        spread = stdev(self.accuracies) if len(self.accuracies) > 1 else 0.0
        return {"mean": mean(self.accuracies), "sd": spread}

    def mean_curve(self) -> list[tuple[float, float]]:
        """The mean over seeds at each epoch."""
        together = zip(*self.curves, strict=True)
        return [(points[0][0], sum(y for _, y in points) / len(points)) for points in together]


@dataclass
class Quickstart:
    """What came out."""

    model: str
    labels: int
    outcomes: dict[str, Outcome]
    adapted: Adapted
    seconds: float
    report: Path

    def describe(self) -> dict[str, Any]:
        """For programs."""
        return {**{name: outcome.describe() for name, outcome in self.outcomes.items()}, "seconds": self.seconds}

    def rows(self) -> list[dict[str, Any]]:
        """A row for each way to learn."""
        rows = []
        for name, outcome in self.outcomes.items():
            found = outcome.describe()
            each = "  ".join(f"{100 * accuracy:.1f}" for accuracy in outcome.accuracies)
            accuracy = f"{100 * found['mean']:.1f} ± {100 * found['sd']:.1f}"
            rows.append({"learner": NAMES[name], "test accuracy, %": accuracy, "each seed": each})
        return rows

    def commands(self) -> list[str]:
        """The same on one's own data."""
        return [
            f"pretune adapt {self.model} texts/*.txt --out runs/adapted",
            "pretune finetune runs/adapted train.csv --dev dev.csv --out runs/task",
            'pretune predict runs/task "a text to label"',
        ]

    def table(self) -> dict[str, Any]:
        """For people."""
        adapted = self.adapted.table()
        return {
            f"{self.labels} labels a class": self.rows(),
            "adapted to documentation strings": adapted["held_out_text"],
            "fills": self.adapted.fills,
            "the same on your own data": [{"command": command} for command in self.commands()],
            "seconds": self.seconds,
            "report": str(self.report),
        }

    def page(self) -> str:
        """The report."""
        from pretune.runtime.html_report import Line, chart, commands, page, paragraph, section, table

        lines = []
        for name, outcome in self.outcomes.items():
            if outcome.curves:
                lines += [Line(NAMES[name], curve, faint=True) for curve in outcome.curves]
                lines.append(Line(NAMES[name], outcome.mean_curve()))
            else:
                lines.append(Line(NAMES[name], [(0.0, outcome.describe()["mean"])], level=True))
        means = [outcome.describe()["mean"] for outcome in self.outcomes.values()]
        adapted = self.adapted.table()
        metrics = self.adapted.run.metrics()
        training = [(line["seconds"], line["mlm"]) for line in metrics if "mlm" in line]
        held_out = [(line.get("seconds", 0.0), line["dev/mlm"]) for line in metrics if "dev/mlm" in line]
        held_out = [held_out[0], (self.adapted.run.results["seconds"], held_out[-1][1])]
        return page(
            "What transfer is worth",
            section(
                f"{self.labels} labels a class, four kinds of customer messages, 200 new messages to sort",
                paragraph("Three ways to learn from the same few labels. Each seed draws other labels."),
                table(self.rows(), best=means.index(max(means))),
                chart(lines, across="passes over the labels", up="test accuracy"),
            ),
            section(
                f"{training[-1][0]:.0f} seconds on new text: the encoder adapts to the documentation strings of this Python",
                chart(
                    [Line("training text", training), Line("held-out text", held_out)],
                    across="seconds",
                    up="loss at hidden words",
                ),
                table(adapted["held_out_text"]),
                paragraph("Hidden words in held-out text, and the three likeliest answers before and after:"),
                table(self.adapted.fills) if self.adapted.fills else "",
            ),
            section("The same on your own data", commands(*self.commands())),
            f"<small>pretune quickstart: {self.seconds:.0f} seconds, model {self.model}</small>",
        )


@verb(out=folder_of(MARK, "a quickstart"))
def quickstart(
    model: str | Path | Run = BOXED,
    *,
    labels: int = 25,
    seeds: int = 3,
    epochs: float = 12.0,
    seconds: float = 60.0,
    out: str | Path = "pretune-quickstart",
) -> Quickstart:
    """See what a pretrained encoder is worth: few labels, three learners, a table and a page with curves.

    With a few labels of each class of customer messages it fine-tunes the encoder, the same network from random weights
    and a bag of words; then it adapts the encoder to the documentation strings of the installed Python.

    Parameters
    ----------
    model
        The pretrained model; by default the one that comes with the package.
    labels
        Labels of each class to learn from.
    seeds
        How often everything is repeated, with other labels.
    epochs
        Passes over the labels.
    seconds
        How long to adapt.
    out
        Folder of the report and the runs; a quickstart that is there is replaced.

    Examples
    --------
    >>> quickstart(seeds=1, seconds=10).describe()["pretrained"]["mean"]  # doctest: +SKIP
    0.62
    """
    import os
    import shutil

    from pretune.runtime.atomic_io import write_bytes, write_json
    from pretune.sample_data import example
    from pretune.text.examples.labeled import read_labeled
    from pretune.training.settings import Batching, Budget, Watching
    from pretune.verbs.adapt import adapt

    began = time.monotonic()
    folder = Path(out)
    if folder.exists():
        shutil.rmtree(folder)
    write_json(folder / MARK, {"model": os.fspath(model), "labels": labels, "seeds": seeds})
    columns = {"text": "text", "label": "label"}
    pool, test = (read_labeled(example(f"messages_{part}.csv"), columns) for part in ("train", "test"))
    outcomes = {name: Outcome() for name in NAMES}
    for seed in range(seeds):
        learn(model, pool, test, outcomes, labels, epochs, seed, folder)
    texts = folder / "documentation.jsonl"
    write_documentation(texts)
    adapted = adapt(
        model,
        texts,
        budget=Budget(seconds=seconds),
        batch=Batching(tokens=STEP),
        watching=Watching(log=8, packs=16),
        out=folder / "adapted",
    )
    result = Quickstart(os.fspath(model), labels, outcomes, adapted, time.monotonic() - began, folder / REPORT)
    write_bytes(result.report, result.page().encode())
    return result


def learn(
    model: Any,
    pool: Labeled,
    test: Labeled,
    outcomes: dict[str, Outcome],
    labels: int,
    epochs: float,
    seed: int,
    folder: Path,
) -> None:
    """All three learners on one draw of labels."""
    from pretune.runtime.progress import say
    from pretune.sample_data import example
    from pretune.text.examples.few_shot import draw_labels
    from pretune.training.jobs.bag_of_words import bag_of_words
    from pretune.training.settings import Batching, Optimizer, Watching
    from pretune.verbs.finetune import finetune

    assert pool.labels is not None and test.labels is not None
    rows = draw_labels(pool.labels, labels, seed)
    texts, known = [pool.texts[row] for row in rows], [pool.labels[row] for row in rows]
    answers = bag_of_words(texts, known, test.texts)
    right = sum(answer == label for answer, label in zip(answers, test.labels, strict=True))
    outcomes["bag_of_words"].accuracies.append(right / len(test))
    file = folder / f"labels-{seed}.csv"
    write_rows(file, texts, known)
    steps = -(-len(rows) // ROWS)  # of an epoch
    for name in ("pretrained", "scratch"):
        say(f"seed {seed}: {NAMES[name]} learns from {len(rows)} labels")
        run = finetune(
            model,
            file,
            dev=example("messages_test.csv"),
            text="text",
            label="label",
            objective=OBJECTIVE,
            epochs=epochs,
            optimizer=Optimizer(lr=RATE, layer_decay=LAYER_DECAY[name]),
            batch=Batching(sequences=ROWS),
            watching=Watching(evaluate=steps * max(1, round(epochs / 6))),
            seed=seed,
            scratch=name == "scratch",
            out=folder / f"{name}-{seed}",
            seeds=1,
            report=False,
        )
        curve = [(line["step"] / steps, line["dev/accuracy"]) for line in run.metrics() if "dev/accuracy" in line]
        outcomes[name].accuracies.append(run.results["dev/accuracy"])
        outcomes[name].curves.append(curve)


def write_rows(file: Path, texts: Sequence[str], labels: Sequence[str]) -> None:
    """A labeled file."""
    import csv

    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerows([("text", "label"), *zip(texts, labels, strict=True)])


def write_documentation(file: Path) -> None:
    """The documentation strings of the installed Python, a document a line."""
    import json

    from pretune.runtime.atomic_io import write_bytes
    from pretune.text.corpus.python_docstrings import read_docstrings

    lines = (json.dumps({"text": text}) for text in read_docstrings(DOCUMENTATION))
    write_bytes(file, ("\n".join(lines) + "\n").encode())
