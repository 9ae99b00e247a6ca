"""Run the studies of docs/studies on one device, within a time limit, and write their results next to the study files.

    python perf/run_studies.py --list                                # the order, and what each is estimated to cost
    python perf/run_studies.py --minutes 25 --seeds 3 --out runs/studies
    python perf/run_studies.py distillation locality --minutes 10 --out runs/studies

Run it in a folder with data/ (see docs/studies/README.md). Studies run in the order of their value per minute; those that are
estimated to take longer than the time that is left are skipped. Interrupted ones go on when the same command is run again.
The outcome of each run is appended to a file (`--save`) as soon as it is known; on a new machine, finished runs are restored from that file.
docs/studies/CLAIM/ gets summary.md, results.csv and scores.png of the seeds that are complete for all arms, and cost.json.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from glob import glob
from pathlib import Path
from typing import Any

from pretune.runtime.recipe import read_recipe, write_recipe
from pretune.studies.execution import corpus_paths
from pretune.studies.planning import StudyPlan, plan_study
from pretune.studies.study_file import Arm, Evaluation, Study, parse_study
from pretune.studies.study_run import Outcome, read_outcome

STUDIES = Path(__file__).resolve().parents[1] / "docs" / "studies"

# How much a verdict adds, 1 to 3: whether the claim is central, and whether pretune has no other measurement of it.
VALUE = {
    "replaced-token-detection": 3, "directionality": 3, "masking-rate": 3, "pretraining-helps": 3, "distillation": 2, "compression": 2,
    "masking-units": 2, "dynamic-masks": 2, "sentence-relations": 3, "model-size": 2, "parameter-sharing": 2, "permutation": 2,
    "encoder-decoder-objectives": 2, "features-or-fine-tuning": 2, "vocabularies": 2, "vocabularies-ru": 1, "vocabularies-ko": 1,
    "cross-lingual-transfer": 3, "in-context-learning": 2, "locality": 2, "positions": 2, "multi-task": 1, "data-amount": 2,
}  # fmt: skip

# Sustained training speed on one H200, FLOPs per second by width. 12x256 reaches 2.5e14 and 12x512 3.8e14 with 131,072 tokens per step
# (docs/measurements/performance.md). The smaller steps of the studies are bounded by the launch of kernels; half of that is assumed,
# and less for the narrowest models.
SPEED = {128: 2e13, 256: 1e14, 512: 2e14}
WIDEST = 3e14
EXAMPLES_PER_SECOND = 7000  # of fine-tuning: RTE, six epochs in 2.05 s (the same page)
RUN_SECONDS = 4.0  # per run: the start, the first compiled step, saving
EVALUATION_SECONDS = {"task": 2.0, "perplexity": 6.0, "vocabulary": 3.0, "suite": 15.0, "probe": 10.0, "latency": 0.0}
POLL, STOPPING = 1.0, 20.0  # seconds between looks for new outcomes, and until an interrupted study is killed
STUDY_SECONDS = 60.0  # per study: imports, compilation, the plan, the report
PREPARED_BYTES_PER_SECOND = 5e6  # of text, to tokenize it and to train a tokenizer
COMPRESSED = 4.0  # a corpus file of .xz is about a quarter of its text


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of a study: minutes, and the value of its verdict for each of them."""

    name: str
    value: int
    minutes: float

    @property
    def value_per_minute(self) -> float:
        """The value of the study's verdict per minute."""
        return self.value / self.minutes

    def row(self) -> str:
        """Return the estimate as a line of a table."""
        return f"{self.name:28} {self.value:5} {self.minutes:8.1f} {self.value_per_minute:9.2f}"


def read_with_seeds(name: str, seeds: int | None) -> tuple[dict[str, Any], Study]:
    """Return the content of a study file and the study, with another number of seeds if it is given."""
    file = STUDIES / f"{name}.yaml"
    content = read_recipe(file)
    if seeds is not None:
        content["seeds"] = seeds
    return content, parse_study(content, str(file))


def estimate(name: str, seeds: int | None) -> Estimate:
    """Return the estimated cost of a study on one H200."""
    _, study = read_with_seeds(name, seeds)
    plan = plan_study(study, "cpu")
    seconds = STUDY_SECONDS + preparation_seconds(study)
    for one in plan.arms:
        search = one.arm.search
        training = one.steps * one.step.flops * (study.seeds + (search.cost if search else 0)) / speed_of(plan, one.arm)
        scoring = {evaluation.name: evaluation_seconds(evaluation, study.stage) for evaluation in study.evaluations}
        trial = len(search.rates) * (RUN_SECONDS + scoring[search.by]) if search else 0.0
        seconds += training * repetitions(study) + study.seeds * (RUN_SECONDS + sum(scoring.values())) + trial
    return Estimate(name, VALUE.get(name, 1), seconds / 60)


def repetitions(study: Study) -> int:
    """Return how often a run spends its budget: once, or once for each task if the budget is not for pretraining."""
    return 1 if study.stage == "pretraining" else sum(one.kind == "task" for one in study.evaluations)


def speed_of(plan: StudyPlan, arm: Arm) -> float:
    """Return the assumed training speed of an arm, by the width of its model."""
    from pretune.studies.planning import meta_model

    width = meta_model(arm.model, None).backbone.width
    return next((speed for most, speed in SPEED.items() if width <= most), WIDEST)


def preparation_seconds(study: Study) -> float:
    """Return the estimated time to tokenize the text of all arms, once for each tokenizer."""
    different = {
        str([corpus_paths(arm), (arm.pretrain or {}).get("tokenizer")]): arm for arm in study.arms if arm.pretrain
    }
    size = 0.0
    for arm in different.values():
        files = [file for path in corpus_paths(arm) for file in map(Path, glob(path)) if file.is_file()]
        size += sum(file.stat().st_size * (COMPRESSED if file.suffix == ".xz" else 1) for file in files)
    return size / PREPARED_BYTES_PER_SECOND


def evaluation_seconds(evaluation: Evaluation, stage: str) -> float:
    """Return the estimated time of one evaluation on the device."""
    seconds = EVALUATION_SECONDS[evaluation.kind]
    file = Path(evaluation.settings.get("train", ""))
    if evaluation.kind == "task" and stage != "fine-tuning" and file.is_file():
        tagged = evaluation.settings.get("objective") == "tag"  # sentences end with an empty line
        rows = evaluation.settings.get("shots") or sum(bool(line.strip()) != tagged for line in file.open("rb"))
        seconds += rows * float(evaluation.settings.get("epochs", 3)) / EXAMPLES_PER_SECOND
    return seconds


def run_study(name: str, out: Path, seeds: int | None, deadline: float, devices: int, save: Path) -> bool:
    """Run a study until it is finished or the time is over; return whether it is finished.

    Outcomes are appended to the file `save` as soon as they are known.
    """
    content, _ = read_with_seeds(name, seeds)
    out.mkdir(parents=True, exist_ok=True)
    file = out.with_suffix(".yaml")
    file.write_text(write_recipe(content), encoding="utf-8")
    command = [sys.executable, "-m", "pretune", "study", str(file), "--out", str(out), "--devices", str(devices)]
    process = subprocess.Popen(command)
    while process.poll() is None and time.monotonic() < deadline:
        save_outcomes(name, out, save)
        time.sleep(POLL)
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOPPING)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    save_outcomes(name, out, save)
    return process.returncode == 0


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
    for path in [*out.glob("study.yaml"), *sorted(out.glob("runs/**/outcome.json"))]:
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


def write_results(name: str, out: Path, folder: Path, seeds: int | None) -> bool:
    """Write the results of the complete seeds of a study to a folder; return whether there are any."""
    from pretune.studies.execution import read_latency
    from pretune.studies.results import StudyResults
    from pretune.studies.study_report import render_summary
    from pretune.text.corpus.table_writer import table_writer
    from pretune.training.run_folder import environment

    _, study = read_with_seeds(name, seeds)
    outcomes = finished_outcomes(out)
    count = complete_seeds(study, outcomes)
    if not count:
        return False
    kept = tuple(outcome for outcome in outcomes if outcome.seed < count)
    order = {arm.name: at for at, arm in enumerate(study.arms)}
    kept = tuple(sorted(kept, key=lambda one: (one.budget, one.seed, order.get(one.arm, 0))))
    results = StudyResults(replace(study, seeds=count), kept, read_latency(out))
    folder.mkdir(parents=True, exist_ok=True)
    where = environment()
    with table_writer(folder / "results.csv", safe=True) as write:
        write(results.rows())
    (folder / "summary.md").write_text(render_summary(results, where), encoding="utf-8")
    draw_scores(results, folder / "scores.png")
    cost = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False, cwd=Path(__file__).parent
        ).stdout.strip(),
        "device": where.get("gpu") or f"{where['machine']} CPU",
        "runs": len(kept),
        "seconds_of_runs": round(sum(outcome.seconds for outcome in kept)),
        "verdict": results.verdict,
        "headline": results.headline(),
    }
    (folder / "cost.json").write_text(json.dumps(cost, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return True


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


def main(words: list[str] | None = None) -> None:
    """Run the studies that fit into the time limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="studies; by default all of docs/studies")
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--seeds", type=int, help="instead of those of the files; more can be added later")
    parser.add_argument("--devices", type=int, default=1, help="processes; several share a GPU")
    parser.add_argument("--out", type=Path, default=Path("runs/studies"))
    parser.add_argument("--results", type=Path, default=STUDIES, help="folder for the small files")
    parser.add_argument("--save", type=Path, help="file of outcomes; by default OUT/outcomes.jsonl")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args(words)
    names = given.names or sorted(file.stem for file in STUDIES.glob("*.yaml"))
    estimates = sorted((estimate(name, given.seeds) for name in names), key=lambda one: -one.value_per_minute)
    print(f"{'study':28} value  minutes  value/min")
    print("\n".join(one.row() for one in estimates))
    if given.list:
        return
    deadline = time.monotonic() + 60 * given.minutes
    save = given.save or given.out / "outcomes.jsonl"
    for one in estimates:
        restore_outcomes(one.name, given.out / one.name, save)
        left = (deadline - time.monotonic()) / 60
        if one.minutes > left and finished_outcomes(given.out / one.name) == []:
            print(f"{one.name}: skipped, it needs about {one.minutes:.0f} minutes, and {left:.0f} are left", flush=True)
            continue
        began = time.monotonic()
        finished = run_study(one.name, given.out / one.name, given.seeds, deadline, given.devices, save)
        some = write_results(one.name, given.out / one.name, given.results / one.name, given.seeds)
        state = "finished" if finished else "not finished" if some else "no seed is complete"
        print(
            f"{one.name}: {state} after {(time.monotonic() - began) / 60:.1f} minutes ({one.minutes:.1f} estimated)",
            flush=True,
        )


if __name__ == "__main__":
    main()
