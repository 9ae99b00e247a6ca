"""Run the studies of docs/studies on one device, several runs at once, and write their results next to the study files.

    python perf/run_studies.py list --at-once 14                     # the order, and what each study is estimated to cost
    python perf/run_studies.py run --minutes 16 --at-once 14 --out runs/studies
    python perf/run_studies.py run distillation locality --minutes 10 --out runs/studies
    python perf/run_studies.py results --out runs/studies            # pages and plots of what is finished, and verdicts.md

Run it in a folder with data/ (see docs/studies/README.md). Runs of all studies share the device. Studies of claims that no measurement
answers come first; all studies get their first seeds (`--seeds`) before any gets more (up to `--more-seeds`). Interrupted runs begin again when
the same command is run again. A run that fails is a row of the results and does not stop the others.
The outcome of each run is appended to a file (`--save`) as soon as it is known; on a new machine, finished runs are restored from that file.
docs/studies/CLAIM/ gets summary.md, results.csv and scores.png of the seeds that are complete for all arms, and cost.json.

For a machine that takes a few megabytes at a time and lives for half an hour, whose folder HOME lives as long as the machine:

    python perf/run_studies.py pack .gpu-site/studies                # here; parts of at most 24 MiB
    python3 perf/run_studies.py unpack .gpu-site/studies HOME        # there; exit code 3 until all parts are there
    python3 perf/run_studies.py start HOME --smoke --minutes 2 --at-once 14     # a test of every arm, detached from the call
    python3 perf/run_studies.py start HOME --minutes 16 --at-once 14 [--save outcomes.jsonl]
    python3 perf/run_studies.py follow HOME --minutes 9 --out $OUT   # after each start: prints, and copies outcomes.jsonl there
    python perf/run_studies.py results --save outcomes.jsonl --out runs/studies                  # here again

`--smoke` executes every arm and every evaluation with few steps of the real size, prints what failed, and projects the time of the real run.
Its outcomes go to a folder of their own (HOME/smoke) and never become results.
`toy OUT` writes tiny copies of all data, with which `run --divide 50000 --seeds 1` executes all studies on a CPU within minutes, to see
whether they run at all. Its results mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from detached import LOG, is_running, start_detached
from record_travel import MIB, unpack
from study_estimates import HEADER, Estimate, estimate, in_order, read_study_content, whole_seconds
from study_pages import StudyPage, finished_outcomes, read_page, write_page, write_verdicts
from study_pool import WorkerPool, start_mps, stop_mps, warm_up
from study_schedule import Schedule, StudyState, make_execution, measure_latency
from study_smoke import project_all, smoke_content, toy_content
from study_travel import pack_studies, write_toy

from pretune.runtime.errors import PretuneError
from pretune.runtime.parsing import read_json
from pretune.studies.ensembles import ENSEMBLES
from pretune.studies.execution import LATENCY, STUDY, StudyExecution, check_same_study, known_outcome
from pretune.studies.study_file import parse_budgets, parse_study
from pretune.studies.study_run import TRACEBACK, read_outcome

STUDIES = Path(__file__).resolve().parents[1] / "docs" / "studies"
OUTCOMES, WHERE, TEXT, CACHE, FOLLOWED = "outcomes.jsonl", "where.json", "text", "cache", "followed"
SAVED = (STUDY, WHERE, LATENCY, ENSEMBLES, "runs/**/outcome.json")  # what is saved of a study
START_SECONDS = 100.0  # in which the workers must start
LATENCY_SECONDS = 12.0  # kept for each study that measures it, before the deadline
JOB_SECONDS = 240.0  # after which a job on a GPU counts as crashed
WAITING = 3  # exit code while parts are missing
FAILED = 1  # exit code of a smoke test in which something failed
CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}


def read_contents(names: Sequence[str], seeds: int | None, scale: float = 1.0) -> dict[str, dict[str, Any]]:
    """Return the contents of study files by name, with another number of seeds, and budgets multiplied by a number."""
    chosen = names or sorted(file.stem for file in STUDIES.glob("*.yaml"))
    contents = {name: read_study_content(STUDIES / f"{name}.yaml", seeds) for name in chosen}
    for content in contents.values() if scale != 1 else ():
        unit, amounts = parse_budgets(content["budget"], "study")
        content["budget"] = {unit: [scale * amount for amount in amounts]}
    return contents


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


def run(given: argparse.Namespace) -> bool:
    """Run the studies that were asked for until the deadline; return whether all of them are finished without a failure."""
    began = time.monotonic()
    contents = read_contents(given.names, given.more_seeds, given.scale)
    save, shared = given.save or given.out / OUTCOMES, given.shared or given.out
    cache = {name: str((shared / CACHE / folder).resolve()) for name, folder in CACHES.items()}
    variables = start_mps() if given.mps else {}
    pool = start_workers(given, cache | variables)
    try:
        states = list_states(given, contents, save, shared / TEXT)  # while the workers start
        try:
            where = describe_workers(pool)
        except (RuntimeError, TimeoutError) as error:
            if not variables:
                raise
            print(f"{error}; trying without MPS", flush=True)
            pool.close()
            stop_mps(variables)
            variables = {}
            pool = start_workers(given, cache)
            where = describe_workers(pool)
    except BaseException:
        pool.close()
        stop_mps(variables)
        raise
    where |= {"at_once": given.at_once, "mps": bool(variables)}
    where["revision"] = where["revision"] or given.commit
    print(
        f"{given.at_once} runs at once, {'with' if variables else 'without'} MPS: {where['gpu'] or 'no GPU'}",
        flush=True,
    )
    print(f"the workers started after {time.monotonic() - began:.0f} seconds", flush=True)
    try:

        def keep(state: StudyState) -> None:
            write_where(state.execution.out, where)
            save_outcomes(state.name, state.execution.out, save)

        def finish(state: StudyState) -> None:
            keep(state)
            print(f"{state.name}: finished after {(time.monotonic() - began) / 60:.1f} minutes", flush=True)

        slow = sum(one.execution.measures_latency and not (one.execution.out / LATENCY).is_file() for one in states)
        deadline = began + 60 * given.minutes
        schedule = Schedule(states, pool, keep, finish)
        limit = JOB_SECONDS if where["gpu"] else None
        finished = schedule.run(deadline - slow * LATENCY_SECONDS, limit=limit)
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
    if given.smoke:
        print_projection(contents, states, given.seeds, given.at_once)
    else:
        pages = [page for state in states if (page := try_to_write(state, given.results)) is not None]
        write_verdicts(pages, given.results)
        for state in states:
            keep(state)  # the scores of ensembles
    print_failures(schedule.failed, states)
    minutes = (time.monotonic() - began) / 60
    print(f"{'finished' if finished else 'not finished'} after {minutes:.1f} minutes", flush=True)
    return finished and not schedule.failed


def list_states(
    given: argparse.Namespace, contents: Mapping[str, dict[str, Any]], save: Path, text: Path
) -> list[StudyState]:
    """Return the states of the studies that are to run, in their order, with the outcomes that were saved before."""
    order = list(contents)
    if given.smoke:  # those with the slowest runs first
        found = estimate_all(contents, given.seeds)
        order = [one.name for one in sorted(found, key=lambda one: -one.host_seconds / one.runs)]
    elif given.divide == 1:
        order = [one.name for one in in_order(estimate_all(contents, given.seeds), given.at_once)]
    states = []
    for name in order:
        restore_outcomes(name, given.out / name, save)
        if given.retry_failed:
            forget_failures(given.out / name)
        content, seeds = contents[name], given.seeds
        if given.smoke:
            content, seeds = smoke_content(content), 1
        elif given.divide != 1:
            content = {**toy_content(content, given.divide), "seeds": given.seeds}
        else:
            content = {**content, "seeds": max(given.seeds, content.get("seeds", 3))}
        if given.at_once > 1 and parse_study(content, name).unit == "seconds":
            sys.exit(f"{name}: runs that share a device cannot have a budget in seconds; run it with --at-once 1.")
        execution = make_execution(content, given.out / name, text, given.device)
        try:
            check_saved(execution)
        except PretuneError as error:
            print(f"{name}: skipped; {error}", flush=True)
            continue
        states.append(StudyState(name, execution, seeds))
    return states


def start_workers(given: argparse.Namespace, variables: Mapping[str, str]) -> WorkerPool:
    """Start the workers, and let all of them import what they need and use the GPU."""
    pool = WorkerPool(given.at_once, given.out / "logs", variables)
    for worker in pool.workers:
        pool.submit(worker, f"start {worker.number}", "", warm_up)
    return pool


def describe_workers(pool: WorkerPool) -> dict[str, Any]:
    """Wait until all workers have started, and return the description of the machine that the first of them gives."""
    deadline, found = time.monotonic() + START_SECONDS, list[dict[str, Any]]()
    while len(found) < pool.size:
        for ended in pool.poll(1.0):
            if ended.error is not None:
                raise RuntimeError(f"a worker does not start: {ended.error}; see the logs of the workers")
            found.append(dict(ended.result))
        if time.monotonic() > deadline:
            raise TimeoutError(f"{pool.size - len(found)} workers do not start within {START_SECONDS:.0f} seconds")
    return found[0]


def print_projection(
    contents: Mapping[str, dict[str, Any]], states: Sequence[StudyState], seeds: int, at_once: int
) -> None:
    """Print how long the studies are projected to take, by the speed of the smoke test."""
    outcomes = {state.name: finished_outcomes(state.execution.out) for state in states}
    known = {name: contents[name] for name in outcomes}
    found = project_all(known, outcomes, seeds)
    print("projected seconds of one worker:", ", ".join(f"{name} {seconds:.0f}" for name, seconds in found.items()))
    print(
        f"projected seconds of all studies, {at_once} at once, {seeds} seeds: {sum(found.values()) / at_once:.0f}",
        flush=True,
    )


def print_failures(failed: Sequence[str], states: Sequence[StudyState]) -> None:
    """Print the failed jobs, and the last lines of the tracebacks of failed runs."""
    print(f"{len(failed)} jobs failed", *failed, sep="\n  ", flush=True)
    for state in states:
        for file in sorted(state.execution.out.glob(f"runs/**/{TRACEBACK}")):
            outcome = read_outcome(file.parent)
            if outcome is not None and outcome.error is not None:
                lines = file.read_text(encoding="utf-8").strip().splitlines()
                print(f"== {state.name} {outcome.arm}", *lines[-14:], sep="\n", flush=True)


def try_to_write(state: StudyState, folder: Path) -> StudyPage | None:
    """Write the results of a study; an error is printed, because other studies must go on."""
    try:
        state.execution.measure_ensembles()
        page = read_page(state.name, state.execution.study, state.execution.out)
        if page is not None:
            write_page(page, folder / state.name)
        return page
    except Exception as error:  # the outcomes are saved, so that the results can be written later
        print(f"{state.name}: the results were not written; {type(error).__name__}: {error}", flush=True)
        return None


def check_saved(execution: StudyExecution) -> None:
    """Raise an error if the folder of a study has outcomes of a study with other settings."""
    check_same_study(execution.out, execution.content)
    for one in execution.main_runs({}):
        known_outcome(one)


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


def estimate_all(contents: Mapping[str, dict[str, Any]], seeds: int) -> list[Estimate]:
    """Return the estimated costs of studies with a number of seeds."""
    return [estimate(name, {**content, "seeds": seeds}) for name, content in contents.items()]


def list_estimates(given: argparse.Namespace) -> None:
    """Print the estimated costs of studies, in the order in which they run."""
    found = in_order(estimate_all(read_contents(given.names, None, given.scale), given.seeds), given.at_once)
    print(HEADER)
    print("\n".join(one.row(given.at_once) for one in found))
    sums = [sum(getattr(one, name) for one in found) for name in ("runs", "trials")]
    costs = [sum(getattr(one, f"{name}_seconds") for one in found) for name in ("training", "scoring", "host")]
    whole = [whole_seconds(found, given.at_once), whole_seconds(found, given.at_once, 1.0)]
    print(
        f"{'all':40} {sums[0]:5} {sums[1]:6} {costs[0]:8.0f} {costs[1]:8.0f} {costs[2]:6.0f} {whole[0]:8.0f} {whole[1]:8.0f}"
    )


def write_all_results(given: argparse.Namespace) -> None:
    """Write the results of the outcomes in a file or folder."""
    save, pages = given.save or given.out / OUTCOMES, list[StudyPage]()
    for name, content in read_contents(given.names, None, given.scale).items():
        out = given.out / name
        restore_outcomes(name, out, save)
        study = parse_study(toy_content(content, given.divide) if given.divide != 1 else content, name)
        seeds = max((outcome.seed + 1 for outcome in finished_outcomes(out)), default=study.seeds)
        page = read_page(name, replace(study, seeds=seeds), out)
        if page is not None:
            write_page(page, given.results / name)
            pages.append(page)
        print(f"{name}: {'no seed is complete' if page is None else page.verdict()}", flush=True)
    write_verdicts(pages, given.results)


def start(given: argparse.Namespace) -> None:
    """Run the studies in a process that outlives this one, in the folder HOME, with a copy of the code."""
    home = given.home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    (home / FOLLOWED).unlink(missing_ok=True)
    (home / LOG).unlink(missing_ok=True)
    shared = home / "studies"
    out = home / "smoke" if given.smoke else shared
    if given.smoke:
        shutil.rmtree(out, ignore_errors=True)  # of an earlier test
    if given.save is not None and not given.smoke and not (out / OUTCOMES).is_file():
        out.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(given.save, out / OUTCOMES)
    results = out / "results" if given.smoke else home / "results"
    words = ["run", *given.names, "--minutes", str(given.minutes), "--at-once", str(given.at_once)]
    words += ["--seeds", str(given.seeds), "--out", str(out), "--results", str(results), "--shared", str(shared)]
    words += ["--more-seeds", str(given.more_seeds)] if given.more_seeds is not None else []
    words += ["--divide", str(given.divide)] if given.divide != 1 else []
    words += ["--scale", str(given.scale)] if given.scale != 1 else []
    words += ["--device", given.device] if given.device is not None else []
    words += ["--commit", given.commit] if given.commit else []
    words += [*([] if given.mps else ["--no-mps"]), *(["--retry-failed"] if given.retry_failed else [])]
    words += ["--smoke"] if given.smoke else []
    start_detached(home, "run_studies.py", words, ("src", "perf", "docs/studies"))


def follow(given: argparse.Namespace, pause: float = 2.0) -> None:
    """Print new lines of the log, and copy outcomes and logs to a folder, until the minutes are over or the studies have ended."""
    given.out.mkdir(parents=True, exist_ok=True)
    deadline, mark = time.monotonic() + 60 * given.minutes, given.home / FOLLOWED
    shown = int(mark.read_text(encoding="utf-8")) if mark.is_file() else 0
    while True:
        over = time.monotonic() >= deadline or not is_running(given.home)
        for folder, name in (("studies", OUTCOMES), ("smoke", f"smoke-{OUTCOMES}")):
            file = given.home / folder / OUTCOMES
            if file.is_file():
                shutil.copyfile(file, given.out / name)
        log = given.home / LOG
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
        for line in lines[shown:]:
            print(line[:400], flush=True)
        shown = max(shown, len(lines))
        mark.write_text(str(shown), encoding="utf-8")
        if over:
            break
        time.sleep(pause)
    if (given.home / LOG).is_file():
        shutil.copyfile(given.home / LOG, given.out / LOG)
    with (given.out / "workers.log").open("w", encoding="utf-8") as stream:
        for folder in ("studies", "smoke"):
            for file in sorted((given.home / folder / "logs").glob("*.log")):
                text = file.read_text(encoding="utf-8", errors="replace")
                stream.write(f"== {folder}/{file.name}\n{text[-20_000:]}\n")
    print("still running" if is_running(given.home) else "not running", flush=True)


def travel(given: argparse.Namespace) -> None:
    """Pack the data of studies, or write tiny copies of it."""
    studies = [parse_study(content, name) for name, content in read_contents(given.names, None).items()]
    if given.verb == "toy":
        write_toy(studies, given.folder)
        return
    sizes = pack_studies(studies, given.folder, given.limit_mib)
    print(f"{given.folder}: {sizes['bytes'] / MIB:.1f} MiB in {sizes['parts']} parts, {sizes['packed'] / MIB:.1f} MiB")


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    shared = {"type": int, "default": 14, "help": "runs at a time, which share the GPU and the CPU cores"}
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
        if verb in ("list", "run", "results", "start"):
            found.add_argument("--scale", type=float, default=1.0, help="multiply all budgets, for another machine")
        if verb in ("run", "start"):
            found.add_argument("--minutes", type=float, default=16.0)
            found.add_argument("--smoke", action="store_true", help="execute everything once with few steps, as a test")
            found.add_argument("--retry-failed", action="store_true", help="repeat runs that have failed")
            found.add_argument("--more-seeds", type=int, help="of every study in the end; by default those of the file")
            found.add_argument("--no-mps", dest="mps", action="store_false", help="let workers take turns on the GPU")
            found.add_argument("--commit", help="of the code, where it is not a repository")
        if verb in ("run", "results"):
            found.add_argument("--out", type=Path, default=Path("runs/studies"))
            found.add_argument("--results", type=Path, help="folder for the small files; by default docs/studies")
        if verb == "run":
            found.add_argument(
                "--shared", type=Path, help="folder of tokenized text and compiled kernels; by default OUT"
            )
        if verb in ("run", "results", "start"):
            found.add_argument("--divide", type=float, default=1.0, help="divide all budgets, for a dry run")
            found.add_argument("--save", type=Path, help="file of outcomes; by default OUT/outcomes.jsonl")
        if verb in ("run", "start"):
            found.add_argument("--device", help="such as cpu")
    verbs.choices["pack"].add_argument("--limit-mib", type=float, default=24.0, help="size of a part")
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
    if given.verb in ("run", "results") and given.results is None:
        test = given.verb == "run" and given.smoke
        given.results = given.out / "results" if test or given.divide != 1 else STUDIES
    match given.verb:
        case "list":
            list_estimates(given)
        case "run":
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            if not run(given) and given.smoke:
                sys.exit(FAILED)
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
