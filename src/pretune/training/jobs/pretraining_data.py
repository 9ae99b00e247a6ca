"""The data of a pretraining job: rows, token stores, tokenizers, and held-out batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from pretune.objectives import Data, JointObjective, Mixture
from pretune.objectives.pretraining.mlm import MLM
from pretune.packed import Batch
from pretune.runtime.errors import PretuneError, if_option
from pretune.runtime.progress import log_info
from pretune.runtime.randomness import EpochRandom
from pretune.text.corpus.dialogues import Dialogues
from pretune.text.corpus.documents import Document, read_documents
from pretune.text.corpus.files import find_files
from pretune.text.corpus.sentences import LINES
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.sequences import Packing, collate
from pretune.text.store.builder import StoreSettings, build_store
from pretune.text.store.store import Store, join_stores
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import train_on_documents as train_tokenizer
from pretune.training.held_out import hold_out_documents, split_rows
from pretune.training.jobs.pretraining_settings import PretrainingJob, is_store, split_language
from pretune.training.recipe_sections import Monitoring

EVALUATION_RATE = 0.15  # masking rate in evaluations, whatever training uses, so that losses are comparable

Fields = dict[str, Any]


def read_rows(plan: PretrainingJob, mixture: Mixture) -> LabeledRows | Dialogues | None:
    """Return the rows to train on, or None if all objectives train on running text.

    If some objectives train on rows and some on running text, stores hold the text and files the rows.
    """
    names = [part.name for part in mixture.objectives]
    reading = [part for part in mixture.objectives if part.learns_from_rows]
    if not reading:
        return None
    if len(reading) > 1:
        raise PretuneError(
            f"{mixture}: {' and '.join(part.name for part in reading)} need different kinds of rows; "
            f"train with one after the other{if_option('from', ', with --from')}"
        )
    mixed = not all(any(part.learns_from_rows for part in joint.objectives) for joint in mixture.joints)
    files = [path for _, path in map(split_language, plan.data) if not is_store(path)]
    if mixed and len(files) == len(plan.data):
        raise PretuneError(
            f"{mixture}: some of {', '.join(names)} train on rows and some on running text; "
            "give a store for the text (see `pretune prepare`) in addition to the files of rows"
        )
    return reading[0].read_rows(files if mixed else plan.data, plan.errors)


def get_data(
    plan: PretrainingJob, rows: LabeledRows | Dialogues | None, store: Store | None
) -> tuple[Tokenizer, Fields, Fields]:
    """Return the tokenizer, the training data, and the held-out data, both as fields of Data: rows, documents, or both."""
    share = plan.watching.held_out or 0.0
    own: Fields = {}
    held_out: Fields = {}
    stores = [path for _, path in map(split_language, plan.data) if is_store(path)]
    if rows is None and 0 < len(stores) < len(plan.data):
        raise PretuneError(f"{stores[0]} is a store, but other inputs are files; give only stores or only files")
    if rows is None or stores:
        store = get_store(plan) if store is None else store
        own["store"], own["documents"], held_out["documents"] = hold_out_documents(store, share)
    if rows is not None:
        own["rows"], held_out["rows"] = (rows.take(part) for part in split_rows(len(rows), share))
    if store is not None:
        return store.tokenizer, own, held_out
    assert rows is not None
    sides = [[Document(text, rows.file, 0) for text in texts] for texts in (rows.texts, rows.pairs or [])]
    return get_tokenizer(plan, *sides), own, held_out


def get_store(plan: PretrainingJob) -> Store:
    """Return the given stores as one, or build one in the run folder from files, with a tokenizer trained on them.

    The language of a store or of files can be given as LANGUAGE=PATH.
    """
    if not plan.data:
        raise PretuneError("there is no text to train on; give files, or a store built by `pretune prepare`")
    given = [split_language(entry) for entry in plan.data]
    stores = [(language, path) for language, path in given if is_store(path)]
    if stores:
        opened = [(language, Store(path)) for language, path in stores]
        return join_stores([store.with_language(language) if language else store for language, store in opened])
    files: dict[str, list[Path]] = {}
    for language, path in given:
        files.setdefault(language or plan.language, []).extend(find_files(path))
    how: Fields = {"layout": plan.layout, "column": plan.column, "errors": plan.errors}
    tokenizer = get_tokenizer(plan, read_documents((file for group in files.values() for file in group), **how))
    folder = plan.out / "store"
    return join_stores(
        [
            build_store(
                group, tokenizer, folder if len(files) == 1 else folder / language, StoreSettings(language, **how)
            )
            for language, group in files.items()
        ]
    )


def languages_in(own: Fields) -> list[str]:
    """Return the languages of the training data, sorted."""
    rows = own.get("rows")
    pairs = rows.labels or [] if isinstance(rows, LabeledRows) else []
    names = {name for pair in set(pairs) for name in pair.split()}
    names |= set(own["store"].languages if "store" in own else [])
    if LINES in names and len(names) > 1:
        raise PretuneError(
            f"the language of one store is {LINES!r}, but other text is in {', '.join(sorted(names - {LINES}))}; "
            "give the language of this store too, for example as fr=STORE"
        )
    return sorted(names)


def get_tokenizer(plan: PretrainingJob, documents: Iterable[Document], second: Sequence[Document] = ()) -> Tokenizer:
    """Return the given tokenizer, or train one on the text and save it in the run folder.

    `second` are translations; they get a separate vocabulary if the recipe sets its size (`target`).
    """
    folder = plan.out / "tokenizer"
    if isinstance(plan.tokenizer, str):
        return Tokenizer.load(plan.tokenizer)
    if (folder / "tokenizer_config.json").is_file():
        return Tokenizer.load(folder)
    log_info("training a tokenizer")
    how = dict(plan.tokenizer or {})
    target = how.pop("target", None)
    if target is None:
        tokenizer = train_tokenizer(chain(documents, second), **how, fit=True)
    elif not second:
        raise PretuneError(
            "tokenizer.target is the size of a vocabulary for translations, but the data has none; remove it"
        )
    else:
        tokenizer = train_tokenizer(documents, **how, fit=True)
        tokenizer.set_target(train_tokenizer(second, **how | {"size": int(target)}, fit=True))
    tokenizer.save(folder)
    return tokenizer


def held_out_batches(
    joint: JointObjective, data: Data, packing: Packing, watching: Monitoring
) -> list[tuple[JointObjective, Batch]]:
    """Return the batches for evaluation, always the same, with a fixed masking rate whatever training uses."""
    if not len(data.documents) and not data.rows:
        return []
    parts = tuple((w, replace(p, **_plain(p)) if isinstance(p, MLM) else p) for w, p in joint.parts)
    joint = JointObjective(parts)  # type: ignore[arg-type]
    draws = EpochRandom(seed=0)
    packing = replace(packing, packs_per_step=1)  # stateful objectives carry state from batch to batch
    try:
        epoch = joint.arrange(data, packing, draws)
    except PretuneError:  # too little held-out text for this objective
        return []
    if packing.fixed:  # little text makes short windows, so that padding is more than in training
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
