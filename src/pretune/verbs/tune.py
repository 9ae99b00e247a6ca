"""`tune`: the settings that suit a model and a task, by trying some."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretune.runtime.output_paths import RECIPE, folder_of
from pretune.training.settings import Batching, Optimizer, Schedule, Watching
from pretune.verbs.option_modes import LOADED, ON_ROWS, TOKENIZER
from pretune.verbs.results import Rows
from pretune.verbs.verb import verb

if TYPE_CHECKING:
    from pretune.training.run_folder import Run


@verb(ON_ROWS, TOKENIZER, LOADED, out=folder_of(RECIPE, "a search"))
def tune(
    model: str | Path | Run,
    train: str | Path,
    *,
    dev: str | Path,
    out: str | Path,
    trials: int | None = None,
    seconds: float | None = None,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    columns: Mapping[str, str] | None = None,
    drop_bad: bool = False,
    objective: str = "classify",
    strategy: str | None = None,
    epochs: float | None = None,
    optimizer: Optimizer | None = None,
    schedule: Schedule | None = None,
    batch: Batching | None = None,
    watching: Watching | None = None,
    seed: int = 0,
    tokenizer: str | Path | None = None,
    deterministic: bool = False,
    device: str | None = None,
    devices: int = 1,
    partial: bool = False,
) -> Rows:
    """Fine-tune again and again, with other settings each time, and keep the best model: it is in OUT/best.

    Learning rate, epochs, batch, how many layers move and how much slower the lower ones do are searched, those that are given
    excepted. The first trial has the usual settings; the same command goes on where it was stopped, and with a larger budget.

    Parameters
    ----------
    model
        A run, a model folder, or a preset (random weights; then with --tokenizer).
    train
        Labeled rows: .csv, .tsv, .jsonl or .parquet.
    dev
        Rows by which trials are compared. The best of many looks better on them than it is: keep others to tell how good.
    out
        Folder of the search: a run folder for each trial, without weights, and the best one with them.
    trials
        Stop after so many.
    seconds
        Begin no trial that would take the search beyond so many seconds.
    text
        Column of the text.
    pair
        Column of the second text.
    label
        Column of the label.
    columns
        Columns of what else a task reads, e.g. --columns.choices options.
    drop_bad
        Leave out rows without a label or a text, and examples whose answers or spans are not in their texts.
    objective
        The task, as `finetune` takes it.
    strategy
        As `finetune` takes it, instead of searching how many layers move.
    epochs
        How often every row is seen, instead of searching it.
    optimizer
        lr and layer_decay are searched unless they are given.
    schedule
        kind, warmup, final.
    batch
        sequences (rows in a step) is searched unless it is given.
    watching
        log, evaluate, save, keep, patience.
    seed
        All chance follows from it: that of the search, and that of every trial, which all have the same.
    tokenizer
        For a preset: the tokenizer to use.
    deterministic
        Same seed, same machine, same bits, on a GPU too, where that takes longer.
    device
        cpu or cuda; a GPU is used where there is one.
    devices
        Share the trials out to so many devices of this machine, a process for each (several share a GPU
        where there are fewer); on a CPU, to so many processes. Each
        trial then learns from all before it but those that may still be under way.
    partial
        Go on where keys or tensors are unknown (left out), or tensors missing or of another shape (left random).

    Examples
    --------
    >>> tune("runs/mine", "train.csv", dev="dev.csv", out="runs/tuned", trials=20)  # doctest: +SKIP
    """
    import os
    import shutil
    from contextlib import nullcontext
    from dataclasses import asdict, replace

    from pretune.objectives import parse_objective
    from pretune.runtime.errors import PretuneError
    from pretune.runtime.process_pool import worker_each
    from pretune.training.jobs.finetuning import find_task
    from pretune.training.jobs.hyperparameter_search import BEST, Search
    from pretune.training.jobs.search_space import count_layers, make_space
    from pretune.training.run_folder import check_same, start_run
    from pretune.verbs.finetune import finetune
    from pretune.verbs.shared_inputs import name_columns

    if trials is None and seconds is None:
        raise PretuneError("a search needs a budget: give --trials or --seconds")
    reference, out = os.fspath(model), Path(out)
    rates, steps = optimizer or Optimizer(), batch or Batching()
    layers = count_layers(reference)
    given: dict[str, Any] = {
        "lr": rates.lr, "epochs": epochs, "batch": steps.sequences, "layers": strategy, "layer_decay": rates.layer_decay,
    }  # fmt: skip
    space, usual = make_space(layers, given)
    common: dict[str, Any] = {
        "objective": objective, "text": text, "pair": pair, "label": label, "columns": columns, "drop_bad": drop_bad, "schedule": schedule, "watching": watching,
        "seed": seed, "tokenizer": tokenizer, "deterministic": deterministic, "partial": partial,
    }  # fmt: skip

    def attempt(chosen: dict[str, Any], folder: Path) -> Run:
        picked = {**given, **chosen}
        moving = picked["layers"] or layers
        options: dict[str, Any] = {
            "dev": dev,
            "out": folder,
            "strategy": strategy or ("full" if moving == layers else f"top({moving})"),
            "epochs": picked["epochs"],
            "optimizer": replace(rates, lr=picked["lr"], layer_decay=picked["layer_decay"]),
            "batch": replace(steps, sequences=picked["batch"]),
            "resume": True,
            "device": device,
            "seeds": 1,  # of every trial the same one: settings are compared, not chance
            "report": False,
            **common,
        }
        if pool is None:
            return finetune(reference, train, **options)
        return pool.submit(finetune, reference, train, **options).result()

    sections = {"optimizer": optimizer, "schedule": schedule, "batch": batch, "watching": watching}
    recipe: dict[str, Any] = {"model": reference, "train": str(train), "dev": str(dev), **common}
    recipe |= {"strategy": strategy, "epochs": epochs, "tokenizer": None if tokenizer is None else str(tokenizer)}
    recipe |= {name: {k: v for k, v in asdict(s).items() if v is not None} for name, s in sections.items() if s}
    recipe = {
        name: value
        for name, value in {**recipe, "devices": devices if devices > 1 else None}.items()
        if value is not None
    }
    check_same(out, recipe)
    task = find_task(parse_objective(objective, drop_bad=drop_bad))
    examples = task.read(train, name_columns(columns, text=text, pair=pair, label=label))
    search = Search(out, space, usual, task.fit(examples).decides, seed)
    new = not out.exists()
    start_run(out, "tune", recipe, resume=True)
    pool = None
    try:
        with worker_each(devices) if devices != 1 else nullcontext() as pool:
            search.run(attempt, trials, seconds, devices)
    except PretuneError:
        if new and not (out / "trials").exists():  # refused before anything was tried
            shutil.rmtree(out)
        raise
    shown = [
        {"trial": t.number, search.metric: t.value, **t.settings, "seconds": t.seconds, "error": t.error or ""}
        for t in search.trials
        if t.over
    ]
    if not any(row["error"] for row in shown):
        shown = [{name: value for name, value in row.items() if name != "error"} for row in shown]
    best = {"trial": search.best.number, search.metric: search.best.value, "model": str(out / BEST)}
    mattered = search.mattered() or "too few trials that differ to tell"
    return Rows("trials", shown, facts={"mattered": mattered, "best": best})
