"""Measure what a few labels give: pretune's default fine-tuning beside other ways, on 16 public labeled sets.

    python perf/few_labels.py pack DATA --data few_labels.xz
    python perf/few_labels.py run --data few_labels.xz --models pretune-small-en MINILM [--minutes 20 --jobs 8 --cores-per-job 2]
    python perf/few_labels.py estimate --jobs 8 --minutes 25
    python perf/few_labels.py table --page docs/measurements/few-labels.md

DATA is a folder with the official files; `pack` samples pools of training rows and fixed test rows into one small file.
Each run trains one method on 25, 100 or 400 labels and adds a row to docs/measurements/few-labels.csv (or to --out), with seconds,
versions and machine; a run that fails adds a row with its error. Runs that are there already, with as many test rows, are skipped, so the command may be stopped
and repeated, and the results of several machines accumulate in one file. Runs are ordered so that those of a prefix are balanced over
sets, numbers of labels and models, and every method has run on the same rows; after `--minutes`, no further run is started. Workers are
pinned to their cores, so that their seconds are seconds on so many cores.

In parts on another machine, which has PyTorch, transformers, datasets, scikit-learn and sentence-transformers, but no package index:
lay out the missing packages, the data and MiniLM in a folder that git ignores. If no more than 64 MiB travel at a time (the repository
has 32), MiniLM's 44 MB go in two parts, in two calls that follow one another at once:

    pip install --no-deps --target .gpu-site/packages pydantic pydantic-core cyclopts sentencex setfit evaluate
    mkdir -p .gpu-site/first .gpu-site/second
    python perf/few_labels.py pack .data/data --data .gpu-site/first/few_labels.xz
    cp .data/weights/minilm-l6-en/config.json .data/weights/minilm-l6-en/tokenizer.json .gpu-site/first/
    head -c 20000000 .data/weights/minilm-l6-en/model.safetensors > .gpu-site/first/weights
    tail -c +20000001 .data/weights/minilm-l6-en/model.safetensors > .gpu-site/second/weights

The first call carries .gpu-site/packages and .gpu-site/first, and runs `ls .gpu-site`; the second one carries .gpu-site/second. It, and every later
call on the same machine, runs the following, with the results so far in .gpu-site/second/few_labels.csv:

    mkdir -p .gpu-site/minilm-l6-en; cp .gpu-site/first/*.json .gpu-site/minilm-l6-en/; cp .gpu-site/second/*.csv $OUT/ 2>/dev/null
    cat .gpu-site/first/weights .gpu-site/second/weights > .gpu-site/minilm-l6-en/model.safetensors
    PYTHONPATH=src:.gpu-site/packages python perf/few_labels.py run --data .gpu-site/first/few_labels.xz --device cpu --jobs 8 \
        --cores-per-job 2 --models pretune-small-en .gpu-site/minilm-l6-en --methods ours embed+LR TF-IDF+LR SetFit Trainer majority \
        --setfit-max-steps 400 --minutes 7 --out $OUT/few_labels.csv

With `--device cuda`, all jobs share the GPU; `--jobs 16 --cores-per-job 1 --device cuda` suits a machine with 16 cores. Try both for a
minute, look at what a method's import lacks in the column `error` (add it with pip), and keep the one that finishes more.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import platform
import queue
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any, NamedTuple

from common import machine
from few_labels_data import SOURCES, TEST, LabeledSet, pack, unpack
from few_labels_methods import LIBRARIES, METHODS, WITHOUT_MODEL, Trial, applies, score, without_labels
from few_labels_results import RESULTS, add_row, read_rows

SIZES = (25, 100, 400)


class Cell(NamedTuple):
    """The coordinates of one run."""

    set: str
    model: str  # the folder's name; "-" for methods without a model
    n: int
    draw: int
    method: str


class Job(NamedTuple):
    """One run and what a worker needs for it."""

    cell: Cell
    model: str  # a folder or the name of a bundled model
    setfit_max_steps: int


def plan(options: argparse.Namespace, sets: dict[str, LabeledSet]) -> Iterator[Job]:
    """Yield the runs of the chosen sets, sizes, draws, models and methods, balanced in every prefix.

    One pass over the sets follows the other; in each, a set has another combination of size and model than its neighbors.
    All methods of a combination follow one another. The next draw begins when all combinations of this one are through.
    """
    combinations = [(n, model) for n in options.sizes for model in options.models]
    names = list(options.sets or sets)
    for draw in range(options.draws):
        alone = set[Cell]()  # runs without a model, which all models share
        for shift in range(len(combinations)):
            for at, name in enumerate(names):
                n, model = combinations[(shift + at) % len(combinations)]
                for method in options.methods:
                    cell = Cell(name, "-" if method in WITHOUT_MODEL else Path(model).name, n, draw, method)
                    if applies(method, sets[name].kind) and cell not in alone:
                        alone |= {cell} if method in WITHOUT_MODEL else set()
                        yield Job(cell, model, options.setfit_max_steps)


def run_job(job: Job, data: LabeledSet, device: str) -> dict[str, Any]:
    """Train one method on one draw, predict the test rows, and return the line of its result."""
    cell = job.cell
    line: dict[str, Any] = {**cell._asdict(), "kind": data.kind, "test_rows": len(data.test)}
    rows = data.draw(cell.n, cell.draw)
    baseline = METHODS["majority"](Trial(data.kind, rows, "-", 0, "cpu", Path()))
    line["majority"] = first(score(data.kind, baseline(data.test), data.test))
    try:
        for library in LIBRARIES[cell.method]:
            importlib.import_module(library)  # not part of the time
        start, busy = time.perf_counter(), sum(os.times()[:4])
        with TemporaryDirectory() as folder:
            trial = Trial(data.kind, rows, job.model, cell.draw, device, Path(folder), job.setfit_max_steps)
            predict = METHODS[cell.method](trial)
            line["seconds"] = round(time.perf_counter() - start, 3)
            line["cpu_seconds"] = round(sum(os.times()[:4]) - busy, 2)  # of all cores, with child processes
            predictions = predict(without_labels(data.test))
            line["predict_seconds"] = round(time.perf_counter() - start - line["seconds"], 3)
        scores = score(data.kind, predictions, data.test)
        line |= {"score": first(scores), **scores}
    except Exception as problem:
        line |= {"error": f"{type(problem).__name__}: {problem}"[:500], "traceback": traceback.format_exc()[-2000:]}
    if cell.method == "SetFit" and job.setfit_max_steps > 0:
        line["setfit_max_steps"] = job.setfit_max_steps
    return line


def first(scores: dict[str, float]) -> float:
    """Return the score that counts."""
    return next(iter(scores.values()))


def work(link: Connection, cores: list[int], data: Path, test_rows: int, device: str, log: Path) -> None:
    """Run the jobs that arrive over `link`, on these cores only, and send back their results."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    stream = log.open("a", encoding="utf-8")
    os.dup2(stream.fileno(), 1)  # what the libraries print
    os.dup2(stream.fileno(), 2)
    import torch
    import transformers

    torch.set_num_threads(len(cores))
    transformers.logging.set_verbosity_error()
    about: dict[str, Any] = {**machine(), "cpu": cpu_name(), "device": device, "cores": len(cores)}
    if find_spec("setfit"):
        about["setfit"] = version("setfit")
    sets = {name: replace(one, test=one.test[:test_rows]) for name, one in unpack(data).items()}
    while (job := link.recv()) is not None:
        link.send({**run_job(job, sets[job.cell.set], device), **about})


def cpu_name() -> str:
    """Return the model name of the processor, or its architecture if the system does not say."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


class Worker:
    """A process that runs jobs on its own cores; it is started anew after a crash or a timeout."""

    def __init__(self, cores: list[int], options: argparse.Namespace) -> None:
        log = Path(gettempdir()) / f"{options.out.stem}.{cores[0]}.log"
        self.arguments = (cores, options.data, options.test_rows, options.device, log)
        self.timeout = options.timeout
        self.process: Any = None

    def run(self, job: Job) -> dict[str, Any]:
        """Return the result of a job, or the row of its failure if the process died or took too long."""
        if self.process is None:
            context = multiprocessing.get_context("spawn")
            self.link, other = context.Pipe()
            self.process = context.Process(target=work, args=(other, *self.arguments), daemon=True)
            self.process.start()
            other.close()
        self.link.send(job)
        try:
            if self.link.poll(self.timeout):
                return self.link.recv()
            error = f"took more than {self.timeout} seconds"
        except (EOFError, ConnectionResetError):
            self.process.join()
            error = f"the process ended with exit code {self.process.exitcode}"
        self.process.kill()
        self.process = None
        return {**job.cell._asdict(), "error": error}

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()


def run(options: argparse.Namespace) -> None:
    """Run what is not yet in the file of results, several workers at a time."""
    if missing := [library for library in ("torch", "transformers") if find_spec(library) is None]:
        sys.exit(f"This Python lacks {' and '.join(missing)}; run the benchmark in the environment of the package.")
    sets = unpack(options.data)
    if unknown := [name for name in options.sets or () if name not in sets]:
        sys.exit(f"There are no sets named {', '.join(unknown)}; choose from {', '.join(sets)}.")
    done = set()
    for line in read_rows([options.out]) if options.out.exists() else []:
        wanted = min(options.test_rows, len(sets[line["set"]].test))
        failed_before = "error" in line and options.retry
        if line.get("test_rows", wanted) >= wanted and not failed_before:
            done.add(Cell(*(line[key] for key in Cell._fields)))
    todo: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in plan(options, sets):
        if job.cell not in done:
            todo.put(job)
    total, start, lock, finished = todo.qsize(), time.monotonic(), threading.Lock(), 0
    print(f"{total} runs to do, {len(done)} rows in {options.out}", flush=True)
    os.environ |= {"OMP_NUM_THREADS": str(options.cores_per_job), "TOKENIZERS_PARALLELISM": "false"}
    os.environ |= {"PRETUNE_PROGRESS": "none", "HF_HUB_OFFLINE": "1"}
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""

    def serve(cores: list[int]) -> None:
        nonlocal finished
        worker = Worker(cores, options)
        while time.monotonic() - start < 60 * options.minutes:
            try:
                job = todo.get_nowait()
            except queue.Empty:
                break
            line = worker.run(job)
            with lock:
                add_row(options.out, line)
                finished += 1
                result = line["error"] if "error" in line else f"{line['score']:.3f} in {line['seconds']:.1f} s"
                print(f"[{finished}/{total}] {' | '.join(map(str, job.cell))}: {result}", flush=True)
        worker.close()

    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    per = min(options.cores_per_job, len(cores))
    if options.jobs * per > len(cores):
        print(f"warning: {options.jobs} jobs of {per} cores share {len(cores)} cores, so their seconds are too long")
    chosen = [[cores[(job * per + i) % len(cores)] for i in range(per)] for job in range(options.jobs)]
    threads = [threading.Thread(target=serve, args=(share,), daemon=True) for share in chosen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{finished} of {total} runs done in {time.monotonic() - start:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    packing = verbs.add_parser("pack")
    packing.add_argument("folder", type=Path)
    packing.add_argument("--data", type=Path, required=True)
    one = verbs.add_parser("run")
    one.add_argument("--data", type=Path, required=True, help="the file that `pack` wrote")
    one.add_argument("--models", nargs="+", required=True, help="bundled models and folders in the Hugging Face layout")
    one.add_argument("--out", type=Path, default=RESULTS, help="results to continue, by default %(default)s")
    one.add_argument("--sets", nargs="+", help=f"by default all: {', '.join(SOURCES)}")
    one.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    one.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    one.add_argument("--draws", type=int, default=5)
    one.add_argument("--test-rows", type=int, default=TEST, help="at most so many test rows, for a quick look")
    one.add_argument("--jobs", type=int, default=1)
    one.add_argument("--cores-per-job", type=int, default=2)
    one.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    one.add_argument("--timeout", type=float, default=3600, help="seconds after which a run counts as failed")
    one.add_argument("--minutes", type=float, default=float("inf"), help="start no further run after so many minutes")
    one.add_argument("--retry", action="store_true", help="repeat runs that failed")
    one.add_argument(
        "--setfit-max-steps", type=int, default=-1, help="limit SetFit's steps; its default takes hours for 400 labels"
    )
    guess = verbs.add_parser("estimate")
    guess.add_argument("files", nargs="*", type=Path, default=[RESULTS])
    guess.add_argument("--jobs", type=int, default=8)
    guess.add_argument("--minutes", type=float, default=25)
    guess.add_argument("--speed", type=float, default=1.0, help="of a job there, as a multiple of that of the results")
    show = verbs.add_parser("table")
    show.add_argument("files", nargs="*", type=Path, default=[RESULTS])
    show.add_argument(
        "--page", type=Path, help="write the page there, with figures beside it, instead of printing tables"
    )
    options = parser.parse_args()
    if options.verb == "pack":
        for name, data in pack(options.folder, options.data).items():
            print(f"{name}: {data.kind}, {len(data.pool)} rows to draw from, {len(data.test)} test rows")
    elif options.verb == "run":
        run(options)
    else:
        from few_labels_table import estimate, summarize, write_page

        rows = read_rows(options.files)
        if options.verb == "estimate":
            print(estimate(rows, options.jobs, options.minutes, options.speed))
        elif options.page:
            write_page(rows, options.page)
        else:
            print(summarize(rows))


if __name__ == "__main__":
    main()
