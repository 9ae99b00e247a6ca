"""`pretrain`: text in, a model out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pretune.runtime.output_paths import run_folder
from pretune.training.settings import Batching, Budget, Optimizer, Schedule, Watching
from pretune.verbs.option_modes import LANGUAGE, OF_DATA, ON_TEXT, paths, starts_from_preset
from pretune.verbs.shared_inputs import store_and_paths
from pretune.verbs.verb import Options, only, verb

if TYPE_CHECKING:
    from pretune.text.store.store import Store
    from pretune.training.run_folder import Run


def needs_tokenizer(o: Options) -> bool:
    """Return whether some of the data is not tokenized yet."""
    from pretune.training.jobs.pretraining_settings import is_store, split_language

    return not paths(o.data) or any(not is_store(split_language(str(path))[1]) for path in paths(o.data))


def has_weights(o: Options) -> bool:
    """Return whether the model, or the one it starts from, has weights to load."""
    return o.from_ is not None or not starts_from_preset(o)


def in_parallel(o: Options) -> bool:
    """Return whether torchrun started this process."""
    return "RANK" in os.environ


@verb(
    ON_TEXT,
    LANGUAGE,
    *OF_DATA,
    only("tokenizer", where="to files of text, as a store has its own", when=needs_tokenizer),
    only("from_", where="to a preset, as a model folder has weights of its own", when=starts_from_preset),
    only("partial", where="where weights are loaded: from a model folder, or with --from", when=has_weights),
    only("parallel", "reduce", where="to several processes, started by torchrun", when=in_parallel),
    out=run_folder,
)
def pretrain(
    model: str | Path | Run,
    data: Store | Sequence[str | Path] | str | Path | None = None,
    *,
    out: str | Path,
    objective: str | None = None,
    tokenizer: str | Path | dict[str, Any] | None = None,
    language: str = "en",
    layout: Literal["auto", "line", "blank", "file"] = "auto",
    column: str | None = None,
    errors: Literal["strict", "replace"] = "strict",
    budget: Budget | None = None,
    scale_to: str | None = None,
    optimizer: Optimizer | None = None,
    schedule: Schedule | None = None,
    batch: Batching | None = None,
    watching: Watching | None = None,
    seed: int = 0,
    from_: str | Path | Run | None = None,
    deterministic: bool = False,
    resume: bool = False,
    device: str | None = None,
    parallel: Literal["replicate", "shard"] = "replicate",
    reduce: Literal["fp32", "bf16"] | None = None,
    partial: bool = False,
    vectors: str | Path | None = None,
) -> Run:
    """Pretrain a model on raw text, under a budget.

    With files alone, a tokenizer is trained and a store prepared inside the run folder first. Stopped by Ctrl-C, SIGTERM
    or a kill, the same command with --resume goes on where it was, and ends with the same weights.

    `torchrun --nproc-per-node N -m pretune pretrain …` does the same in several processes, on one machine or many, with the same
    data in the same order (see docs/scaling.md).

    Parameters
    ----------
    model
        A preset (see `pretune show presets`), a .yaml file with one of your own, or a model folder to train on.
    data
        Stores made by `pretune prepare`, or files, folders and globs of text, LANGUAGE=PATH where there are several
        languages; for translate, tlm and trtd a table with two columns of texts, or two .txt files whose lines belong
        together; for dlm a .jsonl file of dialogues; stores beside these where objectives take turns.
    out
        Folder of the new run.
    objective
        For example mlm, mlm(unit=span)+sop, tlm|mlm, rtd, spans, translate, 0.9*mlm|0.1*lm (see `pretune show objectives`); the preset's by default.
    tokenizer
        A tokenizer to use; or, in a recipe, how to train one: kind, size, lowercase.
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
    scale_to
        A budget such as 10min, 2h, 500steps, 1e9tokens or 1e15flops that the preset's recipe is scaled down to: steps,
        warm-up, batch and rates.
    optimizer
        name, lr, betas, eps, decay, clip, matrix_lr, momentum, layer_decay, head_factor.
    schedule
        kind, warmup, final.
    batch
        tokens, length, pack, exponent (of several languages).
    watching
        log, evaluate, held_out, packs, save, keep.
    seed
        All chance follows from it.
    from_
        Start from the weights of another run of the same shape, as a new training.
    deterministic
        Same seed, same machine, same bits, on a GPU too, where that takes longer.
    resume
        Go on with the run in --out.
    device
        cpu or cuda; a GPU is used where there is one.
    parallel
        Of several processes, each has the whole model (replicate), or a part of it and of the optimizer's state (shard).
    reduce
        What gradients are summed up in, over several processes; bf16 is half the traffic. fp32 by default.
    partial
        Go on where keys or tensors are unknown (left out), or tensors missing or of another shape (left random).
    vectors
        A file of word vectors (word2vec, GloVe, fastText) that words start from.

    Examples
    --------
    >>> run = pretrain("bert-small", store, objective="mlm+nsp", budget=Budget(seconds=900), out="runs/mine")  # doctest: +SKIP
    """
    from pretune.training.jobs import pretraining, pretraining_settings
    from pretune.training.run_folder import check_same

    store, texts = store_and_paths(data)
    given = {
        "objective": objective,
        "tokenizer": str(tokenizer) if isinstance(tokenizer, Path) else tokenizer,
        "language": language,
        "layout": layout,
        "column": column,
        "errors": errors,
        "from_": os.fspath(from_) if from_ is not None else None,
        "budget": budget,
        "scale_to": scale_to,
        "optimizer": optimizer,
        "schedule": schedule,
        "batch": batch,
        "watching": watching,
        "deterministic": deterministic,
        "partial": partial,
        "parallel": parallel,
        "reduce": reduce,
        "vectors": str(vectors) if vectors is not None else None,
    }
    plan = pretraining_settings.make_plan(os.fspath(model), texts, out, given, seed, device)
    check_same(plan.out, plan.recipe())
    return pretraining.pretrain(plan, store, resume)
