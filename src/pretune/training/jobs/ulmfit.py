"""ULMFiT (Howard and Ruder, 2018, arXiv:1801.06146): adapt a language model to the texts of a task, then train a classifier.

These are the second and third stage; the first is `pretrain ulmfit`. Each stage is an ordinary run with the settings of
ULMFiT: the learning rate of each layer is 1/2.6 of that above (discriminative fine-tuning), the schedule is slanted
triangular, the classifier reads the last state with the maximum and the mean of all (concat pooling), and layers are unfrozen
gradually from the top.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pretune.inference.ensemble import combine_predictions
from pretune.inference.predict import Predictor, load_task_model
from pretune.metrics import score
from pretune.models.adapt_vocabulary import replace_vocabulary
from pretune.models.hf_config import read_config
from pretune.models.loading import load_model
from pretune.models.name_resolution import find_folder
from pretune.objectives import parse_objective
from pretune.objectives.tasks.classify import Classify
from pretune.runtime.atomic_io import write_bytes
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import log_info
from pretune.text.corpus.documents import SplitBy, read_documents
from pretune.text.corpus.files import Errors, find_files
from pretune.text.examples.validation import check_classes
from pretune.text.store.builder import StoreSettings, build_store
from pretune.text.store.store import Store
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import train_on_documents as train_tokenizer
from pretune.text.tokenizers.training import word_level_tokenizer
from pretune.training.jobs.finetuning import read_task_data, resolve_finetuning
from pretune.training.jobs.pretraining import pretrain
from pretune.training.jobs.pretraining_settings import resolve_pretraining
from pretune.training.jobs.search_space import count_layers
from pretune.training.jobs.several_seeds import finetune_seeds
from pretune.training.recipe_sections import Batching, Budget, Monitoring, Optimizer, Schedule
from pretune.training.run_folder import Run, finished_run

SLOWER = 1 / 2.6  # the learning rate of a layer relative to the layer above
OPTIMIZER = Optimizer(
    name="adam", betas=(0.7, 0.99), eps=1e-8, weight_decay=0.0, max_grad_norm=0.25, layer_decay=SLOWER
)
SCHEDULE = Schedule(kind="slanted-triangular", warmup_ratio=0.1, min_lr_ratio=1 / 32)
LM_OPTIMIZER = replace(OPTIMIZER, lr=4e-3)
WINDOW = 70  # tokens per stream of text in a step
STREAMS = 4, 64, 256  # streams of text in a step: minimum, default, and maximum
STEPS = 40, 1000  # per epoch: below the first, fewer streams are used; above the second, more
MIN_COUNT = 2  # occurrences that a word needs to enter the vocabulary; words seen once train the unknown token
FEW, MANY_EPOCHS, FEW_EPOCHS = 1000, 50.0, 10.0  # rows that are few, and the epochs for few and for many rows
OBJECTIVE = "classify(pooling=concat,hidden_size=50,dropout=0.4)"
DIRECTIONS = "forward", "backward"


@dataclass(frozen=True)
class UlmfitJob:
    """The data of ULMFiT, and its settings for fine-tuning the language model and for training the classifier."""

    train: str
    dev: str | None
    columns: Mapping[str, str]
    unlabeled: tuple[str, ...] = ()  # files of further, unlabeled texts
    split_by: SplitBy = "auto"  # how .txt files of these are split into documents
    text_field: str | None = None  # the text field of other files
    encoding_errors: Errors = "strict"  # how to handle invalid UTF-8
    vocab_size: int | None = None  # words of the new vocabulary; None: the size of the old one
    lm_epochs: float = 5.0
    epochs: float | None = None  # None: MANY_EPOCHS for few rows, FEW_EPOCHS for many
    max_length: int = 400  # maximum tokens that the classifier reads
    batch_size: int = 32  # per step
    lr: float = 4e-3  # peak learning rate of the classifier and the top layer
    dropout: Mapping[str, float] | None = None  # of the classifier; None: that of the language model
    language: str = "en"
    seed: int = 0
    num_seeds: int | None = 1
    device: str | None = None

    @property
    def reading(self) -> dict[str, Any]:
        """The keyword arguments for reading files of unlabeled texts, such as `split_by`."""
        return {name: getattr(self, name) for name in ("split_by", "text_field", "encoding_errors")}


@dataclass(frozen=True)
class UlmfitResult:
    """The result of ULMFiT: the runs of both stages by reading direction, and the scores of the classifiers."""

    folder: Path
    runs: dict[str, dict[str, Run]]  # by direction, then `texts` and `task`
    scores: dict[str, float]

    def __fspath__(self) -> str:
        return str(next(iter(self.runs.values()))["task"].folder)

    @property
    def classifiers(self) -> list[str]:
        """The folders of the trained ULMFiT classifiers, one per reading direction."""
        return [str(runs["task"].folder) for runs in self.runs.values()]

    def describe(self) -> dict[str, Any]:
        """Return the results of ULMFiT by name: folders, language modeling losses, and classifier scores."""
        losses = {
            f"{way} lm": runs["texts"].results.get("dev/lm") for way, runs in self.runs.items() if "texts" in runs
        }
        return {"folder": str(self.folder), "classifiers": self.classifiers, **losses, "scores": self.scores}


def run_ulmfit(models: Sequence[str], stages: UlmfitJob, out: Path) -> UlmfitResult:
    """Run ULMFiT with a forward language model, a backward one, or both, and return the runs and the scores.

    Each language model is adapted to the texts of the task, then a classifier is trained from it.
    """
    ways = [reading_direction(model) for model in models]
    if len(set(ways)) < len(ways):
        raise PretuneError(f"{' and '.join(models)} both read {ways[0]}; give one forward and one backward model")
    rows = Classify().read(stages.train, stages.columns)
    check_classes(rows)  # the classifier is trained last, but errors in its rows are reported now
    out.mkdir(parents=True, exist_ok=True)
    texts = out / "texts.jsonl"
    name = stages.text_field or "text"  # the same for all files
    write_bytes(texts, "".join(json.dumps({name: text}, ensure_ascii=False) + "\n" for text in rows.texts).encode())
    files = [texts, *(file for path in stages.unlabeled for file in find_files(path))]
    runs = {}
    for way, model in zip(ways, models, strict=True):
        adapted = adapt(model, files, out / way, stages)
        runs[way] = {"texts": adapted, "task": classify(adapted, out / way, stages, len(rows))}
    return UlmfitResult(out, runs, compare([run["task"] for run in runs.values()], list(runs)))


def reading_direction(model: str) -> str:
    """Return whether a language model reads "forward" or "backward"."""
    family, content = read_config(find_folder(model))
    config = family.read_config(content)
    if not hasattr(config, "backward"):
        raise PretuneError(f"{model}: ULMFiT needs a recurrent language model; pretrain one, such as ulmfit-tiny")
    return DIRECTIONS[bool(config.backward)]


def adapt(
    model: str,
    files: Sequence[Path],
    out: Path,
    stages: UlmfitJob,
    optimizer: Optimizer = LM_OPTIMIZER,
    schedule: Schedule = SCHEDULE,
) -> Run:
    """Run ULMFiT's second stage: adapt a language model's vocabulary to the texts in `files`, and train it on them."""
    if finished := finished_run(out / "texts"):
        return finished
    start, store = out / "start", out / "store"
    if not (start / "config.json").is_file():
        match_model_vocabulary(model, files, start, stages)
    tokens = build_store(files, Tokenizer.load(start), store, StoreSettings(stages.language, **stages.reading))
    backward = reading_direction(model) == "backward"
    options = {
        "objective": "lm(stateful=true,backward=true)" if backward else "lm(stateful=true)",
        "tokenizer": str(start),
        "language": stages.language,
        "budget": Budget(tokens=stages.lm_epochs * tokens.tokens),
        "optimizer": optimizer,
        "schedule": schedule,
        "batch": lm_batch(tokens),
        "monitor": Monitoring(save_every=0, held_out_fraction=0.05),
    }
    plan = resolve_pretraining(str(start), [store], out / "texts", options, stages.seed, stages.device)
    return pretrain(plan, tokens, resume=(out / "texts").exists())


def lm_batch(store: Store) -> Batching:
    """Return the batch settings to train a language model on a token store; more text gives more parallel streams."""
    (least, default, most), (few, many) = STREAMS, STEPS
    windows = store.tokens // WINDOW
    streams = max(least, min(default, windows // few), min(most, windows // many))
    return Batching(tokens=streams * WINDOW, max_length=WINDOW)


def match_model_vocabulary(model: str, files: Sequence[Path], start: Path, stages: UlmfitJob) -> None:
    """Save a copy of a language model in the folder `start`, with the vocabulary of the texts in `files`.

    Words that the model knows keep their embeddings. If the vocabulary has fewer words than its maximum size, it is
    filled up with words of the model. Models with subword tokens are saved unchanged.
    """
    old = load_model(model, parse_objective("lm" if reading_direction(model) == "forward" else "lm(backward=true)"))
    tokenizer = old.require_tokenizer()
    if tokenizer.kind == "WordLevel":
        size, lowercase = stages.vocab_size or tokenizer.size, lowercases(tokenizer)
        own = train_tokenizer(
            list(read_documents(files, **stages.reading)), "words", size, lowercase=lowercase, least=MIN_COUNT
        )
        words = list(dict.fromkeys([*own.vocabulary, *tokenizer.vocabulary]))[:size]
        old, report = replace_vocabulary(old, word_level_tokenizer(words, lowercase=lowercase))
        log_info(f"vocabulary: {report['tokens']:,} words, of which {model} has embeddings for {report['matched']:,}")
    elif stages.vocab_size is not None:
        raise PretuneError(
            f"--vocab-size applies only to models with word tokens, but the tokens of {model} are subwords; remove --vocab-size"
        )
    old.save(start)


def lowercases(tokenizer: Tokenizer) -> bool:
    """Return whether a tokenizer lowercases text."""
    normalizer = json.loads(tokenizer.backend.to_str())["normalizer"] or {}
    return bool(normalizer.get("lowercase"))


def classify(adapted: Run, out: Path, stages: UlmfitJob, rows: int) -> Run:
    """Run ULMFiT's third stage: train a classifier, starting from the language model of the run `adapted`.

    `rows` is the number of training examples, which determines the number of epochs.
    """
    if finished := finished_run(out / "task"):
        return finished
    epochs = stages.epochs or (MANY_EPOCHS if rows < FEW else FEW_EPOCHS)
    shared = {
        name: getattr(stages, name) for name in ("train", "dev", "columns", "seed", "num_seeds", "dropout", "device")
    }
    options = {
        **shared,
        "out": out / "task",
        "objective": OBJECTIVE,
        "strategy": unfreezing_strategy(adapted.folder, epochs),
        "epochs": epochs,
        "optimizer": replace(OPTIMIZER, lr=stages.lr),
        "schedule": SCHEDULE,
        "batch": Batching(size=stages.batch_size, max_length=stages.max_length),
    }
    plan = resolve_finetuning(str(adapted.folder), options)
    return finetune_seeds(plan, read_task_data(plan), resume=(out / "task").exists())


def unfreezing_strategy(model: str | Path, epochs: float) -> str:
    """Return the strategy that unfreezes one layer per epoch, but faster if this would take over half of training."""
    return f"gradual({min(0.5, count_layers(str(model)) / epochs):g})"


def compare(runs: Sequence[Run], ways: Sequence[str]) -> dict[str, float]:
    """Return the dev accuracy of the classifier of each run, by its reading direction, given in `ways`.

    With a forward and a backward classifier, the result also has the accuracy of their ensemble as `both`.
    """
    results = {way: run.results.get("dev/accuracy") for way, run in zip(ways, runs, strict=True)}
    scores = {way: float(value) for way, value in results.items() if value is not None}
    if len(scores) < 2 or (dev := runs[0].recipe.get("dev")) is None:
        return scores
    members = [load_task_model(run.folder) for run in runs]
    task = members[0][1]
    rows = task.read(dev, {role: name for role, name in runs[0].recipe.items() if role in ("text", "label")})
    predictions = [Predictor(model, own, rows)() for model, own in members]
    together = combine_predictions(task, predictions, rows)
    return {**scores, "both": float(score(task, together, rows)["accuracy"])}
