"""Pretraining: text in, a model out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from pretune.inference.word_vector_models import fill_in
from pretune.models.model import Model, find_folder, load_model, make_model, read_config
from pretune.models.presets import find_preset, is_preset
from pretune.nn.recurrent import asks_the_host
from pretune.objectives import Data, Joint, LearnsFromRows, Mixture, parse_objective
from pretune.objectives.pretraining.mlm import MLM
from pretune.packed import Batch
from pretune.runtime.atomic_io import check_name
from pretune.runtime.devices import choose_device, deterministic, peak_flops
from pretune.runtime.errors import PretuneError, if_option
from pretune.runtime.progress import say
from pretune.runtime.randomness import Draws
from pretune.runtime.recipe import merge
from pretune.text.corpus.dialogues import Dialogues
from pretune.text.corpus.documents import Document, TextLayout, read_documents
from pretune.text.corpus.files import Errors, find_files
from pretune.text.corpus.sentences import LINES
from pretune.text.corpus.word_vector_files import read_vectors
from pretune.text.examples.labeled import Labeled
from pretune.text.packing.sequences import Packing, collate
from pretune.text.store.builder import Settings, make_store
from pretune.text.store.store import MANIFEST, Store, join_stores
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import train as train_tokenizer
from pretune.training.data_streams import make_streams
from pretune.training.flops import module_sizes
from pretune.training.held_out import hold_out, split
from pretune.training.interrupts import Stopped
from pretune.training.jobs.recipe_scaling import GUESS, UTILIZATION, Course, parse_budget, scale_to
from pretune.training.loop import Training, evaluate_loss, train
from pretune.training.optim.optimizers import scale_rates
from pretune.training.parallel.distributed import Parallel, Reduce, World, losses_told, restarted
from pretune.training.parallel.rank_consistency import agree, check_shared, describe_data, say_idle
from pretune.training.run_folder import RECIPE, RESULTS, Run, finish_run, new_run, start_run
from pretune.training.settings import ON_ROWS, Batching, Budget, Optimizer, Schedule, Watching, as_recipe, fill

ROUND_VOCABULARY = 64  # matrices of a round size are faster; the spare rows are never used
EVALUATION_RATE = 0.15  # masking at evaluation, whatever training masks, so that losses compare

Fields = dict[str, Any]
Taught = Callable[[Mixture, Tokenizer], Mixture]


@dataclass(frozen=True)
class Plan:
    """A pretraining, all settings resolved."""

    model: str
    data: list[str]
    out: Path
    objective: str
    tokenizer: dict[str, Any] | str | None  # how to train one, or where one is; None: that of the stores
    language: str
    from_: str | None  # a model whose weights to start from
    budget: Budget
    optimizer: Optimizer
    schedule: Schedule
    batch: Batching
    watching: Watching
    seed: int
    deterministic: bool
    device: str | None
    partial: bool = False  # whether the model may lack tensors, or have too many
    parallel: Parallel = "replicate"
    reduce: Reduce | None = None
    vectors: str | None = None  # a file of word vectors for its words to start from
    layout: TextLayout = "auto"  # how .txt files are cut into documents
    column: str | None = None  # the text field of other files
    errors: Errors = "strict"  # what to do with invalid UTF-8

    def recipe(self) -> dict[str, Any]:
        """Everything that decides the outcome, under the names of the verb's options."""
        return as_recipe(self, leave_out=("out", "device", "parallel"))


def make_plan(
    model: str,
    data: Sequence[str | Path],
    out: str | Path,
    given: dict[str, Any],
    seed: int,
    device: str | None,
    usual: Fields | None = None,
) -> Plan:
    """Resolve all settings: what is given, the `usual` settings of the verb, the preset's recipe and the defaults, in this order."""
    preset = find_preset(model) if is_preset(model) else {}
    if usual is not None:
        preset = {**merge(preset, usual), "budget": usual["budget"]}
    if given.get("scale_to"):
        preset = scaled(preset, model, given, device)
    return Plan(
        model=model,
        data=[str(path) for path in data],
        out=Path(out),
        objective=given.get("objective") or preset.get("objective") or "mlm",
        tokenizer=choose_tokenizer(
            given.get("tokenizer"), preset.get("tokenizer") or {"kind": "wordpiece", "size": 30_000}, data
        ),
        language=given.get("language") or "en",
        from_=given.get("from_"),
        budget=fill(Budget, given.get("budget"), preset.get("budget")),
        optimizer=fill(Optimizer, given.get("optimizer"), preset.get("optimizer")),
        schedule=fill(Schedule, given.get("schedule"), preset.get("schedule")),
        batch=fill(Batching, given.get("batch"), preset.get("batch"), ON_ROWS),
        watching=fill(Watching, given.get("watching"), preset.get("watching"), ON_ROWS),
        seed=seed,
        deterministic=bool(given.get("deterministic")),
        device=device,
        partial=bool(given.get("partial")),
        parallel=given.get("parallel") or "replicate",
        reduce=given.get("reduce"),
        vectors=given.get("vectors"),
        layout=given.get("layout") or "auto",
        column=given.get("column"),
        errors=given.get("errors") or "strict",
    )


def choose_tokenizer(given: str | Fields | None, usual: Fields, data: Sequence[str | Path] = ()) -> str | Fields | None:
    """Return where the tokenizer is, or how to train one: what is given of that, over what is usual. Stores have their own."""
    if data and all(is_store(split_language(str(path))[1]) for path in data):
        return None
    return given if isinstance(given, str) else merge(usual, given or {})


def scaled(preset: Fields, model: str, given: Fields, device: str | None) -> Fields:
    """A preset's recipe, scaled to the budget asked for; says how."""
    if given.get("budget") is not None and given["budget"].limits:
        raise PretuneError("--scale-to is a budget; give no other limit beside it")
    kinds = {"budget": Budget, "optimizer": Optimizer, "schedule": Schedule, "batch": Batching}
    if given.get("optimizer") is not None and given["optimizer"].name:  # whose rates are scaled
        preset = merge(preset, {"optimizer": {"name": given["optimizer"].name}})
    course = Course(**{key: fill(kind, None, preset.get(key)) for key, kind in kinds.items()})
    with torch.device("meta"):
        if preset:
            backbone: Any = make_model(model).backbone
        else:
            family, content = read_config(find_folder(model))
            backbone = family.build(family.read_config(content))
    limit, peak = parse_budget(given["scale_to"]), peak_flops(choose_device(device))
    sizes = module_sizes(backbone)
    made, how = scale_to(
        limit,
        course,
        flops_per_token=6.0 * (sizes.matrices + sizes.recurrence),
        flops_per_second=UTILIZATION * (peak or GUESS),
        batch=given["batch"].tokens if given.get("batch") is not None else None,
    )
    say(how)
    if limit.seconds and peak is None:
        say("(how fast this device is, is a guess; `pretune bench device` measures it)")
    return {**preset, **{key: asdict(getattr(made, key)) for key in kinds}}


def pretrain(
    plan: Plan,
    store: Store | None = None,
    resume: bool = False,
    taught: Taught | None = None,
    compared: bool = False,
) -> Run:
    """Carry out a plan. Killed at any moment and resumed, it ends with the same weights, bit for bit.

    `taught` makes of the objectives those that are learned, where a teacher has a say; the student is judged by its own.
    With `compared`, text too short to hold any out is refused, unless none is to be held out.
    """
    mixture = parse_objective(plan.objective)
    rows = read_rows(plan, mixture)
    plan.budget.check()
    device = choose_device(plan.device)
    world = World.join(device)
    agree(world, "recipe", plan.recipe() | {"parallel": plan.parallel})
    if restarted() and (plan.out / RESULTS).is_file():  # the loss of a process came after the end
        return Run(plan.out)
    check_shared(world, plan.out)
    new = not (plan.out / RECIPE).is_file()
    going_on = world.first_alone(lambda: start_run(plan.out, "pretrain", plan.recipe(), resume or restarted()))
    with new_run(plan.out, new and world.first):
        model, learned, training = set_up(plan, store, mixture, rows, world, device, taught, compared)
    try:
        with deterministic(plan.deterministic), losses_told(world):
            last = train(training, resume=going_on)
    except Stopped:
        say(f"stopped and saved in {plan.out}{if_option('resume', '; go on with the same command and --resume')}")
        raise KeyboardInterrupt from None
    model.root.compute_in(torch.float32)
    for name in {part.name for part in learned.objectives} - {part.name for part in mixture.objectives}:
        del model.root.heads[name]  # what was for learning alone
    results = {"model": plan.model, "objective": plan.objective, "parameters": count_parameters(model), **last}

    def finish() -> None:
        model.save(plan.out)
        finish_run(plan.out, results)

    world.first_alone(finish)
    return Run(plan.out)


def set_up(
    plan: Plan,
    store: Store | None,
    mixture: Mixture,
    rows: Labeled | Dialogues | None,
    world: World,
    device: torch.device,
    taught: Taught | None,
    compared: bool,
) -> tuple[Model, Mixture, Training]:
    """Read the data and make the model: what is trained, the objectives it learns by, and the training itself."""
    tokenizer, own, held_out = world.first_before_others(lambda: get_data(plan, rows, store))
    agree(world, "data", describe_data(tokenizer, own))
    spoken = languages_in(own)
    learned = mixture if taught is None else taught(mixture, tokenizer)
    model = get_model(plan, tokenizer, learned, spoken)
    stages = plan.batch.stages or ((1.0, plan.batch.length or 128),)
    length = check_stages(stages, model)[0]
    languages = number_languages(model, spoken, plan.model)
    data = Data(
        tokenizer,
        model.family.template,
        languages=languages,
        exponent=1.0 if plan.batch.exponent is None else plan.batch.exponent,
        **own,
    )
    pack = min(plan.batch.pack or 1, plan.batch.tokens or 1)
    fixed = device.type == "cuda"
    packing = Packing(tokens=max(pack, length), length=length, fixed=fixed)
    streams = make_streams(
        learned,
        data,
        tokens=plan.batch.tokens or 1,
        packing=packing,
        seed=plan.seed,
        stages=stages,
        ramp=plan.batch.ramp,
    )
    say_idle(world, streams)
    packing = streams.streams[0].packing
    evaluation = held_out_batches(mixture.joints[0], replace(data, exponent=1.0, **held_out), packing, plan.watching)
    if compared and plan.watching.held_out and not evaluation:
        raise PretuneError(
            f"{', '.join(plan.data)}: too little text to hold any out for {mixture.joints[0]}; give more text, or train on all "
            "of it, without a comparison, with --set watching.held_out=0"
        )
    training = Training(
        root=model.root,
        streams=streams,
        budget=plan.budget,
        optimizer=scale_rates(plan.optimizer, plan.batch.tokens or 1),
        schedule=plan.schedule,
        watching=plan.watching,
        seed=plan.seed,
        device=device,
        run=plan.out,
        world=world,
        parallel=plan.parallel,
        reduce=plan.reduce or "fp32",
        compiled=fixed,
        graphed=fixed
        and world.size == 1
        and not (plan.deterministic or mixture.stateful or learned.asks_the_host or asks_the_host(model.root)),
        recompute=bool(plan.batch.recompute),
        evaluate=evaluator(model, evaluation, device) if evaluation else None,
        evaluate_first=not is_preset(plan.model) or plan.from_ is not None,
        restore_carry=getattr(model.backbone, "restore_carry", None),
    )
    return model, learned, training


def read_rows(plan: Plan, mixture: Mixture) -> Labeled | Dialogues | None:
    """The rows to learn from; None where the objectives learn from running text.

    Where some learn from rows and some from running text, stores are the text and files the rows.
    """
    names = [part.name for part in mixture.objectives]
    reading = [part for part in mixture.objectives if isinstance(part, LearnsFromRows)]
    if not reading:
        return None
    if len(reading) > 1:
        raise PretuneError(
            f"{mixture}: {' and '.join(part.name for part in reading)} learn from rows of different kinds; "
            f"train one after the other{if_option('from', ', with --from')}"
        )
    mixed = not all(any(isinstance(part, LearnsFromRows) for part in joint.objectives) for joint in mixture.joints)
    files = [path for _, path in map(split_language, plan.data) if not is_store(path)]
    if mixed and len(files) == len(plan.data):
        raise PretuneError(
            f"{mixture}: some of {', '.join(names)} learn from rows and some from running text; "
            "give a store (see `pretune prepare`) for the text beside the files of rows"
        )
    return reading[0].read_rows(files if mixed else plan.data, plan.errors)


def get_data(plan: Plan, rows: Labeled | Dialogues | None, store: Store | None) -> tuple[Tokenizer, Fields, Fields]:
    """The tokenizer, what to learn from and what is held out, as fields of Data: rows, documents of a store, or both."""
    share = plan.watching.held_out or 0.0
    own: Fields = {}
    held_out: Fields = {}
    stores = [path for _, path in map(split_language, plan.data) if is_store(path)]
    if rows is None and 0 < len(stores) < len(plan.data):
        raise PretuneError(f"{stores[0]} is a store and others are files; give stores alone, or files alone")
    if rows is None or stores:
        store = get_store(plan) if store is None else store
        own["store"], own["documents"], held_out["documents"] = hold_out(store, share)
    if rows is not None:
        own["rows"], held_out["rows"] = (rows.take(part) for part in split(len(rows), share))
    if store is not None:
        return store.tokenizer, own, held_out
    assert rows is not None
    sides = [[Document(text, rows.file, 0) for text in texts] for texts in (rows.texts, rows.pairs or [])]
    return get_tokenizer(plan, *sides), own, held_out


def get_store(plan: Plan) -> Store:
    """The stores named, as one, or one made from the files inside the run folder, with a tokenizer trained on them first.

    LANGUAGE=PATH names the language of a store or of files.
    """
    if not plan.data:
        raise PretuneError("pretraining needs text: give files, or a store made by `pretune prepare`")
    given = [split_language(entry) for entry in plan.data]
    stores = [(language, path) for language, path in given if is_store(path)]
    if stores:
        opened = [(language, Store(path)) for language, path in stores]
        return join_stores([store.in_language(language) if language else store for language, store in opened])
    files: dict[str, list[Path]] = {}
    for language, path in given:
        files.setdefault(language or plan.language, []).extend(find_files(path))
    how: Fields = {"layout": plan.layout, "column": plan.column, "errors": plan.errors}
    tokenizer = get_tokenizer(plan, read_documents((file for group in files.values() for file in group), **how))
    folder = plan.out / "store"
    return join_stores(
        [
            make_store(group, tokenizer, folder if len(files) == 1 else folder / language, Settings(language, **how))
            for language, group in files.items()
        ]
    )


def split_language(entry: str) -> tuple[str, str]:
    """The language named before a path, "" where there is none.

    >>> split_language("en=corpus/*.txt"), split_language("corpus.txt")
    (('en', 'corpus/*.txt'), ('', 'corpus.txt'))
    """
    check_name(Path(entry))
    match = re.fullmatch(r"([a-z]{2,3}(?:_\w+)?)=(.+)", entry)
    return (match[1], match[2]) if match and not Path(entry).exists() else ("", entry)


def is_store(path: str | Path) -> bool:
    """Whether a path is a token store."""
    return (Path(path) / MANIFEST).is_file()


def languages_in(own: Fields) -> list[str]:
    """The languages of what there is to learn from, in the order of the alphabet."""
    rows = own.get("rows")
    pairs = rows.labels or [] if isinstance(rows, Labeled) else []
    names = {name for pair in set(pairs) for name in pair.split()}
    names |= set(own["store"].languages if "store" in own else [])
    if LINES in names and len(names) > 1:
        raise PretuneError(
            f"a store was prepared with the language {LINES!r}, which is none of {', '.join(sorted(names - {LINES}))}; "
            "name its language beside it, as in fr=STORE"
        )
    return sorted(names)


def number_languages(model: Model, names: Sequence[str], reference: str) -> dict[str, int]:
    """The number of each language in the column `language`; none where all text is in one that the model does not tell."""
    vectors = getattr(model.backbone.embed, "columns", {})
    known = getattr(model.config, "lang2id", None) or {}
    if len(names) < 2:
        return {name: known[name] for name in names if name in known and "language" in vectors}
    if "language" not in vectors:
        say(f"{reference} has no vectors of languages: it reads {', '.join(names)} without being told which is which")
        return {name: number for number, name in enumerate(names)}
    for name in names:
        if name not in known:
            raise PretuneError(
                f"{reference}: no vector of the language {name!r}; it has {', '.join(known) or 'no names'}"
            )
    return {name: known[name] for name in names}


def get_tokenizer(plan: Plan, documents: Iterable[Document], second: Sequence[Document] = ()) -> Tokenizer:
    """The tokenizer named, or one trained on the text, which is kept in the run folder.

    `second` are translations, which have a vocabulary of their own where the recipe says how large (`target`).
    """
    folder = plan.out / "tokenizer"
    if isinstance(plan.tokenizer, str):
        return Tokenizer.load(plan.tokenizer)
    if (folder / "tokenizer_config.json").is_file():
        return Tokenizer.load(folder)
    say("training a tokenizer")
    how = dict(plan.tokenizer or {})
    target = how.pop("target", None)
    if target is None:
        tokenizer = train_tokenizer(chain(documents, second), **how, fit=True)
    elif not second:
        raise PretuneError("tokenizer.target is the vocabulary of translations; there are none to learn from")
    else:
        tokenizer = train_tokenizer(documents, **how, fit=True)
        tokenizer.with_target(train_tokenizer(second, **how | {"size": int(target)}, fit=True))
    tokenizer.save(folder)
    return tokenizer


def get_model(plan: Plan, tokenizer: Tokenizer, mixture: Mixture, languages: Sequence[str] = ()) -> Model:
    """A preset with random weights, or an existing model, with the heads the objectives need."""
    if is_preset(plan.model):
        size, target = (-(-one.size // ROUND_VOCABULARY) * ROUND_VOCABULARY for one in (tokenizer, tokenizer.target))
        padding = tokenizer.roles.get("padding")
        other = target if tokenizer.target is not tokenizer else None
        model = make_model(plan.model, size, plan.seed, padding=padding, languages=languages, target=other)
        if plan.from_ is not None:
            source = load_model(plan.from_, partial=plan.partial)
            check_tokenizer(source, tokenizer, plan.from_)
            _copy(source, model, plan.from_)
    else:
        model = load_model(plan.model, mixture, seed=plan.seed, partial=plan.partial)
        model.say_left_out(plan.model)
        check_tokenizer(model, tokenizer, plan.model)
    model.add_heads(mixture.objectives, plan.seed)
    model.tokenizer, model.objective, model.labels = tokenizer, plan.objective, []
    if plan.vectors is not None:
        fill_in(model, read_vectors(plan.vectors), plan.vectors)
    return model


def _copy(source: Model, model: Model, name: str) -> None:
    """Start from the weights of another model of the same shape."""
    theirs, ours = source.backbone.state_dict(), model.backbone.state_dict()
    wrong = [key for key in ours if key not in theirs or theirs[key].shape != ours[key].shape]
    if wrong:
        raise PretuneError(f"{name}: its shape is not this model's; these tensors differ: {', '.join(wrong)}")
    model.backbone.load_state_dict(theirs)


def check_tokenizer(model: Model, tokenizer: Tokenizer, name: str) -> None:
    """A model goes on with the tokenizer it was trained with."""
    if model.tokenizer is not None and model.tokenizer.digest != tokenizer.digest:
        raise PretuneError(
            f"{name}: the text was prepared with another tokenizer than this model's; "
            f"prepare it with `pretune prepare --tokenizer {find_folder(name)}`"
        )
    if tokenizer.size > model.backbone.embed.vocabulary:
        raise PretuneError(f"the tokenizer has {tokenizer.size} tokens, {name} only {model.backbone.embed.vocabulary}")


def check_length(length: int, model: Model) -> int:
    """No sequence may be longer than the model has positions."""
    longest = model.backbone.longest
    if longest is not None and length > longest:
        raise PretuneError(f"sequences of {length} tokens, but the model has {longest} positions; set batch.length")
    return length


def check_stages(stages: Sequence[tuple[float, int]], model: Model) -> list[int]:
    """The lengths of all stages, which follow one another to the end of the budget."""
    shares = [share for share, _ in stages]
    if shares != sorted(shares) or shares[-1] != 1.0:
        raise PretuneError(f"batch.stages end at {shares} of the budget; the shares must rise and end at 1")
    return [check_length(length, model) for _, length in stages]


def held_out_batches(joint: Joint, data: Data, packing: Packing, watching: Watching) -> list[tuple[Joint, Batch]]:
    """Batches for evaluation, the same every time: masking is fixed, whatever training does."""
    if not len(data.documents) and not data.rows:
        return []
    parts = tuple((w, replace(p, **_plain(p)) if isinstance(p, MLM) else p) for w, p in joint.parts)
    joint = Joint(parts)  # type: ignore[arg-type]
    draws = Draws(seed=0)
    packing = replace(packing, lanes=1)  # of a stateful objective, each batch goes on from the one before
    try:
        epoch = joint.arrange(data, packing, draws)
    except PretuneError:  # too little held-out text for this objective
        return []
    if packing.fixed:  # windows of little text are short, and filler takes more of the sequences than in training
        packing = replace(packing, sequences=max(packing.sequences, int(epoch.sizes().max(initial=0)) + 1))
    capacity = joint.capacity(packing)
    batches = []
    for index in range(min(len(epoch), watching.packs or 1)):
        sequences = joint.corrupt(epoch.pack(index), data.tokenizer, draws)
        batches.append((joint, collate(sequences, capacity)))
    return batches


def _plain(objective: MLM) -> dict[str, Any]:
    plain = {"rate": EVALUATION_RATE, "final_rate": None, "masked": 0.8, "swapped": 0.1}
    return {**plain, "unit": "token", "copies": 0, "phrases": None, "boundary": False}


def evaluator(model: Model, batches: list[tuple[Joint, Batch]], device: torch.device) -> Any:
    """A function that evaluates the model as it is now."""
    joint = batches[0][0]
    return lambda: evaluate_loss(model.root, joint, [batch for _, batch in batches], device)


def count_parameters(model: Model) -> int:
    """All parameters, shared ones once."""
    return sum(p.numel() for p in model.root.parameters())
