"""The `tune` verb: hyperparameter search for fine-tuning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pretune.runtime.output_paths import RECIPE, check_resumable_folder
from pretune.training.recipe_sections import Batching, Optimizer
from pretune.verbs import options as opt
from pretune.verbs.option_modes import MISMATCH_RULE, NO_TEXT_KEYS, TOKENIZER_RULE
from pretune.verbs.results import ResultTable
from pretune.verbs.verb import verb


@verb(
    NO_TEXT_KEYS,
    TOKENIZER_RULE,
    MISMATCH_RULE,
    common=("num_trials", "max_seconds", "text", "pair", "label", "objective", "strategy", "epochs", "seed", "device"),
    out=check_resumable_folder(RECIPE, "a search"),
)
def tune(
    model: opt.ModelOrPreset,
    train: opt.TrainFile,
    *,
    dev: str | Path | opt.Table,
    out: str | Path,
    num_trials: int | None = None,
    max_seconds: float | None = None,
    text: opt.Text = None,
    pair: opt.Pair = None,
    label: opt.Label = None,
    columns: opt.Columns = None,
    drop_invalid: opt.DropInvalid = False,
    objective: opt.Objective = "classify",
    threshold: float | None = None,
    class_weight: opt.ClassWeight = None,
    metric: opt.Metric = None,
    strategy: str | None = None,
    epochs: float | None = None,
    optimizer: opt.OptimizerSettings = None,
    schedule: opt.ScheduleSettings = None,
    batch: opt.RowBatch = None,
    monitor: opt.RowMonitor = None,
    seed: opt.Seed = 0,
    tokenizer: opt.PresetTokenizer = None,
    deterministic: opt.Deterministic = False,
    device: opt.Device = None,
    devices: opt.Devices = 1,
    ignore_mismatched: opt.IgnoreMismatched = False,
) -> ResultTable:
    """Search for the best hyperparameters of fine-tuning, and keep the best model in OUT/best.

    The search covers learning rate, epochs, batch size, number of trained layers, and layer-wise learning rate decay, except those
    that are given. The first trial uses the default settings. Run the same command again to continue an interrupted search, or
    with a larger budget to extend it.

    Parameters
    ----------
    dev
        Labeled examples by which trials are compared. The best score of many trials is optimistic: evaluate the chosen model on other
        examples.
    out
        Folder for the search: one run folder per trial, without weights, and that of the best model, with them.
    num_trials
        Maximum number of trials.
    max_seconds
        Time limit in seconds; no trial is started that would exceed it.
    threshold
        Minimum probability of a label in multi-label classification, or of the second of two classes, to be predicted.
    strategy
        Which parameters are trained, as in `pretune finetune`, instead of searching the number of layers.
    epochs
        Passes over the training data, instead of searching it.
    optimizer
        Optimizer settings; lr and layer_decay are searched unless given.
    batch
        Batch settings; size is searched unless given.
    seed
        Random seed of the search and of all trials.
    devices
        Number of devices of this machine to distribute the trials over, with one process per device (processes share a GPU if there
        are fewer); on a CPU, the number of processes. Each trial then learns from all earlier trials that have finished.

    Examples
    --------
    >>> tune("runs/mine", "train.csv", dev="dev.csv", out="runs/tuned", num_trials=20)  # doctest: +SKIP
    """
    import shutil
    from contextlib import nullcontext
    from dataclasses import asdict, replace

    from pretune.objectives import add_task_options, parse_objective
    from pretune.runtime.errors import PretuneError
    from pretune.runtime.process_pool import device_pool
    from pretune.training.jobs.finetuning import find_task
    from pretune.training.jobs.finetuning_defaults import finetuning_defaults
    from pretune.training.jobs.hyperparameter_search import BEST, HyperparameterSearch
    from pretune.training.jobs.search_space import count_layers, make_space
    from pretune.training.run_folder import check_same_recipe, start_run
    from pretune.verbs.shared_inputs import as_path, columns_by_role, model_reference, parse_class_weight
    from pretune.verbs.training.finetune import finetune

    if num_trials is None and max_seconds is None:
        raise PretuneError("a search needs a budget: give --num-trials or --max-seconds")
    reference, out = model_reference(model), Path(out)
    rates, steps = optimizer or Optimizer(), batch or Batching()
    layers = count_layers(reference)
    given: dict[str, Any] = {
        "lr": rates.lr, "epochs": epochs, "batch": steps.size, "layers": strategy, "layer_decay": rates.layer_decay,
    }  # fmt: skip
    space, usual = make_space(layers, given, finetuning_defaults(reference).sections["optimizer"]["lr"])
    task_options = {"threshold": threshold, "class_weight": parse_class_weight(class_weight)}
    objective = add_task_options(objective, {k: v for k, v in task_options.items() if v is not None})
    common: dict[str, Any] = {
        "objective": objective, "text": text, "pair": pair, "label": label, "columns": columns, "drop_invalid": drop_invalid, "schedule": schedule, "monitor": monitor,
        "metric": metric, "seed": seed, "tokenizer": tokenizer, "deterministic": deterministic, "ignore_mismatched": ignore_mismatched,
    }  # fmt: skip

    def attempt(chosen: dict[str, Any], folder: Path) -> opt.Run:
        picked = {**given, **chosen}
        moving = picked["layers"] or layers
        options: dict[str, Any] = {
            "dev": dev,
            "out": folder,
            "strategy": strategy or ("full" if moving == layers else f"top({moving})"),
            "epochs": picked["epochs"],
            "optimizer": replace(rates, lr=picked["lr"], layer_decay=picked["layer_decay"]),
            "batch": replace(steps, size=picked["batch"]),
            "resume": True,
            "device": device,
            "num_seeds": 1,  # the same seed in every trial, so that settings are compared, not seeds
            "report": False,
            **common,
        }
        if pool is None:
            return finetune(reference, train, **options)
        return pool.submit(finetune, reference, train, **options).result()

    sections = {"optimizer": optimizer, "schedule": schedule, "batch": batch, "monitor": monitor}
    recipe: dict[str, Any] = {"model": reference, "train": str(train), "dev": str(dev), **common}
    recipe |= {"strategy": strategy, "epochs": epochs, "tokenizer": None if tokenizer is None else str(tokenizer)}
    recipe |= {name: {k: v for k, v in asdict(s).items() if v is not None} for name, s in sections.items() if s}
    recipe = {
        name: value
        for name, value in {**recipe, "devices": devices if devices > 1 else None}.items()
        if value is not None
    }
    check_same_recipe(out, recipe)
    task = find_task(parse_objective(objective, drop_invalid=drop_invalid))
    examples = task.read(as_path(train), columns_by_role(columns, text=text, pair=pair, label=label))
    search = HyperparameterSearch(out, space, usual, metric or task.fit(examples).primary_metric, seed)
    new = not out.exists()
    start_run(out, "tune", recipe, resume=True)
    pool = None
    try:
        with device_pool(devices) if devices != 1 else nullcontext() as pool:
            search.run(attempt, num_trials, max_seconds, devices)
    except PretuneError:
        if new and not (out / "trials").exists():  # refused before the first trial
            shutil.rmtree(out)
        raise
    shown = [
        {"trial": t.number, search.metric: t.value, **t.settings, "seconds": t.seconds, "error": t.error or ""}
        for t in search.trials
        if t.is_done
    ]
    if not any(row["error"] for row in shown):
        shown = [{name: value for name, value in row.items() if name != "error"} for row in shown]
    best = {"trial": search.best.number, search.metric: search.best.value, "model": str(out / BEST)}
    mattered = search.setting_importances() or "too few different trials to tell"
    return ResultTable("trials", shown, facts={"importances": mattered, "best": best})
