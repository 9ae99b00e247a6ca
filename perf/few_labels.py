"""Measure what a few labels give: pretune's default fine-tuning beside other ways, on 16 public labeled sets.

    python perf/few_labels.py pack DATA --data few_labels.xz
    python perf/few_labels.py run --data few_labels.xz --models pretune-small-en MINILM --out results.jsonl [--jobs 8 --cores-per-job 2]
    python perf/few_labels.py table results.jsonl --page docs/measurements/few-labels.md

DATA is a folder with the official files; `pack` samples pools of training rows and fixed test rows into one small file.
Each run trains one method on 25, 100 or 400 labels and adds a line to the results; a run that fails adds a line with
its error. Runs that are there already are skipped, so the command may be stopped and repeated. Workers are pinned to
their cores, so that their seconds are seconds on so many cores.
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
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from common import add_result, machine, read_results
from few_labels_data import SOURCES, LabeledSet, pack, unpack
from few_labels_methods import LIBRARIES, METHODS, WITHOUT_MODEL, Trial, applies, score, without_labels

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
    """Yield the runs of the chosen sets, sizes, draws, models and methods, one draw of everything after the other."""
    for draw in range(options.draws):
        for n in options.sizes:
            for name in options.sets or sets:
                for method in options.methods:
                    if not applies(method, sets[name].kind):
                        continue
                    for model in ["-"] if method in WITHOUT_MODEL else options.models:
                        yield Job(Cell(name, Path(model).name, n, draw, method), model, options.setfit_max_steps)


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


def work(link: Connection, cores: list[int], data: Path, device: str, log: Path) -> None:
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
    about = {**machine(), "cpu": cpu_name(), "device": device, "cores": len(cores)}
    sets = unpack(data)
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
        self.arguments = (cores, options.data, options.device, options.out.with_suffix(f".{cores[0]}.log"))
        self.timeout = options.timeout
        self.process: Any = None

    def run(self, job: Job) -> dict[str, Any]:
        """Return the result of a job, or the line of its failure if the process died or took too long."""
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
        except EOFError:
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
    sets = unpack(options.data)
    if unknown := [name for name in options.sets or () if name not in sets]:
        sys.exit(f"There are no sets named {', '.join(unknown)}; choose from {', '.join(sets)}.")
    done = set()
    for line in read_results([options.out]) if options.out.exists() else []:
        if "error" not in line or not options.retry:
            done.add(Cell(*(line[key] for key in Cell._fields)))
    todo: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in plan(options, sets):
        if job.cell not in done:
            todo.put(job)
    total, start, lock, finished = todo.qsize(), time.monotonic(), threading.Lock(), 0
    print(f"{total} runs to do, {len(done)} lines in {options.out}", flush=True)
    os.environ |= {"OMP_NUM_THREADS": str(options.cores_per_job), "TOKENIZERS_PARALLELISM": "false"}
    os.environ |= {"PRETUNE_PROGRESS": "none", "HF_HUB_OFFLINE": "1"}
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""

    def serve(cores: list[int]) -> None:
        nonlocal finished
        worker = Worker(cores, options)
        while time.monotonic() - start < options.stop_after:
            try:
                job = todo.get_nowait()
            except queue.Empty:
                break
            line = worker.run(job)
            with lock:
                add_result(options.out, line)
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
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--sets", nargs="+", help=f"by default all: {', '.join(SOURCES)}")
    one.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    one.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    one.add_argument("--draws", type=int, default=5)
    one.add_argument("--jobs", type=int, default=1)
    one.add_argument("--cores-per-job", type=int, default=2)
    one.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    one.add_argument("--timeout", type=float, default=3600, help="seconds after which a run counts as failed")
    one.add_argument(
        "--stop-after", type=float, default=float("inf"), help="start no further runs after this many seconds"
    )
    one.add_argument("--retry", action="store_true", help="repeat runs that failed")
    one.add_argument(
        "--setfit-max-steps", type=int, default=-1, help="limit SetFit's steps; its default takes hours for 400 labels"
    )
    one.add_argument("--site", type=Path, help="folder of packages that are used where they are not installed")
    show = verbs.add_parser("table")
    show.add_argument("files", nargs="+", type=Path)
    show.add_argument(
        "--page", type=Path, help="write the page there, with figures beside it, instead of printing tables"
    )
    options = parser.parse_args()
    if options.verb == "pack":
        for name, data in pack(options.folder, options.data).items():
            print(f"{name}: {data.kind}, {len(data.pool)} rows to draw from, {len(data.test)} test rows")
    elif options.verb == "run":
        if options.site:
            sys.path.append(str(options.site.resolve()))
        run(options)
    else:
        from few_labels_table import summarize, write_page

        lines = read_results(options.files)
        if options.page:
            write_page(lines, options.page)
        else:
            print(summarize(lines))


if __name__ == "__main__":
    main()
