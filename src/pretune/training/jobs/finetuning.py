"""Fine-tuning: train a pretrained model on the labeled examples of one task."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from pretune.backbones.onnx_runtime import OnnxBackbone
from pretune.inference.predict import Predictor
from pretune.inference.word_vector_models import copy_word_vectors
from pretune.metrics import majority_score, positive_class, score
from pretune.models.adapt_vocabulary import add_separator
from pretune.models.checkpoint_heads import text_embedding_of
from pretune.models.create_model import make_model, random_copy
from pretune.models.loading import load_model
from pretune.models.model import Model
from pretune.models.name_resolution import family_of
from pretune.models.presets import is_preset
from pretune.nn.recurrent import has_recurrent_layers
from pretune.nn.sentence_embedding import TextEmbedding
from pretune.objectives import Data, Mixture, RenamedTask, Task, parse_objective, task_names
from pretune.objectives.distillation.distill_task_logits import DistillLogits, TeacherTargets
from pretune.objectives.task import Answer
from pretune.objectives.tasks.classify import Pooling
from pretune.objectives.tasks.layer_features import OnLayerFeatures
from pretune.runtime.atomic_io import write_bytes, write_json
from pretune.runtime.devices import choose_device, deterministic
from pretune.runtime.errors import PretuneError, if_option
from pretune.runtime.progress import log_info
from pretune.runtime.value_ranges import COUNT, FRACTION_BELOW_1, NOT_NEGATIVE, check_number
from pretune.text.corpus.word_vector_files import read_word_vectors
from pretune.text.examples.few_shot import sample_few_shot
from pretune.text.examples.labeled import ROLES, LabeledRows
from pretune.text.examples.splits import FEWEST, split_examples, warn_of_duplicates
from pretune.text.examples.validation import check_classes, check_texts
from pretune.text.packing.sequences import Arrangement, Packing
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.training.data_streams import DataStreams, make_streams
from pretune.training.interrupts import Stopped
from pretune.training.jobs.finetuning_strategies import Strategy, choose_strategy
from pretune.training.jobs.pretraining_model import ROUND_VOCABULARY, check_length
from pretune.training.loop import Training, train
from pretune.training.optim.optimizers import scale_lr_to_batch
from pretune.training.recipe_sections import (
    ON_TEXT,
    Batching,
    Budget,
    Monitoring,
    Optimizer,
    Schedule,
    as_recipe,
    resolve_section,
)
from pretune.training.run_folder import Run, finish_run, start_run

DEV_PREDICTIONS = "dev_answers.jsonl"  # predictions for the dev examples, in their order
SPLIT = "split.json"  # which rows of the training file are the dev examples
ENOUGH = 512  # maximum length, in tokens, of the example by which the template of a task is found
RANGES = "activation_ranges.json"  # learned by quantization-aware training, for `quantize`
# Devlin et al. (2019): 2e-5 to 5e-5, 2 to 4 epochs, batches of 16 or 32; smaller models need larger learning rates.
SETTINGS: dict[str, dict[str, Any]] = {
    "optimizer": {"lr": 5e-5, "decay": 0.01, "clip": 1.0},
    "schedule": {"kind": "linear", "warmup": 0.1},
    "batch": {"sequences": 32, "length": 128},
    "watching": {"save": 0, "log": 10},
}


@dataclass(frozen=True)
class FinetuningJob:
    """A fine-tuning job with all settings resolved."""

    model: str
    train: str | Mapping[str, str]  # for several tasks, by task name
    dev: str | Mapping[str, str] | None
    out: Path
    columns: Mapping[str, str]
    objective: str
    strategy: str
    epochs: float
    budget: Budget | None
    optimizer: Optimizer
    schedule: Schedule
    batch: Batching
    watching: Monitoring
    seed: int
    seeds: int | None
    deterministic: bool
    tokenizer: str | None
    scratch: bool
    device: str | None
    shots: int | None = None  # examples per class; None: all
    sampling: str = "proportional"  # how several tasks are sampled
    unlabeled: str | None = None  # texts for a teacher to label
    confident: float = 0.9  # minimum confidence of the teacher
    soft: float | None = None  # temperature of the teacher's probabilities as soft labels; None: hard labels
    teacher: tuple[str, ...] | None = None  # runs that label as an ensemble; None: train one
    partial: bool = False  # load the model even if tensors are missing or unexpected
    drop_bad: bool = False  # skip examples whose spans are not in their texts
    vectors: str | None = None  # a file of word vectors to initialize embeddings from
    dropout: Mapping[str, float] | None = None  # overrides the model's, under the names of its config
    devices: int = 1  # over which seeds are distributed

    def __post_init__(self) -> None:
        check_number("epochs", self.epochs, NOT_NEGATIVE)
        for name in ("seeds", "shots", "devices"):
            check_number(name, getattr(self, name), COUNT)
        for name, rate in (self.dropout or {}).items():
            check_number(f"dropout.{name}", rate, FRACTION_BELOW_1)

    def recipe(self) -> dict[str, Any]:
        """Return all settings that determine the result, under the names of the verb's options."""
        content = as_recipe(self, leave_out=("out", "device", "devices", "columns"))
        own = {role: name for role, name in self.columns.items() if role in ROLES}
        further = {role: name for role, name in self.columns.items() if role not in ROLES}
        return {**content, **own, **({"columns": further} if further else {})}


def resolve_finetuning(model: str, given: dict[str, Any]) -> FinetuningJob:
    """Resolve all settings: given options, then the defaults for fine-tuning."""
    sections: dict[str, type[Any]] = {
        "optimizer": Optimizer,
        "schedule": Schedule,
        "batch": Batching,
        "watching": Monitoring,
    }
    usual = dict(SETTINGS)
    for task in tasks_in(parse_objective(given["objective"])):
        usual |= task.settings
    filled = {
        name: resolve_section(kind, given.pop(name, None), usual[name], ON_TEXT) for name, kind in sections.items()
    }
    return FinetuningJob(model=model, **given, **filled)


@dataclass(frozen=True)
class TaskData:
    """The data of a fine-tuning job: the objectives, with the task fitted to its examples, and the examples."""

    mixture: Mixture
    asked: Task  # before it was fitted
    task: Task
    rows: Any  # training examples
    dev: Any  # dev examples, or None
    taken: list[int]  # rows of the training file that became dev examples, if there was no dev file
    teaching: TeacherTargets | None = None  # soft labels to learn instead of the labels of the rows
    imitation: Any = None  # an Imitate: other outputs of a teacher to imitate besides the task

    @property
    def size(self) -> int:
        """The number of training examples."""
        return len(self.rows)

    @property
    def judged(self) -> bool:
        """Whether there are dev examples."""
        return self.dev is not None

    @property
    def primary_metric(self) -> str:
        """The primary metric, by which runs are compared."""
        return self.task.primary_metric

    def floor(self) -> float:
        """Return the primary metric of the majority-class baseline."""
        return majority_score(self.task, self.rows, self.dev)


def read_task_data(plan: FinetuningJob) -> TaskData:
    """Read the training and dev examples; without a dev file, dev examples are split off the training file."""
    mixture = requested_objectives(plan, plan.objective)
    asked = find_task(mixture)
    assert isinstance(plan.train, str) and not isinstance(plan.dev, Mapping)
    rows, dev, taken = read_examples(plan, asked, plan.train, plan.dev)
    task = with_model_pooling(plan, plan.objective, asked).fit(rows)
    return TaskData(mixture.with_part(task), asked, task, rows, dev, taken)


def model_embedding(plan: FinetuningJob) -> TextEmbedding | None:
    """Return how the model of a job computes text embeddings, or None if its folder does not say."""
    return None if is_preset(plan.model) else text_embedding_of(plan.model)


def with_model_pooling(plan: FinetuningJob, objective: str, asked: Task) -> Task:
    """Return the task with the pooling of the model's text embeddings, unless the objective names another pooling.

    A pooling that gives good text embeddings is also a good start for classification.
    """
    embedding = model_embedding(plan)
    mode = next((mode for mode in (embedding.pooling if embedding else ()) if mode in get_args(Pooling)), None)
    if mode is None:
        return asked
    return next(task for task in tasks_in(requested_objectives(plan, objective, mode)) if task.name == asked.name)


def requested_objectives(plan: FinetuningJob, objective: str, pooling: str | None = None) -> Mixture:
    """Return the objectives of a job, not yet fitted to examples.

    `pooling` is for tasks that do not set one; the default is the model family's.
    """
    usual: dict[str, Any] = {"pooling": pooling or family_of(plan.model).poolings.get("", "start")}
    if (embedding := model_embedding(plan)) is not None:
        usual["embedding"] = embedding
    usual |= {"drop_bad": True} if plan.drop_bad else {}
    mixture = parse_objective(objective, **usual)
    if plan.drop_bad and not any(task.has_option("drop_bad") for task in tasks_in(mixture)):
        raise PretuneError(f"--drop-bad: {mixture} cannot skip bad examples; correct them instead")
    return mixture


def read_examples(plan: FinetuningJob, task: Task, train: str, judged: str | None) -> tuple[Any, Any, list[int]]:
    """Return the training examples, the dev examples, and which rows of the training file those are."""
    rows = task.read(train, plan.columns)
    check_rows(task, rows, classes=plan.shots is None)
    dev, taken = None, list[int]()
    if judged:
        dev = task.read(judged, getattr(rows, "columns", plan.columns))
        warn_of_duplicates(rows, dev)
    elif len(rows) >= FEWEST:
        kept, taken = split_examples(rows, seed=plan.seed)
        if taken:
            others = if_option("dev", "; to use others, give --dev")
            log_info(f"{rows.file}: {len(taken)} of {len(rows)} examples are held out for evaluation{others}")
            rows, dev = rows.take(kept), rows.take(taken)
    if plan.shots is not None:
        rows = sample_few_shot(rows, plan.shots, plan.seed, classes=bool(task.fit(rows).labels))
    return rows, dev, taken


def check_rows(task: Task, rows: Any, classes: bool) -> None:
    """Report or refuse rows that a task cannot learn from: without texts, or, if `classes` is set, with too few classes."""
    if not isinstance(rows, LabeledRows):
        return
    check_texts(rows)
    if classes and task.single_label:
        check_classes(rows)


def finetune(plan: FinetuningJob, material: TaskData | None = None, resume: bool = False) -> Run:
    """Run a fine-tuning job with one seed, and return its run."""
    material = material or read_task_data(plan)
    mixture, task, rows, dev = material.mixture, material.task, material.rows, material.dev
    if material.imitation is not None:
        mixture = mixture.joined(material.imitation)
    device = choose_device(plan.device)
    model = model_with_separator(starting_model(plan, mixture), task, rows)
    task = task.with_tokenizer(model.require_tokenizer())
    learned: Any = task if material.teaching is None else DistillLogits(task, material.teaching)
    mixture = mixture.with_part(learned)
    labels = list(task.labels)
    model.labels, model.tasks, model.objective = labels, {}, plan.objective
    length = check_length(min(plan.batch.length or 128, model.longest or 1 << 30), model)
    strategy = resolve_strategy(plan, model, [task], len(rows), dev is not None)
    starts = strategy.prepare(model, plan.seed)
    answer = (
        Predictor(model, task, dev, length).report_truncated() if dev is not None else None
    )  # raises an error for unknown labels
    resuming = start_run(plan.out, "finetune", plan.recipe(), resume)
    if material.taken:
        write_json(plan.out / SPLIT, {"file": str(rows.file), "judged": material.taken})
    data, packing, truncated = tokenize_examples(plan, model, task, rows, length, device)
    streams = make_streams(
        strategy.wrap(mixture, learned), data, tokens=packing.tokens, packing=packing, seed=plan.seed
    )
    epoch = len(streams.streams[0].epoch_plan(0))
    evaluate = evaluator(answer, device) if answer is not None else None
    last = train_model(plan, model, strategy, starts, streams, epoch, evaluate, task.primary_metric, device, resuming)
    if material.imitation is not None:
        del model.root.heads[material.imitation.name]  # its projections are used only in training
    task, answers = finalize_task(model, material.asked, task, answer, device)
    model.options = fitted_options(material.asked, task)
    model.save(plan.out)
    results: dict[str, Any] = {"model": plan.model, "objective": plan.objective, "rows": len(rows)}
    results |= {"truncated": truncated, "labels": labels, **last}
    if answer is not None:
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
    """Train a prepared model, and return the last metrics; `epoch` is the number of steps per epoch."""
    steps = max(1, round(plan.epochs * epoch))
    watching = plan.watching
    if watching.patience and not watching.evaluate:
        watching = replace(watching, evaluate=epoch)
    training = Training(
        root=model.root,
        streams=streams,
        budget=plan.budget or Budget(steps=steps),
        optimizer=scale_lr_to_batch(plan.optimizer, plan.batch.sequences or 32),
        schedule=plan.schedule,
        watching=watching,
        seed=plan.seed,
        device=device,
        run=plan.out,
        cuda_graphs=device.type == "cuda" and not (streams.mixture.needs_host_sync or has_recurrent_layers(model.root)),
        starts=starts,
        after=strategy.after(model),
        recompute=bool(plan.batch.recompute),
        # The final model is evaluated after training anyway.
        evaluate=evaluate if watching.evaluate else None,
        primary_metric=primary_metric,
    )
    try:
        with deterministic(plan.deterministic):
            last = train(training, resume=resuming)
    except Stopped:
        log_info(
            f"stopped, with a checkpoint in {plan.out}{if_option('resume', '; resume with the same command and --resume')}"
        )
        raise KeyboardInterrupt from None
    if ranges := strategy.finish(model):
        write_json(plan.out / RANGES, ranges)
    model.root.set_activation_dtype(torch.float32)
    return last


def tokenize_examples(
    plan: FinetuningJob, model: Model, task: Task, rows: Any, length: int, device: torch.device
) -> tuple[Data, Packing, int]:
    """Return the tokenized examples of a task, how they are packed, and how many texts are truncated."""
    data = Data(model.require_tokenizer(), model.family.template, rows=rows)
    laid = task.tokenize_examples(data, length)
    if laid.truncated:
        log_info(f"{rows.file}: {laid.truncated} of {len(laid)} texts were truncated to {length} tokens")
    return data, row_packing(laid, plan.batch.sequences or 32, length, device.type == "cuda"), laid.truncated


def finalize_task(
    model: Model, asked: Task, task: Task, answer: Predictor | None, device: torch.device
) -> tuple[Task, list[Answer]]:
    """Return the trained task, with options such as thresholds tuned on the dev examples, and its predictions for them.

    Options that the user has set are not tuned.
    """
    task = task.finish(model.root.heads[task.name])
    if answer is None:
        return task, []
    answer.task = task
    outputs = answer.outputs(device)
    answers = task.answers(outputs, answer.laid, answer.examples)
    best = task.best_options(answers, answer.examples)
    if best := {name: value for name, value in best.items() if getattr(asked.unwrapped, name) is None}:
        answer.task = task = with_options(task, best)
        answers = task.answers(outputs, answer.laid, answer.examples)
    return task, answers


def fitted_options(asked: Task, task: Task) -> dict[str, Any]:
    """Return the options that a task took from its examples rather than from the user, except fields marked as fitted."""
    if isinstance(task, OnLayerFeatures | RenamedTask):
        return fitted_options(asked.task, task.task)  # type: ignore[attr-defined]
    names = [option.name for option in fields(task) if not option.metadata.get("fitted")]  # type: ignore[arg-type]
    return {name: getattr(task, name) for name in names if getattr(task, name) != getattr(asked, name)}


def with_options(task: Any, options: Mapping[str, Any]) -> Task:
    """Return a task with some options replaced."""
    if isinstance(task, OnLayerFeatures | RenamedTask):
        return replace(task, task=with_options(task.task, options))  # type: ignore[return-value]
    return replace(task, **options)


def resolve_strategy(plan: FinetuningJob, model: Model, tasks: Iterable[Task], examples: int, judged: bool) -> Strategy:
    """Return the strategy of a job; raise an error if it does not fit the model, the optimizer, or the data."""
    bare = next((task.name for task in tasks if not any(True for _ in model.root.heads[task.name].parameters())), "")
    strategy = choose_strategy(plan.strategy, examples, bare, has_head=not bare)
    if plan.optimizer.name == "muon" and {"gradual", "lora"} & strategy.parts.keys():
        raise PretuneError(f"strategy {plan.strategy}: muon cannot train only some matrices; choose another optimizer")
    if not judged:
        for key in ("patience", "evaluate"):
            if getattr(plan.watching, key):
                advice = if_option("dev", "; give them with --dev")
                raise PretuneError(f"watching.{key} needs examples to evaluate on{advice}")
    return strategy


def write_predictions(file: Path, answers: Sequence[Answer]) -> None:
    """Write predictions as JSON lines."""
    write_bytes(file, "".join(json.dumps(answer, ensure_ascii=False) + "\n" for answer in answers).encode())


def tasks_in(mixture: Mixture) -> list[Task]:
    """Return the tasks among the objectives of a mixture."""
    return [part for part in mixture.objectives if isinstance(part, Task)]


def find_task(mixture: Mixture) -> Task:
    """Return the only task of a mixture; raise an error if it has none or several."""
    tasks = tasks_in(mixture)
    if len(tasks) != 1:
        known = ", ".join(task_names())
        raise PretuneError(
            f"{mixture}: fine-tuning needs one task, optionally with auxiliary objectives, or several tasks with one file "
            f"each (NAME=FILE); tasks are {known}"
        )
    return tasks[0]


def starting_model(plan: FinetuningJob, mixture: Mixture) -> Model:
    """Return the model to fine-tune, with heads for all objectives, and with word vectors if the job names some."""
    model = model_with_heads(plan, mixture)
    if plan.vectors is not None:
        copy_word_vectors(model, read_word_vectors(plan.vectors), plan.vectors)
    return model


def model_with_heads(plan: FinetuningJob, mixture: Mixture) -> Model:
    """Return the pretrained model, or a preset with random weights, with heads for all objectives."""
    if is_preset(plan.model):
        if plan.tokenizer is None:
            raise PretuneError(
                f"{plan.model} is a preset without weights{if_option('tokenizer', '; to train it from scratch, give --tokenizer')}"
            )
        tokenizer = Tokenizer.load(plan.tokenizer)
        size = -(-tokenizer.size // ROUND_VOCABULARY) * ROUND_VOCABULARY
        model = make_model(plan.model, size, plan.seed, padding=tokenizer.roles.get("padding"))
        model.tokenizer = tokenizer
    elif plan.scratch:
        model = random_copy(load_model(plan.model, partial=plan.partial, dropout=plan.dropout), plan.seed)
    else:
        model = load_model(plan.model, mixture, plan.seed, plan.partial, plan.dropout)
        model.report_skipped_heads(plan.model)
        if isinstance(model.backbone, OnnxBackbone):
            raise PretuneError(
                f"{plan.model}: an ONNX model cannot be trained; fine-tune the model it was exported from"
            )
        if model.shape.linear:
            raise PretuneError(f"{plan.model}: int8 weights cannot be trained; fine-tune the model before quantization")
        for task in tasks_in(mixture):
            own = f"heads.{task.shared_head}."
            if not any(name.startswith(own) for name in model.untrained):
                task.begin(model.root.heads[task.name])
        return model
    model.add_heads(mixture.objectives, plan.seed)
    return model


def model_with_separator(model: Model, task: Task, rows: Any) -> Model:
    """Return a model whose tokenizer has a separator token, if the task needs one; a missing token is added."""
    tokenizer, template = model.require_tokenizer(), model.family.template
    if tokenizer.has_role("separator"):
        return model
    first = task.with_tokenizer(tokenizer).tokenize_examples(Data(tokenizer, template, rows=rows.take([0])), ENOUGH)
    if "separator" not in {item for item, *_ in first.template.items(first.spans.shape[1])}:
        return model
    log_info("the tokenizer has no separator for pairs of texts; adding a new token for it")
    return add_separator(model)


def row_packing(laid: Arrangement, rows: int, length: int, fixed: bool) -> Packing:
    """Return the packing for `rows` sequences per pack, or for a whole group of sequences that has more.

    Fixed shapes are large enough for almost every sample of sequences; rarely, a pack holds one sequence fewer.
    """
    lengths = laid.labels.get("tokens", laid.lengths)
    _, group = np.unique(laid.labels.get("group", np.arange(len(laid))), return_inverse=True)
    rows = max(rows, int(np.bincount(group).max(initial=1)))
    if not fixed:
        return Packing(tokens=rows * length, length=length, sequences=rows)
    usual = rows * lengths.mean() + 4 * lengths.std() * rows**0.5
    longest = max(length, int(np.bincount(group, lengths).max(initial=0)))
    tokens = int(np.clip(-(-usual // 128) * 128, longest, rows * length))
    slots = rows + -(-tokens // length)  # filler takes some
    return Packing(tokens=tokens, length=length, sequences=slots, fixed=True, rows=rows)


def evaluator(answer: Predictor, device: torch.device) -> Callable[[], dict[str, float]]:
    """Return a function that computes the metrics of the current model on the dev examples."""
    return lambda: score(answer.task, answer(device), answer.examples)


__all__ = [
    "DEV_PREDICTIONS",
    "RANGES",
    "SPLIT",
    "FinetuningJob",
    "TaskData",
    "finetune",
    "read_task_data",
    "resolve_finetuning",
]
