"""Tests that nsp, sop, sso and dlm labels cannot be predicted from anything but the content of the texts.

The texts are random words, so that no text follows from another. Whatever predicts a label here is a leak: lengths,
numbers of sentences, where a text is truncated, or the source. All draws are hashed, so the numbers are the same on
every machine.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from torch import nn

from pretune.families import FAMILIES
from pretune.models.model import Network
from pretune.objectives import Data, parse_objective
from pretune.objectives.pretraining.dlm import DLM
from pretune.objectives.pretraining.nsp import NSP
from pretune.objectives.pretraining.sentence_pairs import exchange_groups, match_in_pairs
from pretune.objectives.pretraining.sop import SOP
from pretune.objectives.pretraining.sso import SSO
from pretune.runtime.randomness import EpochRandom
from pretune.text.corpus.dialogues import Dialogues
from pretune.text.corpus.documents import Document
from pretune.text.packing.sequences import Packing, collate
from pretune.text.store.builder import StoreSettings, build_store
from pretune.text.store.store import Store, join_stores
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import train_on_documents
from tests.support.objective_data import TEMPLATE

Array = np.ndarray[Any, np.dtype[Any]]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = [f"{one}{two}" for one in LETTERS for two in LETTERS[:12]]


@dataclass(frozen=True)
class Source:
    """Describe a kind of text: documents, sentences per document, words per sentence, vocabulary range."""

    documents: int
    sentences: tuple[int, int]
    words: tuple[int, int]
    vocabulary: tuple[int, int] = (0, len(WORDS))
    files: int = 1
    language: str = "lines"


CORPORA = {
    "one source": [Source(250, (2, 60), (3, 20))],
    "long and short documents": [Source(400, (2, 4), (3, 20)), Source(20, (300, 400), (3, 20))],
    "several files": [
        Source(700, (2, 5), (3, 7), (0, 100)),
        Source(200, (5, 20), (8, 15), (100, 200)),
        Source(60, (40, 80), (12, 30), (200, 312)),
    ],
    "one document per file": [Source(250, (2, 60), (3, 20), files=250)],
    "several languages": [
        Source(300, (2, 20), (3, 9), (0, 150), language="aa"),
        Source(100, (10, 60), (8, 25), (150, 312), language="bb"),
    ],
}


# All corpora for two objectives; the third shares their code, and is tested on all corpora with the slow tests.
LEAKS = [
    pytest.param(name, objective, id=f"{name}-{objective.name}", marks=marks)
    for name in (*CORPORA, "several files in one store")
    for objective in (NSP(), SOP(), SSO())
    for marks in (
        [pytest.mark.slow] if isinstance(objective, SSO) and name not in ("several files", "one source") else [],
    )
]


@cache
def tokenizer() -> Tokenizer:
    return train_on_documents([Document(" ".join(WORDS), Path("x"), 1)] * 2, "items", len(WORDS) + 10)


@cache
def write_corpus(name: str) -> list[list[Path]]:
    """Return the files of each source."""
    folder, found = Path(tempfile.mkdtemp()), []
    for number, source in enumerate(CORPORA[name]):
        chance = np.random.default_rng(number)
        documents = []
        for _ in range(source.documents):
            lengths = chance.integers(*source.words, chance.integers(*source.sentences), endpoint=True)
            sentences = [" ".join(WORDS[i] for i in chance.integers(*source.vocabulary, n)) for n in lengths]
            documents.append("\n".join(sentences))
        files = [folder / f"{number}-{file:03d}.txt" for file in range(source.files)]
        for file, part in zip(files, np.array_split(np.arange(source.documents), source.files), strict=True):
            file.write_text("\n\n".join(documents[i] for i in part), encoding="utf-8")
        found.append(files)
    return found


@cache
def corpus(name: str, stores: bool = True) -> tuple[Store, Array]:
    """Return one store per source, or one of all their files, and the source of each document."""
    files, settings = write_corpus(name), StoreSettings("lines", "blank-line")
    groups = files if stores else [[file for group in files for file in group]]
    made = [build_store(group, tokenizer(), Path(tempfile.mkdtemp()), settings, 1) for group in groups]
    if stores:
        made = [store.with_language(source.language) for store, source in zip(made, CORPORA[name], strict=True)]
    owners = np.repeat(np.arange(len(files)), [source.documents for source in CORPORA[name]])
    joined = join_stores(made)
    assert joined.documents == len(owners)
    return joined, owners


def surface_features(store: Store, owners: Array, arrangement: Any) -> Array:
    """Return (m, features): all that a model could know of two texts without their words, and their sources.

    Where documents begin and end is not included: a model sees it only in the content.
    """
    sentences = store.sentence_offsets
    starts, ends = arrangement.starts, arrangement.starts + arrangement.spans
    document = np.searchsorted(sentences[store.document_offsets], starts, side="right") - 1
    source = owners[document]
    return np.column_stack(
        [
            arrangement.spans,
            arrangement.spans.sum(1),
            arrangement.spans[:, 0] - arrangement.spans[:, 1],
            np.searchsorted(sentences, ends) - np.searchsorted(sentences, starts),
            np.isin(starts, sentences),
            np.isin(ends, sentences),
            source,
            source[:, 0] * 10 + source[:, 1],
        ]
    )


def assert_labels_are_unpredictable(parts: list[tuple[list[Array], list[Array]]], classes: int = 2) -> None:
    """Fit a classifier on the features of one half and check that it is at the chance level on the other half."""
    (known, answers), (others, labels) = ((np.concatenate(x), np.concatenate(y)) for x, y in parts)
    judged, asked = answers >= 0, labels >= 0
    model = HistGradientBoostingClassifier(max_iter=60, random_state=0).fit(known[judged], answers[judged])
    accuracy = float(model.score(others[asked], labels[asked]))
    assert asked.sum() > 5000  # the chance level is 50 ± 1 %, as the two sequences of a match have the same label
    assert abs(accuracy - 1 / classes) < 0.03
    assert abs(np.bincount(labels[asked]) / asked.sum() - 1 / classes).max() < 0.03


@pytest.mark.not_fast
@pytest.mark.parametrize(("name", "objective"), LEAKS)
def test_surface_features_of_pairs_do_not_predict_the_label(name: str, objective: NSP | SOP | SSO) -> None:
    store, owners = corpus("several files", stores=False) if "one store" in name else corpus(name)
    parts = []
    for half in (0, 1):
        data = Data(store.tokenizer, TEMPLATE, store=store, documents=np.arange(half, store.documents, 2))
        if "languages" in name:
            data.languages = {"aa": 0, "bb": 1}
        found, labels, pairs, judged = [], [], 0, 0
        for epoch in range(80):
            made: Any = objective.arrange(data, Packing(4096, (48, 128)[epoch % 2]), EpochRandom(1, epoch))
            arrangement = made.arrangement
            found.append(surface_features(store, owners, arrangement))
            labels.append(arrangement.labels[objective.name])
            pairs += int((arrangement.spans[:, 1] > 0).sum())
            judged += int((labels[-1] >= 0).sum())
            if judged > 8000 and epoch % 2:
                break
        assert judged > 0.9 * pairs
        parts.append((found, labels))
    assert_labels_are_unpredictable(parts, len(objective.classes))


@pytest.mark.not_fast
def test_negatives_are_sampled_from_all_documents_of_the_source() -> None:
    """Negatives are not at a fixed distance, and change from epoch to epoch."""
    store, owners = corpus("several files")
    data = Data(store.tokenizer, TEMPLATE, store=store, documents=np.arange(store.documents))
    distances, partners = [], []
    for epoch in range(6):
        made: Any = NSP().arrange(data, Packing(4096, 64), EpochRandom(0, epoch))
        labels = made.arrangement.labels
        negative = labels["nsp"] == 1
        first, second = labels["first document"][negative], labels["second document"][negative]
        assert (owners[first] == owners[second]).all() and (first != second).all()
        small = owners[first] == 0  # documents 0 to 699
        distances.append((second[small] - first[small]) % 700)
        partners.append(dict(zip(first.tolist(), second.tolist(), strict=True)))
    counts, _ = np.histogram(np.concatenate(distances), bins=7, range=(0, 700))
    expected = counts.sum() / 7
    assert (abs(counts - expected) < 5 * expected**0.5).all()
    again = [partners[0][document] == partners[1][document] for document in partners[0].keys() & partners[1].keys()]
    assert len(again) > 100 and np.mean(again) < 0.1


def test_almost_every_token_of_pairs_is_read_once_per_epoch() -> None:
    store, _ = corpus("several files")
    data = Data(store.tokenizer, TEMPLATE, store=store, documents=np.arange(store.documents))
    for epoch in range(2):
        plans: Any = [
            objective.arrange(data, Packing(4096, 128), EpochRandom(0, epoch)) for objective in (NSP(), SOP())
        ]
        for plan, most in zip(plans, (0.01, 0.0), strict=True):
            starts = plan.arrangement.starts[plan.arrangement.spans > 0]
            assert len(np.unique(starts)) == len(starts)
            assert 0 <= 1 - plan.arrangement.spans.sum() / store.tokens <= most


def dialogues(sources: int, count: int = 3000) -> Dialogues:
    """Return dialogues of random words; lengths depend on the dialogue, the position of the turn and the source."""
    chance = np.random.default_rng(0)
    made = Dialogues(Path("x"))
    for number in range(count):
        source, turns, scale = number % sources, int(chance.integers(2, 8)), chance.choice([1, 3])
        span = len(WORDS) // sources
        for turn in range(turns):
            most = scale * (3 + 6 * (turn == 0) + 4 * (turn % 2) + 5 * source)
            words = chance.integers(source * span, (source + 1) * span, chance.integers(1, most, endpoint=True))
            made.texts.append(" ".join(WORDS[i] for i in words))
            made.roles.append(turn % 2)
        made.counts.append(turns)
        made.files.append(source)
    return made


@pytest.mark.not_fast
@pytest.mark.parametrize("sources", [1, 3])
@pytest.mark.parametrize("length", [48, 128])
def test_surface_features_of_dialogues_do_not_predict_the_label(sources: int, length: int) -> None:
    whole = dialogues(sources)
    parts = []
    for half in (0, 1):
        rows = whole.take(row for row in range(len(whole)) if row // sources % 2 == half)
        data = Data(tokenizer(), TEMPLATE, rows=rows)
        starts = data.token_rows.starts[:, 0]
        dialogue = np.repeat(np.arange(len(rows)), rows.counts)
        found, labels = [], []
        for epoch in range(3):
            made: Any = DLM().arrange(data, Packing(4096, length), EpochRandom(1, epoch))
            arrangement = made.arrangement
            turn = np.searchsorted(starts, arrangement.starts)
            source = np.array(rows.files)[dialogue[turn]]
            uncut = data.token_rows.lengths[turn, 0] == arrangement.spans
            spans, roles = arrangement.spans, arrangement.columns["segment"]
            found.append(np.column_stack([spans, spans.sum(1), source, source @ [1, 10, 100], uncut, roles]))
            labels.append(arrangement.labels["dlm"])
            assert (labels[-1] >= 0).mean() > 0.95
        parts.append((found, labels))
    assert_labels_are_unpredictable(parts)


def test_matches_share_a_kind_differ_in_owner_and_have_similar_lengths() -> None:
    chance = np.random.default_rng(0)
    lengths, kinds = chance.integers(1, 30, 4000), chance.integers(0, 3, 4000)
    owners, words = chance.integers(0, 200, 4000), chance.integers(0, 50, 4000)
    partner = match_in_pairs(lengths, kinds, owners, EpochRandom(0), words)
    one = np.flatnonzero(partner >= 0)
    other = partner[one]
    assert len(one) > 3980 and (partner[other] == one).all()
    assert (kinds[one] == kinds[other]).all() and (owners[one] != owners[other]).all()
    assert (words[one] != words[other]).all() and abs(lengths[one] - lengths[other]).mean() < 0.1
    assert (match_in_pairs(lengths, kinds, np.zeros(4000), EpochRandom(0)) == -1).all()
    assert (match_in_pairs(lengths, kinds, owners, EpochRandom(1), words) != partner).mean() > 0.9


def test_files_are_sources_and_single_document_files_are_grouped() -> None:
    files, languages = np.array([0, 0, 1, 2, 2, 3, 4]), np.array([0, 0, 0, 0, 0, 1, 1])
    assert exchange_groups(files, languages, np.arange(7)).tolist() == [0, 0, -1, 2, 2, -2, -2]
    # Only one document of the third file is read.
    assert exchange_groups(files, languages, np.array([0, 1, 2, 3, 3])).tolist() == [0, 0, -1, -1, -1]


def test_documents_of_a_single_document_source_get_no_nsp_label() -> None:
    chance = np.random.default_rng(0)
    texts = ["\n".join(" ".join(WORDS[i] for i in chance.integers(0, 300, 9)) for _ in range(n)) for n in (40, 20, 20)]
    folder = Path(tempfile.mkdtemp())
    (folder / "a.txt").write_text(texts[0], encoding="utf-8")
    (folder / "b.txt").write_text("\n\n".join(texts[1:]), encoding="utf-8")
    made = build_store(
        sorted(folder.glob("*.txt")), tokenizer(), folder / "store", StoreSettings("lines", "blank-line"), 1
    )
    data = Data(made.tokenizer, TEMPLATE, store=made, documents=np.arange(3))
    plan: Any = NSP().arrange(data, Packing(4096, 48), EpochRandom(0))
    labels = plan.arrangement.labels
    assert (labels["nsp"][labels["first document"] == 0] == -1).all()
    assert (labels["nsp"][labels["first document"] > 0] >= 0).mean() > 0.7
    judged = NSP().corrupt(plan.pack(0), made.tokenizer, EpochRandom(0))
    assert len(judged.targets["nsp"][0]) == (judged.labels["nsp"] >= 0).sum() < len(judged.lengths)


def accuracy_after_training(objective: str, data: Data, held_out: Data, steps: int, count: int) -> float:
    """Train a small BERT and return its accuracy on at least `count` labels of held-out texts."""
    torch.manual_seed(0)
    joint = parse_objective(objective).joints[0]
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128}
    sizes |= {"vocab_size": data.tokenizer.size, "max_position_embeddings": 64, "hidden_dropout_prob": 0}
    family = FAMILIES["bert"]
    root = Network(family.build(family.read_config(sizes)))
    root.heads[objective] = joint.objectives[0].head(root.backbone)
    optimizer = torch.optim.AdamW(root.parameters(), lr=1e-3)
    packing, step, epoch = Packing(2048, 48), 0, 0
    while step < steps:
        plan = joint.arrange(data, packing, EpochRandom(0, epoch))
        for index in range(min(len(plan), steps - step)):
            batch = collate(joint.corrupt(plan.pack(index), data.tokenizer, EpochRandom(0, epoch)))
            loss = joint.loss(root.heads, root.backbone, batch)
            optimizer.zero_grad()
            loss.over(batch.counts).backward()
            nn.utils.clip_grad_norm_(root.parameters(), 1.0)
            optimizer.step()
            step += 1
        epoch += 1
    right = total = 0.0
    with torch.no_grad():
        while total < count:
            draws = EpochRandom(1, epoch)
            epoch += 1
            plan = joint.arrange(held_out, packing, draws)
            for index in range(len(plan)):
                batch = collate(joint.corrupt(plan.pack(index), data.tokenizer, draws))
                right += float(joint.loss(root.heads, root.backbone, batch).logs[f"{objective}/accuracy"])
                total += batch.counts[objective]
    return right / total


def train_and_held_out_data(objective: str, name: str) -> list[Data]:
    """Return the data for training and the held-out data."""
    if objective == "dlm":
        rows = dialogues(3 if name == "several files" else 1)
        return [Data(tokenizer(), TEMPLATE, rows=rows.take(range(half, len(rows), 2))) for half in (0, 1)]
    store, _ = corpus(name)
    documents = [np.arange(half, store.documents, 2) for half in (0, 1)]
    return [Data(store.tokenizer, TEMPLATE, store=store, documents=part) for part in documents]


@pytest.mark.not_fast
def test_nsp_learns_nothing_from_random_words_of_several_files() -> None:
    """A few steps are enough to learn from sources that give the label away."""
    accuracy = accuracy_after_training("nsp", *train_and_held_out_data("nsp", "several files"), steps=30, count=3000)
    assert abs(accuracy - 0.5) < 0.06  # 50 ± 1.3 %: the two pairs of a match have the same label


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("objective", ["nsp", "sop", "sso", "dlm"])
@pytest.mark.parametrize("name", ["one source", "several files"])
def test_accuracy_on_random_words_stays_at_the_chance_level(objective: str, name: str) -> None:
    accuracy = accuracy_after_training(objective, *train_and_held_out_data(objective, name), steps=1500, count=10_000)
    print(f"{objective}, {name}: {100 * accuracy:.1f} %")
    assert abs(accuracy - (1 / 3 if objective == "sso" else 1 / 2)) < 0.03
