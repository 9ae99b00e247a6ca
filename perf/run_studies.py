"""Run the studies of docs/studies on one device, several runs at once, and write their results next to the study files.

    python perf/run_studies.py list --at-once 12                     # the order, and what each study is estimated to cost
    python perf/run_studies.py run --minutes 25 --at-once 12 --out runs/studies
    python perf/run_studies.py run distillation locality --minutes 10 --out runs/studies
    python perf/run_studies.py results --out runs/studies            # summaries and plots of what is finished

Run it in a folder with data/ (see docs/studies/README.md). Runs of all studies share the device. Studies with a higher value per minute
come first; all of them get their first seeds (`--seeds`) before any gets more (up to `--more-seeds`). Interrupted runs begin again when the same
command is run again. A run that fails is a row of the results and does not stop the others.
The outcome of each run is appended to a file (`--save`) as soon as it is known; on a new machine, finished runs are restored from that file.
docs/studies/CLAIM/ gets summary.md, results.csv and scores.png of the seeds that are complete for all arms, and cost.json.

For a machine that takes a few megabytes at a time and lives for half an hour, whose folder HOME lives as long as the machine:

    python perf/run_studies.py pack .gpu-site/studies                # here; parts of at most 24 MiB
    python3 perf/run_studies.py unpack .gpu-site/studies HOME        # there; exit code 3 until all parts are there
    python3 perf/run_studies.py start HOME --minutes 24 --at-once 12 [--save outcomes.jsonl]     # detached from the call
    python3 perf/run_studies.py follow HOME --minutes 9 --out $OUT   # in each further call: copies outcomes.jsonl there
    python perf/run_studies.py results --save outcomes.jsonl --out runs/studies                  # here again

`toy OUT` writes tiny copies of all data, with which `run --divide 20000 --seeds 1` executes all studies on a CPU within minutes, to see
whether they run at all. Its results mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from detached import LOG, is_running, start_detached
from record_travel import MIB, unpack
from study_estimates import HEADER, Estimate, by_value, estimate, read_study_content
from study_pool import WorkerPool, start_mps, stop_mps
from study_schedule import Schedule, StudyState, make_execution, measure_latency
from study_travel import pack_studies, write_toy

from pretune.runtime.errors import PretuneError
from pretune.runtime.parsing import read_json
from pretune.runtime.recipe import merge_recipes
from pretune.studies.execution import LATENCY, STUDY, StudyExecution, check_same_study, known_outcome
from pretune.studies.study_file import FINETUNING, Study, parse_budgets, parse_study
from pretune.studies.study_run import Outcome, read_outcome
from pretune.training.run_folder import environment

STUDIES = Path(__file__).resolve().parents[1] / "docs" / "studies"
OUTCOMES, WHERE, TEXT = "outcomes.jsonl", "where.json", "text"
SAVED = (STUDY, WHERE, LATENCY, "runs/**/outcome.json")  # what is saved of a study
START_SECONDS = 240.0  # in which the workers must start
LATENCY_SECONDS = 12.0  # kept for each study that measures it, before the deadline
TOY_TOKENS = 256  # per step of a dry run
WAITING = 3  # exit code while parts are missing


def read_contents(names: Sequence[str], seeds: int | None, divide: float = 1.0) -> dict[str, dict[str, Any]]:
    """Return the contents of study files by name, with another number of seeds or budgets divided by a number."""
    chosen = names or sorted(file.stem for file in STUDIES.glob("*.yaml"))
    contents = {name: read_study_content(STUDIES / f"{name}.yaml", seeds) for name in chosen}
    return {name: toy_content(content, divide) for name, content in contents.items()} if divide != 1 else contents


def toy_content(content: dict[str, Any], divide: float) -> dict[str, Any]:
    """Return the content of a study file for a dry run: with budgets divided by a number, and small and few steps."""
    unit, amounts = parse_budgets(content["budget"], "study")
    stage = parse_study(content, "study").stage
    content = {**content, "budget": {unit: amounts[-1] / divide}}
    arms = [content.get("base") or {}, *(content.get("arms") or {}).values()]
    if any("pretrain" in (arm or {}) for arm in arms):
        content["base"] = merge_recipes(content.get("base") or {}, {"pretrain": {"batch": {"tokens": TOY_TOKENS}}})
    if "search" in content:
        content["search"] = {**content["search"], "lr": content["search"]["lr"][:2]}
    for arm in content.get("arms", {}).values():
        if "search" in (arm or {}):
            arm["search"] = {**arm["search"], "lr": arm["search"]["lr"][:2]}
    own: dict[str, Any] = {} if stage == FINETUNING else {"budget": {"steps": 2}}
    content["evaluations"] = {
        name: merge_recipes(one, {**own, "batch": {"size": 8}} if one["kind"] == "task" else {})
        for name, one in content["evaluations"].items()
    }
    return content


def read_saved(file: Path) -> dict[str, str]:
    """Return the saved files of studies, by their path below the folder of all studies."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    found = {}
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:  # it was cut off
            continue
        found[row["path"]] = row["content"]
    return found


def save_outcomes(name: str, out: Path, file: Path) -> None:
    """Append the outcomes of finished runs, and the study itself, if the file does not have them, and wait for the disk."""
    saved = read_saved(file)
    for path in [path for pattern in SAVED for path in sorted(out.glob(pattern))]:
        key = f"{name}/{path.relative_to(out).as_posix()}"
        content = path.read_text(encoding="utf-8")
        if saved.get(key) == content:
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        torn = file.is_file() and file.stat().st_size > 0 and not file.read_bytes().endswith(b"\n")
        with file.open("a", encoding="utf-8") as stream:
            stream.write("\n" * torn + json.dumps({"path": key, "content": content}) + "\n")
            stream.flush()
            os.fsync(stream.fileno())


def restore_outcomes(name: str, out: Path, file: Path) -> None:
    """Write the saved outcomes of a study into its folder, unless they are there, so that its runs are not repeated."""
    for key, content in read_saved(file).items():
        path = key.removeprefix(f"{name}/")
        if path != key and not (out / path).is_file():
            (out / path).parent.mkdir(parents=True, exist_ok=True)
            (out / path).write_text(content, encoding="utf-8")


def finished_outcomes(out: Path) -> list[Outcome]:
    """Return the outcomes of the finished runs of a study, without the trials of its search."""
    found = (read_outcome(path.parent) for path in sorted(out.glob("runs/*/*/seed-*/outcome.json")))
    return [outcome for outcome in found if outcome is not None]


def complete_seeds(study: Study, outcomes: list[Outcome]) -> int:
    """Return the number of first seeds for which every arm has an outcome at every budget."""
    done = {(outcome.arm, outcome.budget, outcome.seed) for outcome in outcomes}
    wanted = [(arm.name, budget) for arm in study.arms for budget in study.budgets]
    return next((n for n in range(study.seeds) if any((*one, n) not in done for one in wanted)), study.seeds)


def write_results(name: str, study: Study, out: Path, folder: Path) -> bool:
    """Write the results of the complete seeds of a study to a folder; return whether there are any."""
    from pretune.studies.execution import read_latency
    from pretune.studies.results import StudyResults
    from pretune.studies.study_report import render_summary
    from pretune.text.corpus.table_writer import table_writer

    outcomes = finished_outcomes(out)
    count = complete_seeds(study, outcomes)
    if not count:
        return False
    order = {arm.name: at for at, arm in enumerate(study.arms)}
    budgets = set(study.budgets)
    kept = [one for one in outcomes if one.seed < count and one.arm in order and one.budget in budgets]
    kept.sort(key=lambda one: (one.budget, one.seed, order[one.arm]))
    results = StudyResults(replace(study, seeds=count), tuple(kept), read_latency(out))
    folder.mkdir(parents=True, exist_ok=True)
    where = read_json(out / WHERE) if (out / WHERE).is_file() else environment()
    with table_writer(folder / "results.csv", safe=True) as write:
        write(results.rows())
    (folder / "summary.md").write_text(render_summary(results, where), encoding="utf-8")
    if results.metrics:
        draw_scores(results, folder / "scores.png")
    cost = {
        "date": where.get("date") or datetime.now(UTC).date().isoformat(),
        "commit": where.get("revision") or current_commit(),
        "device": where.get("gpu") or f"{where['machine']} CPU",
        "runs_at_once": where.get("at_once", 1),
        "seeds": count,
        "runs": len(kept),
        "failed_runs": sum(outcome.error is not None for outcome in kept),
        "seconds_of_runs": round(sum(outcome.seconds for outcome in kept)),
        "verdict": results.verdict,
        "headline": results.headline(),
    }
    (folder / "cost.json").write_text(json.dumps(cost, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return True


def current_commit() -> str:
    """Return the commit of this repository, or "" outside of a repository."""
    words = ["git", "rev-parse", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=STUDIES.parent).stdout.strip()


def draw_scores(results: Any, file: Path) -> None:
    """Draw the scores of all arms on each metric: one mark per seed, and a bar at the mean."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names, metrics = results.names, results.metrics
    figure, axes = plt.subplots(
        1, len(metrics), figsize=(1.5 + 3.2 * len(metrics), 1.2 + 0.35 * len(names)), squeeze=False
    )
    for axis, metric in zip(axes[0], metrics, strict=True):
        for at, name in enumerate(names):
            scores = results.scores(name, metric)
            axis.plot(scores, [at] * len(scores), "o", color="C0", alpha=0.6)
            if scores:
                axis.plot([sum(scores) / len(scores)], [at], "|", color="black", markersize=16)
        axis.set_yticks(range(len(names)), names if axis is axes[0][0] else [])
        axis.set_ylim(len(names) - 0.5, -0.5)
        axis.set_title(metric, fontsize=9)
    figure.tight_layout()
    figure.savefig(file, dpi=90)
    plt.close(figure)


def run(given: argparse.Namespace) -> bool:
    """Run the studies that were asked for until the deadline; return whether all of them are finished."""
    began = time.monotonic()
    contents = read_contents(given.names, given.more_seeds, given.divide)
    if given.divide == 1:
        order = [one.name for one in by_value(estimate_all(contents, given.seeds), given.at_once)]
    else:
        order = list(contents)
    save = given.save or given.out / OUTCOMES
    states = []
    for name in order:
        restore_outcomes(name, given.out / name, save)
        if given.retry_failed:
            forget_failures(given.out / name)
        content = {**contents[name], "seeds": max(given.seeds, contents[name].get("seeds", 3))}
        if given.at_once > 1 and parse_study(content, name).unit == "seconds":
            sys.exit(f"{name}: runs that share a device cannot have a budget in seconds; run it with --at-once 1.")
        if given.divide != 1:
            content["seeds"] = given.seeds
        execution = make_execution(content, given.out / name, given.out / TEXT, given.device)
        try:
            check_saved(execution)
        except PretuneError as error:
            print(f"{name}: skipped; {error}", flush=True)
            continue
        states.append(StudyState(name, execution, given.seeds))
    variables = start_mps() if given.mps else {}
    pool = WorkerPool(given.at_once, given.out / "logs", variables)
    try:
        try:
            where = describe_machine(pool)
        except (RuntimeError, TimeoutError) as error:
            if not variables:
                raise
            print(f"{error}; trying without MPS", flush=True)
            pool.close()
            stop_mps(variables)
            variables = {}
            pool = WorkerPool(given.at_once, given.out / "logs")
            where = describe_machine(pool)
        where |= {"at_once": given.at_once, "mps": bool(variables)}
        print(f"{given.at_once} runs at once, {'with' if variables else 'without'} MPS: {where['gpu']}", flush=True)

        def keep(state: StudyState) -> None:
            write_where(state.execution.out, where)
            save_outcomes(state.name, state.execution.out, save)

        def write(state: StudyState) -> None:
            keep(state)
            try_to_write(state, given.results)
            print(f"{state.name}: finished after {(time.monotonic() - began) / 60:.1f} minutes", flush=True)

        slow = sum(one.execution.measures_latency and not (one.execution.out / LATENCY).is_file() for one in states)
        deadline = began + 60 * given.minutes
        finished = Schedule(states, pool, keep, write).run(deadline - slow * LATENCY_SECONDS)
    finally:
        pool.close()
        stop_mps(variables)
    for state in states:  # alone, when nothing else runs
        if time.monotonic() + LATENCY_SECONDS / 2 < deadline:
            try:
                measure_latency(state)
            except Exception as error:  # the results do not depend on it
                print(f"{state.name}: the latency was not measured; {type(error).__name__}: {error}", flush=True)
            keep(state)
    for state in states:
        try_to_write(state, given.results)
    print(
        f"{'finished' if finished else 'not finished'} after {(time.monotonic() - began) / 60:.1f} minutes", flush=True
    )
    return finished


def try_to_write(state: StudyState, folder: Path) -> None:
    """Write the results of a study; an error is printed, because other studies must go on."""
    try:
        write_results(state.name, state.execution.study, state.execution.out, folder / state.name)
    except Exception as error:  # the outcomes are saved, so that the results can be written later
        print(f"{state.name}: the results were not written; {type(error).__name__}: {error}", flush=True)


def describe_machine(pool: WorkerPool) -> dict[str, Any]:
    """Return the versions and the device, as a worker sees them, so that this process needs no GPU memory."""
    pool.submit(pool.workers[0], "machine", "", environment)
    for ended in pool.poll(START_SECONDS):
        if ended.error is not None:
            raise RuntimeError(f"the workers do not start: {ended.error}; see the logs of the workers")
        return dict(ended.result)
    raise TimeoutError(f"the workers do not start within {START_SECONDS:.0f} seconds")


def check_saved(execution: StudyExecution) -> None:
    """Raise an error if the folder of a study has outcomes of a study with other settings."""
    check_same_study(execution.out, execution.content)
    for run in execution.main_runs({}):
        known_outcome(run)


def forget_failures(out: Path) -> None:
    """Delete the outcomes of the failed runs of a study, so that they are repeated."""
    for file in out.glob("runs/**/outcome.json"):
        outcome = read_outcome(file.parent)
        if outcome is not None and outcome.error is not None:
            shutil.rmtree(file.parent)


def write_where(out: Path, where: dict[str, Any]) -> None:
    """Write the description of the machine into the folder of a study, if it has outcomes."""
    if (out / STUDY).is_file() and not ((out / WHERE).is_file() and read_json(out / WHERE) == where):
        (out / WHERE).write_text(json.dumps(where, indent=1) + "\n", encoding="utf-8")


def estimate_all(contents: dict[str, dict[str, Any]], seeds: int) -> list[Estimate]:
    """Return the estimated costs of studies with a number of seeds."""
    return [estimate(name, {**content, "seeds": seeds}) for name, content in contents.items()]


def list_estimates(given: argparse.Namespace) -> None:
    """Print the estimated costs of studies, in the order in which they run."""
    found = by_value(estimate_all(read_contents(given.names, None), given.seeds), given.at_once)
    print(HEADER)
    print("\n".join(one.row(given.at_once) for one in found))
    alone, shared = (sum(one.minutes(count) for one in found) for count in (1, given.at_once))
    print(f"{'all':28} {'':5} {sum(one.runs for one in found):5} {alone:8.1f} {shared:8.1f}")


def write_all_results(given: argparse.Namespace) -> None:
    """Write the results of the outcomes in a file or folder."""
    save = given.save or given.out / OUTCOMES
    for name, content in read_contents(given.names, None, given.divide).items():
        out = given.out / name
        restore_outcomes(name, out, save)
        study = parse_study(content, name)
        seeds = max((outcome.seed + 1 for outcome in finished_outcomes(out)), default=study.seeds)
        done = write_results(name, replace(study, seeds=seeds), out, given.results / name)
        print(f"{name}: {'written' if done else 'no seed is complete'}", flush=True)


def start(given: argparse.Namespace) -> None:
    """Run the studies in a process that outlives this one, in the folder HOME, with a copy of the code."""
    home = given.home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    out = home / "studies"
    if given.save is not None and not (out / OUTCOMES).is_file():
        out.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(given.save, out / OUTCOMES)
    words = ["run", *given.names, "--minutes", str(given.minutes), "--at-once", str(given.at_once)]
    words += ["--seeds", str(given.seeds), "--out", str(out), "--results", str(home / "results")]
    words += ["--more-seeds", str(given.more_seeds)] if given.more_seeds is not None else []
    words += ["--divide", str(given.divide)] if given.divide != 1 else []
    words += ["--device", given.device] if given.device is not None else []
    words += [*([] if given.mps else ["--no-mps"]), *(["--retry-failed"] if given.retry_failed else [])]
    start_detached(home, "run_studies.py", words, ("src", "perf", "docs/studies"))


def follow(given: argparse.Namespace, pause: float = 2.0) -> None:
    """Copy outcomes and logs to a folder until the minutes are over or the studies have ended."""
    given.out.mkdir(parents=True, exist_ok=True)
    deadline, shown = time.monotonic() + 60 * given.minutes, 0
    while True:
        over = time.monotonic() >= deadline or not is_running(given.home)
        for file in (given.home / "studies" / OUTCOMES, given.home / LOG):
            if file.is_file():
                shutil.copyfile(file, given.out / file.name)
        log = given.home / LOG
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
        for line in lines[shown:]:
            print(line[:200], flush=True)
        shown = len(lines)
        if over:
            break
        time.sleep(pause)
    with (given.out / "workers.log").open("w", encoding="utf-8") as stream:
        for file in sorted((given.home / "studies" / "logs").glob("*.log")):
            text = file.read_text(encoding="utf-8", errors="replace")
            stream.write(f"== {file.name}\n{text[-20_000:]}\n")
    print("still running" if is_running(given.home) else "not running", flush=True)


def travel(given: argparse.Namespace) -> None:
    """Pack the data of studies, or write tiny copies of it."""
    studies = [parse_study(content, name) for name, content in read_contents(given.names, None).items()]
    if given.verb == "toy":
        write_toy(studies, given.folder)
        return
    with tempfile.TemporaryDirectory() as work:
        sizes = pack_studies(studies, Path(work), given.folder, given.corpus_mib, given.limit_mib)
    print(f"{given.folder}: {sizes['bytes'] / MIB:.1f} MiB in {sizes['parts']} parts, {sizes['packed'] / MIB:.1f} MiB")


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    shared = {"type": int, "default": 12, "help": "runs at a time, which share the GPU and the CPU cores"}
    for verb in ("list", "run", "results", "start", "pack", "toy"):
        found = verbs.add_parser(verb)
        if verb == "start":
            found.add_argument("home", type=Path)
        if verb in ("pack", "toy"):
            found.add_argument("folder", type=Path)
        if verb == "start":
            found.add_argument("--names", nargs="*", default=[], help="studies; by default all of docs/studies")
        else:
            found.add_argument("names", nargs="*", help="studies; by default all of docs/studies")
        if verb in ("list", "run", "start"):
            found.add_argument("--at-once", **shared)  # type: ignore[arg-type]
            found.add_argument("--seeds", type=int, default=3, help="of every study, before any gets more")
        if verb in ("run", "start"):
            found.add_argument("--minutes", type=float, default=25.0)
            found.add_argument("--retry-failed", action="store_true", help="repeat runs that have failed")
            found.add_argument("--more-seeds", type=int, help="of every study in the end; by default those of the file")
            found.add_argument("--no-mps", dest="mps", action="store_false", help="let workers take turns on the GPU")
        if verb in ("run", "results"):
            found.add_argument("--out", type=Path, default=Path("runs/studies"))
            found.add_argument("--results", type=Path, default=STUDIES, help="folder for the small files")
        if verb in ("run", "results", "start"):
            found.add_argument("--divide", type=float, default=1.0, help="divide all budgets, for a dry run")
            found.add_argument("--save", type=Path, help="file of outcomes; by default OUT/outcomes.jsonl")
        if verb in ("run", "start"):
            found.add_argument("--device", help="such as cpu")
    found = verbs.choices["pack"]
    found.add_argument("--corpus-mib", type=float, default=16.0, help="size of all corpora, which are thinned")
    found.add_argument("--limit-mib", type=float, default=24.0, help="size of a part")
    found = verbs.add_parser("unpack")
    found.add_argument("parts", type=Path)
    found.add_argument("home", type=Path)
    found = verbs.add_parser("follow")
    found.add_argument("home", type=Path)
    found.add_argument("--minutes", type=float, required=True)
    found.add_argument("--out", type=Path, required=True)
    return parser


def main(words: list[str] | None = None) -> None:
    """Run a command about the studies."""
    given = arguments().parse_args(words)
    match given.verb:
        case "list":
            list_estimates(given)
        case "run":
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            run(given)
        case "results":
            write_all_results(given)
        case "pack" | "toy":
            travel(given)
        case "unpack":
            if not unpack(given.parts, given.home):
                sys.exit(WAITING)
        case "start":
            start(given)
        case "follow":
            follow(given)


if __name__ == "__main__":
    main()
