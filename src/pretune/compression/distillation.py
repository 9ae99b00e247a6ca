"""Knowledge distillation of one or several teachers into a student: for a task, or task-agnostic on running text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pretune.compression.compression_job import SECTIONS, CompressionJob
from pretune.compression.student_initialization import initialize_student, parse_student, student_depth
from pretune.compression.task_model import TrainedModel, compare_models
from pretune.inference.generation.causal_generation import TextGenerator
from pretune.inference.generation.decoding_loops import GenerationConfig
from pretune.inference.teacher_labels import label_with_teachers, teacher_task
from pretune.models.checkpoint_heads import stored_objectives
from pretune.models.loading import load
from pretune.models.model import Model
from pretune.models.name_resolution import family_of, find_folder
from pretune.models.presets import is_preset
from pretune.objectives import Mixture, Task, parse_objective
from pretune.objectives.distillation.distill_hidden_states import DistillHidden, LayerMatch, parse_matches
from pretune.objectives.distillation.distill_task_logits import TeacherTargets
from pretune.objectives.distillation.distill_token_logits import DistillTokens
from pretune.objectives.distillation.teachers import frozen_copy
from pretune.runtime.arrays import Array
from pretune.runtime.atomic_io import write_bytes
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import PretuneError, if_option, suggest
from pretune.runtime.output_paths import INTERMEDIATE, intermediate_folder
from pretune.runtime.progress import log_info
from pretune.runtime.ray_jobs import Executor
from pretune.text.corpus.documents import SplitBy, read_documents
from pretune.text.corpus.files import Errors, find_files
from pretune.text.examples.augmentation import augment
from pretune.text.examples.labeled import LabeledRows
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.training.jobs.finetuning import TaskData, find_task, finetune, read_task_data, with_options
from pretune.training.jobs.pretraining import pretrain
from pretune.training.jobs.pretraining_settings import resolve_pretraining
from pretune.training.jobs.self_training import append_rows, one_hot, read_texts
from pretune.training.run_folder import Run, finish_run, write_run_recipe

# Lower rates than from scratch, as the student starts from layers of its teacher.
TASK_AGNOSTIC_SETTINGS: dict[str, Any] = {
    "budget": {"seconds": 300.0},
    "optimizer": {"lr": 3e-4},
    "batch": {"tokens": 4096},
}

# Weights of the losses on running text, as for DistilBERT (Sanh et al., 2019): the divergence from the teacher's probabilities, the
# language modeling loss (mlm or lm), and the cosine distance of the last hidden states.
DISTILLATION, LANGUAGE_MODELING, COSINE = 5.0, 2.0, 1.0

LOSS_NAMES = ("distillation", "mlm", "lm", "cosine")
PROMPT_WORDS = 8  # words of a text that a teacher continues


@dataclass(frozen=True, kw_only=True)
class DistillationJob(CompressionJob):
    """A distillation job: teachers, student, data, losses, and training settings."""

    teachers: Sequence[str]
    student: str
    unlabeled: str | None = None
    data: Sequence[str] = ()  # running text
    split_by: SplitBy = "auto"  # how its .txt files are split into documents
    text_field: str | None = None  # the text field of its other files
    encoding_errors: Errors = "strict"  # how to handle invalid UTF-8
    temperature: float = 2.0
    alpha: float = 0.5
    loss: Literal["kl", "mse"] = "kl"
    match_layers: str | None = None
    loss_weights: Mapping[str, float] = field(default_factory=dict)  # on running text, instead of DistilBERT's
    num_augmentations: int = 0  # variants of each text
    generate_tokens: int = 0  # tokens that the teacher generates from the beginning of each text
    baseline: bool = False  # whether to train the student without a teacher as well
    processes: int = 1
    executor: Executor = "local"

    def check(self) -> None:
        """Raise an error if options of a distillation job are invalid or contradict each other."""
        if not self.temperature > 0:
            raise PretuneError(
                f"--temperature {self.temperature:g}: the temperature must be above 0; give 1 to leave probabilities as they are"
            )
        if not 0 <= self.alpha <= 1:
            raise PretuneError(
                f"--alpha {self.alpha:g}: the weight of the teacher must be from 0 to 1, for example 0.5"
            )
        if not (self.train or self.unlabeled or self.data):
            raise PretuneError(
                "`pretune distill` needs data: give labeled examples (--train), texts (--unlabeled) or running text (--data)"
            )
        if self.data and (self.train or self.unlabeled):
            raise PretuneError(
                "`pretune distill --data` is for task-agnostic distillation; leave out --train and --unlabeled, and fine-tune later"
            )
        for name, weight in self.loss_weights.items():
            if name not in LOSS_NAMES:
                raise PretuneError(f"--loss-weights.{name}: unknown loss; {suggest(name, LOSS_NAMES)}")
            if weight < 0:
                raise PretuneError(
                    f"--loss-weights.{name} {weight:g}: the weight of a loss must be 0 or more; 0 turns the loss off"
                )
        if self.match_layers and "cosine" in self.loss_weights:
            raise PretuneError(
                "--loss-weights.cosine does not apply with --match-layers; give the weight in --match-layers, as in 2*cosine"
            )
        if self.data and len(self.teachers) > 1:
            raise PretuneError("--data takes a single teacher; give only one teacher")
        if self.match_layers and len(self.teachers) > 1:
            raise PretuneError(
                "--match-layers needs the hidden states of a single teacher; give only one teacher, or leave out "
                "--match-layers"
            )

    def recipe(self) -> dict[str, Any]:
        """Return the options that determine the result of a distillation job, named like the command-line options."""
        others = (
            "teachers",
            "out",
            "columns",
            "budget",
            *SECTIONS,
            "device",
            "baseline",
            "compare",
            "processes",
            "executor",
        )
        plain = {key.name: getattr(self, key.name) for key in fields(self) if key.name not in others}
        known = {"teacher": list(self.teachers), **plain, "data": list(self.data), **self.columns}
        known["loss_weights"] = dict(self.loss_weights)
        return self.write_recipe(known)


def run_distillation(job: DistillationJob) -> Run:
    """Train the student of a distillation job, compare it with the teacher, and return the run."""
    job.check()
    return distill_language_model(job) if job.data else distill_task(job)


# -- for a task -----------------------------------------------------------------------------------------------------


def distill_task(job: DistillationJob) -> Run:
    """Train a student for a task on labels and on its teachers' predictions and hidden states; return the run."""
    task = teacher_task(job.teachers)
    labels = labels_of(task)
    check_student(job, labels)
    teacher = TrainedModel.load(job.teachers[0])
    matches = layer_matches(job, teacher.model)
    objective = teacher.objective
    labeled, texts = read_data(job, objective, task, labels)
    start, tokenizer = initialize_student(job.student, teacher.model, job.teachers[0], job.out)
    plan = replace(job.finetuning(start, job.out, objective, train=job.train or job.unlabeled), tokenizer=tokenizer)
    material = add_predictions(job, labeled, texts)
    if matches:
        frozen = frozen_teacher(job, teacher.model, Tokenizer.load(tokenizer or find_folder(start)))
        material = replace(material, hidden_distillation=DistillHidden(frozen, matches))
    run = finetune(plan, material)
    write_run_recipe(job.out, "distill", job.recipe())
    models = {"teacher": teacher}
    if job.baseline:
        baseline = replace(plan, out=intermediate_folder(job.out, "baseline"))
        finetune(baseline, labeled)
        models["student without a teacher"] = TrainedModel.load(baseline.out)
    models["student"] = TrainedModel.load(job.out)
    facts = {"teachers": list(job.teachers), "texts": 0 if texts is None else len(texts)}
    comparison = compare_models(models, labeled.dev) if job.compare else {}
    return finish_run(job.out, {**run.results, **facts, **comparison})


def check_student(job: DistillationJob, labels: Sequence[str]) -> None:
    """Raise an error if the student was already trained for other labels than those of the teacher."""
    if is_preset(job.student) or not Path(job.student).is_dir():
        return
    trained = stored_objectives(job.student)
    for part in trained.objectives if trained is not None else ():
        own = part.labels if isinstance(part, Task) else ()
        if own and set(own) != set(labels):
            raise PretuneError(
                f"{job.student}: the student's labels are {', '.join(own)}, but the teacher's are {', '.join(labels)}; "
                "choose a student with the same labels, or one without a task"
            )


def layer_matches(job: DistillationJob, teacher: Model) -> tuple[LayerMatch, ...]:
    """Return which layers of the student are matched with which layers of the teacher; () without --match-layers."""
    student = student_depth(job.student, teacher)  # an error for an unknown name
    return parse_matches(job.match_layers, student, teacher.backbone.depth) if job.match_layers else ()


def read_data(
    job: DistillationJob, objective: str, task: Task, labels: Sequence[str]
) -> tuple[TaskData, LabeledRows | None]:
    """Return the labeled examples of a distillation job, with the fitted task, and its unlabeled texts (or None)."""
    # The student's family has the default pooling, where the teacher's objective names none.
    family = job.teachers[0] if parse_student(job.student) else job.student
    mixture = parse_objective(objective, pooling=family_of(family).poolings.get("", "cls"))
    if job.train:
        material = read_task_data(job.finetuning(family, job.out, objective))
        teacher_task(job.teachers, None if task.output_per == "text" else labels_of(material.task))
    else:
        unfitted = find_task(mixture)
        fitted = with_options(unfitted, {"labels": tuple(labels)}) if labels else unfitted
        dev = fitted.read(job.dev, job.columns) if job.dev else None
        empty = LabeledRows(Path("none"), {"text": "text", "label": "label"}, labels=[])
        material = TaskData(mixture.with_part(fitted), unfitted, fitted, empty, dev, [])
    texts = None
    if job.unlabeled:
        columns = {role: name for role, name in job.columns.items() if role != "label"}
        texts = read_texts(task, job.unlabeled, columns)
    if job.num_augmentations:
        texts = with_variants(texts, material.rows if texts is None else texts, job)
    return material, texts


def with_variants(texts: LabeledRows | None, source: LabeledRows, job: DistillationJob) -> LabeledRows:
    """Return the unlabeled `texts`, if there are any, followed by augmented variants of the texts in `source`.

    Variants of a pair of texts differ in the first text only.
    """
    variants = augment(source.texts, job.num_augmentations, job.seed)
    first = source.take([]) if texts is None else texts
    every = [*first.texts, *(variant for _, variant in variants)]
    pairs = None
    if source.pairs is not None:
        pairs = [*(first.pairs or []), *(source.pairs[number] for number, _ in variants)]
    return LabeledRows(Path("augmented"), {}, every, pairs, lines=list(range(1, len(every) + 1)))


def add_predictions(job: DistillationJob, material: TaskData, texts: LabeledRows | None) -> TaskData:
    """Return the training data of a student: labeled examples and unlabeled texts, with teachers' predictions.

    `material` has the labeled examples, and `texts` the unlabeled texts, if there are any.
    """
    rows, own = material.rows, labels_of(material.task)

    def predict(rows: LabeledRows, name: str) -> Array:
        cache = job.out / INTERMEDIATE / f"teacher-{name}.npz"
        return label_with_teachers(job.teachers, rows, own, cache, job.processes, job.executor)

    for_rows = predict(rows, "labeled") if job.alpha and len(rows) else None
    for_texts = predict(texts, "texts") if texts is not None else None
    if material.task.output_per == "text":
        return add_generated_texts(job, material, texts, for_rows, for_texts)
    if not own:
        return mix_numbers(job, material, texts, for_rows, for_texts)
    targets = one_hot(rows.labels or [], own)
    if texts is not None and for_texts is not None:
        likely = [own[number] for number in for_texts.argmax(-1)]
        material = replace(material, rows=append_rows(rows, texts, likely, texts.file))
        targets = np.concatenate([targets, for_texts])
    teacher_targets = TeacherTargets(targets, len(rows), job.temperature, for_rows, job.alpha, job.loss)
    return replace(material, teacher_targets=teacher_targets)


def labels_of(task: Task) -> list[str]:
    """Return the class labels of a task, or an empty list for a task without class probabilities."""
    return list(task.labels) if task.output_per != "text" else []


def add_generated_texts(
    job: DistillationJob, material: TaskData, texts: LabeledRows | None, for_rows: Array | None, for_texts: Array | None
) -> TaskData:
    """Return training data of a text-to-text task, in which texts that the teacher generated are additional targets.

    `for_rows` and `for_texts` are what the teacher generated for the examples in `material` and for the unlabeled
    `texts`. With --alpha 1, there are no other targets.
    """
    rows = material.rows
    examples = rows.take(range(len(rows) if job.alpha < 1 else 0))
    for inputs, outputs in ((rows, for_rows), (texts, for_texts)):
        if inputs is not None and outputs is not None:
            examples = append_rows(examples, inputs, outputs[:, 0].tolist(), inputs.file)
    return replace(material, rows=replace(examples, columns=rows.columns))


def mix_numbers(
    job: DistillationJob, material: TaskData, texts: LabeledRows | None, for_rows: Array | None, for_texts: Array | None
) -> TaskData:
    """Return training data of a regression, in which targets are means of labels and teacher predictions.

    `for_rows` and `for_texts` are the teacher's predictions for the examples in `material` and for the unlabeled
    `texts`, whose targets are the predictions alone.
    """
    rows = material.rows
    if for_rows is not None:
        mixed = (1 - job.alpha) * np.array(rows.labels) + job.alpha * for_rows[:, 0]
        rows = replace(rows, labels=mixed.tolist())
    if texts is not None and for_texts is not None:
        rows = append_rows(rows, texts, for_texts[:, 0].tolist(), texts.file)
    task = material.task.fit(rows)
    return replace(material, rows=rows, task=task, mixture=material.mixture.with_part(task))


def frozen_teacher(job: DistillationJob, teacher: Model, tokenizer: Tokenizer) -> Any:
    """Return a frozen copy of the teacher's network; raise an error if the student's `tokenizer` is another one."""
    if teacher.require_tokenizer().digest != tokenizer.digest:
        raise PretuneError(
            f"{job.teachers[0]}: matching hidden states needs a teacher with the student's tokenizer"
            f"; choose such a teacher{if_option('match-layers', ', or leave out --match-layers')}"
        )
    return frozen_copy(teacher.root, choose_device(job.device))


# -- task-agnostic --------------------------------------------------------------------------------------------------


def distill_language_model(job: DistillationJob) -> Run:
    """Train a student language model on its teacher's token probabilities and hidden states, and return the run."""
    teacher = load(job.teachers[0])
    name = next((name for name in ("mlm", "lm") if name in teacher.root.heads), None)
    if name is None:
        raise PretuneError(
            f"--data needs a masked or causal language model as the teacher, which {job.teachers[0]} is not; choose "
            "another teacher"
        )
    weights = loss_weights_of(job, name)
    matches = layer_matches(job, teacher) or (LayerMatch("cosine", weights["cosine"]),)
    start, _ = initialize_student(job.student, teacher, job.teachers[0], job.out)
    options: dict[str, Any] = {**job.sections, "objective": name, "budget": job.budget}
    options |= {"tokenizer": str(find_folder(job.teachers[0])), **({} if job.generate_tokens else reading(job))}
    data = [str(generate_texts(job, teacher))] if job.generate_tokens else job.data
    plan = resolve_pretraining(start, data, job.out, options, job.seed, job.device, TASK_AGNOSTIC_SETTINGS)

    def add_distillation(mixture: Mixture, tokenizer: Tokenizer) -> Mixture:
        root = frozen_teacher(job, teacher, tokenizer)
        losses = weights["distillation"], weights[name]
        tokens: Any = DistillTokens(mixture.objectives[0], root, job.temperature, *losses)
        hidden: Any = DistillHidden(root, matches)
        return mixture.with_part(tokens).joined(hidden)

    run = pretrain(plan, transform=add_distillation)
    write_run_recipe(job.out, "distill", job.recipe())
    log_info(f"{job.out}: the student is trained; to use it for a task, fine-tune it with `pretune finetune`")
    models, results = {"teacher": TrainedModel.load(job.teachers[0])}, {**run.results, "teachers": list(job.teachers)}
    if job.baseline:
        baseline = pretrain(replace(plan, out=intermediate_folder(job.out, "baseline")))
        models["student without a teacher"] = TrainedModel.load(baseline.folder)
        results |= {f"baseline/{key}": value for key, value in baseline.results.items() if key.startswith("dev/")}
    models["student"] = TrainedModel.load(job.out)
    return finish_run(job.out, {**results, **(compare_models(models, None) if job.compare else {})})


def loss_weights_of(job: DistillationJob, name: str) -> dict[str, float]:
    """Return the weight of each distillation loss by name; `name` is the language modeling loss, mlm or lm."""
    defaults = {"distillation": DISTILLATION, name: LANGUAGE_MODELING, "cosine": COSINE}
    for other in job.loss_weights.keys() - defaults.keys():
        raise PretuneError(
            f"--loss-weights.{other} does not apply, because this teacher was trained with {name}; use --loss-weights.{name}"
        )
    weights = {**defaults, **job.loss_weights}
    if not any(weights.values()):
        raise PretuneError("--loss-weights: all weights are 0; set at least one above 0")
    return weights


def reading(job: DistillationJob) -> dict[str, Any]:
    """Return the options of a distillation job that control how running text is read from files."""
    return {"split_by": job.split_by, "text_field": job.text_field, "encoding_errors": job.encoding_errors}


def generate_texts(job: DistillationJob, teacher: Model) -> Path:
    """Write texts that the teacher generates to a file, one per line, and return the file (Kim and Rush, 2016).

    The teacher continues the first words of each document of the running text.
    """
    if "lm" not in teacher.root.heads:
        raise PretuneError(
            f"--generate-tokens {job.generate_tokens}: {job.teachers[0]} is not a causal language model; choose "
            "another teacher, or leave out --generate-tokens"
        )
    prompts = [
        " ".join(document.text.split()[:PROMPT_WORDS])
        for document in read_documents(find_files(list(job.data)), **reading(job))
    ]
    config = GenerationConfig(max_new_tokens=job.generate_tokens, temperature=1.0, seed=job.seed)
    rows = TextGenerator.load(job.teachers[0], job.device).generate([text for text in prompts if text], config)
    file = job.out / INTERMEDIATE / "written.txt"
    write_bytes(file, "".join(" ".join(str(row["text"]).split()) + "\n" for row in rows).encode())
    return file
