"""From a teacher, or several, to a student: of one task by labels and texts, or of none in particular by running text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pretune.compression.recovery import Recovery, as_recipe, plan_of
from pretune.compression.student_initialization import Start, cut_of, depth_of, make_start
from pretune.compression.task_model import Trained, beside
from pretune.inference.generation.generate import Decoding, Writer
from pretune.inference.teacher_labels import Array, ask, teachers_task
from pretune.models.model import Model, family_of, find_folder, load, trained_for
from pretune.models.presets import is_preset
from pretune.objectives import Mixture, Task, parse_objective
from pretune.objectives.distillation.distill_hidden import Imitate, Match, parse_matches
from pretune.objectives.distillation.distill_logits import Teaching
from pretune.objectives.distillation.distill_tokens import SoftTokens
from pretune.objectives.distillation.teachers import frozen
from pretune.runtime.atomic_io import write_bytes
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import PretuneError, if_option, nearest
from pretune.runtime.output_paths import INTERMEDIATE, intermediate
from pretune.runtime.progress import say
from pretune.runtime.ray_jobs import Engine
from pretune.text.corpus.documents import TextLayout, read_documents
from pretune.text.corpus.files import Errors, find_files
from pretune.text.examples.augmentation import augment
from pretune.text.examples.labeled import Labeled
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.training.jobs import pretraining, pretraining_settings
from pretune.training.jobs.finetuning import Material, find_task, finetune, read_material, with_options
from pretune.training.jobs.self_training import joined, read_texts
from pretune.training.run_folder import Run, finish_run, rewrite_recipe
from pretune.training.settings import Budget

# Gentler than from scratch, as what the student starts from is half a teacher.
AGNOSTIC: dict[str, Any] = {"budget": {"seconds": 300.0}, "optimizer": {"lr": 3e-4}, "batch": {"tokens": 4096}}

# Weights of the losses on running text, as in the published training of DistilBERT (Sanh et al., 2019): the divergence from the
# teacher's probabilities, the language model's own loss (mlm, or lm), and the direction of the last states.
DISTILLATION, OWN, COSINE = 5.0, 2.0, 1.0

LOSSES = ("distillation", "mlm", "lm", "cosine")
BEGINNING = 8  # words of a text that a teacher goes on from


@dataclass(frozen=True)
class Order:
    """Who learns what from whom."""

    teachers: Sequence[str]
    student: str
    out: Path
    train: str | None = None
    unlabeled: str | None = None
    data: Sequence[str] = ()  # running text
    layout: TextLayout = "auto"  # how its .txt files are split into documents
    column: str | None = None  # the text field of its other files
    errors: Errors = "strict"  # what to do with invalid UTF-8
    dev: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    temperature: float = 2.0
    soft: float = 0.5
    loss: Literal["kl", "mse"] = "kl"
    match: str | None = None
    loss_weights: Mapping[str, float] = field(default_factory=dict)  # on running text, instead of the published ones
    augment: int = 0
    write: int = 0  # tokens that the teacher writes on from the beginning of each text
    control: bool = False
    epochs: float = 3.0
    budget: Budget | None = None
    learning: Mapping[str, Any] = field(default_factory=dict)
    processes: int = 1
    engine: Engine = "local"
    seed: int = 0
    device: str | None = None

    def check(self) -> None:
        """Refuse what cannot be, before anything is read."""
        if not self.temperature > 0:
            raise PretuneError(f"--temperature {self.temperature:g}: it is above 0; 1 leaves probabilities as they are")
        if not 0 <= self.soft <= 1:
            raise PretuneError(f"--soft {self.soft:g}: how much a teacher counts beside labels is a share from 0 to 1")
        if not (self.train or self.unlabeled or self.data):
            raise PretuneError(
                "`pretune distill` needs something to learn from: rows (--train), texts (--unlabeled) or running text (--data)"
            )
        if self.data and (self.train or self.unlabeled):
            raise PretuneError(
                "--data is for a student of no task in particular; give it alone, and fine-tune after that"
            )
        for name, weight in self.loss_weights.items():
            if name not in LOSSES:
                raise PretuneError(f"--loss-weights.{name}: no loss has this name; {nearest(name, LOSSES)}")
            if weight < 0:
                raise PretuneError(f"--loss-weights.{name} {weight:g}: a weight is 0 or more")
        if self.match and "cosine" in self.loss_weights:
            raise PretuneError("--loss-weights.cosine: with --match its weight is written there, as in 2*cosine")
        if self.data and len(self.teachers) > 1:
            raise PretuneError("running text is learned from one teacher; give one")

    def recipe(self) -> dict[str, Any]:
        """Everything that decides the outcome, under the names of the verb's options."""
        others = ("teachers", "out", "columns", "budget", "learning", "device", "control", "processes", "engine")
        plain = {key.name: getattr(self, key.name) for key in fields(self) if key.name not in others}
        known = {"teacher": list(self.teachers), **plain, "data": list(self.data), **self.columns}
        known["loss_weights"] = dict(self.loss_weights)
        return as_recipe(known, self.learning, self.budget)


def carry_out(order: Order) -> Run:
    """Let the student learn, and compare."""
    order.check()
    return of_no_task(order) if order.data else of_a_task(order)


# -- of a task ------------------------------------------------------------------------------------------------------


def of_a_task(order: Order) -> Run:
    """A student that answers as its teachers do."""
    task = teachers_task(order.teachers)
    labels = labels_of(task)
    check_student(order, labels)
    teacher = Trained.load(order.teachers[0])
    matches = matches_of(order, teacher.model)
    objective = teacher.objective
    material, texts = read_both(order, objective, task, labels)
    start = make_start(order.student, teacher.model, order.teachers[0], order.out)
    plan = plan_of(start.model, order.out, objective, recovery_of(order), "full", order.seed, order.device)
    plan = replace(plan, tokenizer=start.tokenizer)
    plain = material
    material = taught_by(order, material, texts)
    if matches:
        material = replace(material, imitation=Imitate(one_teacher(order, teacher.model, start), matches))
    run = finetune(plan, material)
    rewrite_recipe(order.out, "distill", order.recipe())
    models = {"teacher": teacher}
    if order.control:
        control = replace(plan, out=intermediate(order.out, "control"))
        finetune(control, plain)
        models["student without a teacher"] = Trained.load(control.out)
    models["student"] = Trained.load(order.out)
    told = {"teachers": list(order.teachers), "texts": 0 if texts is None else len(texts)}
    return finish_run(order.out, {**run.results, **told, **beside(models, plain.dev)})


def recovery_of(order: Order) -> Recovery:
    """What a fine-tuning is told."""
    train = order.train or order.unlabeled or ""
    return Recovery(train, order.dev, order.columns, order.epochs, order.budget, order.learning)


def check_student(order: Order, labels: Sequence[str]) -> None:
    """Refuse a student that was trained for other labels."""
    if is_preset(order.student) or not Path(order.student).is_dir():
        return
    trained = trained_for(order.student)
    for part in trained.objectives if trained is not None else []:
        theirs = getattr(part, "labels", ())
        if isinstance(part, Task) and theirs and set(theirs) != set(labels):
            raise PretuneError(
                f"{order.student}: the student has the labels {', '.join(theirs)}, the teacher {', '.join(labels)}; "
                "they must be the same"
            )


def matches_of(order: Order, teacher: Model) -> tuple[Match, ...]:
    """Return what of the student's inside is to become like the teacher's."""
    student = depth_of(order.student, teacher)  # which refuses a name that stands for nothing
    return parse_matches(order.match, student, teacher.backbone.depth) if order.match else ()


def read_both(order: Order, objective: str, task: Task, labels: Sequence[str]) -> tuple[Material, Labeled | None]:
    """Rows with labels and those to judge by, and texts without labels."""
    # The student's family says how states are pooled, where the teacher's objective does not.
    family = order.teachers[0] if cut_of(order.student) else order.student
    mixture = parse_objective(objective, pooling=family_of(family).poolings.get("", "start"))
    if order.train:
        plan = plan_of(family, order.out, objective, recovery_of(order), "full", order.seed, order.device)
        material = read_material(plan)
        teachers_task(order.teachers, None if task.name == "generate" else labels_of(material.task))
    else:
        asked = find_task(mixture)
        knows = with_options(asked, {"labels": tuple(labels)}) if labels else asked
        dev = knows.read(order.dev, order.columns) if order.dev else None
        empty = Labeled(Path("none"), {"text": "text", "label": "label"}, labels=[])
        material = Material(mixture.with_part(knows), asked, knows, empty, dev, [])
    texts = None
    if order.unlabeled:
        columns = {role: name for role, name in order.columns.items() if role != "label"}
        texts = read_texts(task, order.unlabeled, columns)
    if order.augment:
        texts = with_variants(texts, texts if texts is not None else material.rows, order)
    return material, texts


def with_variants(texts: Labeled | None, source: Labeled, order: Order) -> Labeled:
    """Texts, if there are any, and variants of the source; of pairs the first texts vary."""
    more = augment(source.texts, order.augment, order.seed)
    known = texts if texts is not None else source.take([])
    every = [*known.texts, *(variant for _, variant in more)]
    pairs = None
    if source.pairs is not None:
        pairs = [*(known.pairs or []), *(source.pairs[number] for number, _ in more)]
    return Labeled(Path("augmented"), {}, every, pairs, lines=list(range(1, len(every) + 1)))


def taught_by(order: Order, material: Material, texts: Labeled | None) -> Material:
    """What a student learns from: rows with labels, and what its teachers say of these and of texts."""
    rows, own = material.rows, labels_of(material.task)
    taught = given = None
    if order.soft and len(rows):
        taught = ask(order.teachers, rows, own, answers_of(order, "labeled"), order.processes, order.engine)
    if texts is not None:
        given = ask(order.teachers, texts, own, answers_of(order, "texts"), order.processes, order.engine)
    if material.task.name == "generate":
        return texts_taught(order, material, texts, taught, given)
    if not own:
        return numbers_taught(order, material, texts, taught, given)
    known = np.eye(len(own))[[own.index(label) for label in rows.labels or []]].reshape(-1, len(own))
    if texts is not None and given is not None:
        likely = [own[number] for number in given.argmax(-1)]
        material = replace(material, rows=joined(rows, texts, likely, texts.file))
        known = np.concatenate([known, given])
    teaching = Teaching(known, len(rows), order.temperature, taught, order.soft, order.loss)
    return replace(material, teaching=teaching)


def labels_of(task: Task) -> list[str]:
    """The labels that a teacher has probabilities of, if it has."""
    return list(getattr(task, "labels", ())) if task.name != "generate" else []


def texts_taught(
    order: Order, material: Material, texts: Labeled | None, taught: Array | None, given: Array | None
) -> Material:
    """Of texts: those that the teacher writes, beside those of the rows, or with --soft 1 instead (Kim and Rush, 2016)."""
    rows = material.rows
    made = rows.take(range(len(rows) if order.soft < 1 else 0))
    for read, written in ((rows, taught), (texts, given)):
        if read is not None and written is not None:
            made = joined(made, read, written[:, 0].tolist(), read.file)
    return replace(material, rows=replace(made, columns=rows.columns))


def numbers_taught(
    order: Order, material: Material, texts: Labeled | None, taught: Array | None, given: Array | None
) -> Material:
    """Of numbers: squared errors from two of them have their least at the weighted mean, so that this is all there is to learn."""
    rows = material.rows
    if taught is not None:
        mixed = (1 - order.soft) * np.array(rows.labels) + order.soft * taught[:, 0]
        rows = replace(rows, labels=mixed.tolist())
    if texts is not None and given is not None:
        rows = joined(rows, texts, given[:, 0].tolist(), texts.file)
    task = material.task.fit(rows)
    return replace(material, rows=rows, task=task, mixture=material.mixture.with_part(task))


def answers_of(order: Order, name: str) -> Path:
    """Return the file that the teachers' answers are kept in."""
    return order.out / INTERMEDIATE / f"teacher-{name}.npz"


def one_teacher(order: Order, teacher: Model, start: Start) -> Any:
    """The network that is imitated inside, which must read what the student reads."""
    if len(order.teachers) > 1:
        raise PretuneError("--match looks inside one teacher; of several, only answers can be learned")
    tokenizer = Tokenizer.load(start.tokenizer or find_folder(start.model))
    return imitated(order, teacher, tokenizer)


def imitated(order: Order, teacher: Model, tokenizer: Tokenizer) -> Any:
    """A teacher's networks, for a student that reads with this tokenizer."""
    if teacher.need_tokenizer().digest != tokenizer.digest:
        raise PretuneError(
            f"{order.teachers[0]}: to be imitated inside, a teacher must have the student's tokenizer"
            f"{if_option('match', '; leave out --match')}"
        )
    return frozen(teacher.root, choose_device(order.device))


# -- of no task -----------------------------------------------------------------------------------------------------


def of_no_task(order: Order) -> Run:
    """Train a smaller language model on running text: on its tokens, the teacher's probabilities, and the direction of its states."""
    teacher = load(order.teachers[0])
    name = next((name for name in ("mlm", "lm") if name in teacher.root.heads), None)
    if name is None:
        raise PretuneError(
            f"{order.teachers[0]}: neither a masked nor a causal language model; nothing to learn from it"
        )
    weights = weights_of(order, name)
    matches = matches_of(order, teacher) or (Match("cosine", weights["cosine"]),)
    start = make_start(order.student, teacher, order.teachers[0], order.out)
    given: dict[str, Any] = {**order.learning, "objective": name, "budget": order.budget}
    given |= {"tokenizer": str(find_folder(order.teachers[0]))}
    data = [str(written(order, teacher))] if order.write else order.data
    given |= {} if order.write else reading(order)
    plan = pretraining_settings.make_plan(start.model, data, order.out, given, order.seed, order.device, AGNOSTIC)

    def taught(mixture: Mixture, tokenizer: Tokenizer) -> Mixture:
        root = imitated(order, teacher, tokenizer)
        language: Any = SoftTokens(
            mixture.objectives[0], root, order.temperature, weights["distillation"], weights[name]
        )
        inside: Any = Imitate(root, matches)
        return mixture.with_part(language).joined(inside)

    run = pretraining.pretrain(plan, taught=taught)
    rewrite_recipe(order.out, "distill", order.recipe())
    say(f"{order.out}: a student of no task yet; fine-tune it like any model")
    models, results = {"teacher": Trained.load(order.teachers[0])}, {**run.results, "teachers": list(order.teachers)}
    if order.control:
        control = pretraining.pretrain(replace(plan, out=intermediate(order.out, "control")))
        models["student without a teacher"] = Trained.load(control.folder)
        results |= {f"control/{key}": value for key, value in control.results.items() if key.startswith("dev/")}
    models["student"] = Trained.load(order.out)
    return finish_run(order.out, {**results, **beside(models, None)})


def weights_of(order: Order, name: str) -> dict[str, float]:
    """Return the weight of each loss; `name` is that of the language model's own, mlm or lm."""
    usual = {"distillation": DISTILLATION, name: OWN, "cosine": COSINE}
    for other in order.loss_weights.keys() - usual.keys():
        raise PretuneError(f"--loss-weights.{other}: this teacher was trained with {name}; name that")
    weights = {**usual, **order.loss_weights}
    if not any(weights.values()):
        raise PretuneError("--loss-weights: all are 0, and nothing would be learned; give one of them more")
    return weights


def reading(order: Order) -> dict[str, Any]:
    """Return how running text is read."""
    return {"layout": order.layout, "column": order.column, "errors": order.errors}


def written(order: Order, teacher: Model) -> Path:
    """A file of what the teacher writes, a text a line: what a sequence model is best taught by (Kim and Rush, 2016)."""
    if "lm" not in teacher.root.heads:
        raise PretuneError(f"--write {order.write}: {order.teachers[0]} does not write; only causal language models do")
    beginnings = [
        " ".join(document.text.split()[:BEGINNING])
        for document in read_documents(find_files(list(order.data)), **reading(order))
    ]
    how = Decoding(tokens=order.write, temperature=1.0, seed=order.seed)
    rows = Writer.load(order.teachers[0], order.device).write([text for text in beginnings if text], how)
    file = order.out / INTERMEDIATE / "written.txt"
    write_bytes(file, "".join(" ".join(str(row["text"]).split()) + "\n" for row in rows).encode())
    return file
