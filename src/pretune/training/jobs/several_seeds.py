"""Fine-tuning with several seeds: on small data, results are reliable only over more than one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from statistics import mean, stdev
from typing import Any

from pretune.runtime.errors import PretuneError, if_option
from pretune.runtime.process_pool import run_jobs
from pretune.runtime.progress import log_info
from pretune.training.jobs.finetuning import FinetuningJob, finetune
from pretune.training.run_folder import RECIPE, RESULTS, Run, copy_run_files, finish_run, remove_if_refused, start_run

FOLDER = "seeds"
ENOUGH_EXAMPLES = 10_000  # from which one seed is enough
DEFAULT_SEEDS = 5  # for fewer examples

Finetune = Callable[[FinetuningJob, Any, bool], Run]


def finetune_seeds(plan: FinetuningJob, material: Any, resume: bool = False, finetune: Finetune = finetune) -> Run:
    """Run the fine-tuning job `plan` with several seeds on the examples `material`, and return the best run.

    Its results contain a summary of all seeds. `finetune` is the function that trains with one seed.
    """
    few = material.has_dev and material.size < ENOUGH_EXAMPLES
    count = plan.num_seeds or (DEFAULT_SEEDS if few else 1)
    if count == 1:
        if plan.devices > 1 and plan.num_seeds is None:
            advice = if_option("num-seeds", ", or give --num-seeds")
            raise PretuneError(
                f"--devices applies only to several seeds, but this job trains one; remove --devices{advice}"
            )
        return finetune(plan, material, resume)
    if not material.has_dev:
        raise PretuneError(
            f"{plan.train}: comparing {count} seeds needs dev examples{if_option('dev', '; give a file with --dev')}"
        )
    if plan.num_seeds is None:
        quicker = if_option("num-seeds", "; --num-seeds 1 is quicker")
        log_info(f"training {count} seeds, because {material.size:,} examples are few, and keeping the best{quicker}")
    new = not (plan.out / RECIPE).is_file()
    start_run(plan.out, "finetune", plan.recipe(), resume)
    jobs = {}
    for seed in range(plan.seed, plan.seed + count):
        own = replace(plan, seed=seed, num_seeds=1, devices=1, out=plan.out / FOLDER / str(seed))
        jobs[f"seed {seed} ({seed - plan.seed + 1} of {count})"] = own, material, finetune
    with remove_if_refused(plan.out, new):
        runs = dict(enumerate(run_seeds(jobs, plan.devices), plan.seed))
    return keep_best(plan, material, runs)


def run_seeds(jobs: Mapping[str, tuple[Any, ...]], devices: int) -> Iterator[Run | None]:
    """Run the jobs of several seeds, in parallel if there are several devices, and yield their runs in order.

    The run of a seed is None if its training diverged. `jobs` maps a description of each seed to arguments of
    `run_seed`.
    """
    if devices > 1:
        log_info(f"training {len(jobs)} seeds on {devices} devices")
        yield from run_jobs(run_seed, jobs.values(), devices)
        return
    for name, job in jobs.items():
        log_info(name)
        yield run_seed(*job)


def run_seed(plan: FinetuningJob, material: Any, finetune: Finetune = finetune) -> Run | None:
    """Fine-tune with one seed, or resume or load its run; return the run, or None if the training diverged."""
    if (plan.out / RESULTS).is_file():
        return Run(plan.out)
    try:
        return finetune(plan, material, (plan.out / RECIPE).is_file())
    except PretuneError as error:
        if "not a number" not in str(error):
            raise
        log_info(f"seed {plan.seed} failed: {error}")
        return None


def keep_best(plan: FinetuningJob, material: Any, runs: dict[int, Run | None]) -> Run:
    """Copy the best of the runs (seed → run) to the folder of the job `plan`; return it with a summary of all seeds."""
    name = f"dev/{material.primary_metric}"
    scores = {seed: run.results[name] for seed, run in runs.items() if run is not None}
    if not scores:
        raise PretuneError(f"{plan.out}: training diverged with all {len(runs)} seeds; lower the learning rate")
    best = max(scores, key=lambda seed: scores[seed])
    # A run that has learned nothing is no better than the majority-class baseline.
    baseline = material.baseline_score()
    failed = len(runs) - sum(value > baseline + 1e-9 for value in scores.values())
    chosen = runs[best]
    assert chosen is not None
    copy_run_files(chosen.folder, plan.out)
    summary = summarize([run.results for run in runs.values() if run is not None])
    seeds = {"count": len(runs), "failed": failed, "best": best, "scores": list(scores.values()), **summary}
    spread = summary[name]
    log_info(
        f"{material.primary_metric} over {len(runs)} seeds: {spread['mean']:.4g} ± {spread['sd']:.2g}, "
        f"{failed} failed; kept seed {best} with {scores[best]:.4g}"
    )
    return finish_run(plan.out, {**chosen.results, "seeds": seeds})


def summarize(results: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the mean and the standard deviation of each dev metric, given the results of several runs.

    >>> summarize([{"dev/accuracy": 0.5}, {"dev/accuracy": 0.7}])["dev/accuracy"]["mean"]
    0.6
    """
    names = [name for name in results[0] if name.startswith("dev/")]
    values = {name: [result[name] for result in results] for name in names}
    return {name: {"mean": mean(x), "sd": stdev(x) if len(x) > 1 else 0.0} for name, x in values.items()}
