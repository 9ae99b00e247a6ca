"""Domain adaptation: continue the pretraining of a model on new text, and compare it with the original."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pretune.inference.fill import MASK, MaskFiller
from pretune.models.loading import load_model
from pretune.models.open_model import ModelHandle, OpenModel
from pretune.objectives import parse_objective
from pretune.runtime.notebook import as_html
from pretune.runtime.randomness import EpochRandom
from pretune.text.store.store import Store
from pretune.training.held_out import hold_out_documents
from pretune.training.jobs.pretraining import pretrain
from pretune.training.jobs.pretraining_data import get_store
from pretune.training.jobs.pretraining_settings import PretrainingJob
from pretune.training.recipe_sections import Budget, Monitoring, resolve_section
from pretune.training.run_folder import Run

if TYPE_CHECKING:
    from pretune import LoadedModel

# A lower learning rate than from scratch, and batches small enough for many steps in minutes on a CPU.
SETTINGS: dict[str, dict[str, Any]] = {
    "budget": {"seconds": 300.0},
    "optimizer": {"lr": 3e-4, "betas": (0.9, 0.98)},
    "batch": {"tokens": 4096},
}
SHORT_BUDGET = 60.0  # seconds below which batches are smaller
SMALL_BATCH = 1024  # tokens of these batches
NUM_SENTENCES = 5  # held-out sentences to fill before and after
SENTENCE_LENGTH = (8, 24)  # minimum and maximum tokens of these sentences
MIN_LETTERS = 4  # of a masked word


@dataclass(frozen=True, kw_only=True)
class AdaptationJob(PretrainingJob):
    """A domain adaptation job: a pretraining job that starts from a trained model and keeps the model's tokenizer."""

    command: ClassVar[str] = "adapt"

    def recipe(self) -> dict[str, Any]:
        """Return the settings that determine the result of domain adaptation, named like the command-line options."""
        return {name: value for name, value in super().recipe().items() if name != "tokenizer"}


@dataclass(frozen=True)
class AdaptationResult(ModelHandle):
    """The result of domain adaptation: its run, and how well the model predicts held-out text before and after.

    Commands accept it in place of a model's path.
    """

    run: Run
    before: dict[str, float]
    after: dict[str, float]
    fills: list[dict[str, Any]]

    def __fspath__(self) -> str:
        return str(self.run.folder)

    def __repr__(self) -> str:
        losses = [
            f", {name} {self.before[name]:.4g} before and {loss:.4g} after"
            for name, loss in self.after.items()
            if "/" not in name and name in self.before
        ]
        return f"AdaptationResult({str(self.run.folder)!r}{''.join(losses)})"

    @property
    def reference(self) -> str:
        """The path of the run folder."""
        return self.run.reference

    @property
    def open_model(self) -> OpenModel:
        """The adapted model, whose weights are kept in memory."""
        return self.run.open_model

    def load(self) -> LoadedModel:
        """Load the adapted model, to fill, embed, fine-tune, … with it.

        >>> adapted.load().fill("Take two [MASK] a day.")["filled"]  # doctest: +SKIP
        'take two tablets a day .'
        """
        return self.run.load()

    def describe(self) -> dict[str, Any]:
        """Return all results of domain adaptation by name: those of further pretraining, and the metrics before and after."""
        return {**self.run.describe(), "before": self.before, "after": self.after, "fills": self.fills}

    def table(self) -> dict[str, Any]:
        """Return the results for display: metrics before and after domain adaptation, then those of further pretraining."""
        facts = {key: value for key, value in self.run.table().items() if not key.startswith("dev/")}
        rows = [{"measure": name, "before": self.before[name], "after": self.after[name]} for name in self.after]
        compared = {name: part for name, part in (("held_out_text", rows), ("fills", self.fills)) if part}
        return {"run": facts.pop("run"), **compared, **facts}

    def _repr_html_(self) -> str:
        """Return a comparison of the model before and after domain adaptation as HTML tables, for notebooks."""
        parts = self.table()
        titles = {"held_out_text": "held-out text", "fills": "masked words in held-out text"}
        return "".join(as_html(parts[name], title) for name, title in titles.items() if name in parts)


def default_settings(budget: Budget | None) -> dict[str, dict[str, Any]]:
    """Return the default settings of domain adaptation; short budgets have smaller batches and shorter evaluations."""
    seconds = SETTINGS["budget"]["seconds"] if budget is None or not budget.limits else budget.seconds
    if seconds is None:
        return SETTINGS
    if seconds >= SHORT_BUDGET:
        batches = min(int(seconds // 60), resolve_section(Monitoring, None).max_eval_batches or 1)
        return SETTINGS | {"monitor": {"max_eval_batches": batches}}
    factor = SETTINGS["batch"]["tokens"] // SMALL_BATCH
    optimizer = SETTINGS["optimizer"] | {"lr": SETTINGS["optimizer"]["lr"] / factor}
    small: dict[str, Any] = {"batch": {"tokens": SMALL_BATCH}, "optimizer": optimizer}
    return SETTINGS | small | {"monitor": {"max_eval_batches": factor}}


def adapt(plan: AdaptationJob, store: Store | None = None, resume: bool = False) -> AdaptationResult:
    """Run the domain adaptation job `plan` on its texts, or on the token store `store` if one is given.

    Return a comparison of the model's losses on held-out text before and after.
    """
    run = pretrain(plan, store, resume, require_held_out=True)
    evaluations = [line for line in run.metrics() if any(name.startswith("dev/") for name in line)]
    before, after = (losses_and_perplexities(evaluations[place]) if evaluations else {} for place in (0, -1))
    if "mlm" not in after:
        return AdaptationResult(run, before, after, [])
    store, _, held_out = hold_out_documents(
        get_store(plan) if store is None else store, plan.monitor.held_out_fraction or 0.0
    )
    return AdaptationResult(
        run, before, after, compare_fills(plan.model, run.folder, store, held_out, plan.ignore_mismatched)
    )


def losses_and_perplexities(line: dict[str, float]) -> dict[str, float]:
    """Return the evaluation losses in a line of metrics.jsonl, and their perplexities, by name."""
    losses = {name.removeprefix("dev/"): value for name, value in line.items() if name.startswith("dev/")}
    perplexities = {f"{name}/perplexity": math.exp(value) for name, value in losses.items() if "/" not in name}
    return dict(sorted({**losses, **perplexities}.items()))


def compare_fills(
    before: str, after: Path, store: Store, documents: Any, ignore_mismatched: bool = False
) -> list[dict[str, Any]]:
    """Return what the models `before` and `after` adaptation predict for masked words, one dictionary per sentence.

    The sentences are from the held-out documents (indices in the token store `store`).
    """
    fillers = {"after": MaskFiller.load(after)}
    old = load_model(before, parse_objective("mlm"), ignore_mismatched=ignore_mismatched)
    if not any(name.startswith("heads.") for name in old.untrained):
        fillers = {"before": MaskFiller.of(old), **fillers}
    rows = []
    for ids, place, word in mask_words(store, documents):
        text = store.tokenizer.decode([*ids[1:place]]) + f" {MASK} " + store.tokenizer.decode(ids[place + 1 : -1])
        best = {name: filler.candidates(ids, [place], top_k=3)[0] for name, filler in fillers.items()}
        answers = {name: ", ".join(candidate["token"] for candidate in top) for name, top in best.items()}
        rows.append({"text": text, "word": word, **answers})
    return rows


def mask_words(store: Store, documents: Any) -> list[tuple[list[int], int, str]]:
    """Choose a few sentences of the given documents of a store, and mask one word in each.

    Return, for each sentence, the token ids with the mask, the position of the mask, and the masked word.
    """
    tokenizer, offsets = store.tokenizer, store.document_offsets
    spans = [np.arange(offsets[document], offsets[document + 1]) for document in documents]
    sentences = np.concatenate([*spans, np.zeros(0, dtype=np.int64)]).astype(np.int64)
    draws = EpochRandom(seed=0)
    masked: list[tuple[list[int], int, str]] = []
    for sentence in sentences[np.argsort(draws.uniform("sentence", sentences))]:
        ids = store.sentence(int(sentence)).astype(np.int64)
        if not SENTENCE_LENGTH[0] <= len(ids) <= SENTENCE_LENGTH[1]:
            continue
        starts = np.append(tokenizer.word_starts(ids), True)
        words = {
            int(place): word
            for place in np.flatnonzero(starts[:-1] & starts[1:])  # words of one token
            if len(word := tokenizer.decode([int(ids[place])]).strip()) >= MIN_LETTERS and word.isalpha()
        }
        if len(words) < len(ids) / 4:  # a table, or code
            continue
        place = list(words)[int(draws.integers(len(words), "word", sentence))]
        ids[place] = tokenizer.role("mask")
        masked.append(([tokenizer.role("start"), *ids.tolist(), tokenizer.role("separator")], place + 1, words[place]))
        if len(masked) == NUM_SENTENCES:
            break
    return masked
