"""ULMFiT (Howard and Ruder, 2018, arXiv:1801.06146): a language model, the same on the task's own texts, then a classifier.

The second and the third stage are here; the first is `pretrain ulmfit`. Each stage is a plain run: what makes it ULMFiT are
its settings. Lower layers move 2.6 times more slowly than those above, rates rise steeply and fall slowly, the classifier
stands on the last state beside the highest and the mean of all, and layers begin to move one after the other, the top first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pretune.inference.ensemble import combine
from pretune.inference.predict import Answerer, load_trained
from pretune.metrics import score
from pretune.models.adapt_vocabulary import match_vocabulary
from pretune.models.model import find_folder, load_model, read_config
from pretune.objectives import parse_objective
from pretune.objectives.tasks.classify import Classify
from pretune.runtime.atomic_io import write_bytes
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import say
from pretune.text.corpus.documents import Document, TextLayout, read_documents
from pretune.text.corpus.files import Errors, find_files
from pretune.text.examples.validation import check_classes
from pretune.text.store.builder import Settings, make_store
from pretune.text.store.store import Store
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import train as train_tokenizer
from pretune.text.tokenizers.training import words_tokenizer
from pretune.training.jobs import finetuning, pretraining, pretraining_settings
from pretune.training.jobs.search_space import count_layers
from pretune.training.jobs.several_seeds import finetune_seeds
from pretune.training.run_folder import Run
from pretune.training.settings import Batching, Budget, Optimizer, Schedule, Watching

SLOWER = 1 / 2.6  # a layer's rate, of that of the layer above
OPTIMIZER = Optimizer(name="adam", betas=(0.7, 0.99), eps=1e-8, decay=0.0, clip=0.25, layer_decay=SLOWER)
SCHEDULE = Schedule(kind="triangular", warmup=0.1, final=1 / 32)
LM_OPTIMIZER = replace(OPTIMIZER, lr=4e-3)
WINDOW = 70  # tokens of a lane in a step
LANES = 4, 64, 256  # in a step: at least, usually, and at most
STEPS = 40, 1000  # that an epoch has at least, if need be with fewer lanes; and above which more lanes are taken
LEAST = 2  # times that a word of the texts is there to be known: what unknown words are like, those seen once tell
FEW, MANY_EPOCHS, FEW_EPOCHS = 1000, 50.0, 10.0  # rows that are few, and epochs of few and of many
OBJECTIVE = "classify(pooling=concat,hidden=50,dropout=0.4)"
WAYS = "forward", "backward"


@dataclass(frozen=True)
class Stages:
    """What the second and the third stage learn from, and for how long."""

    train: str
    dev: str | None
    columns: Mapping[str, str]
    texts: tuple[str, ...] = ()  # files of further texts, without labels
    layout: TextLayout = "auto"  # how .txt files of these are split into documents
    column: str | None = None  # the text field of other files
    errors: Errors = "strict"  # what to do with invalid UTF-8
    vocabulary: int | None = None  # words of the new vocabulary; None: as many as the old one has
    lm_epochs: float = 5.0
    epochs: float | None = None  # None: MANY_EPOCHS of few rows, FEW_EPOCHS of many
    length: int = 400  # tokens that a classifier reads, at most
    rows: int = 32  # in a step
    rate: float = 4e-3  # of the classifier and the top layer, at its highest
    dropout: Mapping[str, float] | None = None  # of the classifier; None: that of the language model
    language: str = "en"
    seed: int = 0
    seeds: int | None = 1
    device: str | None = None


@dataclass(frozen=True)
class Fitted:
    """The runs of both stages, for each way a model reads, and what the classifiers come to, alone and together."""

    folder: Path
    runs: dict[str, dict[str, Run]]  # by way, `texts` and `task`
    scores: dict[str, float]

    def __fspath__(self) -> str:
        return str(next(iter(self.runs.values()))["task"].folder)

    @property
    def classifiers(self) -> list[str]:
        """Their folders, for `predict`, which averages them."""
        return [str(runs["task"].folder) for runs in self.runs.values()]

    def describe(self) -> dict[str, Any]:
        """For reports."""
        perplexity = {
            f"{way} lm": runs["texts"].results.get("dev/lm") for way, runs in self.runs.items() if "texts" in runs
        }
        return {"folder": str(self.folder), "classifiers": self.classifiers, **perplexity, "scores": self.scores}


def fit(models: Sequence[str], stages: Stages, out: Path) -> Fitted:
    """The second and the third stage with one or two models that read each its way; finished runs are not done again."""
    ways = [way_of(model) for model in models]
    if len(set(ways)) < len(ways):
        raise PretuneError(
            f"{' and '.join(models)} both read {ways[0]}; give one that reads backward, and one that does not"
        )
    rows = Classify().read(stages.train, stages.columns)
    check_classes(rows)  # the classifier comes last: what is wrong with its rows is found now
    out.mkdir(parents=True, exist_ok=True)
    texts = out / "texts.jsonl"
    name = stages.column or "text"  # one for all files
    write_bytes(texts, "".join(json.dumps({name: text}, ensure_ascii=False) + "\n" for text in rows.texts).encode())
    files = [texts, *(file for path in stages.texts for file in find_files(path))]
    runs = {}
    for way, model in zip(ways, models, strict=True):
        adapted = adapt(model, files, out / way, stages)
        runs[way] = {"texts": adapted, "task": classify(adapted, out / way, stages, len(rows))}
    return Fitted(out, runs, compare([run["task"] for run in runs.values()], list(runs)))


def way_of(model: str) -> str:
    """Whether a language model reads forward or backward."""
    family, content = read_config(find_folder(model))
    config = family.read_config(content)
    if not hasattr(config, "backward"):
        raise PretuneError(f"{model}: ULMFiT is for recurrent language models; pretrain one, such as ulmfit-tiny")
    return WAYS[bool(config.backward)]


def adapt(
    model: str,
    files: Sequence[Path],
    out: Path,
    stages: Stages,
    optimizer: Optimizer = LM_OPTIMIZER,
    schedule: Schedule = SCHEDULE,
) -> Run:
    """The second stage: the language model on the task's texts, with their vocabulary."""
    if (out / "texts" / "results.json").is_file():
        return Run(out / "texts")
    start, store = out / "start", out / "store"
    if not (start / "config.json").is_file():
        rematch(model, files, start, stages)
    tokenizer = Tokenizer.load(start)
    how = Settings(stages.language, stages.layout, stages.column, stages.errors)
    made = make_store(files, tokenizer, store, how)
    given = {
        "objective": "lm(stateful=true)" if way_of(model) == "forward" else "lm(stateful=true,backward=true)",
        "tokenizer": str(start),
        "language": stages.language,
        "budget": Budget(tokens=stages.lm_epochs * made.tokens),
        "optimizer": optimizer,
        "schedule": schedule,
        "batch": lm_batch(made),
        "watching": Watching(save=0, held_out=0.05),
    }
    plan = pretraining_settings.make_plan(str(start), [store], out / "texts", given, stages.seed, stages.device)
    return pretraining.pretrain(plan, made, resume=(out / "texts").exists())


def lm_batch(store: Store) -> Batching:
    """Lanes of the usual window; fewer of them where there is little text, more where there is much."""
    (least, usual, most), (few, many) = LANES, STEPS
    windows = store.tokens // WINDOW
    lanes = max(least, min(usual, windows // few), min(most, windows // many))
    return Batching(tokens=lanes * WINDOW, length=WINDOW)


def rematch(model: str, files: Sequence[Path], start: Path, stages: Stages) -> None:
    """The model with a vocabulary of the texts' own words; those it knew keep their vectors. Pieces of words fit any text.

    Where there is room, words that it knew stay though the texts do not have them: others that come later may.
    """
    old = load_model(model, parse_objective("lm" if way_of(model) == "forward" else "lm(backward=true)"))
    tokenizer = old.need_tokenizer()
    if tokenizer.kind == "WordLevel":
        size = stages.vocabulary or tokenizer.size
        how: dict[str, Any] = {"layout": stages.layout, "column": stages.column, "errors": stages.errors}
        texts: list[Document] = list(read_documents(files, **how))
        small = lowercases(tokenizer)
        own = train_tokenizer(texts, "words", size, lowercase=small, least=LEAST)
        words = list(dict.fromkeys([*own.vocabulary, *tokenizer.vocabulary]))[:size]
        old, report = match_vocabulary(old, words_tokenizer(words, lowercase=small))
        say(f"vocabulary: {report['tokens']:,} words, of which {report['matched']:,} were known to {model}")
    elif stages.vocabulary is not None:
        raise PretuneError(
            f"--vocabulary applies only to models whose tokens are words, and {model} has pieces of words; leave it out"
        )
    old.save(start)


def lowercases(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer makes capitals small."""
    normalizer = json.loads(tokenizer.backend.to_str())["normalizer"] or {}
    return bool(normalizer.get("lowercase"))


def classify(adapted: Run, out: Path, stages: Stages, rows: int) -> Run:
    """The third stage."""
    if (out / "task" / "results.json").is_file():
        return Run(out / "task")
    epochs = stages.epochs or (MANY_EPOCHS if rows < FEW else FEW_EPOCHS)
    given = {
        "train": stages.train,
        "dev": stages.dev,
        "out": out / "task",
        "columns": stages.columns,
        "objective": OBJECTIVE,
        "strategy": unfreezing(adapted.folder, epochs),
        "epochs": epochs,
        "budget": None,
        "optimizer": replace(OPTIMIZER, lr=stages.rate),
        "schedule": SCHEDULE,
        "batch": Batching(sequences=stages.rows, length=stages.length),
        "watching": None,
        "deterministic": False,
        "seed": stages.seed,
        "seeds": stages.seeds,
        "tokenizer": None,
        "scratch": False,
        "dropout": stages.dropout,
        "device": stages.device,
    }
    plan = finetuning.make_plan(str(adapted.folder), given)
    return finetune_seeds(plan, finetuning.read_material(plan), resume=(out / "task").exists())


def unfreezing(model: str | Path, epochs: float) -> str:
    """The strategy: a layer more with each epoch, and all of them after half of the training at the latest."""
    return f"gradual({min(0.5, count_layers(str(model)) / epochs):g})"


def compare(runs: Sequence[Run], ways: Sequence[str]) -> dict[str, float]:
    """How good each classifier is on the rows for judging, and all of them together."""
    results = {way: run.results.get("dev/accuracy") for way, run in zip(ways, runs, strict=True)}
    found = {way: float(value) for way, value in results.items() if value is not None}
    if len(found) < 2 or (dev := runs[0].recipe.get("dev")) is None:
        return found
    members = [load_trained(run.folder) for run in runs]
    task = members[0][1]
    rows = task.read(dev, {role: name for role, name in runs[0].recipe.items() if role in ("text", "label")})
    said = [Answerer(model, own, rows)() for model, own in members]
    together = combine(task, said, rows)
    return {**found, "both": float(score(task, together, rows)["accuracy"])}
