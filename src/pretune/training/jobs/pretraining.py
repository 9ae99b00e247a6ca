"""Pretraining: train a model on text or rows by self-supervised objectives, in a run folder that can be resumed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from pretune.models.model import Model
from pretune.models.presets import is_preset
from pretune.nn.recurrent import has_recurrent_layers
from pretune.objectives import Data, JointObjective, Mixture, parse_objective
from pretune.packed import Batch
from pretune.runtime.devices import choose_device, deterministic
from pretune.runtime.errors import PretuneError, if_option
from pretune.runtime.output_paths import was_restarted
from pretune.runtime.progress import log_info
from pretune.text.corpus.dialogues import Dialogues
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.sequences import Packing
from pretune.text.store.store import Store
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.training.data_streams import make_streams
from pretune.training.interrupts import Stopped
from pretune.training.jobs.pretraining_data import get_data, held_out_batches, languages_in, read_rows
from pretune.training.jobs.pretraining_model import check_stages, count_parameters, get_model, number_languages
from pretune.training.jobs.pretraining_settings import PretrainingJob
from pretune.training.loop import Training, evaluate_loss, train
from pretune.training.optim.optimizers import scale_lr_to_batch
from pretune.training.parallel.distributed import World, report_lost_process
from pretune.training.parallel.rank_consistency import (
    check_agreement,
    check_shared_folder,
    describe_data,
    warn_of_idle_processes,
)
from pretune.training.run_folder import RECIPE, RESULTS, Run, finish_run, remove_if_refused, start_run

ObjectiveTransform = Callable[[Mixture, Tokenizer], Mixture]


def pretrain(
    plan: PretrainingJob,
    store: Store | None = None,
    resume: bool = False,
    taught: ObjectiveTransform | None = None,
    compared: bool = False,
) -> Run:
    """Run a pretraining job, and return its run; a run killed at any moment and resumed ends with bit-identical weights.

    Parameters
    ----------
    plan
        The settings of the job.
    store
        A token store to use instead of the job's data.
    resume
        Resume the run in the output folder.
    taught
        A function that returns the objectives to train with (for distillation); evaluation uses those of the job.
    compared
        Raise an error if there is too little text to hold some out, unless none is to be held out.
    """
    mixture = parse_objective(plan.objective)
    rows = read_rows(plan, mixture)
    plan.budget.check()
    device = choose_device(plan.device)
    world = World.join(device)
    check_agreement(world, "recipe", plan.recipe() | {"parallel": plan.parallel})
    if was_restarted() and (plan.out / RESULTS).is_file():  # a process was lost after the end
        return Run(plan.out)
    check_shared_folder(world, plan.out)
    new = not (plan.out / RECIPE).is_file()
    resuming = world.run_on_first(lambda: start_run(plan.out, "pretrain", plan.recipe(), resume or was_restarted()))
    with remove_if_refused(plan.out, new and world.first):
        model, learned, training = prepare_training(plan, store, mixture, rows, world, device, taught, compared)
    try:
        with deterministic(plan.deterministic), report_lost_process(world):
            last = train(training, resume=resuming)
    except Stopped:
        log_info(
            f"stopped, with a checkpoint in {plan.out}{if_option('resume', '; resume with the same command and --resume')}"
        )
        raise KeyboardInterrupt from None
    model.root.set_activation_dtype(torch.float32)
    for name in {part.name for part in learned.objectives} - {part.name for part in mixture.objectives}:
        del model.root.heads[name]  # used only in training
    results = {"model": plan.model, "objective": plan.objective, "parameters": count_parameters(model), **last}

    def finish() -> None:
        model.save(plan.out)
        finish_run(plan.out, results)

    world.run_on_first(finish)
    return Run(plan.out)


def prepare_training(
    plan: PretrainingJob,
    store: Store | None,
    mixture: Mixture,
    rows: LabeledRows | Dialogues | None,
    world: World,
    device: torch.device,
    taught: ObjectiveTransform | None,
    compared: bool,
) -> tuple[Model, Mixture, Training]:
    """Read the data and build the model; return the model, the objectives to train with, and the training."""
    tokenizer, own, held_out = world.run_on_first_then_others(lambda: get_data(plan, rows, store))
    check_agreement(world, "data", describe_data(tokenizer, own))
    spoken = languages_in(own)
    learned = mixture if taught is None else taught(mixture, tokenizer)
    model = get_model(plan, tokenizer, learned, spoken)
    stages = plan.batch.length_schedule or ((1.0, plan.batch.max_length or 128),)
    length = check_stages(stages, model)[0]
    languages = number_languages(model, spoken, plan.model)
    data = Data(
        tokenizer,
        model.family.template,
        languages=languages,
        language_alpha=1.0 if plan.batch.language_alpha is None else plan.batch.language_alpha,
        **own,
    )
    pack = min(plan.batch.microbatch_tokens or 1, plan.batch.tokens or 1)
    fixed = device.type == "cuda"
    packing = Packing(tokens=max(pack, length), length=length, fixed=fixed)
    streams = make_streams(
        learned,
        data,
        tokens=plan.batch.tokens or 1,
        packing=packing,
        seed=plan.seed,
        length_schedule=stages,
        size_warmup=plan.batch.size_warmup,
    )
    warn_of_idle_processes(world, streams)
    packing = streams.streams[0].packing
    evaluation = held_out_batches(
        mixture.joints[0], replace(data, language_alpha=1.0, **held_out), packing, plan.monitor
    )
    if compared and plan.monitor.held_out_fraction and not evaluation:
        raise PretuneError(
            f"{', '.join(plan.data)}: there is too little text to hold some out for {mixture.joints[0]}; add text, or skip "
            "the comparison with --set monitor.held_out_fraction=0"
        )
    training = Training(
        root=model.root,
        streams=streams,
        budget=plan.budget,
        optimizer=scale_lr_to_batch(plan.optimizer, plan.batch.tokens or 1),
        schedule=plan.schedule,
        monitor=plan.monitor,
        seed=plan.seed,
        device=device,
        run=plan.out,
        world=world,
        parallel=plan.parallel,
        reduce_dtype=plan.reduce_dtype or "fp32",
        compiled=fixed,
        cuda_graphs=fixed
        and world.size == 1
        and not (plan.deterministic or mixture.stateful or learned.needs_host_sync or has_recurrent_layers(model.root)),
        gradient_checkpointing=bool(plan.batch.gradient_checkpointing),
        evaluate=evaluator(model, evaluation, device) if evaluation else None,
        evaluate_first=not is_preset(plan.model) or plan.init_from is not None,
        restore_state=getattr(model.backbone, "restore_state", None),
    )
    return model, learned, training


def evaluator(model: Model, batches: list[tuple[JointObjective, Batch]], device: torch.device) -> Any:
    """Return a function that evaluates the current model on held-out batches."""
    joint = batches[0][0]
    return lambda: evaluate_loss(model.root, joint, [batch for _, batch in batches], device)
