"""Search for the best fifteen minutes of pretraining, and score the models on five GLUE tasks.

    python perf/record.py nli TASKS nli.tsv
    python perf/record.py pairs STORE pairs.jsonl --count 400000
    python perf/record.py pilots STORE --tokens 1e8 --out runs/pilots [NAMES]
    python perf/record.py plot runs/record docs/measurements/record.png
    python perf/record.py score runs/pilots/mlm runs/pilots/rtd --data TASKS --nli nli.tsv --seeds 2 --devices 8 --out runs/scores

STORE is what `script/record_corpus CORPORA TASKS OUT --open-only --lowercase --vocab-size 16384` writes into OUT/store. Pilots are variants
of the preset `pretune-15min` with equal numbers of tokens; they share the GPU, so their seconds are not comparable, but their scores are.
GLUE-5 is the mean of CoLA (Matthews), SST-2 (accuracy), MRPC (F1), STS-B (Spearman) and RTE (accuracy) on the dev sets, each the median of the
seeds at the last step. MRPC, STS-B and RTE start from the model fine-tuned on NLI, with `--nli`. `vectors` is Spearman's correlation
on STS-B's dev set of the cosines of mean-pooled vectors, without any training.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import add_result, machine

RTD = "rtd(generator_layers=2,generator_hidden_size=128)"
MLM = "mlm(mask_rate=0.3,final_mask_rate=0.15)"
# What each pilot asks, by name: the objective, or other keys of the recipe.
PILOTS: dict[str, dict[str, str]] = {
    "mlm": {"objective": MLM},
    "rtd": {"objective": RTD},  # a generator of two layers, a third as wide
    "rtd-mlm": {"objective": f"0.8*{RTD}|0.2*{MLM}"},  # fills in words, too
    "rtd-mlm-cropping": {"objective": f"0.6*{RTD}|0.25*{MLM}|0.15*cropping"},  # has text embeddings, too
    "rtd-soft": {  # a stronger generator, whose samples become as hard as it is
        "objective": "rtd(generator_layers=3,generator_hidden_size=256,generator_heads=4,temperature=2,final_temperature=1)"
    },
    "rtd-tiny": {"objective": "rtd(generator_layers=1,generator_hidden_size=64)"},
    "mlm-then-rtd": {"batch.objective_schedule": f'[[0.4, "{MLM}"], [1.0, "{RTD}"]]'},
}
SINGLE, PAIRS = ("cola", "sst-2"), ("mrpc", "sts-b", "rte")
METRIC = {"cola": "matthews", "sst-2": "accuracy", "mrpc": "f1", "sts-b": "spearman", "rte": "accuracy"}


def command(*words: Any, log: Path) -> float:
    """Run pretune with its output in a log file; return the seconds it took, or end with the end of the log."""
    start = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as stream:
        line = [sys.executable, "-m", "pretune", *map(str, words)]
        code = subprocess.run(line, stdout=stream, stderr=subprocess.STDOUT, check=False).returncode
    if code:
        print("\n".join([f"{log}: exit code {code}", *log.read_text(encoding="utf-8").splitlines()[-15:]]), flush=True)
        raise RuntimeError(f"{log} ended with exit code {code}")
    return time.monotonic() - start


def pilot(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Pretrain one pilot, and return its last metrics."""
    out = options.out / name
    settings = dict(PILOTS[name])
    words: list[Any] = ["pretrain", "pretune-15min", "--data", options.store, "--out", out, "--tokens", options.tokens]
    if objective := settings.pop("objective", ""):
        words += ["--objective", objective]
    for key, value in settings.items():
        words += ["--set", f"{key}={value}"]
    for one in options.set:
        words += ["--set", one]
    seconds = command(*words, log=options.out / f"{name}.log")
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    found = {key: value for line in lines for key, value in line.items()}
    line = {"pilot": name, **PILOTS[name], "wall_seconds": round(seconds), **found}
    shown = ("wall_seconds", "seconds", "tokens", "generator/accuracy", "rtd", "rtd/replaced", "rtd/recall", "dev/mlm")
    print(name, {key: round(line[key], 3) for key in shown if key in line}, flush=True)
    return line


def pilots(options: argparse.Namespace) -> None:
    """Run the pilots at the same time, and add their last metrics to a file of results."""
    names = options.names or list(PILOTS)
    with ThreadPoolExecutor(len(names)) as pool:
        for line in pool.map(lambda name: pilot(name, options), names):
            add_result(options.out / "pilots.jsonl", line | machine())


def write_nli(tasks: Path, out: Path) -> None:
    """Write the training pairs of MNLI and LingNLI, without those of LingNLI that MNLI has, into one table."""
    files = [tasks / "MNLI" / "train.tsv", *sorted((tasks / "LingNLI").glob("train_*.tsv"))]
    rows: dict[tuple[str, str], str] = {}
    for file in files:
        with file.open(encoding="utf-8") as stream:
            for row in csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE):
                if row["gold_label"] in ("entailment", "neutral", "contradiction"):
                    rows.setdefault((row["sentence1"], row["sentence2"]), row["gold_label"])
    with out.open("w", encoding="utf-8") as stream:
        stream.write("sentence1\tsentence2\tlabel\n")
        stream.writelines(f"{first}\t{second}\t{label}\n" for (first, second), label in rows.items())
    print(f"{out}: {len(rows):,} pairs")


def sentence_pairs(folder: Path, count: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """Yield pairs of texts that belong together, from a token store: adjacent sentences, and a sentence twice."""
    import numpy as np

    from pretune.text.store.store import Store

    store, chance = Store(folder), random.Random(seed)
    offsets, sentences = np.asarray(store.document_offsets), np.asarray(store.sentence_offsets)
    lengths = np.diff(sentences)
    good = (lengths >= 8) & (lengths <= 60)
    inside = np.ones(len(lengths), dtype=bool)
    inside[offsets[1:] - 1] = False  # the last sentence of a document has no next one
    adjacent = np.flatnonzero(inside[:-1] & good[:-1] & good[1:])
    for at in chance.sample(adjacent.tolist(), min(count, len(adjacent))):
        first, second = (store.tokenizer.decode(store.sentence(at + step).tolist()) for step in (0, 1))
        yield first, (first if chance.random() < 0.5 else second)


def write_pairs(options: argparse.Namespace) -> None:
    """Write pairs of texts that belong together, for contrastive learning, into a .jsonl file."""
    with options.pairs.open("w", encoding="utf-8") as stream:
        for first, second in sentence_pairs(options.store, options.count):
            stream.write(json.dumps({"text": first, "pair": second}, ensure_ascii=False) + "\n")


def vectors(model: str, tasks: Path) -> float:
    """Return Spearman's correlation, in percent, of scores and cosines on STS-B's dev set without training."""
    import numpy as np
    from scipy.stats import spearmanr

    import pretune

    with (tasks / "STS-B" / "dev.tsv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    loaded = pretune.load(model)
    first, second = (np.asarray(loaded.embed([row[key] for row in rows])) for key in ("sentence1", "sentence2"))
    cosines = (first * second).sum(-1) / np.linalg.norm(first, axis=-1) / np.linalg.norm(second, axis=-1)
    return 100 * float(spearmanr(cosines, [float(row["score"]) for row in rows]).statistic)


def score(model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Fine-tune a model on the five tasks with several seeds; return the medians, the scores by seed, and the seconds."""
    name = Path(model).name
    out, start = options.out / name, time.monotonic()
    settings = [word for one in options.set for word in ("--set", one)]

    def evaluate(beginning: str, *tasks: str) -> dict[str, Any]:
        folder = out / "-".join(tasks)
        command(
            "evaluate", beginning, "--suite", "glue", "--data", options.data, "--tasks", *tasks, "--num-seeds", options.seeds,
            "--epochs", options.epochs if tasks != ("sst-2",) else options.sst_epochs, "--devices", options.devices,
            "--out", folder, *settings, log=folder.with_suffix(".log"),
        )  # fmt: skip
        return json.loads((folder / "results.json").read_text())["tasks"]

    def evaluate_pairs() -> dict[str, Any]:
        tasks = [task for task in options.tasks if task in PAIRS]
        if options.nli is None or not tasks:
            return evaluate(model, *tasks) if tasks else {}
        command(
            "finetune", model, options.nli, "--text", "sentence1", "--pair", "sentence2", "--label", "label", "--strategy", "full",
            "--epochs", options.nli_epochs, "--no-report", "--out", out / "nli", *settings, log=out / "nli.log",
        )  # fmt: skip
        return evaluate(str(out / "nli"), *tasks)

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(evaluate_pairs)]
        jobs += [pool.submit(evaluate, model, task) for task in options.tasks if task in SINGLE]
        line: dict[str, Any] = {"model": name, "seeds": options.seeds, "settings": options.set}
        line["vectors"] = round(vectors(model, options.data), 2)
        found = {task: row for job in jobs for task, row in job.result().items()}
    line["scores"] = {task: [round(100 * x, 2) for x in found[task]["scores"][METRIC[task]]] for task in found}
    line["medians"] = {task: round(statistics.median(values), 2) for task, values in line["scores"].items()}
    line["mean"] = round(statistics.mean(line["medians"].values()), 2)
    line["wall_seconds"] = round(time.monotonic() - start)
    shown = ("model", "settings", "medians", "mean", "vectors", "wall_seconds")
    print(json.dumps({key: line[key] for key in shown}), flush=True)
    return line


def plot(run: Path, figure: Path) -> None:
    """Draw the losses and accuracies of a run against its seconds of training, as an .svg or .png file."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    lines = [line for line in lines if "seconds" in line]
    seconds = [line["seconds"] for line in lines]
    shown = {
        "cross-entropy": {
            "mlm": "masked tokens (15 to 30 %)",
            "generator": "generator",
            "cropping": "other crop of the passage",
        },
        "replaced tokens": {"rtd/recall": "found (recall)", "rtd/precision": "right when flagged (precision)"},
        "accuracy": {
            "mlm/accuracy": "masked tokens",
            "generator/accuracy": "generator",
            "cropping/accuracy": "other crop",
        },
    }
    panels = plt.subplots(1, 3, figsize=(13, 3.6), constrained_layout=True)[1]
    for panel, (title, names) in zip(panels, shown.items(), strict=True):
        for key, label in names.items():
            panel.plot(seconds, [line.get(key) for line in lines], label=label)
        panel.set(title=title, xlabel="seconds of training, compilation included", ylim=(0, None))
        panel.legend(frameon=False, fontsize=8)
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    plt.savefig(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    nli = verbs.add_parser("nli")
    nli.add_argument("tasks", type=Path)
    nli.add_argument("out", type=Path)
    pairs = verbs.add_parser("pairs")
    pairs.add_argument("store", type=Path)
    pairs.add_argument("pairs", type=Path)
    pairs.add_argument("--count", type=int, default=400_000)
    search = verbs.add_parser("pilots")
    search.add_argument("store", type=Path)
    search.add_argument("names", nargs="*")
    search.add_argument("--tokens", type=float, required=True)
    search.add_argument("--set", action="append", default=[])
    search.add_argument("--out", type=Path, required=True)
    curves = verbs.add_parser("plot")
    curves.add_argument("run", type=Path)
    curves.add_argument("figure", type=Path)
    scores = verbs.add_parser("score")
    scores.add_argument("models", nargs="+")
    scores.add_argument("--data", type=Path, required=True)
    scores.add_argument("--nli", type=Path)
    scores.add_argument("--nli-epochs", type=float, default=2)
    scores.add_argument("--tasks", nargs="+", default=[*SINGLE, *PAIRS])
    scores.add_argument("--seeds", type=int, default=5)
    scores.add_argument("--epochs", type=float, default=5)
    scores.add_argument("--sst-epochs", type=float, default=2)
    scores.add_argument("--devices", type=int, default=4, help="processes for each group of tasks")
    scores.add_argument("--set", action="append", default=[])
    scores.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.verb == "nli":
        write_nli(options.tasks, options.out)
    elif options.verb == "pairs":
        write_pairs(options)
    elif options.verb == "pilots":
        pilots(options)
    elif options.verb == "plot":
        plot(options.run, options.figure)
    else:
        options.out.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(len(options.models)) as pool:
            for line in pool.map(lambda model: score(model, options), options.models):
                add_result(options.out / "scores.jsonl", line | machine())


if __name__ == "__main__":
    main()
