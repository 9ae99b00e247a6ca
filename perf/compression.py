"""Measure compression on real tasks: quality, with controls and over seeds, and speed compared with fp32 `transformers`.

    python perf/compression.py train --model MODEL --data TASKS --text FILE --work DIR --out FILE [--minutes 9]
    python perf/compression.py int8 --data TASKS --work DIR --out FILE
    python perf/compression.py speed --work DIR [--task SST-2] [--threads 1 2] [--out FILE]
    python perf/compression.py table FILE…
    python perf/compression.py plot FILE… --out students.png

`train` is for a machine with a GPU. MODEL is a folder in the format of BERT or ALBERT, TASKS a folder with the official
files of CoLA, SST-2, MRPC, STS-B and RTE, or of NSMC and KorSTS; FILE is running text. Each line of --out is one
result; existing results are not repeated, so that the same command resumes where it stopped, after --minutes or an
interruption. Models that the other commands need stay in --work.

`int8` and `speed` are for a CPU with `pretune[export]`: they read the models of `train` in --work. `speed` measures one
text at a time, and batches of 32 texts of different lengths in the given order. `pipeline` is the pipeline of
`transformers`, from text to label; all others go from ids to logits. They alternate, and medians are reported. Without
--work, random models of --layers and --width are timed.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any

import torch
from common import add_result, machine, read_results, spread
from task_comparison import KOREAN, LENGTH, RATE, ROWS, TASKS, read

import pretune as pt
from pretune.compression import benchmark
from pretune.compression.benchmark import (
    BATCH_SIZE,
    WORDS,
    evaluate_quality,
    forward_pass,
    median_seconds,
    unsorted_batches,
)
from pretune.compression.layer_dropping import METHODS
from pretune.compression.task_model import TrainedModel
from pretune.families import find_family
from pretune.models.loading import load
from pretune.models.model import Model, Network
from pretune.models.presets import find_preset
from pretune.objectives import parse_objective
from pretune.runtime.output_paths import INTERMEDIATE

GLUE = ("RTE", "MRPC", "CoLA", "STS-B", "SST-2")
ALL_TASKS = (*GLUE, *KOREAN)
PARTS = ("teacher", "students", "inherited", "layers", "heads", "weights", "aware", "distilbert", "unlabeled")
LABELS = ("bad", "good")
SMALL = ("bert-tiny", "bert-mini", "bert-small")  # students of 4, 11 and 29 million parameters
PATIENT = {"match": "100*hidden(skip)"}
TAUGHT: dict[str, Any] = {"temperature": 5.0, "soft": 0.5}
TEACHER, AWARE, PKD = "teacher", "quantization-aware", "layers, PKD"
HEADS, FEW_TEACHER = "40 % of heads, trained again", "teacher, few labels"
KEPT = (TEACHER, HEADS, AWARE, FEW_TEACHER)  # these are used by others, like the students of PKD


# -- results --------------------------------------------------------------------------------------------------------


class TimeIsOver(Exception):  # noqa: N818
    """Raised when the time is over."""


class Results:
    """Results in a file, one line per name, task and seed."""

    def __init__(self, file: Path, minutes: float, model: str | None) -> None:
        self.file, self.ends, self.longest = file, time.monotonic() + 60 * minutes, 0.0
        self.model = Path(model).name if model else ""
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        self.known = {(row["name"], row["task"], row["seed"]) for row in map(json.loads, lines)}

    def note(self, name: str, task: str, seed: int, score: float, **facts: Any) -> None:
        """Add one result."""
        if (name, task, seed) in self.known:
            return
        self.known.add((name, task, seed))
        line = {"name": name, "task": task, "seed": seed, "score": score, "model": self.model, **facts, **machine()}
        add_result(self.file, line)
        print(f"{task:6} {seed} {name}: {score:.4f}", flush=True)

    def check_time(self) -> None:
        """Raise an error if less time is left than the longest job so far took."""
        if time.monotonic() + self.longest > self.ends:
            raise TimeIsOver


# -- training -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A task with a seed, its files, and a folder for its models."""

    task: str
    seed: int
    folder: Path
    model: str
    epochs: float
    rate: float

    @property
    def teacher(self) -> Path:
        return self.folder / TEACHER

    @property
    def columns(self) -> dict[str, str]:
        first = json.loads((self.folder / "dev.jsonl").open(encoding="utf-8").readline())
        return {role: role for role in ("text", "pair", "label") if role in first}

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings of all trainings."""
        return {
            "dev": self.folder / "dev.jsonl", "seed": self.seed, "optimizer": pt.Optimizer(lr=self.rate),
            "batch": pt.Batching(size=ROWS, max_length=LENGTH), "epochs": self.epochs, **self.columns,
        }  # fmt: skip

    @property
    def texts(self) -> Path | None:
        """Return the unlabeled texts, if there are any."""
        file = self.folder / "texts.txt"
        return file if file.is_file() and file.stat().st_size else None

    def tune(self, model: str | Path, out: Path, train: str = "train.jsonl", **more: Any) -> pt.Run:
        """Fine-tune without compression."""
        given = {**self.settings, "objective": TASKS[self.task].kind, "seeds": 1, "report": False, **more}
        return pt.finetune(model, self.folder / train, out=out, **given)

    def distill(self, student: str | Path, out: Path, teacher: Path | None = None, **more: Any) -> pt.Run:
        """Distill from the teacher, whose predictions for the rows are computed once for all students."""
        asked = self.folder / "labeled.npz"
        mine = out / INTERMEDIATE / "teacher-labeled.npz"
        if teacher is None and asked.is_file():
            mine.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(asked, mine)
        given = {**self.settings, "train": self.folder / "train.jsonl", **TAUGHT, **more}
        if TASKS[self.task].kind == "regress" or not given["soft"]:  # there are no probabilities to soften
            given = {name: value for name, value in given.items() if name not in ("temperature", "loss")}
        run = pt.distill(teacher or self.teacher, student=str(student), out=out, **given)
        if teacher is None and mine.is_file():
            shutil.copy(mine, asked)
        return run

    def prune(self, out: Path, **more: Any) -> pt.Run:
        """Prune the teacher."""
        return pt.prune(self.teacher, train=self.folder / "train.jsonl", out=out, **{**self.settings, **more})


Makes = Callable[[Case, Path], pt.Run]


def jobs_of(part: str, options: argparse.Namespace, results: Results) -> dict[str, Makes]:
    """Return the jobs of a part for each case, by name."""
    depth = load(options.model).backbone.depth
    small: dict[str, Any] = {"optimizer": pt.Optimizer(lr=6 * RATE)}  # independent of the teacher
    half, count = max(1, depth // 2), max(1, round(0.4 * depth))
    found: dict[str, Makes] = {}
    match part:
        case "teacher":
            found[TEACHER] = lambda case, out: case.tune(case.model, out)
            found["teacher, trained again"] = lambda case, out: case.tune(case.teacher, out)
        case "students":
            for layers in sorted({half, max(1, round(depth / 4))}, reverse=True):

                def start(layers: int = layers) -> Path:
                    return first_layers(options, layers, depth)

                found[f"{layers} layers, fine-tuned"] = lambda case, out, start=start: case.tune(start(), out)
                found[f"{layers} layers, KD"] = lambda case, out, start=start: case.distill(start(), out)
                found[f"{layers} {PKD}"] = lambda case, out, start=start: case.distill(start(), out, **PATIENT)
        case "inherited":
            ways: dict[str, dict[str, Any]] = {"fine-tuned": {"soft": 0.0}, "KD": {}, "PKD": PATIENT}
            for name, more in ways.items():
                found[f"{half} of the teacher's own layers, {name}"] = lambda case, out, more=more: case.distill(
                    f"layers={half}", out, **more
                )
        case "layers":
            for way in METHODS:
                drop = f"{way}({min(count, half) if way in ('even', 'odd') else count})"
                found[f"{drop} of {depth} layers dropped"] = lambda case, out, drop=drop: case.prune(
                    out, drop_layers=drop
                )
        case "heads":
            for share in (20, 40, 50):
                found[f"{share} % of heads, trained again"] = lambda case, out, share=share: case.prune(
                    out, heads=share / 100, epochs=1
                )
        case "weights":
            for share in (30, 50, 70, 80, 90):
                found[f"{share} % of weights"] = lambda case, out, share=share: case.prune(out, sparsity=share / 100)
        case "aware":
            found[AWARE] = lambda case, out: case.tune(case.teacher, out, epochs=1, strategy="full+int8")
        case "distilbert":
            found["DistilBERT, fine-tuned"] = lambda case, out: case.tune(
                task_agnostic_student(options, results, half), out
            )
            found["DistilBERT, KD"] = lambda case, out: case.distill(task_agnostic_student(options, results, half), out)
            found["every second layer, fine-tuned"] = lambda case, out: case.tune(
                task_agnostic_student(options, results, half) / INTERMEDIATE / "start", out
            )
        case _:
            found[FEW_TEACHER] = lambda case, out: few_teacher(case)
            for preset in options.small:

                def read_it(preset: str = preset) -> Path:
                    return pretrained_student(options, results, preset)

                found[f"{preset}, pretrained and fine-tuned"] = lambda case, out, start=read_it: case.tune(
                    start(), out, "few.jsonl", **{**small, "epochs": 3 * case.epochs}
                )
                found[f"{preset}, distilled"] = lambda case, out, preset=preset: distill_on_texts(
                    case, preset, out, **small
                )
                found[f"{preset}, pretrained and distilled"] = lambda case, out, start=read_it: distill_on_texts(
                    case, start(), out, **small
                )
    return found


def first_layers(options: argparse.Namespace, layers: int, depth: int) -> Path:
    """Return a model with the lower layers of a pretrained one, the initial student of PKD."""
    folder: Path = options.work / f"first-{layers}"
    if not is_finished(folder):
        pt.prune(options.model, drop_layers=f"top({depth - layers})", out=folder)
    return folder


def task_agnostic_student(options: argparse.Namespace, results: Results, layers: int) -> Path:
    """Return a student that was distilled on text."""
    folder: Path = options.work / "distilbert"
    if not is_finished(folder):
        results.check_time()
        pt.distill(
            options.model,
            student=f"layers={layers}",
            data=options.text,
            out=folder,
            **pretraining_settings(options, 3e-4),
        )
    return folder


def pretrained_student(options: argparse.Namespace, results: Results, preset: str) -> Path:
    """Return a small model that was pretrained for the same number of steps."""
    folder: Path = options.work / f"read-{preset}"
    if not is_finished(folder):
        results.check_time()
        given = pretraining_settings(options, 1e-3)
        pt.pretrain(preset, options.text, objective="mlm", tokenizer=options.model, out=folder, **given)
    return folder


def pretraining_settings(options: argparse.Namespace, rate: float) -> dict[str, Any]:
    """Return the settings of pretraining on running text."""
    batch = pt.Batching(tokens=options.tokens, max_length=LENGTH, microbatch_tokens=options.tokens)
    monitor = pt.Monitoring(save_every=0, eval_every=0)
    budget = pt.Budget(steps=options.reading)
    return {"budget": budget, "batch": batch, "monitor": monitor, "optimizer": pt.Optimizer(lr=rate)}


def few_teacher(case: Case) -> pt.Run:
    """Return a teacher that was fine-tuned on few labels."""
    folder = case.folder / FEW_TEACHER
    if is_finished(folder):
        return pt.Run(folder)
    return case.tune(case.model, folder, "few.jsonl", epochs=3 * case.epochs)


def distill_on_texts(case: Case, student: str | Path, out: Path, **more: Any) -> pt.Run:
    """Distill a student on few labels and many unlabeled texts."""
    given = {"train": case.folder / "few.jsonl", "unlabeled": case.texts, "loss": "mse", **more}
    return case.distill(student, out, few_teacher(case).folder, **given)


def is_finished(folder: Path) -> bool:
    """Return whether a run has finished, and remove it if not."""
    if (folder / "results.json").is_file() and (folder / "config.json").is_file():
        return True
    remove(folder)
    return False


def remove(folder: Path) -> None:
    """Remove a run."""
    shutil.rmtree(folder, ignore_errors=True)


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """Yield all tasks with all seeds."""
    for seed in options.seeds:
        for task in options.tasks:
            folder = options.work / f"{task}-{seed}"
            folder.mkdir(parents=True, exist_ok=True)
            train, dev = (read(task, options.data / file) for file in TASKS[task].files)
            random.Random(seed).shuffle(train)
            train = train[: options.rows]
            few, rest = train[: options.few], train[options.few :]
            files = {"train": train, "dev": dev[: options.judged], "few": few}
            for name, rows in files.items():
                (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            if "pair" not in train[0]:
                (folder / "texts.txt").write_text("".join(f"{row['text'].strip()}\n" for row in rest), encoding="utf-8")
            yield Case(task, seed, folder, options.model, options.epochs or TASKS[task].epochs, options.rate)


def train(options: argparse.Namespace) -> None:
    """Run one part after the other, for all cases."""
    benchmark.ROUNDS, benchmark.NUM_TEXTS = 1, 2  # `speed` measures times
    results = Results(options.out, options.minutes, options.model)
    all_cases = list(cases(options))
    try:
        for part in options.parts:
            for name, make_random_classifier in jobs_of(part, options, results).items():
                for case in all_cases:
                    if part != "unlabeled" or case.texts:
                        run_job(name, case, results, make_random_classifier, part in ("teacher", "unlabeled"))
    except TimeIsOver:
        print(f"{options.minutes:g} minutes are over; run the same command to resume", flush=True)
        return
    print("all done", flush=True)


def run_job(name: str, case: Case, results: Results, make_random_classifier: Makes, alone: bool) -> None:
    """Train a model, record its score, and keep it if others need it; `alone` means that it needs no teacher."""
    kept = name in KEPT or name.endswith(PKD)
    out = case.folder / (name if kept else "now")
    if (name, case.task, case.seed) in results.known:
        return
    results.check_time()
    if not alone and not is_finished(case.teacher):  # on a machine without earlier results
        case.tune(case.model, case.teacher)
    began = time.monotonic()
    if not is_finished(out) or not kept:
        remove(out)
        run = make_random_classifier(case, out)
    else:
        run = pt.Run(out)
    spent = time.monotonic() - began
    results.longest = max(results.longest, spent)
    metric = TASKS[case.task].metric
    found = run.results.get(f"dev/{metric}")
    found = score(out, case, metric) if found is None else found
    results.note(name, case.task, case.seed, found, metric=metric, seconds=spent, **sizes(out))
    if name.endswith("heads, trained again"):
        at_once = out / INTERMEDIATE / "pruned"
        results.note(
            name.replace("trained again", "at once"), case.task, case.seed, score(at_once, case, metric), metric=metric
        )
    remove(out / INTERMEDIATE if kept else out)


def score(folder: Path, case: Case, metric: str) -> float:
    """Return the dev score of the model in a folder."""
    trained = TrainedModel.load(folder)
    task = trained.require_task("it is scored")
    return evaluate_quality(trained.model, task, task.read(case.folder / "dev.jsonl", case.columns), LENGTH)[metric]


def pkd_students(folder: Path) -> list[str]:
    """Return the names of the students of PKD in a folder, the largest first."""
    found = [place.name for place in folder.glob(f"* {PKD}") if (place / "config.json").is_file()]
    return sorted(found, key=lambda name: -int(name.split()[0]))


def sizes(folder: Path) -> dict[str, float]:
    """Return the megabytes on disk and the millions of parameters."""
    count = sum(parameter.numel() for parameter in load(folder).root.parameters())
    return {"megabytes": benchmark.model_bytes(folder) / 1e6, "parameters": count / 1e6}


# -- int8 -----------------------------------------------------------------------------------------------------------


def int8(options: argparse.Namespace) -> None:
    """Quantize the models of `train`."""
    benchmark.ROUNDS, benchmark.NUM_TEXTS = 1, 2
    results = Results(options.out, options.minutes, options.model)
    ways = {"int8 dynamic": (TEACHER, "dynamic"), "int8 aware": (AWARE, "qat")}
    try:
        for case in cases(options):
            metric = TASKS[case.task].metric
            students = {f"{name}, int8": (name, "dynamic") for name in pkd_students(case.folder)}
            for name, (source, how) in (ways | students | {"int8 static": (TEACHER, "static")}).items():
                if not (case.folder / source / "config.json").is_file():
                    continue
                results.check_time()
                out = case.folder / name
                if (name, case.task, case.seed) not in results.known or not is_finished(out):
                    remove(out)
                    measured: Any = {"train": case.folder / "train.jsonl", **case.columns} if how == "static" else {}
                    pt.quantize(case.folder / source, method=how, out=out, **measured)  # type: ignore[arg-type]
                    results.note(
                        name,
                        case.task,
                        case.seed,
                        score(out, case, metric),
                        metric=metric,
                        megabytes=benchmark.model_bytes(out) / 1e6,
                    )
    except TimeIsOver:
        print(f"{options.minutes:g} minutes are over; run the same command to resume", flush=True)


# -- speed ----------------------------------------------------------------------------------------------------------


def some_texts(count: int, words: Sequence[str] = tuple(WORDS.split())) -> list[str]:
    """Return texts of 5 to 100 words."""
    chance = random.Random(0)
    return [" ".join(chance.choices(words, k=chance.randint(5, 100))) for _ in range(count)]


def make_random_classifier(folder: Path, layers: int, width: int) -> None:
    """Save a random BERT for two classes, with a tokenizer of the words of the texts."""
    text = folder.with_suffix(".txt")
    text.write_text("\n".join(some_texts(200)), encoding="utf-8")
    tokenizer = pt.train_tokenizer(str(text), kind="wordpiece", vocab_size=1000)
    family = find_family("bert", "bert")
    config = replace(
        family.read_config(find_preset("bert-base")["config"]), hidden_size=width, num_hidden_layers=layers,
        num_attention_heads=max(1, width // 64), intermediate_size=4 * width,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Model(family, config, Network(family.build(config)), tokenizer, "classify", list(LABELS))
    model.add_heads(parse_objective("classify", labels=LABELS).objectives)
    model.save(folder)


def words_of(folder: Path) -> list[str]:
    """Return the words of the texts of a task."""
    return [word for row in read_results([folder / "dev.jsonl"]) for word in row["text"].split()]


def task_folder(options: argparse.Namespace) -> Path:
    """Return the folder in which `train` left the models to time."""
    return options.work / f"{options.task}-{options.seeds[0]}"  # type: ignore[no-any-return]


def models_to_time(options: argparse.Namespace, folder: Path) -> dict[str, Path]:
    """Return the models to time by name: those of one task from `train`, or random ones."""
    if options.work is None:
        make_random_classifier(folder / "teacher", options.layers, options.width)
        pt.prune(folder / "teacher", drop_layers=f"top({options.layers - options.student})", out=folder / "student")
        found = {f"{options.layers} layers": folder / "teacher", f"{options.student} layers": folder / "student"}
    else:
        place = task_folder(options)
        names = (TEACHER, *pkd_students(place), HEADS)
        found = {name: place / name for name in names if (place / name / "config.json").is_file()}
    first = next(iter(found.values()))
    made = {f"ours, {name}, fp32": source for name, source in found.items()}
    pt.export(first, format="onnx", out=folder / "graph")
    made[f"ONNX Runtime, {next(iter(found))}, fp32"] = folder / "graph"
    for number, (name, source) in enumerate(found.items()):
        pt.quantize(source, out=folder / f"int8-{number}")
        made[f"ONNX Runtime, {name}, int8"] = folder / f"int8-{number}"
    pt.quantize(first, backend="torch", out=folder / "torch")
    return {**made, f"torch, {next(iter(found))}, int8": folder / "torch"}


def speed(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return rows with the system, threads, milliseconds for one text, and texts per second."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    benchmark.ROUNDS, benchmark.NUM_TEXTS = 1, 2  # of what the verbs measure themselves
    rows: list[dict[str, Any]] = []
    count = options.texts
    texts = some_texts(count) if options.work is None else some_texts(count, words_of(task_folder(options)))
    with TemporaryDirectory() as name:
        ours = models_to_time(options, Path(name))
        source = next(iter(ours.values()))
        pt.export(source, out=Path(name) / "peer")
        reference: Any = transformers.AutoModelForSequenceClassification.from_pretrained(Path(name) / "peer").eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(Path(name) / "peer")
        pipeline = transformers.pipeline("text-classification", model=reference, tokenizer=tokenizer, device="cpu")
        for threads in options.threads:
            torch.set_num_threads(threads)
            jobs: list[dict[str, Any]] = [{}, {}]
            for place, size in enumerate((1, BATCH_SIZE)):
                some = texts if size > 1 else texts[: max(1, count // 4)]
                parts = [some[first : first + size] for first in range(0, len(some), size)]
                ready = [tokenizer(part, return_tensors="pt", padding=True) for part in parts]
                jobs[place]["transformers, fp32"] = lambda ready=ready: [reference(**batch).logits for batch in ready]
                jobs[place]["transformers, pipeline"] = lambda some=some, size=size: pipeline(some, batch_size=size)
                for who, folder in ours.items():
                    trained = TrainedModel.load(folder)
                    run, batches = (
                        forward_pass(trained.model, trained.task),
                        unsorted_batches(trained.model, some, None, size),
                    )
                    jobs[place][who] = lambda run=run, batches=batches: [run(batch) for batch in batches]
            alone, together = (median_seconds(some, options.rounds) for some in jobs)
            singles = max(1, count // 4)
            for who in alone:
                folder = ours.get(who, source)
                rows.append(
                    {
                        "system": who, "threads": threads, "megabytes": benchmark.model_bytes(folder) / 1e6,
                        "ms for one": 1e3 * alone[who] / singles, "texts per second": count / together[who],
                        "speedup over transformers, one text": alone["transformers, pipeline"] / alone[who],
                        "speedup over transformers, batches": together["transformers, pipeline"] / together[who],
                    }
                )  # fmt: skip
    return rows


# -- tables ---------------------------------------------------------------------------------------------------------


def table(files: list[str]) -> None:
    """Print means over seeds by task, and the ratio to the mean of the teacher over all common tasks."""
    lines = read_results(files)
    found: dict[str, dict[str, list[float]]] = {}
    for row in lines:
        found.setdefault(row["name"], {}).setdefault(row["task"], []).append(row["score"])
    tasks = [task for task in ALL_TASKS if any(task in scores for scores in found.values())]
    print(f"| | {' | '.join(tasks)} | mean | of the teacher |")
    print("| --- |" + " --- |" * (len(tasks) + 2))
    whole = {task: mean(scores) for task, scores in found.get(TEACHER, {}).items()}
    for name, scores in found.items():
        cells = [100 * mean(scores[task]) if task in scores else None for task in tasks]
        beside = {task: f" ± {100 * stdev(values):.1f}" for task, values in scores.items() if len(values) > 1}
        both = [task for task in tasks if task in scores and task in whole]
        share = f"{mean(mean(scores[task]) for task in both) / mean(whole[task] for task in both):.1%}" if both else ""
        printed = [
            f"{cell:.1f}{beside.get(task, '')}" if cell is not None else ""
            for task, cell in zip(tasks, cells, strict=True)
        ]
        every = f"{mean(cell for cell in cells if cell is not None):.1f}" if None not in cells else ""
        print(f"| {name} | {' | '.join(printed)} | {every} | {share} |")


def plot(files: list[str], out: Path) -> None:
    """Plot students of all sizes by training method against their teacher; one panel per task, means over seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = read_results(files)
    ways = ("pretrained and fine-tuned", "distilled", "pretrained and distilled")
    found: dict[tuple[str, str], dict[float, list[float]]] = {}
    teachers: dict[str, list[float]] = {}
    for row in lines:
        preset, _, way = row["name"].partition(", ")
        if row["name"] == FEW_TEACHER:
            teachers.setdefault(row["task"], []).append(row["score"])
        elif way in ways and preset.startswith("bert-"):
            found.setdefault((row["task"], way), {}).setdefault(row["parameters"], []).append(row["score"])
    tasks = [task for task in ALL_TASKS if task in teachers]
    figure, axes = pyplot.subplots(1, len(tasks), figsize=(5 * len(tasks), 4), squeeze=False)
    for axis, task in zip(axes[0], tasks, strict=True):
        axis.axhline(mean(teachers[task]), color="0.6", linestyle="--", label="teacher")
        for way in ways:
            points = sorted(found.get((task, way), {}).items())
            at, scores = [size for size, _ in points], [scores for _, scores in points]
            axis.errorbar(at, [*map(mean, scores)], [*map(spread, scores)], fmt="o-", capsize=2, label=way)
        every = sorted({size for (one, _), some in found.items() if one == task for size in some})
        axis.set_xscale("log")
        axis.set_xticks(every, [f"{size:.0f}" for size in every])
        axis.minorticks_off()
        axis.set_xlabel("million parameters")
        axis.set_ylabel(TASKS[task].metric)
        axis.set_title(task)
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(out, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train", "int8", "speed", "table", "plot"])
    parser.add_argument("files", nargs="*")
    parser.add_argument("--model", help="a pretrained folder in the format of BERT")
    parser.add_argument("--data", type=Path, help="a folder of tasks")
    parser.add_argument("--text", help="running text, for task-agnostic students")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tasks", nargs="+", default=list(GLUE), choices=ALL_TASKS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--rows", type=int, default=10_000, help="maximum number of training rows")
    parser.add_argument("--judged", type=int, default=10_000, help="maximum number of dev rows")
    parser.add_argument("--few", type=int, default=2000, help="labeled rows; the others are used as unlabeled texts")
    parser.add_argument("--epochs", type=float, help="instead of the default of the task")
    parser.add_argument("--rate", type=float, default=RATE, help="learning rate of fine-tuning")
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--reading", type=int, default=1500, help="pretraining steps of task-agnostic students")
    parser.add_argument("--tokens", type=int, default=65536, help="tokens per pretraining step")
    parser.add_argument("--small", nargs="+", default=list(SMALL), help="presets of students")
    parser.add_argument("--task", default="SST-2", help="task of the models to time")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--student", type=int, default=6)
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    match options.what:
        case "table":
            table(options.files)
        case "plot":
            plot(options.files, options.out)
        case "train":
            train(options)
        case "int8":
            int8(options)
        case _:
            rows = [{**row, **machine()} for row in speed(options)]
            for row in rows:
                print(json.dumps({key: round(x, 3) if isinstance(x, float) else x for key, x in row.items()}))
            if options.out:
                options.out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
