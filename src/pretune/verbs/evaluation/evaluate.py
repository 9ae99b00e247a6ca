"""The `evaluate` verb: evaluate a model on a benchmark suite, or its perplexity on texts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretune.runtime.output_paths import check_resumable_folder
from pretune.verbs import options as opt
from pretune.verbs.option_modes import BY_BUDGET, EPOCHS_RULE, NO_TEXT_KEYS, reading_rules
from pretune.verbs.results import ResultSummary
from pretune.verbs.verb import Options, only, verb

if TYPE_CHECKING:
    from pretune.evaluation.suites.suite_runner import Evaluation
FINETUNING = ("strategy", *BY_BUDGET, "from_scratch", "deterministic")  # options of the fine-tuning on each task


@dataclass(frozen=True)
class SuiteResult:
    """The result of evaluating a model on a suite, and its folder."""

    evaluation: Evaluation
    out: Path

    def describe(self) -> dict[str, Any]:
        """Return the evaluation as a JSON-compatible dictionary, for --json."""
        return {**self.evaluation.describe(), "out": str(self.out)}

    def table(self) -> dict[str, Any]:
        """Return the results to print: a leaderboard row, published results, costs, notes, and sources."""
        from pretune.evaluation.suites.published_results import sources
        from pretune.evaluation.suites.suite_report import costs, notes, rows, scored

        suite, tasks = self.evaluation.suite, scored(self.evaluation)
        return {
            suite.title: rows(self.evaluation),
            "cost": costs(self.evaluation),
            "notes": notes(self.evaluation),
            "sources": [f"{source}: {', '.join(names)}" for source, names in sources(suite, tasks).items()],
        }


def in_several_languages(o: Options) -> bool:
    """Return whether the suite in the command-line options `o` has tasks with training files in several languages."""
    from pretune.evaluation.suites.declaration import find_suite

    return o.suite is not None and any(task.language for task in find_suite(o.suite).tasks.values())


@verb(
    only(
        "tasks", "language", "num_seeds", "seed", "shots", "out", "allow_incomplete", "keep_models", *FINETUNING, "devices",
        where="with --suite", when=lambda o: o.suite is not None,
    ),
    only("text", "pair", "max_length", "stride", "limit", "split_by", "encoding_errors", where="without --suite, to texts", when=lambda o: o.suite is None),
    *reading_rules("split_by", files=lambda o: o.data if o.suite is None else ()),
    only(
        "keep_models", *FINETUNING,
        where="to fine-tuning; with --shots nothing is trained", when=lambda o: o.shots is None,
    ),
    only("num_seeds", "seed", where="where examples are sampled, not with --shots 0", when=lambda o: o.shots != 0),
    only("language", where="to suites whose tasks have files in several languages", when=in_several_languages),
    EPOCHS_RULE,
    NO_TEXT_KEYS,
    common=("data", "suite", "tasks", "num_seeds", "shots", "out", "strategy", "epochs", "text", "limit", "seed", "device"),
    out=check_resumable_folder("suite.json", "an evaluation"),
)  # fmt: skip
def evaluate(
    model: opt.Model,
    *,
    data: opt.Paths,
    suite: str | None = None,
    tasks: opt.Tasks = (),
    language: str = "",
    num_seeds: int = 3,
    shots: int | None = None,
    out: str | Path | None = None,
    allow_incomplete: bool = False,
    keep_models: bool = False,
    strategy: opt.Strategy = "full",
    epochs: opt.Epochs = 3.0,
    budget: opt.Limits = None,
    optimizer: opt.OptimizerSettings = None,
    schedule: opt.ScheduleSettings = None,
    batch: opt.RowBatch = None,
    monitor: opt.RowMonitor = None,
    from_scratch: opt.FromScratch = False,
    deterministic: opt.Deterministic = False,
    seed: opt.Seed = 0,
    text: str | None = None,
    pair: str | None = None,
    max_length: int | None = None,
    stride: int | None = None,
    limit: int | None = None,
    split_by: opt.SplitBy = "auto",
    encoding_errors: opt.EncodingErrors = "strict",
    device: opt.Device = None,
    devices: opt.Devices = 1,
    ignore_mismatched: opt.IgnoreMismatched = False,
) -> SuiteResult | ResultSummary:
    """Evaluate a model on a benchmark suite, or its perplexity on texts.

    With --suite, fine-tune the model with several seeds on each task whose official files are in --data, and score it with the
    official metrics. The result is a leaderboard row next to published ones; OUT holds a report, the predictions, and, if there are
    test files, a submission. Finished tasks are not repeated. With --shots, a generative model is evaluated by in-context learning,
    without training.

    Without --suite, compute perplexity and bits per byte of the texts in --data (pseudo-perplexity for masked language models). For
    minimal pairs in BLiMP's format, compute how often the acceptable sentence is more likely; for CrowS-Pairs, the stereotypical one.

    Parameters
    ----------
    model
        Run folder, model folder, or bundled model.
    data
        Folder with the suite's official files; or texts: .txt, .jsonl, .csv, .tsv, or .parquet.
    suite
        Suite to evaluate on: glue, superglue, russian-superglue, xglue, squad, text, summarization, korean, translation, or a .yaml
        file.
    language
        Training language of tasks that have files in several languages.
    num_seeds
        Number of fine-tuning runs per task, or of samples of in-context examples; mean and standard deviation are reported.
    shots
        Number of in-context examples (per class, if the task has classes) to prompt with, without fine-tuning; 0 for zero-shot.
    out
        Folder for the evaluation.
    allow_incomplete
        Accept incomplete files of the suite; the report notes that the scores are not comparable to published ones.
    keep_models
        Keep the weights of all fine-tuned models.
    seed
        First of the random seeds.
    text
        Column with the text; with --pair, the source text of an encoder-decoder.
    pair
        Column with the target text of an encoder-decoder.
    max_length
        Maximum number of tokens of a window; longer texts are read in several. By default 512, or the model's maximum if it is smaller.
    stride
        Number of tokens between the starts of consecutive windows; by default half of --max-length.
    limit
        Maximum number of texts, or of pairs per file, to read.

    Examples
    --------
    >>> evaluate("runs/mine", suite="glue", data="glue/", out="runs/mine-glue").evaluation.means  # doctest: +SKIP
    >>> evaluate("runs/mine", data="held_out.txt").describe()["bits_per_byte"]  # doctest: +SKIP
    """
    from pretune.runtime.errors import PretuneError
    from pretune.runtime.progress import log_info
    from pretune.verbs.shared_inputs import as_path_list, columns_by_role, job_options, open_reference

    if suite is None:
        from pretune.evaluation.language_modeling import ReadingOptions, evaluate_language
        from pretune.inference.likelihood import LikelihoodScorer

        scorer = LikelihoodScorer.load(open_reference(model), device, ignore_mismatched)
        reading = ReadingOptions(max_length, stride, limit, split_by, encoding_errors)
        return ResultSummary(
            evaluate_language(scorer, as_path_list(data), reading, columns_by_role(None, text=text, pair=pair))
        )
    from pretune.evaluation.suites.declaration import find_suite
    from pretune.evaluation.suites.suite_report import write_report
    from pretune.evaluation.suites.suite_runner import EvaluationJob, evaluate_suite

    if out is None:
        raise PretuneError("--suite needs a folder for the evaluation; name one with --out")
    folders = as_path_list(data)
    if len(folders) != 1 or not Path(folders[0]).is_dir():
        named = ", ".join(map(str, folders))
        raise PretuneError(f"{named} is not a folder; --data must name the folder with the files of {suite}")
    if num_seeds < 1:
        raise PretuneError(f"--num-seeds {num_seeds}: the number of seeds must be at least 1")
    if shots is not None and shots < 0:
        raise PretuneError(f"--shots {shots}: the number of examples must be 0 or more")
    if shots == 0:
        num_seeds = 1  # without examples nothing is sampled
    arguments = dict(locals())
    given = job_options(EvaluationJob, arguments) | {"data": Path(folders[0]), "out": Path(out)}
    given["suite"] = find_suite(suite, language).select_tasks(list(tasks))
    given["settings"] = {name: arguments[name] for name in (*FINETUNING, "ignore_mismatched")}
    evaluation = evaluate_suite(EvaluationJob(**given))
    log_info(f"the report is in {write_report(evaluation, Path(out))}")
    return SuiteResult(evaluation, Path(out))
