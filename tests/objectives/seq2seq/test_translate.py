from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.nn.output_heads import TiedVocabularyHead
from pretune.objectives import Data, objective, parse_objective
from pretune.objectives.objective import classification_loss, vocabulary_loss
from pretune.objectives.seq2seq.translate import Translate
from pretune.packed import Targets, pack_targets
from pretune.runtime.randomness import EpochRandom
from pretune.text.corpus.documents import Document
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.sequences import Packing, Sequences
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.training import Kind, train_on_documents
from tests.support.objective_data import KINDS, TEMPLATES, data, store

texts_strategy = st.lists(
    st.tuples(st.text("abcdefg hijk", min_size=0, max_size=40), st.text("abcdefg hijk", min_size=0, max_size=40)),
    min_size=3,
    max_size=9,
)
MBART = Template(single=("A", "end", "language"), pair=(), target=("language", "A", "end"))


def sequence(sequences: Sequences, row: int) -> list[int]:
    return sequences.ids[sequences.offsets[row] : sequences.offsets[row + 1]].tolist()


@pytest.mark.not_fast
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12)
@given(pairs=texts_strategy, both=st.booleans(), length=st.integers(8, 60), template=st.sampled_from(sorted(TEMPLATES)))
def test_every_pair_that_fits_is_used(
    kind: Kind, pairs: list[tuple[str, str]], both: bool, length: int, template: str
) -> None:
    tokenizer = store(kind).tokenizer
    rows = LabeledRows(Path("x"), {}, [a for a, _ in pairs], [b for _, b in pairs])
    source = Data(tokenizer, TEMPLATES[template], rows=rows)
    translate = Translate(bidirectional=both)
    single, target = TEMPLATES[template].single, TEMPLATES[template].target or ("start", "A", "end")
    fill = lambda items, ids: [i for item in items for i in (ids if item == "A" else [tokenizer.role(item)])]  # noqa: E731
    encoded = [tuple(tokenizer.encode(text) for text in pair) for pair in pairs]
    encoded += [(b, a) for a, b in encoded] if both else []
    wanted = []
    for a, b in encoded:
        read, whole = fill(single, a), fill(target, b)
        if a and b and len(read) <= length and len(whole) - 1 <= length:
            wanted.append((read, whole[:-1], whole[1:]))
    if not wanted:
        with pytest.raises(PretuneError, match="no pair of non-empty texts"):
            translate.arrange(source, Packing(256, length), EpochRandom(0))
        return
    plan = translate.arrange(source, Packing(256, length), EpochRandom(0))
    found = []
    for index in range(len(plan)):
        sequences = translate.corrupt(plan.pack(index), tokenizer, EpochRandom(0))
        side = sequences.second
        assert side is not None and len(sequences.ids) <= 256 and len(side.ids) <= 256
        at, written = side.targets["translate"]
        assert at.tolist() == list(range(len(side.ids)))
        for row in range(len(sequences.lengths)):
            late = written[side.offsets[row] : side.offsets[row + 1]].tolist()
            found.append((sequence(sequences, row), sequence(side, row), late))
    assert sorted(found) == sorted(wanted)


@pytest.mark.parametrize("template", ["bart", "mbart"])
def test_languages_are_swapped_with_the_texts(template: str) -> None:
    tokenizer = train_on_documents([Document("a b c d e f " * 9, Path("x"), 1)], "bpe", 60, languages=["en", "fr"])
    rows = LabeledRows(Path("x"), {}, ["a b", "a"], ["c d", "c"])
    frame = MBART if template == "mbart" else TEMPLATES["bart"]
    translate = Translate(bidirectional=True, language_pair="en-fr")
    plan = translate.arrange(Data(tokenizer, frame, rows=rows), Packing(64, 16), EpochRandom(0))
    sequences = translate.corrupt(plan.pack(0), tokenizer, EpochRandom(0))
    side = sequences.second
    assert side is not None and len(sequences.lengths) == 4
    english, french = tokenizer.role("language en"), tokenizer.role("language fr")
    for row in range(4):
        read, late = sequence(sequences, row), sequence(side, row)
        forward = tokenizer.encode("a")[0] in read
        assert late[0] == (french if forward else english)
        if template == "mbart":
            assert read[-1] == (english if forward else french)
        else:
            assert english not in read and french not in read
    with pytest.raises(PretuneError, match="no 'language de' token"):
        Translate(language_pair="en-de").arrange(
            Data(tokenizer, frame, rows=rows), Packing(64, 16), EpochRandom(0)
        ).pack(0)


def test_invalid_use_is_rejected() -> None:
    for text, message in {
        "translate(label_smoothing=1)": "the share must be at least 0 and less than 1",
        "translate(language_pair=en)": "does not name two languages; write, for example, language_pair=en-fr",
        "translate+lm": "alternate the objectives with",
    }.items():
        with pytest.raises(PretuneError, match=message):
            parse_objective(text)
    with pytest.raises(PretuneError, match="learns from pairs of texts"):
        Translate().arrange(replace(data(), rows=None), Packing(64, 16), EpochRandom(0))
    alone = Data(store().tokenizer, TEMPLATES["t5"], rows=LabeledRows(Path("x"), {}, ["a"]))
    with pytest.raises(PretuneError, match="learns from pairs of texts"):
        Translate().arrange(alone, Packing(64, 16), EpochRandom(0))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("most", [1 << 30, 50 * 7])
def test_label_smoothing_equals_that_of_torch(smoothing: float, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objective, "MAX_LOGITS", most)  # in chunks too
    torch.manual_seed(0)
    head = TiedVocabularyHead(50)
    tokens, states = torch.randn(50, 8, requires_grad=True), torch.randn(23, 8, requires_grad=True)
    target, weight = torch.randint(0, 50, (23,)), (torch.arange(23) % 4 > 0).float()
    loss = vocabulary_loss("x", head, states, tokens, Targets(target, target, weight), smoothing)
    logits = head(states, tokens)
    wanted = (F.cross_entropy(logits, target, reduction="none", label_smoothing=smoothing) * weight).sum()
    torch.testing.assert_close(loss.sums["x"], wanted)
    ours = torch.autograd.grad(loss.sums["x"], [states, tokens], retain_graph=True)
    for mine, theirs in zip(ours, torch.autograd.grad(wanted, [states, tokens]), strict=True):
        torch.testing.assert_close(mine, theirs)
    plain = (F.cross_entropy(logits, target, reduction="none") * weight).sum()
    assert ("x/plain" in loss.logs) == (smoothing > 0)
    torch.testing.assert_close(loss.logs.get("x/plain", loss.sums["x"].detach()), plain.detach())


def test_label_smoothing_ignores_unused_targets() -> None:
    logits = torch.randn(3, 5)
    full = classification_loss("x", logits, pack_targets(np.arange(2), np.array([1, 4]), capacity=3), 0.1)
    part = classification_loss("x", logits[:2], pack_targets(np.arange(2), np.array([1, 4])), 0.1)
    torch.testing.assert_close(full.sums["x"], part.sums["x"])
