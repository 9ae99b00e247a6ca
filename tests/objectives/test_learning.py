"""Tests that generative objectives reach a loss below the unigram entropy within seconds."""

from __future__ import annotations

import math
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from pretune.backbones.transformer_stack import TransformerStack
from pretune.families.encoders.xlm import XlmConfig, build
from pretune.models.model import Network
from pretune.objectives import Data, parse_objective
from pretune.text.corpus.documents import Document
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.sequences import Packing
from pretune.text.store.builder import StoreSettings, build_store
from pretune.text.tokenizers.training import train_on_documents as train_tokenizer
from pretune.training.data_streams import make_streams
from pretune.training.loop import Training, evaluate_loss, train
from pretune.training.recipe_sections import Budget, Monitoring, Optimizer, Schedule, resolve_section
from tests.support.objective_data import TEMPLATES, bidirectional_stack, encoder_decoder, stack

NAMES = ["ann", "bob", "cid", "dan", "eve", "fay", "gus", "hal"]
VERBS = ["sees", "hears", "feeds", "finds", "likes", "paints"]
THINGS = ["cat", "dog", "fox", "owl", "pig", "rat", "bee", "cow", "elk", "hen"]
CIPHER = dict(zip(NAMES + VERBS + THINGS, THINGS + NAMES + VERBS, strict=True))


def sentence(document: int, place: int) -> str:
    """Return a sentence that is determined by the previous one."""
    one, other = THINGS[(document + 2 * place) % 10], THINGS[(7 * document + 3 * place) % 10]
    return f"{NAMES[(document + place) % 8]} {VERBS[(3 * document + place) % 6]} the {one} and the {other}."


@cache
def toy_data() -> Data:
    folder = Path(tempfile.mkdtemp())
    documents = [[sentence(d, i) for i in range(8)] for d in range(40)]
    lines = [" ".join(s.capitalize() for s in document) for document in documents]
    (folder / "a.txt").write_text("\n".join(lines), encoding="utf-8")
    tokenizer = train_tokenizer(
        [Document(line, folder, 1) for line in lines], "wordpiece", 120, extra_ids=12, lowercase=True
    )
    store = build_store([folder / "a.txt"], tokenizer, folder / "store", StoreSettings(split_by="line"), 1)
    texts = [s for document in documents for s in document]
    pairs = [" ".join(CIPHER.get(word, word) for word in s.removesuffix(".").split()) + "." for s in texts]
    rows = LabeledRows(Path("rows"), {}, texts, pairs, ["en xx"] * len(texts))
    documents, languages = np.arange(store.documents), {"en": 0, "xx": 1}
    return Data(tokenizer, TEMPLATES["t5"], store=store, documents=documents, rows=rows, languages=languages)


def xlm(vocabulary: int, width: int) -> TransformerStack:
    """Build an XLM; without language embeddings, nothing would indicate the side of a masked word, as both share words."""
    torch.manual_seed(0)
    return build(
        XlmConfig(vocabulary, width, 2, 2, dropout=0.0, n_langs=2, max_position_embeddings=64, embed_init_std=0.08)
    )


def train_objective(name: str, steps: int) -> tuple[Training, dict[str, float]]:
    data, mixture = toy_data(), parse_objective(name)
    make = {"prefix": stack, "tlm": xlm, "bilm": bidirectional_stack}.get(mixture.objectives[0].name, encoder_decoder)
    if make in (xlm, bidirectional_stack):
        data = replace(data, template=TEMPLATES["bert"])
    root = Network(make(data.tokenizer.size, width=64))
    for objective in mixture.objectives:
        torch.manual_seed(0)
        root.heads[objective.name] = objective.head(root.backbone)
    training = Training(
        root=root,
        streams=make_streams(mixture, data, tokens=512, packing=Packing(512, 64), seed=0),
        budget=Budget(steps=steps),
        optimizer=resolve_section(
            Optimizer, Optimizer(lr=3e-3, betas=(0.9, 0.98), weight_decay=0.0, max_grad_norm=1.0)
        ),
        schedule=resolve_section(Schedule, Schedule(kind="constant", warmup_ratio=20 / steps)),
        monitor=resolve_section(Monitoring, Monitoring(log_every=10, save_every=0)),
    )
    return training, train(training)


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("spans", 50),
        ("denoise", 50),
        ("mass", 100),
        ("shuffle", 50),
        ("shuffle(unit=sentences)", 50),
        ("translate", 160),
        ("prefix", 60),
        ("skip_thought", 60),
        ("bilm", 60),
        ("tlm(mask_rate=0.3)", 240),
    ],
)
def test_loss_falls_below_the_unigram_entropy(name: str, steps: int) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        training, last = train_objective(name, steps)
    finally:
        torch.set_num_threads(threads)
    stream = training.streams.streams[0]
    term = stream.joint.objectives[0].name
    batches = [stream.batch(0, index, 0.0) for index in range(len(stream.epoch_plan(0)))]
    counts = np.bincount(np.concatenate([batch.targets[term].target.numpy() for batch in batches]))
    shares = counts[counts > 0] / counts.sum()
    frequencies = -float((shares * np.log(shares)).sum())
    loss = last.get(f"{term}/plain", last[term])
    assert math.isfinite(loss) and loss < frequencies - 0.3
    if name == "bilm":
        assert last["bilm/forward"] < frequencies - 0.3 and last["bilm/backward"] < frequencies - 0.3
    if term == "tlm":  # the loss rises if the translation belongs to another text
        own, other = (
            evaluate_loss(training.root, stream.joint, [some], torch.device("cpu"))["tlm"]
            for some in (batches[0], other_translations(batches[0]))
        )
        assert own < other - 0.3
    if name == "translate":  # the loss rises if the source belongs to another target: the decoder uses the source
        own, other = (
            evaluate_loss(training.root, stream.joint, some, torch.device("cpu"))["translate/plain"]
            for some in (batches[:1], [exchange_sources(batches[0])])
        )
        assert own < other - 0.5


def other_translations(batch):  # type: ignore[no-untyped-def]
    """Give every text the translation of the next one; all pairs have the same length here, and masked tokens stay."""
    (packed,) = batch.packed
    size = int(packed.offsets[1])
    assert (packed.offsets.diff() == size).all()
    ids = packed.ids.view(-1, size).clone()
    hidden = torch.zeros(len(packed), dtype=torch.bool)
    hidden[batch.targets["tlm"].at] = True
    half = size // 2
    ids[:, half:] = torch.where(hidden.view(-1, size)[:, half:], ids[:, half:], ids.roll(1, 0)[:, half:])
    first = batch.targets["tlm"].at % size < half  # the original side of the exchanged texts has changed
    targets = batch.targets | {"tlm": replace(batch.targets["tlm"], weight=first.float())}
    return replace(
        batch,
        packed=(replace(packed, ids=ids.flatten()),),
        targets=targets,
        counts=batch.counts | {"tlm": float(first.sum())},
    )


def exchange_sources(batch):  # type: ignore[no-untyped-def]
    """Give every target the source of the next one; all sources have the same length here."""
    source, target = batch.packed
    size = int(source.offsets[1])
    assert (source.offsets.diff() == size).all()
    return replace(batch, packed=(replace(source, ids=source.ids.roll(size)), target))
