"""The data of a pretraining job: rows, token stores, tokenizers, and held-out batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from pretune.objectives import Data, JointObjective, Mixture
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
from pretune.training.corpus_sampling import CorpusMixture, mix_corpora
from pretune.training.held_out import hold_out_documents, split_rows
from pretune.training.jobs.pretraining_settings import PretrainingJob, is_store, split_language
from pretune.training.recipe_sections import Monitoring

Fields = dict[str, Any]


def read_rows(plan: PretrainingJob, mixture: Mixture) -> LabeledRows | Dialogues | None:
    """Read the table rows that a pretraining job trains on; return None if all its objectives train on running text."""
    readers = [part for part in mixture.objectives if part.learns_from_rows]
    if not readers:
        return None
    if plan.batch.corpus_weights is not None:
        raise PretuneError(
            f"batch.corpus_weights applies to running text, but {readers[0].name} trains on rows; remove this key"
        )
    if len({part.arrangement for part in readers}) > 1:
        raise PretuneError(
            f"{mixture}: the objectives {' and '.join(part.name for part in readers)} need different kinds of input rows; "
            f"train with one objective after the other{if_option('init-from', ', with --init-from')}"
        )
    mixed = not all(any(part.learns_from_rows for part in joint.objectives) for joint in mixture.joints)
    files = [path for _, path in map(split_language, plan.data) if not is_store(path)]
    if mixed and len(files) == len(plan.data):
        raise PretuneError(
            f"{mixture}: some of the objectives train on rows ({readers[0].name}), and some on running text; "
            "give a store for the text (see `pretune prepare`) in addition to the files of rows"
        )
    return readers[0].read_rows(files if mixed else plan.data, plan.encoding_errors)


def get_data(
    plan: PretrainingJob, rows: LabeledRows | Dialogues | None, store: Store | None
) -> tuple[Tokenizer, Fields, Fields]:
    """Return the tokenizer of the job `plan`, its training data, and its held-out data.

    Both data are mappings: `rows` is a table, `store` tokenized text, and `documents` the indices of the documents of
    this text that belong to the data.
    """
    share, own, held_out = plan.monitor.held_out_fraction or 0.0, Fields(), Fields()
    stores = [path for _, path in map(split_language, plan.data) if is_store(path)]
    if rows is None and 0 < len(stores) < len(plan.data):
        raise PretuneError(f"{stores[0]} is a token store, but other inputs are files; give only stores or only files")
    if rows is None or stores:
        store = get_store(plan) if store is None else store
        own["store"], own["documents"], held_out["documents"] = hold_out_documents(store, share)
    if rows is not None:
        own["rows"], held_out["rows"] = (rows.take(part) for part in split_rows(len(rows), share))
    if store is not None:
        return store.tokenizer, own, held_out
    assert rows is not None
    texts, pairs = ([Document(text, rows.file, 0) for text in column] for column in (rows.texts, rows.pairs or []))
    return get_tokenizer(plan, {"": texts}, pairs), own, held_out


def get_store(plan: PretrainingJob) -> Store:
    """Return the tokenized text of the job `plan`: its token stores, joined, or a new store built from its files."""
    if not plan.data:
        raise PretuneError("there is no text to train on; give files, or a store built by `pretune prepare`")
    inputs = [split_language(entry) for entry in plan.data]
    if stores := [(language, Store(path)) for language, path in inputs if is_store(path)]:
        return join_stores([store.with_language(language) if language else store for language, store in stores])
    languages: dict[str, list[Path]] = {}
    groups: dict[str, tuple[str, list[Path]]] = {}  # language and files of each store
    for number, (language, path) in enumerate(inputs, start=1):
        language, found = language or plan.language, find_files(path)
        languages.setdefault(language, []).extend(found)
        name = (
            language if plan.batch.corpus_weights is None else f"{number}-{language}"
        )  # a store per corpus or language
        groups.setdefault(name, (language, []))[1].extend(found)
    reading: Fields = {name: getattr(plan, name) for name in ("split_by", "text_field", "encoding_errors")}
    documents = {language: read_documents(files, **reading) for language, files in languages.items()}
    tokenizer = get_tokenizer(plan, documents)
    built = []
    for name, (language, files) in groups.items():
        folder = plan.out / "store" if len(groups) == 1 else plan.out / "store" / name
        built.append(build_store(files, tokenizer, folder, StoreSettings(language, **reading)))
    return join_stores(built)


def get_corpora(plan: PretrainingJob, own: Fields) -> CorpusMixture | None:
    """Return the mixture of the corpora of the job `plan`; None if they are sampled in proportion to their size.

    `own` are the training data, a mapping with the keys `store` and `documents`.
    """
    if plan.batch.corpus_weights is None:
        return None
    corpora = mix_corpora(
        plan.data or [str(own["store"].folder)],
        plan.batch.corpus_weights,
        own["store"],
        own["documents"],
        plan.seed,
        plan.batch.tokens or 1,
    )
    for row in corpora.describe(0.0):
        log_info(f"{row['corpus']}: {row['tokens']} tokens, sampled for {row['weight']:.1%} of training")
    return corpora


def languages_in(own: Fields) -> list[str]:
    """Return the sorted names of the languages in training data, a mapping with the keys `rows` and `store`.

    `rows` is a table whose labels are language pairs, and `store` is tokenized text.
    """
    rows = own.get("rows")
    pairs = rows.labels or [] if isinstance(rows, LabeledRows) else []
    names = {name for pair in set(pairs) for name in pair.split()}
    names |= set(own["store"].languages if "store" in own else [])
    if LINES in names and len(names) > 1:
        raise PretuneError(
            f"one token store was built with the language {LINES!r} (one sentence per line), but other text is in "
            f"{', '.join(sorted(names - {LINES}))}; name the real language of this store, as in fr=STORE"
        )
    return sorted(names)


def get_tokenizer(
    plan: PretrainingJob, documents: Mapping[str, Iterable[Document]], second: Sequence[Document] = ()
) -> Tokenizer:
    """Return the tokenizer of the job `plan`; if there is none yet, train one on documents by language and save it.

    It is saved in the run folder. For translation data, `second` are the translations of the documents; they get
    their own vocabulary if the recipe sets its size (tokenizer.target).
    """
    folder = plan.out / "tokenizer"
    if isinstance(plan.tokenizer, str):
        return Tokenizer.load(plan.tokenizer)
    if (folder / "tokenizer_config.json").is_file():
        return Tokenizer.load(folder)
    log_info("training a tokenizer")
    options = dict(plan.tokenizer or {})
    target = options.pop("target", None)
    if target is None:
        texts = {**documents, "": chain(documents.get("", ()), second)} if second else documents
        tokenizer = train_tokenizer(texts, **options, fit=True)
    elif not second:
        raise PretuneError(
            "tokenizer.target is the vocabulary size of translations, but the data has no translations; remove this key"
        )
    else:
        tokenizer = train_tokenizer(documents, **options, fit=True)
        tokenizer.set_target(train_tokenizer(second, **options | {"vocab_size": int(target)}, fit=True))
    tokenizer.save(folder)
    return tokenizer


def held_out_batches(
    joint: JointObjective, data: Data, packing: Packing, monitor: Monitoring
) -> tuple[JointObjective, list[Batch]]:
    """Return a copy of the objectives `joint` with a fixed masking rate, and batches of held-out data to evaluate it on."""
    if not len(data.documents) and not data.rows:
        return joint, []
    joint = JointObjective(tuple((weight, part.for_evaluation()) for weight, part in joint.parts))
    draws = EpochRandom(seed=0)
    packing = replace(packing, packs_per_step=1)  # stateful objectives pass state from batch to batch
    try:
        epoch = joint.arrange(data, packing, draws)
    except PretuneError:  # too little held-out text for this objective
        return joint, []
    if packing.fixed:  # little text makes short windows, so that padding is more than in training
        packing = replace(packing, sequences=max(packing.sequences, int(epoch.sizes().max(initial=0)) + 1))
    capacity = joint.capacity(packing)
    packs = [epoch.pack(index) for index in range(min(len(epoch), monitor.max_eval_batches or 1))]
    return joint, [collate(joint.corrupt(pack, data.tokenizer, draws), capacity) for pack in packs]
