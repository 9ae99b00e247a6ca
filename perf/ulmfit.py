"""Compare ULMFiT on TREC and IMDb with 100, 500 and all labels: its recipe, the same without its three tricks, and from scratch.

    pretune pretrain docs/recipes/ulmfit-short.yaml --data CORPUS --out LM
    python perf/ulmfit.py adapt --lm LM --data TASKS --out FOLDER [--tasks TREC] [--texts FILE…] [--plain RATE]
    python perf/ulmfit.py run --data TASKS --out FOLDER [--tasks TREC] [--labels 100 500 all] [--arms ulmfit …] [--seeds 0 1 2]
    python perf/ulmfit.py both --out FOLDER
    python perf/ulmfit.py table FOLDER --plot docs/measurements/ulmfit.png

TASKS has the official TREC/{train,test}.txt and IMDb/{train,test}.tsv. `adapt` is the second stage, once per task, on
all its training texts without labels, and on further unlabeled texts; LM reads forward or backward; with `--plain`, all
layers have one constant learning rate. Every line of FOLDER/results.jsonl is one classifier, evaluated on the test set
of TREC or the first 5,000 shuffled rows of IMDb's; with `--held-out`, on 2,000 rows of the training set that are not
sampled, to choose learning rates (in another FOLDER). Training rows are sampled anew for each seed, stratified by class,
the same for all arms. Arms: `ulmfit`; `same`, with everything else the same, at the same rates, but one constant rate
for all layers, which are all trained from the start; `full`, this at lower rates; `plain`, this from the result of
`adapt --plain`; `scratch`, the same network with random weights. Of several rates in a folder, the best one is
reported. With `--way backward`, `run` starts from the model that reads backward; `both` averages the probabilities of
an arm in both directions at one rate.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from common import add_result, machine, read_results, spread
from task_comparison import read as read_task

RATES = {
    "ulmfit": (1e-2, 4e-3, 2e-3),
    "same": (1e-2, 4e-3, 2e-3),
    "full": (1e-3, 5e-4, 2.5e-4, 1.25e-4),
    "plain": (1e-3, 5e-4, 2.5e-4, 1.25e-4),
    "scratch": (1e-3, 4e-3),
}
PUBLISHED = {
    "word_dropout": 0.05, "input_dropout": 0.4, "hidden_dropout": 0.3, "output_dropout": 0.4, "weight_drop": 0.5
}  # fmt: skip
CELL = ("task", "labels", "seed", "arm", "rate", "way")  # what identifies a classifier
COLUMNS = {  # of the table, by arm and direction
    ("ulmfit", "both"): "ULMFiT, both directions",
    ("ulmfit", "forward"): "ULMFiT, forward",
    ("same", "forward"): "all else the same, without its tricks",
    ("full", "forward"): "without its tricks, at low rates",
    ("full", "both"): "without its tricks, at low rates, both directions",
    ("plain", "forward"): "without them in the second stage too",
    ("scratch", "forward"): "from scratch",
}
DRAWN = [("ulmfit", "forward"), ("same", "forward"), ("full", "forward"), ("scratch", "forward")]
LM_EPOCHS = {"TREC": 10.0, "IMDb": 10.0}
LENGTH = {"TREC": 64, "IMDb": 400}  # maximum tokens of the classifier
TEST_ROWS, HELD_OUT = 5000, 2000  # test rows, and held-out training rows for choosing rates


def epochs(labels: int) -> float:
    """Return the number of epochs of a classifier."""
    return 50.0 if labels < 500 else 20.0 if labels < 1000 else 8.0 if labels < 10000 else 2.0


def read(task: str, file: Path) -> list[dict[str, str]]:
    """Return the rows of an official file."""
    if task == "TREC":
        return read_task(task, file)
    lines = file.read_text(encoding="utf-8").split("\n")[1:]  # some contain other line separators
    return [dict(zip(("text", "label"), line.split("\t")[:1:-1], strict=True)) for line in lines if line]


def rows_of(task: str, data: Path, held_out: bool = False) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Return shuffled training and test rows; with `held_out`, both are from the training set."""
    ending = "txt" if task == "TREC" else "tsv"
    parts = [read(task, data / task / f"{part}.{ending}") for part in ("train", "test")]
    for part in parts:
        random.Random(0).shuffle(part)
    train, test = parts
    return (train[HELD_OUT:], train[:HELD_OUT]) if held_out else (train, test[:TEST_ROWS])


def sample_rows(rows: Sequence[dict[str, str]], count: int, seed: int) -> list[dict[str, str]]:
    """Return some rows, stratified by class."""
    from pretune.evaluation.learning_curve import relative_ranks

    order = random.Random(seed).sample(list(rows), len(rows))
    at = relative_ranks(row["label"] for row in order)
    return [order[row] for row in np.argsort(at, kind="stable")[:count]] if count < len(rows) else order


def write(rows: Sequence[dict[str, str]], file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def adapt(options: argparse.Namespace) -> None:
    """Run the second stage."""
    from pretune.training.jobs.ulmfit import OPTIMIZER, UlmfitJob, reading_direction
    from pretune.training.jobs.ulmfit import adapt as go_on

    way, settings = reading_direction(options.lm), {}
    if options.plain:
        way += "-plain"
        settings = {"optimizer": replace(OPTIMIZER, lr=options.plain, layer_decay=1.0), "schedule": constant_schedule()}
    for task in options.tasks:
        train, _ = rows_of(task, Path(options.data))
        texts = write([{"text": row["text"]} for row in train], Path(options.out) / task / "texts.jsonl")
        stages = UlmfitJob(
            train=str(texts), dev=None, columns={}, lm_epochs=options.epochs or LM_EPOCHS[task], language="lines"
        )
        start = time.perf_counter()
        files = [texts, *map(Path, options.texts)]
        run = go_on(options.lm, files, Path(options.out) / task / way, stages, **settings)
        print(task, f"{time.perf_counter() - start:.0f} s", json.dumps(run.results), flush=True)


def constant_schedule() -> Any:
    """Return the schedule of a constant learning rate."""
    from pretune.training.recipe_sections import Schedule

    return Schedule(kind="constant", warmup_ratio=0.0)


def run(options: argparse.Namespace) -> None:
    """Write a line for each classifier that is not done yet."""
    os.environ["PRETUNE_PROGRESS"] = "none"
    out = Path(options.out)
    done = [[line[key] for key in CELL] for line in load(out)]
    for task in options.tasks:
        train, test = rows_of(task, Path(options.data), options.held_out)
        dev = write(test, out / task / "test.jsonl")
        tried = [(arm, rate) for arm in options.arms for rate in options.rates or RATES[arm]]
        for labels, seed in product(options.labels, options.seeds):
            count = len(train) if labels == "all" else int(labels)
            file = write(sample_rows(train, count, seed), out / task / f"train-{labels}-{seed}.jsonl")
            for arm, rate in tried:
                cell = dict(zip(CELL, (task, labels, seed, arm, rate, options.way), strict=True))
                if list(cell.values()) in done:
                    continue
                folder = out / task / f"{arm}-{labels}-{seed}-{rate:g}"
                shutil.rmtree(folder, ignore_errors=True)
                start = time.perf_counter()
                error = classify(cell, count, file, dev, folder, options)
                line = {**cell, "error": error, "seconds": time.perf_counter() - start, **machine()}
                if arm != "scratch":
                    save_probabilities(folder, dev, probabilities_file(out, cell))
                shutil.rmtree(folder)
                print(json.dumps(line), flush=True)
                add_result(out / f"results{options.part}.jsonl", line)


def classify(
    cell: dict[str, Any], count: int, train: Path, dev: Path, folder: Path, options: argparse.Namespace
) -> float:
    """Return the error in percent of a classifier that is trained on `count` rows."""
    import pretune as pt
    from pretune.training.jobs.ulmfit import OBJECTIVE, OPTIMIZER, SCHEDULE, unfreezing_strategy

    task, arm = cell["task"], cell["arm"]
    start_from = Path(options.out) / task / (options.way + "-plain" * (arm == "plain")) / "texts"
    often = options.epochs or epochs(count)
    made = pt.finetune(
        start_from,
        train,
        dev=dev,
        out=folder,
        objective=OBJECTIVE,
        strategy=unfreezing_strategy(start_from, often) if arm == "ulmfit" else "full",
        epochs=often,
        optimizer=replace(OPTIMIZER, lr=cell["rate"], **({} if arm == "ulmfit" else {"layer_decay": 1.0})),
        schedule=SCHEDULE if arm in ("ulmfit", "scratch") else constant_schedule(),
        batch=pt.Batching(
            size=options.rows or (32 if count < 10000 else 64), max_length=options.length or LENGTH[task]
        ),
        from_scratch=arm == "scratch",
        dropout=PUBLISHED if options.dropout else None,
        seed=cell["seed"],
        num_seeds=1,
        report=False,
    )
    return 100 * (1 - float(made.results["dev/accuracy"]))


def probabilities_file(out: Path, cell: dict[str, Any]) -> Path:
    """Return the file for the test probabilities of a classifier."""
    return out / "probabilities" / ("-".join(str(cell[key]) for key in CELL) + ".npz")


def save_probabilities(folder: Path, dev: Path, file: Path) -> None:
    """Save the probabilities of a classifier, (n, labels), and the indices of the correct labels, (n,)."""
    from pretune.training.jobs.finetuning import DEV_PREDICTIONS

    probabilities = [answer["probabilities"] for answer in read_results([folder / DEV_PREDICTIONS])]
    labels = sorted(probabilities[0])
    truth = [labels.index(row["label"]) for row in read_results([dev])]
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        file,
        probabilities=np.array([[row[label] for label in labels] for row in probabilities], np.float32),
        truth=truth,
    )


def both(options: argparse.Namespace) -> None:
    """Write a line for each pair of a forward and a backward classifier with saved probabilities."""
    out, keys = Path(options.out), CELL[:-1]
    done = [[line[key] for key in keys] for line in load(out) if line["way"] == "both"]
    for file in sorted((out / "probabilities").glob("*-forward.npz")):
        other = file.with_name(file.name.replace("-forward", "-backward"))
        task, labels, seed, arm, rate = file.name.removesuffix("-forward.npz").split("-", 4)
        values = [task, labels, int(seed), arm, float(rate)]
        if not other.is_file() or values in done:
            continue
        forward, backward = np.load(file), np.load(other)
        wrong = (forward["probabilities"] + backward["probabilities"]).argmax(1) != forward["truth"]
        line = dict(zip(keys, values, strict=True)) | {"way": "both", "error": 100 * float(wrong.mean()), **machine()}
        print(json.dumps(line), flush=True)
        add_result(out / "results-both.jsonl", line)


def load(folder: Path) -> list[dict[str, Any]]:
    """Return all lines so far, of all processes."""
    return read_results(sorted(folder.glob("results*.jsonl")))


def best(
    lines: Sequence[dict[str, Any]], task: str, labels: str, column: tuple[str, str]
) -> tuple[float, list[float]] | None:
    """Return the learning rate of an arm with the lowest mean error, and its errors."""
    lines = [line for line in lines if (line["arm"], line["way"]) == column]
    own = [line for line in lines if (line["task"], line["labels"]) == (task, labels)]
    errors = {rate: [line["error"] for line in own if line["rate"] == rate] for rate in {line["rate"] for line in own}}
    return min(errors.items(), key=lambda item: mean(item[1]), default=None)


def shown(lines: Sequence[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """Return the available columns, by name."""
    there = {(line["arm"], line["way"]) for line in lines}
    return {column: name for column, name in COLUMNS.items() if column in there}


def sizes(lines: Sequence[dict[str, Any]], task: str) -> list[str]:
    return sorted({line["labels"] for line in lines if line["task"] == task}, key=lambda x: (x == "all", x.zfill(9)))


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Return errors in percent, means over seeds with standard deviations, as Markdown."""
    columns = shown(lines)
    rows = ["| task | labels | " + " | ".join(columns.values()) + " |", "| --- |" + " ---: |" * (len(columns) + 1)]
    for task in LM_EPOCHS:
        for labels in sizes(lines, task):
            cells = []
            for column in columns:
                found = best(lines, task, labels, column)
                beside = f" ± {stdev(found[1]):.1f}" if found and len(found[1]) > 1 else ""
                cells.append(f"{mean(found[1]):.1f}{beside} ({found[0]:g})" if found else "–")
            rows.append(f"| {task} | {labels} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def plot(lines: Sequence[dict[str, Any]], file: Path) -> None:
    """Plot the error against the number of labels, as in the paper."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    whole = {"TREC": 5452, "IMDb": 25000}
    drawn = {column: name for column, name in shown(lines).items() if column in DRAWN}
    figure, axes = pyplot.subplots(1, len(whole), figsize=(10, 4))
    for axis, task in zip(axes, whole, strict=True):
        names = sizes(lines, task)
        for column, name in drawn.items():
            found = [(labels, best(lines, task, labels, column)) for labels in names]
            points = [(whole[task] if at == "all" else int(at), one[1]) for at, one in found if one]
            axis.errorbar(
                [at for at, _ in points],
                [mean(errors) for _, errors in points],
                [spread(errors) for _, errors in points],
                fmt="o-",
                label=name,
                capsize=2,
            )
        axis.set_xscale("log")
        axis.set_xticks([whole[task] if at == "all" else int(at) for at in names], names)
        axis.minorticks_off()
        axis.set_title(task)
        axis.set_xlabel("labels")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("error, %")
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncol=len(drawn), frameon=False)
    figure.savefig(file, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    pairs = verbs.add_parser("both")
    pairs.add_argument("--out", required=True)
    for name in ("adapt", "run"):
        verb = verbs.add_parser(name)
        verb.add_argument("--data", required=True)
        verb.add_argument("--out", required=True)
        verb.add_argument("--tasks", nargs="+", default=list(LM_EPOCHS), choices=list(LM_EPOCHS))
        verb.add_argument("--epochs", type=float, help="instead of the default")
        if name == "adapt":
            verb.add_argument("--lm", required=True)
            verb.add_argument("--texts", nargs="*", default=[], help="further text files")
            verb.add_argument(
                "--plain", type=float, metavar="RATE", help="without slanted and discriminative learning rates"
            )
        else:
            verb.add_argument("--labels", nargs="+", default=["100", "500", "all"])
            verb.add_argument("--way", default="forward", choices=["forward", "backward"])
            verb.add_argument("--arms", nargs="+", default=["ulmfit", "same", "full", "scratch"], choices=list(RATES))
            verb.add_argument("--rates", type=float, nargs="+", help="instead of the defaults")
            verb.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
            verb.add_argument("--length", type=int, help="maximum tokens of the classifier, instead of the default")
            verb.add_argument("--rows", type=int, help="rows per step, instead of the default")
            verb.add_argument("--dropout", action="store_true", help="use the dropout of the paper in the classifier")
            verb.add_argument("--held-out", action="store_true", help="evaluate on training rows that are not sampled")
            verb.add_argument(
                "--part", default="", help="suffix of the results file, if several processes share the folder"
            )
    last = verbs.add_parser("table")
    last.add_argument("folder")
    last.add_argument("--plot")
    options = parser.parse_args()
    if options.verb != "table":
        {"adapt": adapt, "run": run, "both": both}[options.verb](options)
        return
    lines = load(Path(options.folder))
    print(table(lines))
    if options.plot:
        plot(lines, Path(options.plot))


if __name__ == "__main__":
    main()
