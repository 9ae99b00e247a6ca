"""The `adapt` verb: continue pretraining on in-domain text (domain-adaptive pretraining)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretune.runtime.output_paths import check_run_folder
from pretune.verbs import options as opt
from pretune.verbs.option_modes import DATA_RULES, LANGUAGE_RULE, NO_ROW_KEYS
from pretune.verbs.verb import verb

if TYPE_CHECKING:
    from pretune.text.store.store import Store
    from pretune.training.jobs.adapting import AdaptationResult


@verb(
    NO_ROW_KEYS,
    LANGUAGE_RULE,
    *DATA_RULES,
    common=("objective", "language", "steps", "tokens", "seconds", "lr", "seed", "resume", "device"),
    out=check_run_folder,
)
def adapt(
    model: opt.Model,
    data: Store | opt.Paths,
    *,
    out: opt.RunFolder,
    objective: str = "mlm",
    language: opt.Language = "en",
    split_by: opt.SplitBy = "auto",
    text_field: opt.TextField = None,
    encoding_errors: opt.EncodingErrors = "strict",
    budget: opt.TextLimits = None,
    optimizer: opt.OptimizerSettings = None,
    schedule: opt.ScheduleSettings = None,
    batch: opt.TextBatch = None,
    monitor: opt.TextMonitor = None,
    callbacks: opt.Callbacks = (),
    seed: opt.Seed = 0,
    deterministic: opt.Deterministic = False,
    resume: opt.Resume = False,
    device: opt.Device = None,
    ignore_mismatched: opt.IgnoreMismatched = False,
) -> AdaptationResult:
    """Continue pretraining a model on your own text, and compare it with the original.

    Some documents (or passages, if there are few documents) are held out; the loss on them and predictions for masked words are
    reported before and after. The default budget is five minutes of training; reading the text and evaluation take extra time.

    Parameters
    ----------
    data
        Files, folders, and glob patterns of text, or a store prepared with the model's tokenizer.
    objective
        Pretraining objective, e.g. mlm or mlm+nsp.

    Examples
    --------
    >>> adapted = adapt("runs/mine", "notes/*.txt", budget=Budget(seconds=60), out="runs/notes")  # doctest: +SKIP
    >>> adapted.after["mlm"] < adapted.before["mlm"]  # doctest: +SKIP
    True
    """
    from pretune.models.name_resolution import find_folder
    from pretune.training.callbacks import find_callbacks
    from pretune.training.jobs import adapting, pretraining_settings
    from pretune.training.run_folder import check_same_recipe
    from pretune.verbs.shared_inputs import job_options, model_reference, store_and_paths

    reference = model_reference(model)
    folder = str(find_folder(reference))  # refuses a preset, which has no weights to continue from
    store, paths = store_and_paths(data)
    given = job_options(pretraining_settings.PretrainingJob, locals())
    given |= {"tokenizer": folder, "callbacks": find_callbacks(callbacks)}
    settings = pretraining_settings.resolve_pretraining(
        reference, paths, out, given, seed, device, adapting.default_settings(budget)
    )
    plan = adapting.AdaptationJob(**vars(settings))
    check_same_recipe(plan.out, plan.recipe())
    return adapting.adapt(plan, store, resume)
