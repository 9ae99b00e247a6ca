"""Fine-tuning: train a pretrained model on the labeled examples of one task."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from pretune.backbones.onnx_runtime import OnnxBackbone
from pretune.inference.predict import Predictor
from pretune.inference.word_vector_models import copy_word_vectors
from pretune.metrics import majority_score, positive_class, score
from pretune.metrics.custom import Metric
from pretune.models.adapt_vocabulary import add_special_token
from pretune.models.checkpoint_heads import text_embedding_of
from pretune.models.create_model import make_model, random_copy
from pretune.models.hf_config import log_once
from pretune.models.language_embeddings import use_language
from pretune.models.loading import load_model
from pretune.models.model import Model
from pretune.models.name_resolution import family_of
from pretune.models.presets import is_preset
from pretune.nn.recurrent import has_recurrent_layers
from pretune.nn.sentence_embedding import TextEmbedding
from pretune.objectives import Data, Mixture, Task, parse_objective, task_names
from pretune.objectives.distillation.distill_task_logits import DistillLogits, TeacherTargets
from pretune.objectives.task import Answer
from pretune.objectives.tasks.measured_task import check_primary_metric, measured_task
from pretune.objectives.wrappers import WrappedTask
from pretune.runtime.atomic_io import write_bytes, write_json
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import PretuneError, if_option
from pretune.runtime.progress import log_info
from pretune.runtime.value_ranges import COUNT, FRACTION_BELOW_1, NOT_NEGATIVE, check_number
from pretune.text.corpus.word_vector_files import read_word_vectors
from pretune.text.examples.few_shot import sample_few_shot
from pretune.text.examples.image_texts import region_sizes
from pretune.text.examples.labeled import ROLES, LabeledRows
from pretune.text.examples.splits import FEWEST, split_examples, warn_of_duplicates
from pretune.text.examples.validation import check_classes, check_texts
from pretune.text.packing.sequences import Arrangement, Packing
from pretune.text.tokenizers.tokenizer import ADDED_TOKENS, Tokenizer
from pretune.training import recipe_sections
from pretune.training.callbacks import Callback
from pretune.training.data_streams import DataStreams, make_streams
from pretune.training.jobs.finetuning_defaults import (
    batch_size_of_rows,
    default_pooling,
    epochs_of_rows,
    finetuning_defaults,
    read_model_recipe,
)
from pretune.training.jobs.finetuning_strategies import Strategy, choose_strategy
from pretune.training.jobs.head_fitting import fit_head
from pretune.training.jobs.pretraining_model import check_length, rounded_size
from pretune.training.loop import Training, train_run
from pretune.training.optim.optimizers import scale_lr_to_batch
from pretune.training.recipe_sections import Batching, Budget, Monitoring, Optimizer, Schedule
from pretune.training.run_folder import Run, finish_run, start_run
from pretune.training.subword_regularization import epochs_of_sampled_subwords

DEV_PREDICTIONS = "dev_answers.jsonl"  # predictions for the dev examples, in their order
SPLIT = "split.json"  # which rows of the training file are the dev examples
ENOUGH = 512  # maximum length, in tokens, of the example by which the template of a task is found
FEW = 8  # dev examples on which metrics are tried before training
RANGES = "activation_ranges.json"  # learned by quantization-aware training, for `quantize`


@dataclass(frozen=True, kw_only=True)
class FinetuningJob:
    """A fine-tuning job: model, data, objective, and all training settings."""

    model: str
    train: str | Mapping[str, str]  # for several tasks, by task name
    dev: str | Mapping[str, str] | None = None
    out: Path
    columns: Mapping[str, str] = field(default_factory=dict)
    objective: str
    strategy: str = "full"
    effort: str = "normal"  # of the comparison of strategies
    epochs: float | None = None  # None: by the number of examples, as the batch size
    budget: Budget | None = None
    optimizer: Optimizer
    schedule: Schedule
    batch: Batching
    monitor: Monitoring
    seed: int = 0
    num_seeds: int | None = 1
    deterministic: bool = False
    tokenizer: str | None = None
    from_scratch: bool = False
    device: str | None = None
    shots: int | None = None  # examples per class; None: all
    task_sampling: str = "proportional"  # how several tasks are sampled
    unlabeled: str | None = None  # texts for a teacher to label
    confidence_threshold: float = 0.9  # minimum confidence of the teacher
    distill_temperature: float | None = None  # of the teacher's probabilities as soft labels; None: hard labels
    teacher: tuple[str, ...] | None = None  # runs that label as an ensemble; None: train one
    ignore_mismatched: bool = False  # load the model even if tensors are missing or unexpected
    language: str | None = None  # of the texts, for a model with language embeddings; None: the model's own
    drop_invalid: bool = False  # skip examples whose spans are not in their texts
    word_vectors: str | None = None  # a file of word vectors to initialize embeddings from
    dropout: Mapping[str, float] | None = None  # overrides the model's, under the names of its config
    devices: int = 1  # over which seeds are distributed
    metric: str | None = None  # the primary metric; None: that of the task
    metrics: Mapping[str, Metric] = field(default_factory=dict)  # custom metrics
    callbacks: tuple[Callback, ...] = ()  # of the user, for the training loop

    def __post_init__(self) -> None:
        check_number("epochs", self.epochs, NOT_NEGATIVE)
        for name in ("num_seeds", "shots", "devices"):
            check_number(name, getattr(self, name), COUNT)
        for name, rate in (self.dropout or {}).items():
            check_number(f"dropout.{name}", rate, FRACTION_BELOW_1)

    def recipe(self) -> dict[str, Any]:
        """Return the settings that determine the result of a fine-tuning job, named like the command-line options."""
        content = recipe_sections.as_recipe(
            self, leave_out=("out", "device", "devices", "columns", "metrics", "callbacks")
        )
        own = {role: name for role, name in self.columns.items() if role in ROLES}
        further = {role: name for role, name in self.columns.items() if role not in ROLES}
        content |= {"metrics": list(self.metrics)} if self.metrics else {}
        return {**content, **own, **({"columns": further} if further else {})}

    def for_rows(self, rows: int) -> Self:
        """Return the job with its batch size and epochs set for `rows` training examples, where these are unset."""
        size = self.batch.size or batch_size_of_rows(rows)
        epochs = epochs_of_rows(rows, size) if self.epochs is None else self.epochs
        if self.epochs is None and self.budget is None:
            lr = f"a learning rate of {self.optimizer.lr:g}"
            log_once(f"{epochs:g} epochs in batches of {size} for {rows:,} training examples, with {lr}")
        return replace(self, epochs=epochs, batch=replace(self.batch, size=size))


def resolve_finetuning(model: str, options: dict[str, Any]) -> FinetuningJob:
    """Return the fine-tuning job of a model; settings that `options` does not have get the defaults of the task."""
    tasks = tasks_in(parse_objective(options["objective"]))
    defaults = finetuning_defaults(model, tasks, strategy=options.get("strategy", "full"))
    sections = {
        key: recipe_sections.resolve_section(
            recipe_sections.SECTIONS[key], options.get(key), dict(values), recipe_sections.ON_TEXT
        )
        for key, values in defaults.sections.items()
    }
    epochs = defaults.epochs if options.get("epochs") is None else options["epochs"]
    return FinetuningJob(model=model, **{**options, **sections, "epochs": epochs})


@dataclass(frozen=True)
class TaskData:
    """The training and dev examples of a fine-tuning job, with the task, which was fitted to their labels."""

    mixture: Mixture
    unfitted: Task  # the task before it was fitted
    task: Task
    rows: Any  # training examples
    dev: Any  # dev examples, or None
    dev_rows: list[int]  # rows of the training file that became dev examples, if there was no dev file
    teacher_targets: TeacherTargets | None = None  # soft labels to learn instead of the labels of the rows
    hidden_distillation: Any = None  # a DistillHidden objective, learned together with the task
    folds: Any = None  # (rows,) of cross-validation, if `dev` are the training examples themselves

    @property
    def size(self) -> int:
        """The number of training examples of a task."""
        return len(self.rows)

    @property
    def has_dev(self) -> bool:
        """Whether a task has dev examples to evaluate on."""
        return self.dev is not None

    @property
    def primary_metric(self) -> str:
        """The name of the task's metric by which training runs are compared."""
        return self.task.primary_metric

    def baseline_score(self) -> float:
        """Return the primary metric of the majority-class baseline on the dev examples."""
        return majority_score(self.task, self.rows, self.dev)


def read_task_data(plan: FinetuningJob, hold_out: bool = True) -> TaskData:
    """Read the examples of the job `plan`; without a dev file, some of the training examples become dev examples.

    With `hold_out=False`, all training examples stay training examples.
    """
    mixture = requested_objectives(plan, plan.objective)
    assert isinstance(plan.train, str) and not isinstance(plan.dev, Mapping)
    return read_part(plan, plan.objective, mixture, find_task(mixture), plan.train, plan.dev, hold_out)


def read_part(
    plan: FinetuningJob,
    objective: str,
    mixture: Mixture,
    unfitted: Task,
    train: str,
    dev: str | None,
    hold_out: bool = True,
) -> TaskData:
    """Read the examples of one task of a job from the files `train` and `dev`, and fit the task to their labels.

    `mixture` has the objectives in the expression `objective`, and `unfitted` is the task among them, which does not
    know its labels yet. `hold_out` is as in `read_task_data`.
    """
    rows, dev_examples, dev_rows = read_examples(plan, unfitted, train, dev, hold_out)
    task = with_model_pooling(plan, objective, unfitted).fit(rows)
    return TaskData(mixture.with_part(task), unfitted, task, rows, dev_examples, dev_rows)


def model_embedding(plan: FinetuningJob) -> TextEmbedding | None:
    """Return how the model of the job `plan` computes text embeddings, or None if its files do not define this."""
    return None if is_preset(plan.model) else text_embedding_of(plan.model)


def with_model_pooling(plan: FinetuningJob, objective: str, unfitted: Task) -> Task:
    """Return the task `unfitted` with the default pooling of the job's model, unless the objective sets a pooling."""
    mode = default_pooling(plan.model, [unfitted])
    if mode is None:
        return unfitted
    return next(task for task in tasks_in(requested_objectives(plan, objective, mode)) if task.name == unfitted.name)


def requested_objectives(plan: FinetuningJob, objective: str, pooling: str | None = None) -> Mixture:
    """Parse the expression `objective` of a job; tasks that do not set a pooling get `pooling`."""
    defaults: dict[str, Any] = {"pooling": pooling or family_of(plan.model).poolings.get("", "cls")}
    if (embedding := model_embedding(plan)) is not None:
        defaults["embedding"] = embedding
    defaults |= {"drop_invalid": True} if plan.drop_invalid else {}
    mixture = parse_objective(objective, **defaults)
    if plan.drop_invalid and not any(task.has_option("drop_invalid") for task in tasks_in(mixture)):
        raise PretuneError(
            f"--drop-invalid: the objective {mixture} cannot skip invalid examples; remove the option, and correct these examples"
        )
    for task in tasks_in(mixture):
        mixture = mixture.with_part(measured_task(task, plan.metric, plan.metrics))
    return mixture


def read_examples(
    plan: FinetuningJob, task: Task, train: str, dev_file: str | None, hold_out: bool = True
) -> tuple[Any, Any, list[int]]:
    """Return the training examples, the dev examples (or None), and the rows that were held out as dev examples.

    The held-out rows are indices of examples in the training file; the list is empty if there is a dev file.
    """
    rows = task.read(train, plan.columns)
    if isinstance(rows, LabeledRows):
        check_texts(rows)
        if plan.shots is None and task.single_label:
            check_classes(rows)
    dev, dev_rows = None, list[int]()
    if dev_file:
        dev = task.read(dev_file, getattr(rows, "columns", plan.columns))
        warn_of_duplicates(rows, dev)
    elif hold_out and len(rows) >= FEWEST:
        train_rows, dev_rows = split_examples(rows, seed=plan.seed)
        if dev_rows:
            advice = if_option("dev", "; to use others, give --dev")
            distinct = len({rows.duplicate_key(row) for row in range(len(rows))})
            together = ", where rows with the same text stay together" if distinct < len(rows) else ""
            held_out = f"{len(dev_rows)} of {len(rows)} examples are held out for evaluation"
            log_info(f"{rows.file}: {held_out}{together}{advice}")
            rows, dev = rows.take(train_rows), rows.take(dev_rows)
    if plan.shots is not None:
        rows = sample_few_shot(rows, plan.shots, plan.seed, classes=bool(task.fit(rows).labels))
    return rows, dev, dev_rows


def finetune(plan: FinetuningJob, material: TaskData | None = None, resume: bool = False) -> Run:
    """Run the fine-tuning job `plan` with one seed, and return its run; `material` has its examples if already read."""
    material = material or read_task_data(plan)
    recipe, plan = plan.recipe(), plan.for_rows(material.size)
    mixture, task, rows, dev = material.mixture, material.task, material.rows, material.dev
    if material.hidden_distillation is not None:
        mixture = mixture.joined(material.hidden_distillation)
    device = choose_device(plan.device)
    model = model_with_special_tokens(starting_model(plan, mixture, rows), task, rows)
    task = task.with_tokenizer(model.require_tokenizer())
    learned: Any = task if material.teacher_targets is None else DistillLogits(task, material.teacher_targets)
    mixture = mixture.with_part(learned)
    labels = list(task.labels)
    model.labels, model.tasks, model.objective, model.bag_of_words = labels, {}, plan.objective, None
    length = check_length(min(plan.batch.max_length or 128, model.longest or 1 << 30), model)
    strategy = resolve_strategy(plan, model, [task], dev is not None)
    if plan.batch.subword_sampling.active and not strategy.trains:
        raise PretuneError(
            f"the strategy {plan.strategy} fits a head without training, so subwords cannot be sampled in every epoch; "
            "remove batch.bpe_dropout and batch.unigram_alpha"
        )
    starts = strategy.prepare(model, plan.seed)
    # A predictor raises an error for unknown labels.
    predictor = Predictor(model, task, dev, length).report_truncated() if dev is not None else None
    if plan.metric or plan.metrics:
        check_metrics(model, task, dev, length, device)
    resuming = start_run(plan.out, "finetune", recipe, resume)
    if material.dev_rows:
        write_json(plan.out / SPLIT, {"file": str(rows.file), "dev_rows": material.dev_rows})
    data, packing, truncated = tokenize_examples(plan, model, task, rows, length, device)
    mixture = strategy.wrap(mixture, learned)
    sampled = epochs_of_sampled_subwords(data, plan.batch.subword_sampling, plan.seed)
    streams = make_streams(mixture, data, tokens=packing.tokens, packing=packing, seed=plan.seed, epoch_data=sampled)
    epoch = len(streams.streams[0].epoch_plan(0))
    evaluate = None if predictor is None else lambda: score(predictor.task, predictor(device), predictor.examples)
    last: dict[str, float] = {}
    if strategy.trains:
        last = train_model(
            plan, model, strategy, starts, streams, epoch, evaluate, task.primary_metric, device, resuming
        )
    if strategy.fits_head:
        fit_head(model, task, rows, length, device, plan.seed, frozen=not strategy.trains)
    if material.hidden_distillation is not None:
        del model.root.heads[material.hidden_distillation.name]  # its projections are used only in training
    task, answers = finalize_task(model, material.unfitted, task, predictor, device)
    model.options = fitted_options(material.unfitted, task)
    model.save(plan.out)
    results: dict[str, Any] = {"model": plan.model, "objective": plan.objective, "rows": len(rows)}
    results |= {"truncated": truncated, "labels": labels, **last}
    if predictor is not None:
        results |= {f"dev/{name}": value for name, value in score(task, answers, dev).items()}
        results |= {"positive_class": positive_class(task)} if positive_class(task) is not None else {}
        write_predictions(plan.out / DEV_PREDICTIONS, answers)
    return finish_run(plan.out, results)


def train_model(
    plan: FinetuningJob,
    model: Model,
    strategy: Strategy,
    starts: dict[Tensor, float],
    streams: DataStreams,
    epoch: int,
    evaluate: Callable[[], dict[str, float]] | None,
    primary_metric: str,
    device: torch.device,
    resuming: bool,
) -> dict[str, float]:
    """Train a model that a fine-tuning strategy has prepared, and return the last metrics.

    `epoch` is the number of steps per epoch; `starts` maps parameters to the share of training after which they
    unfreeze.
    """
    steps = max(1, round((plan.epochs or 0) * epoch))
    monitor = plan.monitor
    if monitor.patience and not monitor.eval_every:
        monitor = replace(monitor, eval_every=epoch)
    training = Training(
        root=model.root,
        streams=streams,
        budget=plan.budget or Budget(steps=steps),
        optimizer=scale_lr_to_batch(plan.optimizer, plan.batch.size or 32),
        schedule=plan.schedule,
        monitor=monitor,
        seed=plan.seed,
        device=device,
        run=plan.out,
        cuda_graphs=device.type == "cuda" and not (streams.mixture.needs_host_sync or has_recurrent_layers(model.root)),
        starts=starts,
        update_hook=strategy.update_hook(model),
        gradient_checkpointing=bool(plan.batch.gradient_checkpointing),
        # The final model is evaluated after training anyway.
        evaluate=evaluate if monitor.eval_every or monitor.log_to else None,
        primary_metric=primary_metric,
        callbacks=(*plan.callbacks, *strategy.callbacks()),
    )
    last = train_run(training, resuming, plan.deterministic)
    if ranges := strategy.finish(model):
        write_json(plan.out / RANGES, ranges)
    return last


def check_metrics(model: Model, task: Task, dev: Any, length: int, device: torch.device) -> None:
    """Compute the metrics of a few dev examples before training, so that an invalid metric is reported at once."""
    if dev is None:
        advice = if_option("dev", "; give them with --dev")
        raise PretuneError(f"choosing or adding a metric needs dev examples to compute it on{advice}")
    predictor = Predictor(model, task, dev.take(range(min(len(dev), FEW))), length)
    check_primary_metric(task, predictor.task.metrics(predictor(device), predictor.examples))


def tokenize_examples(
    plan: FinetuningJob, model: Model, task: Task, rows: Any, length: int, device: torch.device
) -> tuple[Data, Packing, int]:
    """Tokenize the examples of a task to sequences of at most `length` tokens.

    Return the training data, the size limits of batches, and the number of texts that were truncated.
    """
    data = Data(model.require_tokenizer(), model.family.template, rows=rows)
    sequences = task.tokenize_examples(data, length)
    truncated = sequences.truncated
    if truncated:
        log_info(f"{rows.file}: {truncated} of {len(sequences)} texts were truncated to {length} tokens")
    return data, row_packing(sequences, plan.batch.size or 32, length, device.type == "cuda"), truncated


def finalize_task(
    model: Model, unfitted: Task, task: Task, predictor: Predictor | None, device: torch.device
) -> tuple[Task, list[Answer]]:
    """Return the task after training, and its predictions for the dev examples.

    Options that the user left unset, such as a threshold, are chosen so that the dev metric is best. Without dev
    examples, `predictor` is None.
    """
    task = task.finish(model.root.heads[task.name])
    if predictor is None:
        return task, []
    predictor.task = task
    outputs = predictor.outputs(device)
    answers = task.answers(outputs, predictor.arrangement, predictor.examples)
    best = task.best_options(answers, predictor.examples)
    if best := {name: value for name, value in best.items() if getattr(unfitted.unwrapped, name) is None}:
        predictor.task = task = with_options(task, best)
        answers = task.answers(outputs, predictor.arrangement, predictor.examples)
    return task, answers


def fitted_options(unfitted: Task, task: Task) -> dict[str, Any]:
    """Return the options in which a trained task differs from the task before training, `unfitted`, by name."""
    if isinstance(task, WrappedTask):
        return fitted_options(unfitted.task, task.task)  # type: ignore[attr-defined]
    names = [option.name for option in fields(task) if not option.metadata.get("fitted")]  # type: ignore[arg-type]
    return {name: getattr(task, name) for name in names if getattr(task, name) != getattr(unfitted, name)}


def with_options(task: Any, options: Mapping[str, Any]) -> Task:
    """Return a copy of a task with some of its options replaced."""
    if isinstance(task, WrappedTask):
        return task.with_task(with_options(task.task, options))
    return replace(task, **options)


def resolve_strategy(plan: FinetuningJob, model: Model, tasks: Iterable[Task], has_dev: bool) -> Strategy:
    """Return the fine-tuning strategy of a job; raise an error if it does not suit the model, optimizer, or data."""
    bare = next((task.name for task in tasks if not any(True for _ in model.root.heads[task.name].parameters())), "")
    strategy = choose_strategy(plan.strategy, bare, has_head=not bare)
    if plan.optimizer.name == "muon" and {"gradual", "lora"} & strategy.parts.keys():
        raise PretuneError(
            f"--strategy {plan.strategy} trains only some matrices, but the optimizer muon needs all of them; "
            "choose another optimizer, such as optimizer.name=adamw"
        )
    if not has_dev:
        for key in ("patience", "eval_every"):
            if getattr(plan.monitor, key):
                advice = if_option("dev", "; give them with --dev")
                raise PretuneError(f"monitor.{key} needs dev examples to evaluate on{advice}")
    return strategy


def write_predictions(file: Path, answers: Sequence[Answer]) -> None:
    """Write predictions to a file as JSON lines."""
    write_bytes(file, "".join(json.dumps(answer, ensure_ascii=False) + "\n" for answer in answers).encode())


def tasks_in(mixture: Mixture) -> list[Task]:
    """Return the supervised tasks among the objectives of a mixture."""
    return [part for part in mixture.objectives if isinstance(part, Task)]


def find_task(mixture: Mixture) -> Task:
    """Return the only task among the objectives of a mixture; raise an error if there are none or several."""
    tasks = tasks_in(mixture)
    if len(tasks) != 1:
        known = ", ".join(task_names())
        raise PretuneError(
            f"{mixture}: fine-tuning needs one task, optionally with auxiliary objectives, or several tasks with one file "
            f"each (NAME=FILE); tasks are {known}"
        )
    return tasks[0]


def starting_model(plan: FinetuningJob, mixture: Mixture, rows: Any = None) -> Model:
    """Return the model to fine-tune, pretrained or randomly initialized, with heads for all objectives in `mixture`.

    A new model has embeddings for the regions of images in `rows`.
    """
    if is_preset(plan.model):
        if plan.tokenizer is None:
            raise PretuneError(
                f"{plan.model} is a preset without weights; choose a pretrained model"
                f"{if_option('tokenizer', ', or give --tokenizer to train the preset from scratch')}"
            )
        tokenizer = Tokenizer.load(plan.tokenizer)
        padding = tokenizer.roles.get("padding")
        size, regions = rounded_size(tokenizer), region_sizes(rows)
        model = make_model(plan.model, size, plan.seed, padding=padding, regions=regions)
        model.tokenizer = tokenizer
    elif plan.from_scratch:
        model = random_copy(
            load_model(plan.model, ignore_mismatched=plan.ignore_mismatched, dropout=dropout_of(plan)), plan.seed
        )
    else:
        model = load_model(plan.model, mixture, plan.seed, plan.ignore_mismatched, dropout_of(plan))
        model.report_skipped_heads(plan.model, tasks_only=True)
        if isinstance(model.backbone, OnnxBackbone):
            raise PretuneError(f"{plan.model}: an ONNX model cannot be trained; fine-tune the model before export")
        if model.shape.linear:
            raise PretuneError(f"{plan.model}: int8 weights cannot be trained; fine-tune the model before quantization")
        for task in tasks_in(mixture):
            own = f"heads.{task.shared_head}."
            if not any(name.startswith(own) for name in model.untrained):
                task.begin(model.root.heads[task.name])
    model.add_heads(mixture.objectives, plan.seed)
    use_language(model, plan.language, plan.model)
    model.language = plan.language or model.language
    if plan.word_vectors is not None:
        copy_word_vectors(model, read_word_vectors(plan.word_vectors), plan.word_vectors)
    return model


def dropout_of(plan: FinetuningJob) -> Mapping[str, float] | None:
    """Return the dropout probabilities of a fine-tuning job: the user's, or else those of the model's own recipe."""
    return read_model_recipe(plan.model).dropout if plan.dropout is None else plan.dropout


def model_with_special_tokens(model: Model, task: Task, rows: Any) -> Model:
    """Return the model, or a copy with further special tokens if the inputs of a task need some that it lacks."""
    tokenizer, template = model.require_tokenizer(), model.family.template
    if all(map(tokenizer.has_role, ADDED_TOKENS)):
        return model
    first = task.with_tokenizer(tokenizer).tokenize_examples(Data(tokenizer, template, rows=rows.take([0])), ENOUGH)
    needed = {item for item, *_ in first.template.items(first.spans.shape[1])}
    for role in ADDED_TOKENS:
        if role in needed and not tokenizer.has_role(role):
            log_info(f"the tokenizer has no {role} token, which the inputs of the task need; a new token is added")
            model = add_special_token(model, role)
    return model


def row_packing(arrangement: Arrangement, rows: int, length: int, fixed: bool) -> Packing:
    """Return the size limits of batches of `rows` sequences, sampled from `arrangement`, of at most `length` tokens.

    With `fixed`, all batches have one shape, into which almost every sample of `rows` sequences fits.
    """
    lengths = arrangement.labels.get("tokens", arrangement.lengths)
    _, group = np.unique(arrangement.labels.get("group", np.arange(len(arrangement))), return_inverse=True)
    rows = max(rows, int(np.bincount(group).max(initial=1)))
    if not fixed:
        return Packing(tokens=rows * length, length=length, sequences=rows)
    usual = rows * lengths.mean() + 4 * lengths.std() * rows**0.5
    longest = max(length, int(np.bincount(group, lengths).max(initial=0)))
    tokens = int(np.clip(-(-usual // 128) * 128, longest, rows * length))
    slots = rows + -(-tokens // length)  # filler takes some
    return Packing(tokens=tokens, length=length, sequences=slots, fixed=True, rows=rows)
