"""The `pretrain` verb: pretrain a model on raw text."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pretune.runtime.output_paths import check_run_folder
from pretune.verbs import options as opt
from pretune.verbs.option_modes import DATA_RULES, LANGUAGE_RULE, NO_ROW_KEYS, data_files, paths, starts_from_preset
from pretune.verbs.verb import Options, only, verb

if TYPE_CHECKING:
    from pretune.text.store.store import Store


def needs_tokenizer(o: Options) -> bool:
    """Return whether some of the data in the options `o` are texts, not token stores, so that a tokenizer is needed."""
    return not paths(o.data) or bool(data_files(o))


def has_weights(o: Options) -> bool:
    """Return whether training with the options `o` starts from weights: those of the model or of --init-from."""
    return o.init_from is not None or not starts_from_preset(o)


def translates(o: Options) -> bool:
    """Return whether the objective in the options `o` is only `translate`, so that its data are pairs of texts."""
    from pretune.models.presets import find_preset
    from pretune.objectives import parse_objective

    objective = o.objective or (find_preset(os.fspath(o.model))["objective"] if starts_from_preset(o) else "mlm")
    return [part.name for part in parse_objective(objective).objectives] == ["translate"]


def in_parallel(o: Options) -> bool:
    """Return whether `torchrun` started this process, whatever the command-line options `o` are."""
    return "RANK" in os.environ


@verb(
    NO_ROW_KEYS,
    LANGUAGE_RULE,
    *DATA_RULES,
    only("tokenizer", where="to text files; a store has its own", when=needs_tokenizer),
    only("init_from", where="to a preset; a model folder has its own weights", when=starts_from_preset),
    only("ignore_mismatched", where="if weights are loaded, from a model folder or with --init-from", when=has_weights),
    only("back_translation", where="to the objective 'translate'", when=translates),
    only("parallel", "reduce_dtype", where="to several processes, started by torchrun", when=in_parallel),
    common=("objective", "tokenizer", "language", "steps", "tokens", "seconds", "scale_to", "seed", "resume", "device"),
    out=check_run_folder,
)
def pretrain(
    model: str | Path | opt.ModelHandle,
    data: Store | opt.Paths | Mapping[str, str | Path | opt.Table] | None = None,
    *,
    out: opt.RunFolder,
    objective: str | None = None,
    tokenizer: str | Path | dict[str, Any] | None = None,
    language: opt.Language = "en",
    split_by: opt.SplitBy = "auto",
    text_field: opt.TextField = None,
    encoding_errors: opt.EncodingErrors = "strict",
    budget: opt.TextLimits = None,
    scale_to: str | None = None,
    optimizer: opt.OptimizerSettings = None,
    schedule: opt.ScheduleSettings = None,
    batch: opt.TextBatch = None,
    monitor: opt.TextMonitor = None,
    callbacks: opt.Callbacks = (),
    seed: opt.Seed = 0,
    init_from: str | Path | opt.ModelHandle | None = None,
    deterministic: opt.Deterministic = False,
    resume: opt.Resume = False,
    device: opt.Device = None,
    parallel: Literal["ddp", "fsdp"] = "ddp",
    reduce_dtype: Literal["fp32", "bf16"] | None = None,
    ignore_mismatched: opt.IgnoreMismatched = False,
    word_vectors: opt.WordVectors = None,
    back_translation: opt.BackTranslationSettings = None,
) -> opt.Run:
    """Pretrain a model on raw text within a training budget.

    If the data are text files, a tokenizer is trained and a token store prepared in the run folder first. An interrupted run
    continues with --resume and ends with the same weights.

    For data-parallel training on one machine or several, run `torchrun --nproc-per-node N -m pretune pretrain …`; the data and
    their order stay the same (see docs/reference/scaling.md).

    Parameters
    ----------
    model
        Preset (see `pretune show presets`), .yaml file with a custom preset, or model folder to continue training.
    data
        Stores made by `pretune prepare`, or files, folders, and glob patterns of text, as LANGUAGE=PATH for several languages. For
        translate, tlm, and trtd: a table with two text columns, or two .txt files with aligned lines. For dlm: a .jsonl file of
        dialogues. For mrm and itm: tables with the columns text and image. Objectives that alternate can combine these with stores.
    objective
        Pretraining objective, e.g. mlm, mlm(unit=span)+sop, tlm|mlm, rtd, spans, translate, or 0.9*mlm|0.1*lm (see `pretune show
        objectives`); the preset's by default.
    tokenizer
        Tokenizer to use; or, in a recipe, how to train one: kind, vocab_size, lowercase.
    scale_to
        Budget to scale the preset's recipe (steps, warmup, batch size, and learning rates) down to: e.g. 10min, 2h, 500steps,
        1e9tokens, or 1e15flops.
    init_from
        Run folder or model folder of the same architecture to initialize the weights from; training starts anew.
    parallel
        With several processes: ddp replicates the model in each; fsdp shards parameters and optimizer state over them.
    reduce_dtype
        Data type in which gradients are reduced over processes; bf16 halves the communication. By default fp32.

    Examples
    --------
    >>> run = pretrain("bert-small", store, objective="mlm+nsp", budget=Budget(seconds=900), out="runs/mine")  # doctest: +SKIP
    """
    from pretune.training.callbacks import find_callbacks
    from pretune.training.jobs import pretraining, pretraining_settings
    from pretune.training.run_folder import check_same_recipe
    from pretune.verbs.shared_inputs import job_options, model_reference, store_and_paths

    store, texts = store_and_paths(data)
    given = job_options(pretraining_settings.PretrainingJob, locals())
    given |= {"scale_to": scale_to, "callbacks": find_callbacks(callbacks)}
    plan = pretraining_settings.resolve_pretraining(model_reference(model), texts, out, given, seed, device)
    check_same_recipe(plan.out, plan.recipe())
    return pretraining.pretrain(plan, store, resume)
