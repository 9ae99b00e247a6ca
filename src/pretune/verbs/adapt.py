"""`adapt`: pretraining that goes on, on text of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pretune.runtime.output_paths import run_folder
from pretune.training.settings import Batching, Budget, Optimizer, Schedule, Watching
from pretune.verbs.option_modes import LANGUAGE, OF_DATA, ON_TEXT
from pretune.verbs.shared_inputs import store_and_paths
from pretune.verbs.verb import verb

if TYPE_CHECKING:
    from pretune.text.store.store import Store
    from pretune.training.jobs.adapting import Adapted
    from pretune.training.run_folder import Run


@verb(ON_TEXT, LANGUAGE, *OF_DATA, out=run_folder)
def adapt(
    model: str | Path | Run,
    data: Store | Sequence[str | Path] | str | Path,
    *,
    out: str | Path,
    objective: str = "mlm",
    language: str = "en",
    layout: Literal["auto", "line", "blank", "file"] = "auto",
    column: str | None = None,
    errors: Literal["strict", "replace"] = "strict",
    budget: Budget | None = None,
    optimizer: Optimizer | None = None,
    schedule: Schedule | None = None,
    batch: Batching | None = None,
    watching: Watching | None = None,
    seed: int = 0,
    deterministic: bool = False,
    resume: bool = False,
    device: str | None = None,
    partial: bool = False,
) -> Adapted:
    """Go on pretraining a model on your own text, and compare it with what it was.

    Some documents are held out, or passages where there are few documents; the loss on them and fills of gaps in them are
    shown before and after. Without a limit it trains for five minutes; reading the text and the evaluation before and after
    come on top of that, and how long the evaluation took is reported.

    Parameters
    ----------
    model
        A run or model folder.
    data
        Files, folders and globs of text, or a store prepared with the model's tokenizer.
    out
        Folder of the new run.
    objective
        For example mlm, mlm+nsp.
    language
        Language of the sentence splitter, or `lines`.
    layout
        How .txt files are split into documents: one per line, separated by blank lines, or whole files.
    column
        The text field of .jsonl, .csv, .tsv and .parquet files.
    errors
        What to do with invalid UTF-8.
    budget
        Limits; whichever is reached first ends the training.
    optimizer
        name, lr, betas, eps, decay, clip, matrix_lr, momentum, layer_decay, head_factor.
    schedule
        kind, warmup, final.
    batch
        tokens, length, pack.
    watching
        log, evaluate, held_out, packs, save, keep.
    seed
        All chance follows from it.
    deterministic
        Same seed, same machine, same bits, on a GPU too, where that takes longer.
    resume
        Go on with the run in --out.
    device
        cpu or cuda; a GPU is used where there is one.
    partial
        Go on where keys or tensors are unknown (left out), or tensors missing or of another shape (left random).

    Examples
    --------
    >>> adapted = adapt("runs/mine", "notes/*.txt", budget=Budget(seconds=60), out="runs/notes")  # doctest: +SKIP
    >>> adapted.after["mlm"] < adapted.before["mlm"]  # doctest: +SKIP
    True
    """
    import os

    from pretune.models.model import find_folder
    from pretune.training.jobs import adapting, pretraining_settings
    from pretune.training.run_folder import check_same

    reference = os.fspath(model)
    folder = str(find_folder(reference))  # a preset has no weights to go on from
    store, paths = store_and_paths(data)
    given = {
        "objective": objective,
        "tokenizer": folder,
        "language": language,
        "layout": layout,
        "column": column,
        "errors": errors,
        "budget": budget,
        "optimizer": optimizer,
        "schedule": schedule,
        "batch": batch,
        "watching": watching,
        "deterministic": deterministic,
        "partial": partial,
    }
    plan = pretraining_settings.make_plan(reference, paths, out, given, seed, device, adapting.usual_settings(budget))
    check_same(plan.out, plan.recipe())
    return adapting.adapt(plan, store, resume)
