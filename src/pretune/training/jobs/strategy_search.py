"""Find out what works for a task with few labels: compare fine-tuning strategies by cross-validation, keep the best.

    a bag of words          TF-IDF of words and characters; for pairs also of common and different words
    frozen features         the encoder as it is, and a linear classifier on one or several of its layers
    contrastive tuning      supervised contrastive learning of the encoder, then a linear classifier on its vectors
    full fine-tuning        all weights
    LoRA                    low-rank adapters

Each is also averaged with the bag of words, where that clearly helps. The first two need seconds. Of the others, `normal` effort tries only
the best one for most tasks: contrastive tuning for single texts, full fine-tuning for pairs and numbers. With `thorough` effort
all are trained on a part of the rows first, and the best of them on the other parts (successive halving; Jamieson and Talwalkar, 2016).
All are compared by the loss of their predictions for the same parts of the rows, which they have not seen, after calibration by one
temperature. With few rows, this loss is noisy, so a weaker strategy wins only if its loss is clearly lower. The winner is fitted to all rows.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pretune.inference.predict import Predictor, load_task_model
from pretune.metrics import positive_class, score
from pretune.models.language_embeddings import use_language
from pretune.models.loading import load_model
from pretune.models.presets import is_preset
from pretune.objectives import parse_objective
from pretune.objectives.tasks.bag_of_words import BagOfWords
from pretune.objectives.tasks.classify import EXTRACTING, Classify
from pretune.objectives.tasks.layer_features import LayerFeaturesHead
from pretune.objectives.tasks.regress import Regress
from pretune.runtime.arrays import Array
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import PretuneError, if_option
from pretune.runtime.output_paths import INTERMEDIATE
from pretune.runtime.parsing import read_json_lines
from pretune.runtime.progress import log_info, progress, quiet
from pretune.text.examples.labeled import LabeledRows
from pretune.text.examples.splits import assign_folds
from pretune.training.jobs.bag_of_words import ChosenBag, choose_bag, fit_bag
from pretune.training.jobs.finetuning import (
    DEV_PREDICTIONS,
    FinetuningJob,
    TaskData,
    find_task,
    finetune,
    read_task_data,
    requested_objectives,
    with_model_pooling,
    write_predictions,
)
from pretune.training.jobs.finetuning_defaults import default_pooling, finetuning_defaults
from pretune.training.jobs.head_fitting import pooled_vectors, regression_targets
from pretune.training.jobs.linear_models import (
    TEMPERATURES,
    Kind,
    cross_validate,
    losses,
    predictions,
)
from pretune.training.jobs.pretraining_model import check_length
from pretune.training.recipe_sections import Budget, Optimizer
from pretune.training.run_folder import RECIPE, RESULTS, Run, copy_run_files, finish_run, remove_if_refused, start_run

MOST_ROWS = 2_000  # beyond which full fine-tuning is dependable, and a comparison would take long
FEWEST_ROWS = 8
FOLDS = {
    "quick": 5,
    "normal": 3,
    "thorough": 5,
}  # parts of the rows, each of which is predicted after training on the others
HALVING_ROWS = 60  # from which the first part says enough about a trained strategy to stop it
STEPS = {"normal": (32, 96), "thorough": (64, 300)}  # least and most steps of a trained strategy
STEPS_PER_ROW = 0.25
CONTRASTIVE_ROWS = 1_000  # beyond which contrastive tuning gains nothing over full fine-tuning
SURVIVORS = 2  # trained strategies that are tried on all parts
PERFECT = 0.985  # the score of a cheap strategy beyond which no other is tried
MARGIN = 0.05  # by which the last layer alone must be better than several layers, which usually are
TOP_LAYERS = 3  # that a classifier reads after contrastive tuning
SHARES = (0.25, 0.5, 0.75)  # of the bag of words, beside a network
BAG_ERRORS = 2.0  # standard errors by which a bag of words must lower the loss of a network
CURVE = (0.25, 0.5, 1.0)  # shares of the rows at which the learning curve is measured


@dataclass(frozen=True)
class Candidate:
    """A way to solve a task that is to be tried: an objective, a fine-tuning strategy, and a learning rate factor."""

    name: str  # for people
    objective: str
    strategy: str
    lr_factor: float = 1.0


@dataclass(frozen=True)
class Calibration:
    """A calibration of logits: sharpness · logits + pull · log(class frequencies).

    With a small sharpness and a pull of 1, the most frequent class is always predicted; this suits a model that has
    learned nothing.
    """

    sharpness: float = 1.0
    pull: float = 0.0

    def apply(self, predicted: Array, frequencies: Array, kind: Kind) -> Array:
        """Return calibrated probabilities, (rows, classes), given class frequencies, (classes,).

        The predictions of regression (kind "number") are returned unchanged.
        """
        if kind == "number":
            return predicted
        logits = np.log(np.clip(predicted, 1e-9, 1))
        if kind == "labels":
            logits = logits - np.log(np.clip(1 - predicted, 1e-9, 1))
        return predictions(self.sharpness * logits + self.bias(frequencies, kind), kind)

    def bias(self, frequencies: Array, kind: Kind) -> Array:
        """Return the bias, (classes,), that the calibration adds to the logits, given class frequencies, (classes,)."""
        known = np.clip(frequencies, 1e-3, 1 - 1e-3)
        return self.pull * (np.log(known) if kind == "classes" else np.log(known / (1 - known)))


@dataclass
class Attempt:
    """A candidate strategy with its scores and its cross-validated predictions, (rows, classes) or numbers (rows,)."""

    candidate: Candidate
    predicted: Array
    seconds: float
    calibration: Calibration = field(default_factory=lambda: Calibration())
    share: float = 0.0  # of the bag of words in the average
    loss: float = 0.0
    scores: list[float] = field(default_factory=list)  # by fold

    @property
    def name(self) -> str:
        """The name of the candidate, followed by "+ a bag of words" if their predictions are averaged."""
        if self.share == 1:
            return "a bag of words"
        return f"{self.candidate.name} + a bag of words" if self.share else self.candidate.name


@dataclass
class Comparison:
    """The data on which strategies are compared by cross-validation: examples, folds, targets, and the bag of words."""

    plan: FinetuningJob
    material: TaskData
    folds: Array  # (rows,) numbers of parts of the rows, each of which is predicted after training on the others
    targets: Array
    kind: Kind
    outputs: int
    weights: Array | None
    bag: ChosenBag | None = None
    depth: int = 1  # layers of the model
    concatenates: bool = True  # whether several layers can be read together
    failed: list[str] = field(default_factory=list)  # names of candidates whose training diverged

    @property
    def frequencies(self) -> Array:
        """The fraction of rows that have each class or label, (classes,); an empty array for regression."""
        if self.kind == "classes":
            return np.asarray(np.bincount(self.targets, minlength=self.outputs) / len(self.targets))
        return np.asarray(self.targets.mean(0)) if self.kind == "labels" else np.empty(0)

    @property
    def rows(self) -> LabeledRows:
        """The labeled rows on which strategies are compared."""
        rows: LabeledRows = self.material.rows
        return rows

    def answers(self, predicted: Array) -> list[dict[str, Any]]:
        """Convert predictions, (rows, classes) or numbers (rows,), to the task's format, one dictionary per row."""
        task = self.material.task.unwrapped
        if self.kind != "number":
            return [task.answer_from(row) for row in predicted]
        return [{"value": float(value) * task.deviation + task.mean} for value in predicted]

    def score(self, predicted: Array, rows: Sequence[int] | Array | None = None) -> float:
        """Return the primary metric of predictions for all rows, or only for the rows with the given indices."""
        chosen = list(range(len(self.rows))) if rows is None else [int(row) for row in rows]
        answers = self.answers(predicted[chosen])
        found = score(self.material.task, answers, self.rows.take(chosen))[self.material.primary_metric]
        return 0.0 if np.isnan(found) else float(found)

    def losses(self, predicted: Array) -> Array:
        """Return the loss of each row, (rows,), given predictions for all rows."""
        return losses(predicted, self.targets, self.kind)


def auto_obstacle(plan: FinetuningJob) -> str:
    """Return why strategies cannot be compared for a job (its task, model, or options), or "" if they can."""
    try:
        task: Any = find_task(parse_objective(plan.objective))
    except PretuneError:
        return "there are several objectives"
    if not isinstance(task, Classify | Regress) or task.name != task.kind:
        return f"the task is {task.name}"
    if "+" in plan.objective or "|" in plan.objective:
        return "there are several objectives"
    if is_preset(plan.model) or plan.from_scratch:
        return "the model starts from random weights"
    if isinstance(task, Classify) and task.hidden_size:
        return "the head has a hidden layer"
    given = [name for name in ("unlabeled", "word_vectors", "dropout", "budget", "shots") if getattr(plan, name)]
    return f"{given[0]} is given" if given else ""


def compare_strategies(plan: FinetuningJob, resume: bool = False) -> tuple[Run, TaskData] | None:
    """Compare strategies for the job `plan` by cross-validation, and fit the best one to all rows.

    Return the run of the best strategy, and the data on which it is evaluated: the dev file or, without a dev file, the
    rows themselves, each predicted by a model that had not seen it. Return None if there are too many or too few rows
    for a comparison.
    """
    start = time.monotonic()
    material = read_task_data(plan, hold_out=False)
    if not FEWEST_ROWS <= len(material.rows) <= MOST_ROWS:
        return None
    if material.dev is not None:
        material.task.check_labels(material.dev)
    new = not (plan.out / RECIPE).is_file()
    start_run(plan.out, "finetune", plan.recipe(), resume)
    with remove_if_refused(plan.out, new):
        return run_comparison(plan, material, start)


def run_comparison(plan: FinetuningJob, material: TaskData, start: float) -> tuple[Run, TaskData]:
    """Compare strategies for the job `plan` by cross-validation, and fit the best one to all rows of `material`.

    Return the run of the best strategy, and the data on which it is evaluated. `start` is the time when the job began.
    """
    effort = plan.effort
    targets, kind, outputs, weights = regression_targets(material.task, material.rows)
    folds = assign_folds(material.rows, FOLDS[effort], plan.seed)
    if kind == "classes" and np.bincount(targets, minlength=outputs).min() < 2:
        log_info("a class has a single example, so its score in cross-validation means little; add examples of it")
    comparison = Comparison(plan, material, folds, targets, kind, outputs, weights)
    quicker = "" if effort == "quick" else if_option("effort", "; --effort quick takes seconds")
    log_info(f"comparing strategies by cross-validation on {len(material.rows):,} examples ({effort} effort{quicker})")
    attempts: list[Attempt] = []
    stopped = False
    try:
        for attempt in try_candidates(comparison, effort):
            attempts.append(attempt)
            mean, low, high = np.mean(attempt.scores), min(attempt.scores), max(attempt.scores)
            numbers = f"{material.primary_metric} {mean:.3f} ({low:.3f} to {high:.3f} by part)"
            log_info(f"  {attempt.name}: {numbers}, {attempt.seconds:.0f} s")
    except KeyboardInterrupt:
        if not attempts:
            raise
        stopped = True
        log_info("stopped early; keeping the best so far")
    best = choose_attempt(comparison, attempts)
    run = fit_winner(comparison, best)
    found: dict[str, Any] = {
        "strategy": best.name,
        "stopped_early": stopped,
        "search_seconds": round(time.monotonic() - start, 1),
        "failed": comparison.failed,
        "tried": {attempt.name: summarize_attempt(comparison, attempt) for attempt in attempts},
        "learning_curve": learning_curve(comparison, attempts),
    }
    for line in describe_choice(comparison, attempts, best, found["learning_curve"]):
        log_info(line)
    evaluated = evaluate_winner(comparison, best, run)
    return finish_run(plan.out, {**Run(plan.out).results, **evaluated[0], **found}), evaluated[1]


def choose_attempt(comparison: Comparison, attempts: Sequence[Attempt]) -> Attempt:
    """Return the attempt with the lowest loss, or a stronger one whose loss is not clearly higher.

    An attempt that trained the encoder is stronger than one on frozen features, and that one than a bag of words: in
    cross-validation, every attempt learns from a part of the rows; the winner learns from all rows, and attempts that
    train the encoder gain more from the additional rows. For few rows, noise would often choose a bag of words.
    """
    strongest = max(map(strength, attempts))
    best = min((one for one in attempts if strength(one) == strongest), key=lambda one: one.loss)
    for level in range(strongest - 1, -1, -1):
        others = [one for one in attempts if strength(one) == level]
        other = min(others, key=lambda one: one.loss, default=best)
        errors = BAG_ERRORS if level == 0 else 1.0
        if clearly_lower(comparison.losses(other.predicted), comparison.losses(best.predicted), errors):
            best = other
    return best


def strength(attempt: Attempt) -> int:
    """Return how much of a model an attempt uses: 0 for a bag of words, 1 for frozen features, 2 for a trained encoder."""
    if attempt.share == 1:
        return 0
    return 1 if attempt.candidate.strategy == "features" else 2


def clearly_lower(some: Array, others: Array, errors: float = 1.0) -> bool:
    """Return whether losses of rows, (rows,), are lower than other losses of these rows by more than some standard errors.

    >>> clearly_lower(np.array([0.1, 0.2, 0.1]), np.array([0.5, 0.7, 0.6])), clearly_lower(np.zeros(2), np.zeros(2))
    (True, False)
    """
    difference = others - some
    return bool(difference.mean() > errors * difference.std() / len(difference) ** 0.5)


def has_clear_majority(targets: Array) -> bool:
    """Return whether the most frequent class leads the second one by more than two standard errors.

    >>> has_clear_majority(np.array([0] * 13 + [1] * 12)), has_clear_majority(np.array([0] * 19 + [1] * 6))
    (False, True)
    """
    second, first = np.sort(np.bincount(targets, minlength=2))[-2:]
    return bool(first - second > 2 * (first + second) ** 0.5)


def try_candidates(comparison: Comparison, effort: str) -> Iterator[Attempt]:
    """Try strategies in order of cost, and yield their attempts.

    If there are many rows, the strategies that train the encoder are first tried on one fold only, and the best of
    them on all folds. `effort` is "quick" (the encoder is not trained), "normal", or "thorough".
    """
    start = time.monotonic()
    with progress("bag of words"):
        rows, weights = comparison.rows, comparison.weights
        comparison.bag = choose_bag(
            rows, comparison.targets, comparison.kind, comparison.outputs, comparison.folds, weights
        )
    words_seconds = time.monotonic() - start
    frozen = try_features(comparison)
    words = Attempt(frozen.candidate, comparison.bag.validated.predicted, words_seconds, share=1.0)
    cheap = [finish_attempt(comparison, words, blend=False), finish_attempt(comparison, frozen)]
    yield from cheap
    best = min(cheap, key=lambda attempt: attempt.loss)
    if effort == "quick" or comparison.score(best.predicted) >= PERFECT:
        return
    trained = trained_candidates(comparison, effort)
    if len(comparison.rows) >= HALVING_ROWS and len(trained) > SURVIVORS:
        held_out = np.flatnonzero(comparison.folds == 0)
        first = {}
        for candidate in trained:
            if (found := train_parts(comparison, candidate, [0], effort)) is not None:
                first[candidate] = calibrated_loss(comparison, found[0], held_out)
        trained = sorted(first, key=lambda candidate: first[candidate])[:SURVIVORS]
    for candidate in trained:
        if (found := train_parts(comparison, candidate, range(FOLDS[effort]), effort)) is not None:
            yield finish_attempt(comparison, Attempt(candidate, *found))


def calibrated_loss(comparison: Comparison, predicted: Array, rows: Array) -> float:
    """Return the mean loss of the predictions for the rows with indices `rows`, after calibration on these rows."""
    part = replace(comparison, targets=comparison.targets[rows])
    found = calibrate(part, predicted[rows])
    return float(part.losses(found.apply(predicted[rows], comparison.frequencies, comparison.kind)).mean())


def finish_attempt(comparison: Comparison, attempt: Attempt, blend: bool = True) -> Attempt:
    """Calibrate an attempt's predictions, and set its loss and its scores.

    With `blend`, the predictions are averaged with those of the bag of words if this clearly lowers the loss.
    """
    attempt.calibration = calibrate(comparison, attempt.predicted)
    attempt.predicted = attempt.calibration.apply(attempt.predicted, comparison.frequencies, comparison.kind)
    if blend and comparison.bag is not None:
        words = comparison.bag.validated.predicted
        options = {share: (1 - share) * attempt.predicted + share * words for share in SHARES}
        best = min(SHARES, key=lambda share: comparison.losses(options[share]).mean())
        if clearly_lower(comparison.losses(options[best]), comparison.losses(attempt.predicted), BAG_ERRORS):
            attempt.share, attempt.predicted = best, options[best]
    attempt.loss = float(comparison.losses(attempt.predicted).mean())
    parts = (np.flatnonzero(comparison.folds == fold) for fold in np.unique(comparison.folds))
    attempt.scores = [comparison.score(attempt.predicted, part) for part in parts]
    return attempt


def calibrate(comparison: Comparison, predicted: Array) -> Calibration:
    """Return the temperature that minimizes the mean loss of predictions for all rows.

    If one class is clearly the most frequent, predictions are also pulled toward the class frequencies, unless this is clearly worse.
    Without a clear majority, they never are: for a model that hardly learns, always answering the most frequent class has the
    lowest loss in cross-validation, even if this class is the most frequent one by accident.
    """
    if comparison.kind == "number":
        return Calibration()
    frequencies, kind = comparison.frequencies, comparison.kind

    def row_losses(calibration: Calibration) -> Array:
        return comparison.losses(calibration.apply(predicted, frequencies, kind))

    def best(pull: float) -> Calibration:
        return min((Calibration(1 / t, pull) for t in TEMPERATURES), key=lambda one: row_losses(one).mean())

    plain = best(pull=0.0)
    if kind != "classes" or comparison.weights is not None or not has_clear_majority(comparison.targets):
        return plain
    pulled = best(pull=1.0)
    return plain if clearly_lower(row_losses(plain), row_losses(pulled)) else pulled


def with_features(objective: str, layers: str, pooling: str) -> str:
    """Return an objective expression extended by `on LAYERS` and by a pooling, unless it already sets the pooling.

    >>> with_features("classify(class_weight=balanced)", "last", "mean")
    'classify(class_weight=balanced,pooling=mean) on last'
    """
    name, _, options = objective.strip().removesuffix(")").partition("(")
    if "pooling=" not in options.replace(" ", ""):
        options = ",".join(filter(None, (options.strip(), f"pooling={pooling}")))
    return f"{name.strip()}({options}) on {layers}"


def feature_candidates(comparison: Comparison) -> list[Candidate]:
    """Return the candidates for a linear classifier on frozen features.

    They differ in the layers that the classifier reads, and in how pairs of texts are encoded.
    """
    plan = comparison.plan
    own = default_pooling(plan.model, [comparison.material.unfitted]) or "mean"
    pooling = own if own not in ("pair", "separate", "attention", *EXTRACTING) else "mean"
    quarters = {max(1, round(comparison.depth * share)) for share in (0.25, 0.5, 0.75, 1.0)}
    several = name_layers(quarters)
    modes = [(several, pooling), ("last", pooling)]
    if comparison.rows.pairs is not None:
        modes = [(several, "separate"), ("last", "separate"), ("last", pooling)]
    name = "frozen features"
    return [Candidate(name, with_features(plan.objective, *mode), "features") for mode in modes]


def name_layers(numbers: Iterable[int]) -> str:
    """Return the expression for several layers in an objective, such as the end of `classify on layers(4,8)`.

    >>> name_layers({8, 10})
    'layers(8,10)'
    """
    return f"layers({','.join(map(str, sorted(numbers)))})"


def try_features(comparison: Comparison) -> Attempt:
    """Fit linear classifiers to frozen features of the pretrained model, and return the best of them as an attempt."""
    start, plan = time.monotonic(), comparison.plan
    device = choose_device(plan.device)
    with quiet():
        model = load_model(plan.model, None, ignore_mismatched=plan.ignore_mismatched)
        use_language(model, plan.language, plan.model)
    length = check_length(min(plan.batch.max_length or 128, model.longest or 1 << 30), model)
    rows = np.arange(len(comparison.rows))
    found: list[tuple[Candidate, Array, float]] = []
    comparison.depth = model.backbone.depth
    candidates = feature_candidates(comparison)
    with progress("frozen features", total=len(candidates)) as bar:
        for number, candidate in enumerate(candidates):
            task = candidate_data(comparison, candidate, comparison.rows).task
            task = task.with_tokenizer(model.require_tokenizer())
            model.root.heads.clear()
            try:
                model.add_heads([task], plan.seed)
            except PretuneError:  # layers of different widths cannot be concatenated
                comparison.concatenates = False
                continue
            with quiet():
                vectors = pooled_vectors(model, task, comparison.rows, length, device)
            validated = cross_validate(
                vectors, comparison.targets, comparison.kind, comparison.outputs, comparison.folds,
                weights=comparison.weights,
            )  # fmt: skip
            found.append((candidate, validated.predicted, calibrated_loss(comparison, validated.predicted, rows)))
            bar.update(number + 1)
    candidate, predicted, loss = found[0]
    for other in found[1:]:
        if other[2] < (1 - MARGIN) * loss:
            candidate, predicted, loss = other
    return Attempt(candidate, predicted, time.monotonic() - start)


def candidate_data(
    comparison: Comparison, candidate: Candidate, rows: LabeledRows, held_out: LabeledRows | None = None
) -> TaskData:
    """Return the data to train a candidate on `rows` and to predict `held_out`.

    The task of the result knows the labels of all rows of the comparison.
    """
    plan = replace(comparison.plan, objective=candidate.objective)
    mixture = requested_objectives(plan, plan.objective)
    unfitted = find_task(mixture)
    task = with_model_pooling(plan, plan.objective, unfitted).fit(comparison.rows)
    return TaskData(mixture.with_part(task), unfitted, task, rows, held_out, dev_rows=[])


def trained_candidates(comparison: Comparison, effort: str) -> list[Candidate]:
    """Return the candidates that train the encoder: contrastive tuning, full fine-tuning, and LoRA.

    Which of them are tried depends on the effort and on the data.
    """
    plan, own = comparison.plan, default_pooling(comparison.plan.model, [comparison.material.unfitted]) or "mean"
    found = [Candidate("full fine-tuning", plan.objective, "full")]
    few = len(comparison.rows) <= CONTRASTIVE_ROWS
    if comparison.kind == "classes" and comparison.rows.pairs is None and few:
        top = range(max(1, comparison.depth - TOP_LAYERS + 1), comparison.depth + 1)
        layers = name_layers(top) if comparison.concatenates else "last"
        objective = with_features(plan.objective, layers, own)
        contrastive = Candidate("contrastive tuning", objective, "contrastive", 0.5)
        found = [contrastive] if effort == "normal" else [contrastive, *found]
    if effort == "thorough":
        found += [replace(one, name=f"{one.name}, lower rate", lr_factor=one.lr_factor / 3) for one in found]
        found.append(Candidate("LoRA", plan.objective, "lora"))
    return found


def job_of(comparison: Comparison, candidate: Candidate, out: Path, rows: int, effort: str) -> FinetuningJob:
    """Return the job that fine-tunes a candidate on `rows` training rows, and writes to the folder `out`.

    `effort` limits the number of training steps.
    """
    plan = comparison.plan
    defaults = finetuning_defaults(plan.model, [comparison.material.unfitted], rows, candidate.strategy)
    optimizer: Optimizer = plan.optimizer
    lr = float(defaults.sections["optimizer"]["lr"]) * candidate.lr_factor
    layer_decay = 0.9 if candidate.strategy in ("full", "contrastive") else None
    least, most = STEPS.get(effort, STEPS["normal"])
    size = plan.batch.size or int(defaults.sections["batch"]["size"])
    if candidate.strategy == "contrastive":
        size = 2 * size  # pairs within a batch are what is learned from
    steps = int(np.clip(STEPS_PER_ROW * rows, least, most))
    return replace(
        plan,
        objective=candidate.objective,
        strategy=candidate.strategy,
        out=out,
        optimizer=replace(optimizer, lr=lr, layer_decay=optimizer.layer_decay or layer_decay),
        batch=replace(plan.batch, size=size),
        budget=Budget(steps=steps),
        num_seeds=1,
    )


def train_parts(
    comparison: Comparison, candidate: Candidate, chosen: Sequence[int], effort: str
) -> tuple[Array, float] | None:
    """Cross-validate a candidate on the `chosen` folds; return its predictions for them, and the seconds it took.

    The predictions have one row per example, with zeros outside the chosen folds. Folds that were trained before are
    read from the run folder. Return None if training diverged.
    """
    start = time.monotonic()
    predicted = np.zeros((len(comparison.rows), comparison.outputs))
    title = candidate.name
    with progress(title, total=len(chosen)) as bar:
        for done, part in enumerate(chosen):
            learned, held_out = np.flatnonzero(comparison.folds != part), np.flatnonzero(comparison.folds == part)
            folder = search_folder(comparison.plan) / f"{title.replace(' ', '-').replace(',', '')}-{part}"
            job = job_of(comparison, candidate, folder, len(learned), effort)
            job = replace(job, seed=comparison.plan.seed + part)
            rows = comparison.rows
            data = candidate_data(comparison, candidate, rows.take(learned), rows.take(held_out))
            if not (folder / RESULTS).is_file():
                try:
                    with quiet():
                        finetune(job, data, resume=folder.exists())
                except PretuneError as error:
                    if "not a number" not in str(error):
                        raise
                    log_info(f"  {title} failed: {error}")
                    comparison.failed.append(title)
                    return None
            answers = list(read_json_lines(folder / DEV_PREDICTIONS))
            predicted[held_out] = answer_matrix(comparison, answers)
            bar.update(done + 1)
    return predicted if comparison.kind != "number" else predicted[:, 0], time.monotonic() - start


def answer_matrix(comparison: Comparison, answers: Sequence[dict[str, Any]]) -> Array:
    """Convert the task's predictions, one dictionary per row, to a matrix of probabilities, (rows, classes).

    For regression, it holds standardized numbers, (rows, 1).
    """
    task = comparison.material.task.unwrapped
    if comparison.kind == "number":
        return np.array([[(answer["value"] - task.mean) / task.deviation] for answer in answers])
    return np.array([[answer["probabilities"][label] for label in task.labels] for answer in answers])


def search_folder(plan: FinetuningJob) -> Path:
    """Return the folder, inside the run folder, of the training runs that compare strategies."""
    return plan.out / INTERMEDIATE / "strategies"


def fit_winner(comparison: Comparison, best: Attempt) -> Run:
    """Fit the best candidate to all rows, calibrate it, and save it in the run folder; return its run.

    If its predictions are averaged with those of a bag of words, the bag of words is saved with it.
    """
    plan, folder = comparison.plan, search_folder(comparison.plan) / "winner"
    shutil.rmtree(folder, ignore_errors=True)
    job = job_of(comparison, best.candidate, folder, len(comparison.rows), "normal")
    with progress(f"fitting {best.name} to all examples"), quiet():
        run = finetune(job, candidate_data(comparison, best.candidate, comparison.rows))
        results = run.results
        copy_run_files(run.folder, plan.out)
        finish_run(plan.out, results)
        model, trained = load_task_model(plan.out)
        if best.share < 1:
            calibrate_head(comparison, best.calibration, model.root.heads[trained.name])
        if best.share and comparison.bag is not None:
            bag = fit_bag(
                comparison.bag, comparison.rows, comparison.targets, comparison.kind, comparison.outputs,
                comparison.weights,
            )  # fmt: skip
            model.bag_of_words = on_scale(comparison, best, bag)
        model.save(plan.out)
    shutil.rmtree(search_folder(plan), ignore_errors=True)
    return finish_run(plan.out, results)


def on_scale(comparison: Comparison, best: Attempt, bag: BagOfWords) -> BagOfWords:
    """Return the fitted bag of words `bag` in the form in which it is saved with the winner.

    It gets its weight in the average, `best.share`. For regression, its outputs are converted to the original scale. If
    the winner is the bag of words alone, its probabilities are calibrated.
    """
    weight, bias = bag.weight, bag.bias
    if comparison.kind == "number":
        task = comparison.material.task.unwrapped
        weight, bias = weight * task.deviation, bias * task.deviation + task.mean
    elif best.share == 1:
        added = best.calibration.bias(comparison.frequencies, comparison.kind)
        weight, bias = weight * best.calibration.sharpness, bias * best.calibration.sharpness + added
    return replace(bag, weight=weight, bias=bias, share=best.share)


@torch.no_grad()
def calibrate_head(comparison: Comparison, calibration: Calibration, head: Any) -> None:
    """Fold a calibration into the weights of a classifier's output layer, if the layer is linear and has a bias."""
    output = (head.head if isinstance(head, LayerFeaturesHead) else head).output
    if comparison.kind == "number" or not isinstance(output, torch.nn.Linear) or output.bias is None:
        return
    added = calibration.bias(comparison.frequencies, comparison.kind)
    output.weight.mul_(calibration.sharpness)
    output.bias.mul_(calibration.sharpness).add_(torch.from_numpy(added).to(output.bias))


def evaluate_winner(comparison: Comparison, best: Attempt, run: Run) -> tuple[dict[str, Any], TaskData]:
    """Return the winner's scores, and the data they are from: the dev file, or all rows by cross-validation."""
    material = comparison.material
    if material.dev is not None:
        model, task = load_task_model(run.folder)
        length = min(comparison.plan.batch.max_length or 128, model.longest or 1 << 30)
        answers = Predictor(model, task, material.dev, length).report_truncated()()
        scores = score(material.task, answers, material.dev)
    else:
        answers = comparison.answers(best.predicted)
        scores = score(material.task, answers, material.rows)
        material = replace(material, dev=material.rows, folds=comparison.folds)
    write_predictions(run.folder / DEV_PREDICTIONS, answers)
    results: dict[str, Any] = {f"dev/{name}": value for name, value in scores.items()}
    results |= {"positive_class": positive_class(material.task)} if positive_class(material.task) is not None else {}
    return {**results, "cross_validated": comparison.material.dev is None}, material


def summarize_attempt(comparison: Comparison, attempt: Attempt) -> dict[str, Any]:
    """Return an attempt as a row of the table of results: score, standard deviation over folds, loss, and seconds."""
    return {
        comparison.material.primary_metric: round(comparison.score(attempt.predicted), 4),
        "sd": round(float(np.std(attempt.scores)), 4),
        "loss": round(attempt.loss, 4),
        "seconds": round(attempt.seconds, 1),
        "objective": attempt.candidate.objective,
        "strategy": attempt.candidate.strategy,
    }


def learning_curve(comparison: Comparison, attempts: Sequence[Attempt]) -> dict[int, float]:
    """Return the cross-validated score of the bag of words for several numbers of training rows (rows → score)."""
    bag = comparison.bag
    if bag is None or len(comparison.rows) < 4 * FEWEST_ROWS:
        return {}
    found = {}
    order = np.random.default_rng(comparison.plan.seed).permutation(len(comparison.rows))
    for share in CURVE:
        rows = np.sort(order[: round(share * len(order))])
        part = comparison.rows.take(rows)
        folds = assign_folds(part, int(comparison.folds.max()) + 1, comparison.plan.seed)
        smaller = replace(
            comparison, material=replace(comparison.material, rows=part), targets=comparison.targets[rows], folds=folds
        )
        weights = None if comparison.weights is None else comparison.weights[rows]
        chosen = choose_bag(part, smaller.targets, comparison.kind, comparison.outputs, folds, weights)
        found[len(rows)] = round(smaller.score(chosen.validated.predicted), 4)
    return found


def describe_choice(
    comparison: Comparison, attempts: Sequence[Attempt], best: Attempt, curve: dict[int, float]
) -> list[str]:
    """Return lines of text that tell which strategy won, by how much, and what more labels would bring.

    `curve` is the result of `learning_curve`.
    """
    metric, own = comparison.material.primary_metric, comparison.score(best.predicted)
    others = [attempt for attempt in attempts if attempt is not best]
    lines = []
    if others:
        second = min(others, key=lambda attempt: attempt.loss)
        difference = comparison.losses(second.predicted) - comparison.losses(best.predicted)
        error = float(difference.std() / max(1, len(difference)) ** 0.5)
        clear = "clearly" if difference.mean() > 2 * error else "not clearly"
        lines.append(
            f"best: {best.name} ({metric} {own:.3f}), {clear} better than {second.name} "
            f"({comparison.score(second.predicted):.3f}), by the loss in cross-validation"
        )
    if len(curve) > 2:
        (_, half), (count, full) = list(curve.items())[-2:]
        gain = full - half
        worth = f"about {gain:+.3f} {metric}" if gain > 0.005 else "little"
        lines.append(
            f"more labels: doubling them to {count} was worth {worth} for a bag of words; expect less from the next doubling"
        )
    return lines


def explain_full(obstacle: str) -> None:
    """Log that full fine-tuning is used, and why: because of `obstacle` or, if this is "", the number of examples."""
    obstacle = obstacle or f"a comparison needs {FEWEST_ROWS} to {MOST_ROWS:,} examples"
    advice = if_option("strategy", "; choose another with --strategy")
    log_info(f"strategy: full fine-tuning, without a comparison of strategies, because {obstacle}{advice}")
