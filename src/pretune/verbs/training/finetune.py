"""The `finetune` verb: fine-tune a pretrained model on labeled examples of a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from pretune.runtime.output_paths import check_run_folder
from pretune.verbs import options as opt
from pretune.verbs.option_modes import EPOCHS_RULE, MISMATCH_RULE, NO_TEXT_KEYS, TOKENIZER_RULE, starts_from_preset
from pretune.verbs.verb import Options, only, verb


def several_tasks(o: Options) -> bool:
    """Return whether --train in the options `o` has files by task (NAME=FILE)."""
    from pretune.verbs.shared_inputs import parse_task_files

    return isinstance(parse_task_files(o.train), Mapping)


def sets_training(o: Options) -> bool:
    """Return whether the options `o` set how to train; if they do, strategies are not compared by default."""
    settings = (o.epochs, o.budget, o.optimizer, o.schedule, o.monitor, o.num_seeds, o.unlabeled, o.shots)
    sized = o.batch is not None and o.batch.size is not None
    return sized or bool(o.learning_curve) or o.scratch_baseline or any(value is not None for value in settings)


@verb(
    NO_TEXT_KEYS,
    EPOCHS_RULE,
    TOKENIZER_RULE,
    MISMATCH_RULE,
    only(
        "from_scratch",
        where="to models that have weights; a preset is always randomly initialized",
        when=lambda o: not starts_from_preset(o),
    ),
    only(
        "dropout",
        where="to models that have weights; a preset sets dropout under `config`",
        when=lambda o: not starts_from_preset(o),
    ),
    only("task_sampling", where="to several tasks (NAME=FILE …)", when=several_tasks),
    only("unlabeled", where="to one task", when=lambda o: not several_tasks(o)),
    only("distill_temperature", "teacher", where="with --unlabeled", when=lambda o: o.unlabeled is not None),
    only(
        "confidence_threshold",
        where="with --unlabeled and without --distill-temperature",
        when=lambda o: o.unlabeled is not None and o.distill_temperature is None,
    ),
    only(
        "learning_curve",
        "scratch_baseline",
        where="to one task and without --unlabeled",
        when=lambda o: o.unlabeled is None and not several_tasks(o),
    ),
    only(
        "devices",
        where="to several seeds, --learning-curve or --scratch-baseline",
        when=lambda o: o.num_seeds != 1 or o.learning_curve or o.scratch_baseline,
    ),
    only("metric", "metrics", where="to one task", when=lambda o: not several_tasks(o)),
    only(
        "effort",
        where="to the comparison of strategies, without --strategy and training settings such as --epochs",
        when=lambda o: o.strategy in (None, "auto") and not several_tasks(o) and not sets_training(o),
    ),
    common=(
        "dev",
        "text",
        "pair",
        "label",
        "objective",
        "strategy",
        "effort",
        "epochs",
        "lr",
        "num_seeds",
        "device",
    ),
    out=check_run_folder,
)
def finetune(
    model: opt.ModelOrPreset,
    train: opt.TaskFiles,
    *,
    out: opt.RunFolder,
    dev: opt.TaskFiles | None = None,
    text: opt.Text = None,
    pair: opt.Pair = None,
    label: opt.Label = None,
    columns: opt.Columns = None,
    language: opt.TextLanguage = None,
    drop_invalid: opt.DropInvalid = False,
    objective: opt.Objective = "classify",
    threshold: float | None = None,
    class_weight: opt.ClassWeight = None,
    metric: opt.Metric = None,
    metrics: Sequence[str] | Mapping[str, Callable[[Sequence[Any], Sequence[Any]], float]] = (),
    strategy: opt.Strategy = None,
    effort: Literal["quick", "normal", "thorough"] = "normal",
    task_sampling: str = "proportional",
    epochs: opt.SuitableEpochs = None,
    budget: opt.Limits = None,
    optimizer: opt.OptimizerSettings = None,
    schedule: opt.ScheduleSettings = None,
    batch: opt.RowBatch = None,
    monitor: opt.RowMonitor = None,
    callbacks: opt.Callbacks = (),
    shots: int | None = None,
    unlabeled: str | Path | opt.Table | None = None,
    confidence_threshold: float = 0.9,
    distill_temperature: float | None = None,
    teacher: Sequence[str | Path | opt.ModelHandle] | str | Path | opt.ModelHandle = (),
    seed: opt.Seed = 0,
    num_seeds: int | None = None,
    report: bool = True,
    learning_curve: Sequence[int] = (),
    scratch_baseline: bool = False,
    tokenizer: opt.PresetTokenizer = None,
    from_scratch: opt.FromScratch = False,
    dropout: Mapping[str, float] | None = None,
    deterministic: opt.Deterministic = False,
    resume: opt.Resume = False,
    device: opt.Device = None,
    devices: opt.Devices = 1,
    ignore_mismatched: opt.IgnoreMismatched = False,
    word_vectors: opt.WordVectors = None,
) -> opt.Run:
    """Fine-tune a model on labeled examples of one task, or of several tasks at once.

    Tasks are text and pair classification, regression, multiple choice, matching, ranking, sequence tagging, extractive question
    answering, and text generation. Columns are inferred from their names and contents, and reported; name them to override that.

    Parameters
    ----------
    train
        Labeled training examples: .csv, .tsv, .jsonl, or .parquet; for tagging also CoNLL columns, .conllu, or a
        folder of brat; for question answering also SQuAD's .json. For several tasks, NAME=FILE for each.
    dev
        Labeled examples to evaluate on; for several tasks, NAME=FILE for each. By default a fifth of the training examples is held
        out, if there are at least 50.
    text
        Column with the text: for tagging the words, for question answering the question.
    pair
        Column with the second text of a pair: for question answering the passage.
    label
        Column with the label: for tagging the tags, for question answering the answer. Unnamed columns are numbered from 1.
    threshold
        Minimum probability of a label in multi-label classification, or of the second of two classes, to be predicted; for question
        answering the margin of "no answer". Short for a threshold in --objective.
    metrics
        Further metrics to report, by the names under which they are registered; in Python also a mapping from names to functions
        (gold, predicted) -> float.
    effort
        How much to compare with --strategy auto. quick: a bag of words and frozen features, in seconds; normal: contrastive tuning and
        full fine-tuning too, about two minutes on two cores for 200 short texts; thorough: lower rates and LoRA too.
    task_sampling
        How several tasks are sampled: proportional to their size, uniform, temperature(2), or annealed(0.2).
    shots
        Train on this many examples of each class, sampled at random (few-shot learning).
    unlabeled
        Unlabeled texts for self-training: a teacher labels those it is confident about, and a student is trained on these and --train.
    confidence_threshold
        Minimum probability of a teacher's label (pseudo-label) for the text to be used.
    distill_temperature
        Train on the teacher's probabilities for all unlabeled texts (soft labels), softened by this temperature, instead of
        pseudo-labels.
    teacher
        Run folders whose averaged predictions label the texts; by default a teacher is trained on the labeled examples.
    num_seeds
        Number of runs with different seeds; the best run is kept, and mean and standard deviation are reported. By default 5 if there
        are fewer than 10,000 examples, otherwise 1.
    report
        Write report.html with confidence intervals, baselines, the confusion matrix, calibration, and the worst errors.
    learning_curve
        Training set sizes of a learning curve, e.g. 50 100 500, each trained with three seeds; the report plots it.
    scratch_baseline
        Also train from randomly initialized weights, at each size of the learning curve, or on all examples without one.
    dropout
        Dropout probabilities that replace the model's, under their names in config.json, e.g. --dropout.hidden_dropout_prob 0.2.

    Examples
    --------
    >>> task = finetune("runs/mine", "train.csv", dev="dev.csv", out="runs/task")  # doctest: +SKIP
    >>> task.predict(["a delightful film"])  # doctest: +SKIP
    """
    from pretune.evaluation.baseline_comparison import compare_run, log_closing_lines
    from pretune.evaluation.learning_curve import check_sizes, run_learning_curve
    from pretune.evaluation.task_report import write_report
    from pretune.metrics.custom import find_metrics
    from pretune.objectives import add_task_options
    from pretune.runtime.errors import PretuneError
    from pretune.runtime.progress import log_info
    from pretune.training.callbacks import find_callbacks
    from pretune.training.jobs.finetuning import FinetuningJob, read_task_data, resolve_finetuning
    from pretune.training.jobs.finetuning_strategies import AUTO
    from pretune.training.jobs.multitask import finetune_tasks, read_tasks
    from pretune.training.jobs.self_training import self_train
    from pretune.training.jobs.several_seeds import finetune_seeds
    from pretune.training.jobs.strategies.search import auto_obstacle, compare_strategies, explain_full
    from pretune.training.run_folder import check_same_recipe
    from pretune.verbs.shared_inputs import (
        as_path_list,
        columns_by_role,
        job_options,
        model_reference,
        parse_class_weight,
        parse_task_files,
    )

    trains_once = sets_training(SimpleNamespace(**locals()))  # type: ignore[arg-type]
    strategy = strategy or ("full" if trains_once else AUTO)
    task_options = {"threshold": threshold, "class_weight": parse_class_weight(class_weight)}
    given = job_options(FinetuningJob, locals())
    given |= {
        "objective": add_task_options(objective, {k: v for k, v in task_options.items() if v is not None}),
        "metrics": find_metrics(metrics),
        "callbacks": find_callbacks(callbacks),
        "train": parse_task_files(train),
        "dev": parse_task_files(dev) if dev is not None else None,
        "out": Path(out),
        "columns": columns_by_role(columns, text=text, pair=pair, label=label),
        "teacher": tuple(as_path_list(teacher)) or None,
        "dropout": dict(dropout) if dropout else None,
    }
    del given["model"]
    plan = resolve_finetuning(model_reference(model), given)
    material: Any
    compared = None
    if plan.strategy == AUTO:
        obstacle = "training settings are given" if trains_once else ""
        if not obstacle:
            obstacle = "there are several tasks" if isinstance(plan.train, Mapping) else auto_obstacle(plan)
        if not obstacle:
            check_same_recipe(plan.out, plan.recipe())
            compared = compare_strategies(plan, resume)
        if compared is None:
            explain_full(obstacle)
            plan = replace(plan, strategy="full")
    if compared is None:
        check_same_recipe(plan.out, plan.recipe())
    if compared is not None:
        run, material = compared
    elif isinstance(plan.train, Mapping):
        material = read_tasks(plan)
        run = finetune_seeds(plan, material, resume, finetune_tasks)
    elif isinstance(plan.dev, Mapping):
        raise PretuneError(
            f"--dev names tasks ({', '.join(plan.dev)}) but --train does not; name the tasks in both, or in neither"
        )
    elif unlabeled is not None:
        run, material = self_train(plan, finetune_seeds, resume)
    else:
        material = read_task_data(plan)
        if learning_curve or scratch_baseline:
            check_sizes(material, learning_curve)
        run = finetune_seeds(plan, material, resume)
        if learning_curve or scratch_baseline:
            run_learning_curve(plan, material, run, learning_curve, scratch_baseline)
    comparisons = compare_run(run, material)
    if report and (page := write_report(run, comparisons)):
        log_info(f"the report is in {page}")
    log_closing_lines(comparisons)
    return run
