"""Pretraining: train a model on text or rows by self-supervised objectives, in a run folder that can be resumed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from pretune.models.model import Model
from pretune.models.presets import is_preset
from pretune.nn.recurrent import has_recurrent_layers
from pretune.objectives import Data, Mixture, parse_objective
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import PretuneError
from pretune.runtime.output_paths import was_restarted
from pretune.text.corpus.dialogues import Dialogues
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.sequences import Packing
from pretune.text.store.store import Store
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.training.corpus_sampling import CorpusMixture
from pretune.training.data_streams import make_streams
from pretune.training.flops import module_sizes
from pretune.training.jobs.back_translation import check_one_direction, with_back_translations
from pretune.training.jobs.objective_schedule import (
    check_heads,
    mine_phrases,
    needs_phrases,
    parse_objective_schedule,
    with_phrases,
)
from pretune.training.jobs.pretraining_data import get_corpora, get_data, held_out_batches, languages_in, read_rows
from pretune.training.jobs.pretraining_model import check_stages, count_parameters, get_model, number_languages
from pretune.training.jobs.pretraining_settings import PretrainingJob
from pretune.training.loop import Training, evaluate_loss, train_run
from pretune.training.optim.optimizers import scale_lr_to_batch
from pretune.training.parallel import rank_consistency
from pretune.training.parallel.distributed import World
from pretune.training.run_folder import RECIPE, RESULTS, Run, finish_run, remove_if_refused, start_run
from pretune.training.subword_regularization import epochs_of_sampled_subwords

ObjectiveTransform = Callable[[Mixture, Tokenizer], Mixture]
# torch.compile takes up to a minute for a small model, so it pays only if training takes minutes, that is, from this much on (a GPU
# trains small models with 1e14 to 4e14 FLOPs per second). In a budget in seconds, compilation does not count.
LEAST_FLOPS, LEAST_STEPS, LEAST_SECONDS = 2e16, 40_000, 30.0


def pretrain(
    plan: PretrainingJob,
    store: Store | None = None,
    resume: bool = False,
    transform: ObjectiveTransform | None = None,
    require_held_out: bool = False,
) -> Run:
    """Run the pretraining job `plan`, and return its run; a run that is killed and resumed ends with identical weights.

    The token store `store` replaces the data of the job, and `transform` is a function that changes its objectives
    before training. With `require_held_out`, it is an error if there is too little text to hold some out for
    evaluation.
    """
    began = time.monotonic()
    mixture = parse_objective(plan.objective)
    parse_objective_schedule(plan.batch.objective_schedule or (), mixture)  # errors before data are read
    if plan.back_translation is not None:
        check_one_direction(mixture)
    rows = read_rows(plan, mixture)
    plan.budget.check()
    device = choose_device(plan.device)
    world = World.join(device)
    rank_consistency.check_agreement(world, "recipe", plan.recipe() | {"parallel": plan.parallel})
    if was_restarted() and (plan.out / RESULTS).is_file():  # a process was lost after the end
        return Run(plan.out)
    rank_consistency.check_shared_folder(world, plan.out)
    new = not (plan.out / RECIPE).is_file()
    resuming = world.run_on_first(lambda: start_run(plan.out, plan.command, plan.recipe(), resume or was_restarted()))
    with remove_if_refused(plan.out, new and world.first):
        model, learned, corpora, training = prepare_training(
            plan, store, mixture, rows, world, device, transform, require_held_out
        )
    training.loading_since = began
    last = train_run(training, resuming, plan.deterministic)
    for name in {part.name for part in learned.objectives} - {part.name for part in mixture.objectives}:
        del model.root.heads[name]  # used only in training
    results = {"model": plan.model, "objective": plan.objective, "parameters": count_parameters(model), **last}
    if corpora is not None:
        results["corpora"] = corpora.describe(training.streams.epochs_read())

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
    transform: ObjectiveTransform | None,
    require_held_out: bool,
) -> tuple[Model, Mixture, CorpusMixture | None, Training]:
    """Read the data and build the model of the job `plan`; return it, with the objectives and the input of the loop.

    The mixture of corpora is returned, too, if they are sampled with weights. The parameters `store`, `transform`, and
    `require_held_out` are those of `pretrain`.
    """
    tokenizer, own, held_out = world.run_on_first_then_others(lambda: get_data(plan, rows, store))
    rank_consistency.check_agreement(world, "data", rank_consistency.describe_data(tokenizer, own))
    if plan.back_translation is not None:
        settings, parallel = plan.back_translation, own["rows"]
        own["rows"] = world.run_on_first_then_others(
            lambda: with_back_translations(parallel, settings, plan.out, plan.seed, plan.device)
        )
    names = languages_in(own)
    objectives = parse_objective_schedule(plan.batch.objective_schedule or (), mixture)
    if any(map(needs_phrases, [mixture, *(stage for _, stage in objectives)])):
        phrases = world.run_on_first_then_others(lambda: mine_phrases(own.get("store"), plan.out))
        mixture = with_phrases(mixture, phrases)
        objectives = [(until, with_phrases(stage, phrases)) for until, stage in objectives]
    learned = mixture if transform is None else transform(mixture, tokenizer)
    model = get_model(plan, tokenizer, learned, names, own.get("rows"))
    check_heads(objectives, model)
    if transform is not None:
        objectives = [(until, transform(stage, tokenizer)) for until, stage in objectives]
    stages = plan.batch.length_schedule or ((1.0, plan.batch.max_length or 128),)
    length = check_stages(stages, model)[0]
    corpora = get_corpora(plan, own)
    languages = number_languages(model, names, plan.model)
    exponent = 1.0 if plan.batch.language_alpha is None else plan.batch.language_alpha
    data = Data(tokenizer, model.family.template, languages=languages, language_alpha=exponent, **own)
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
        objective_schedule=objectives,
        size_warmup=plan.batch.size_warmup,
        epoch_data=epochs_of_sampled_subwords(
            data, plan.batch.subword_sampling, plan.seed, None if corpora is None else corpora.epoch_data(data)
        ),
    )
    rank_consistency.warn_of_idle_processes(world, streams)
    packing = streams.streams[0].packing
    joint, batches = held_out_batches(
        mixture.joints[0], replace(data, language_alpha=1.0, **held_out), packing, plan.monitor
    )
    if require_held_out and plan.monitor.held_out_fraction and not batches:
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
        compiled=fixed and (world.size > 1 or pays_to_compile(plan, model)),
        cuda_graphs=fixed
        and world.size == 1
        and not (plan.deterministic or mixture.stateful or learned.needs_host_sync or has_recurrent_layers(model.root)),
        gradient_checkpointing=bool(plan.batch.gradient_checkpointing),
        evaluate=(lambda: evaluate_loss(model.root, joint, batches, device)) if batches else None,
        evaluate_first=not is_preset(plan.model) or plan.init_from is not None,
        restore_state=getattr(model.backbone, "restore_state", None),
        callbacks=plan.callbacks,
    )
    return model, learned, corpora, training


def pays_to_compile(plan: PretrainingJob, model: Model) -> bool:
    """Return whether a GPU trains a model so long, within the budget of the job `plan`, that compiling it saves time."""
    limits, tokens = plan.budget.limits, float(plan.batch.tokens or 1)
    if list(limits) == ["seconds"]:
        return limits["seconds"] >= LEAST_SECONDS
    sizes = module_sizes(model.backbone)
    flops = 6.0 * (sizes.matrices + sizes.recurrence) * tokens  # of a step, without attention and heads
    units = {"flops": flops, "tokens": tokens, "steps": 1.0}
    steps = min(limits[unit] / own for unit, own in units.items() if unit in limits)
    return steps >= LEAST_STEPS or steps * flops >= LEAST_FLOPS
