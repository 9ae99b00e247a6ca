"""The `study` verb: compare recipes under one budget, or suggest one for a corpus and a task."""

from __future__ import annotations

from pathlib import Path

from pretune.runtime.output_paths import check_resumable_folder
from pretune.verbs import options as opt
from pretune.verbs.results import ResultTable
from pretune.verbs.verb import Options, only, verb


def suggests(o: Options) -> bool:
    """Return whether the options `o` ask for a suggested recipe (--suggest), and not for the study in a file."""
    return bool(o.suggest)


@verb(
    only("data", "labels", "dev", "text", "label", "budget", "language", where="with --suggest", when=suggests),
    only("file", "dry_run", "retry_failed", "keep_models", where="without --suggest", when=lambda o: not suggests(o)),
    common=("out", "dry_run", "suggest", "data", "labels", "budget", "devices"),
    out=check_resumable_folder("study.yaml", "a study"),
)
def study(
    file: str | Path = "",
    *,
    out: str | Path | None = None,
    dry_run: bool = False,
    retry_failed: bool = False,
    keep_models: bool = False,
    suggest: bool = False,
    data: opt.Paths = (),
    labels: str | Path | opt.Table | None = None,
    dev: str | Path | opt.Table | None = None,
    text: opt.Text = None,
    label: opt.Label = None,
    budget: str | None = None,
    language: opt.Language = "en",
    device: opt.Device = None,
    devices: opt.Devices = 1,
) -> ResultTable:
    """Compare recipes under one budget with several seeds, and report what the results show and what they do not.

    A study file has a question, arms (the recipes to compare), a budget that each arm gets, seeds, and evaluations (see
    docs/reference/studies.md).
    `pretune study quick` is a small study that comes with pretune. OUT gets results.csv, summary.md, and report.html. Run the
    same command again to continue an interrupted study; finished runs are not repeated.

    With --suggest, try several ways to pretrain on a corpus for a labeled task in short runs (pilots), continue the
    better half of the pilots again and again, and write the recipe of the best one to OUT.

    Parameters
    ----------
    file
        Study file (YAML), or the name of a study that comes with pretune: quick.
    out
        Folder for the study.
    dry_run
        Show the plan: the arms, what each spends, and an estimate of the time. Nothing is trained.
    retry_failed
        Repeat the runs that failed.
    keep_models
        Keep the weights of fine-tuned models, too.
    suggest
        Suggest a recipe for --data and --labels, instead of doing the study of a file.
    data
        Corpus: files, folders, or glob patterns of text.
    labels
        Labeled examples of the task: .csv, .tsv, .jsonl, or .parquet.
    dev
        Labeled examples to compare by. By default a fifth of the labeled examples is held out.
    budget
        Time for all pilots together, e.g. 30min or 2h.
    devices
        Number of devices of this machine to distribute the runs over, with one process per device; on a CPU, the number of processes.
        Models of a few million parameters use two cores best with two processes.

    Examples
    --------
    >>> study("quick", dry_run=True)[0]["arm"]
    'mlm'
    """
    from pretune.runtime.errors import PretuneError
    from pretune.runtime.recipe import read_recipe
    from pretune.studies.execution import StudyExecution, read_results
    from pretune.studies.planning import plan_study
    from pretune.studies.study_file import find_study, parse_study
    from pretune.studies.study_report import write_study_report
    from pretune.studies.suggestion import SuggestionJob
    from pretune.training.jobs.recipe_scaling import parse_budget
    from pretune.verbs.shared_inputs import as_path, as_path_list

    if out is None and not dry_run:
        raise PretuneError("a study needs a folder for its results; name one with --out")
    if suggest:
        if not data or labels is None or budget is None:
            raise PretuneError(
                "--suggest needs a corpus, labeled examples, and a time limit; give --data, --labels and --budget"
            )
        seconds = parse_budget(budget, "--budget").seconds
        if seconds is None:
            raise PretuneError(
                f"--budget {budget}: with --suggest, the budget must be a time; give one such as 30min or 2h"
            )
        task = {"train": as_path(labels), "dev": None if dev is None else as_path(dev), "text": text, "label": label}
        given = {name: value for name, value in task.items() if value is not None}
        assert out is not None
        found = SuggestionJob(as_path_list(data), given, seconds, Path(out), language, device, devices).run()
        rows = [{"round": number, **row} for number, table in enumerate(found.tables(), 1) for row in table]
        told = {"suggestion": " ".join(found.explain()), "next": [{"command": command} for command in found.commands]}
        return ResultTable("pilots", rows, facts=told)
    if not str(file):
        raise PretuneError("no study was given; name a file, or `quick` for the study that comes with pretune")
    path = find_study(file)
    content = read_recipe(path)
    plan = plan_study(parse_study(content, str(path)), device)
    plan.check()
    if dry_run:
        return ResultTable("plan", [one.row() for one in plan.arms], facts=plan.facts())
    assert out is not None
    folder = Path(out)
    execution = StudyExecution(plan, content, folder, device, devices, retry_failed, keep_models)
    results = read_results(plan.study, execution.run(), folder)
    report = write_study_report(results, folder)
    failed = "" if results.metrics else f"all runs failed; the first error is: {results.failures[0].error}"
    shown = {"answer": results.headline(), "report": str(report)}
    return ResultTable("arms", results.table(), facts=shown, failure=failed)
