"""The `quickstart` verb: demonstrate transfer learning in minutes on a laptop."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pretune.runtime.output_paths import check_resumable_folder
from pretune.verbs.verb import verb

if TYPE_CHECKING:
    from pretune.text.examples.labeled import LabeledRows
    from pretune.training.jobs.adapting import AdaptationResult
    from pretune.training.run_folder import Run

BUNDLED = "pretune-small-en"
REPORT, MARKER = "report.html", "quickstart.json"
DOCUMENTATION = 1_500_000  # characters of docstrings to adapt to
RATE, ROWS = 3e-4, 16  # of the network with random weights, chosen on the training file alone
STEP = 2048  # tokens per step of adaptation
NAMES = {
    "pretrained": "the pretrained encoder",
    "scratch": "the same network, random weights",
    "bag_of_words": "bag of words",
}


@dataclass
class LearnerResult:
    """Test accuracies and learning curves of one learner, such as a bag of words, over several seeds."""

    accuracies: list[float] = field(default_factory=list)
    curves: list[list[tuple[float, float]]] = field(default_factory=list)  # (epoch, accuracy)

    def describe(self) -> dict[str, float]:
        """Return the mean and standard deviation of a learner's test accuracies over seeds."""
        from statistics import mean, stdev

        spread = stdev(self.accuracies) if len(self.accuracies) > 1 else 0.0
        return {"mean": mean(self.accuracies), "sd": spread}

    def mean_curve(self) -> list[tuple[float, float]]:
        """Return a learner's mean test accuracy over seeds at each epoch."""
        together = zip(*self.curves, strict=True)
        return [(points[0][0], sum(y for _, y in points) / len(points)) for points in together]


@dataclass
class QuickstartResult:
    """The results of a quickstart: accuracies of the learners, and the adapted model."""

    model: str
    labels: int
    outcomes: dict[str, LearnerResult]
    adapted: AdaptationResult
    seconds: float
    report: Path

    def describe(self) -> dict[str, Any]:
        """Return the accuracies of all learners and the duration of the quickstart, for --json."""
        return {**{name: outcome.describe() for name, outcome in self.outcomes.items()}, "seconds": self.seconds}

    def rows(self) -> list[dict[str, Any]]:
        """Return one table row per learner with its test accuracy."""
        rows = []
        for name, outcome in self.outcomes.items():
            found = outcome.describe()
            each = "  ".join(f"{100 * accuracy:.1f}" for accuracy in outcome.accuracies)
            accuracy = f"{100 * found['mean']:.1f} ± {100 * found['sd']:.1f}"
            rows.append({"learner": NAMES[name], "test accuracy, %": accuracy, "each seed": each})
        return rows

    def commands(self) -> list[str]:
        """Return the pretune commands that repeat the demonstration with the user's own data."""
        return [
            f"pretune adapt {self.model} texts/*.txt --out runs/adapted",
            "pretune finetune runs/adapted train.csv --dev dev.csv --out runs/task",
            'pretune predict runs/task "a text to label"',
        ]

    def table(self) -> dict[str, Any]:
        """Return the result tables to print in the terminal."""
        adapted = self.adapted.table()
        return {
            f"{self.labels} labels per class": self.rows(),
            "adapted to docstrings": adapted["held_out_text"],
            "fills": self.adapted.fills,
            "the same on your own data": [{"command": command} for command in self.commands()],
            "seconds": self.seconds,
            "report": str(self.report),
        }

    def page(self) -> str:
        """Return the HTML report of the quickstart."""
        from pretune.runtime import html_report as html

        lines = []
        for name, outcome in self.outcomes.items():
            if outcome.curves:
                lines += [html.ChartLine(NAMES[name], curve, faint=True) for curve in outcome.curves]
                lines.append(html.ChartLine(NAMES[name], outcome.mean_curve()))
            else:
                lines.append(html.ChartLine(NAMES[name], [(0.0, outcome.describe()["mean"])], horizontal=True))
        means = [outcome.describe()["mean"] for outcome in self.outcomes.values()]
        adapted = self.adapted.table()
        metrics = self.adapted.run.metrics()
        training = [(line["seconds"], line["mlm"]) for line in metrics if "mlm" in line]
        held_out = [(line.get("seconds", 0.0), line["dev/mlm"]) for line in metrics if "dev/mlm" in line]
        held_out = [held_out[0], (self.adapted.run.results["seconds"], held_out[-1][1])]
        return html.render_page(
            "What transfer learning contributes",
            html.section(
                f"{self.labels} labels per class: four kinds of customer messages, 200 test messages",
                html.paragraph("Three learners trained on the same few labels. Each seed samples other labels."),
                html.render_table(self.rows(), best=means.index(max(means))),
                html.render_chart(lines, x_label="epochs", y_label="test accuracy"),
            ),
            html.section(
                f"{training[-1][0]:.0f} seconds of adaptation to new text: the docstrings of this Python",
                html.render_chart(
                    [html.ChartLine("training text", training), html.ChartLine("held-out text", held_out)],
                    x_label="seconds",
                    y_label="masked language modeling loss",
                ),
                html.render_table(adapted["held_out_text"]),
                html.paragraph(
                    "Masked words in held-out text, and the three most likely predictions before and after:"
                ),
                html.render_table(self.adapted.fills) if self.adapted.fills else "",
            ),
            html.section("The same on your own data", html.command_block(*self.commands())),
            f"<small>pretune quickstart: {self.seconds:.0f} seconds, model {self.model}</small>",
        )


@verb(out=check_resumable_folder(MARKER, "a quickstart"))
def quickstart(
    model: str | Path | Run = BUNDLED,
    *,
    labels_per_class: int = 25,
    num_seeds: int = 3,
    epochs: float = 12.0,
    effort: Literal["quick", "normal", "thorough"] = "normal",
    seconds: float = 60.0,
    out: str | Path = "pretune-quickstart",
) -> QuickstartResult:
    """Demonstrate transfer learning: compare a pretrained encoder with two baselines on few labels.

    With a few labeled customer messages per class, fine-tune the pretrained encoder with default options, train the same network from
    random weights, and fit a bag-of-words classifier; then adapt the encoder to the docstrings of the installed Python. Print a table, and write an HTML report
    with learning curves.

    Parameters
    ----------
    model
        Pretrained model; by default the bundled one.
    labels_per_class
        Number of labeled examples per class to train on.
    num_seeds
        Number of repetitions, each with another sample of labeled examples.
    epochs
        Passes over the labeled examples of the network with random weights.
    effort
        Effort of the search for the best way to fine-tune the pretrained encoder; see `pretune finetune --help`.
    seconds
        Duration of the adaptation in seconds.
    out
        Folder for the report and the runs; an earlier quickstart in it is replaced.

    Examples
    --------
    >>> quickstart(num_seeds=1, seconds=10).describe()["pretrained"]["mean"]  # doctest: +SKIP
    0.62
    """
    import json
    import shutil

    from pretune.runtime.atomic_io import write_bytes, write_json
    from pretune.sample_data import example
    from pretune.text.corpus.python_docstrings import read_docstrings
    from pretune.text.examples.labeled import read_labeled
    from pretune.training.recipe_sections import Batching, Budget, Monitoring
    from pretune.verbs.training.adapt import adapt

    began = time.monotonic()
    folder = Path(out)
    if folder.exists():
        shutil.rmtree(folder)
    write_json(
        folder / MARKER, {"model": os.fspath(model), "labels_per_class": labels_per_class, "num_seeds": num_seeds}
    )
    columns = {"text": "text", "label": "label"}
    pool, test = (read_labeled(example(f"messages_{part}.csv"), columns) for part in ("train", "test"))
    outcomes = {name: LearnerResult() for name in NAMES}
    for seed in range(num_seeds):
        learn(model, pool, test, outcomes, labels_per_class, epochs, effort, seed, folder)
    texts = folder / "documentation.jsonl"
    documents = (json.dumps({"text": text}) + "\n" for text in read_docstrings(DOCUMENTATION))
    write_bytes(texts, "".join(documents).encode())
    adapted = adapt(
        model,
        texts,
        budget=Budget(seconds=seconds),
        batch=Batching(tokens=STEP),
        monitor=Monitoring(log_every=8, max_eval_batches=16),
        out=folder / "adapted",
    )
    result = QuickstartResult(
        os.fspath(model), labels_per_class, outcomes, adapted, time.monotonic() - began, folder / REPORT
    )
    write_bytes(result.report, result.page().encode())
    return result


def learn(
    model: Any,
    pool: LabeledRows,
    test: LabeledRows,
    outcomes: dict[str, LearnerResult],
    labels: int,
    epochs: float,
    effort: Literal["quick", "normal", "thorough"],
    seed: int,
    folder: Path,
) -> None:
    """Train the three learners of the quickstart on texts sampled from `pool`; add test accuracies to `outcomes`.

    `labels` is the number of examples per class, `epochs` the number of epochs for the network with random weights,
    `effort` an option of `finetune`, and `folder` the folder of the runs.
    """
    import csv

    from pretune.runtime.progress import log_info
    from pretune.sample_data import example
    from pretune.text.examples.few_shot import sample_rows_per_class
    from pretune.training.jobs.bag_of_words import bag_of_words
    from pretune.training.recipe_sections import Batching, Monitoring, Optimizer
    from pretune.verbs.training.finetune import finetune

    assert pool.labels is not None and test.labels is not None
    rows = sample_rows_per_class(pool.labels, labels, seed)
    texts, known = [pool.texts[row] for row in rows], [pool.labels[row] for row in rows]
    answers = bag_of_words(texts, known, test.texts)
    right = sum(answer == label for answer, label in zip(answers, test.labels, strict=True))
    outcomes["bag_of_words"].accuracies.append(right / len(test))
    file = folder / f"labels-{seed}.csv"
    with file.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("text", "label"), *zip(texts, known, strict=True)])
    data: dict[str, Any] = {"dev": example("messages_test.csv"), "text": "text", "label": "label", "seed": seed}
    log_info(f"seed {seed}: fine-tuning {NAMES['pretrained']} on {len(rows)} labels")
    run = finetune(model, file, out=folder / f"pretrained-{seed}", effort=effort, report=False, **data)
    outcomes["pretrained"].accuracies.append(run.results["dev/accuracy"])
    log_info(f"seed {seed}: training {NAMES['scratch']} on {len(rows)} labels")
    steps = -(-len(rows) // ROWS)  # per epoch
    run = finetune(
        model,
        file,
        epochs=epochs,
        optimizer=Optimizer(lr=RATE, layer_decay=1.0),
        batch=Batching(size=ROWS),
        monitor=Monitoring(eval_every=steps * max(1, round(epochs / 6))),
        from_scratch=True,
        out=folder / f"scratch-{seed}",
        num_seeds=1,
        report=False,
        **data,
    )
    curve = [(line["step"] / steps, line["dev/accuracy"]) for line in run.metrics() if "dev/accuracy" in line]
    outcomes["scratch"].accuracies.append(run.results["dev/accuracy"])
    outcomes["scratch"].curves.append(curve)
