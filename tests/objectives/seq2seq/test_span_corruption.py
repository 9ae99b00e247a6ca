from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.objectives import Data, parse_objective
from pretune.objectives.segment_ops import segment_positions, segment_starts
from pretune.objectives.seq2seq.source_target import FlatTexts, strip_template
from pretune.objectives.seq2seq.span_corruption import SpanCorruption, replace_by_sentinels, sentinels
from pretune.runtime.randomness import EpochRandom
from pretune.text.corpus.documents import Document
from pretune.text.packing.sequences import Packing, Sequences
from pretune.text.store.builder import StoreSettings, build_store
from pretune.text.tokenizers.training import Kind, train_on_documents
from tests.support.objective_data import KINDS, SENTINELS, TEMPLATES, data, store

TEXT = "Thank you for inviting me to your party last week."


def corrupted(
    kind: Kind, template: str, objective: SpanCorruption, seed: int = 0, epoch: int = 0, length: int = 64
) -> tuple[Sequences, Sequences]:
    source = data(kind, SENTINELS, template)
    draws = EpochRandom(seed, epoch)
    plan = objective.arrange(source, Packing(1024, length), draws)
    index = seed % len(plan)
    return plan.pack(index), objective.corrupt(plan.pack(index), source.tokenizer, draws)


def sequence(sequences: Sequences, row: int) -> list[int]:
    return sequences.ids[sequences.offsets[row] : sequences.offsets[row + 1]].tolist()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12)
@given(
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 3),
    rate=st.sampled_from([0.05, 0.15, 0.5]),
    mean=st.sampled_from([1.0, 3.0, 10.0]),
    template=st.sampled_from(sorted(TEMPLATES)),
)
def test_source_and_target_together_are_the_text_and_rates_are_respected(
    kind: Kind, seed: int, epoch: int, rate: float, mean: float, template: str
) -> None:
    objective = SpanCorruption(noise_density=rate, mean_span_length=mean)
    clean, noisy = corrupted(kind, template, objective, seed, epoch)
    assert noisy.second is not None
    tokenizer = data(kind, SENTINELS).tokenizer
    sentinel = sentinels(tokenizer, SENTINELS).tolist()
    single, target = TEMPLATES[template].single, TEMPLATES[template].target or ("start", "A", "end")
    at, wanted = noisy.second.targets["spans"]
    assert at.tolist() == list(range(len(noisy.second.ids)))
    for row in range(len(clean.lengths)):
        text = [
            i for i, s in zip(sequence(clean, row), clean.columns["special"][clean.owner == row], strict=True) if not s
        ]
        source = sequence(noisy, row)
        before, after = single.index("A"), len(single) - single.index("A") - 1
        assert source[:before] == [tokenizer.role(r) for r in single[:before]]
        assert source[len(source) - after :] == [tokenizer.role(r) for r in single[len(single) - after :]]
        source = source[before : len(source) - after]
        read = sequence(noisy.second, row)
        written = wanted[noisy.second.offsets[row] : noisy.second.offsets[row + 1]].tolist()
        assert read[1:] == written[:-1] and read[0] == tokenizer.role(target[0])
        whole = [read[0], *written]
        before, after = target.index("A"), len(target) - target.index("A") - 1
        assert whole[len(whole) - after :] == [tokenizer.role(r) for r in target[len(target) - after :]]
        spans_text = whole[before : len(whole) - after]
        # Sentinels are in order on both sides, the target has one more at the end, and none is repeated.
        found = [i for i in source if i in sentinel]
        assert found == sentinel[: len(found)]
        assert [i for i in spans_text if i in sentinel] == sentinel[: len(found) + 1]
        assert spans_text[0] == sentinel[0] and spans_text[-1] == sentinel[len(found)]
        # Replace each sentinel by its span.
        spans: dict[int, list[int]] = {}
        for token in spans_text:
            if token in sentinel:
                spans[token] = current = []
            else:
                current.append(token)
        assert all(spans[token] for token in found)
        assert [t for token in source for t in (spans.get(token, [token]))] == text
        # No two sentinels are adjacent; the numbers of tokens and spans follow the rounding of the paper.
        assert not any(a in sentinel and b in sentinel for a, b in itertools.pairwise(source))
        hidden = sum(map(len, spans.values()))
        assert hidden == max(1, min(round(rate * len(text)), max(1, len(text) - 1)))
        assert len(found) == min(max(1, round(hidden / mean)), hidden, len(text) - hidden + 1)


def test_example_of_the_t5_paper() -> None:
    folder = Path(tempfile.mkdtemp())
    (folder / "a.txt").write_text(TEXT, encoding="utf-8")
    tokenizer = train_on_documents([Document(TEXT, folder, 1)] * 9, "sentencepiece-bpe", 200, extra_ids=20)
    words = [tokenizer.encode(word) for word in TEXT.split()]
    ids = np.array([i for word in words for i in word])
    bounds = np.cumsum([0, *map(len, words)])
    starts, ends = bounds[[2, 8]], bounds[[4, 9]]
    texts = FlatTexts(ids, np.array([len(ids)]))
    source, target = replace_by_sentinels(texts, starts, ends - starts, np.array([2]), sentinels(tokenizer, 3))
    names = dict(zip(sentinels(tokenizer, 3).tolist(), ("<X>", "<Y>", "<Z>"), strict=True))

    def render(ids: np.ndarray) -> str:
        parts: list[str] = []
        for part in np.split(
            ids, np.flatnonzero(np.isin(ids, list(names)) | np.isin(np.r_[-1, ids[:-1]], list(names)))
        ):
            if len(part):
                parts.append(names[int(part[0])] if int(part[0]) in names else tokenizer.decode(part).strip())
        return " ".join(parts)

    assert render(source.ids) == "Thank you <X> me to your party <Y> week."
    assert render(target.ids) == "<X> for inviting <Y> last <Z>"

    # The whole objective gives the same for the seed that masks these words.
    made = build_store([folder / "a.txt"], tokenizer, folder / "store", StoreSettings(split_by="line"), 1)
    objective = SpanCorruption(
        noise_density=(ends - starts).sum() / len(ids), mean_span_length=(ends - starts).sum() / 2
    )
    source_data = Data(tokenizer, TEMPLATES["t5"], store=made, documents=np.arange(1))
    for seed in range(2000):
        draws = EpochRandom(seed)
        if objective.choose(texts.lengths, draws, np.array([0]))[0].tolist() == starts.tolist():
            plan = objective.arrange(source_data, Packing(64, 64), draws)
            noisy = objective.corrupt(plan.pack(0), tokenizer, draws)
            assert noisy.second is not None
            if tokenizer.decode(noisy.ids) == tokenizer.decode(source.ids):
                end = tokenizer.role("end")
                assert noisy.ids.tolist() == [*source.ids.tolist(), end]
                assert noisy.second.targets["spans"][1].tolist() == [*target.ids.tolist(), end]
                assert noisy.second.ids.tolist() == [tokenizer.role("padding"), *target.ids.tolist()]
                return
    pytest.fail("no seed of 2,000 drew the paper's spans")


def test_spans_are_split_and_placed_uniformly() -> None:
    rows = 20_000
    objective = SpanCorruption(
        noise_density=0.4, mean_span_length=2.0
    )  # 4 of 10 tokens in 2 spans: 3 ways to split them, 21 ways to place them
    starts, lengths, counts = objective.choose(np.full(rows, 10), EpochRandom(0), np.arange(rows))
    assert (counts == 2).all()
    found = Counter(map(tuple, np.stack([starts, lengths], 1).reshape(rows, 4).tolist()))
    assert len(found) == 3 * 21
    share = 1 / 63
    assert max(abs(n - rows * share) for n in found.values()) < 5 * (rows * share * (1 - share)) ** 0.5
    hidden = np.zeros((rows, 10))
    owner = np.repeat(np.arange(rows), 2)
    hidden[np.repeat(owner, lengths), np.repeat(starts, lengths) + segment_positions(lengths)] = 1
    assert hidden.sum(1).tolist() == [4] * rows
    assert segment_starts(counts)[:3].tolist() == [0, 2, 4]


def test_too_few_sentinels_are_rejected_with_the_number_needed() -> None:
    # 126 of 128 tokens are text, 19 of them masked in 6 spans: seven sentinels with the last one.
    with pytest.raises(
        PretuneError,
        match=r"sequences of 128 tokens need 7 sentinels, and this tokenizer has 0; train a tokenizer with `pretune tokenizer train --extra-ids 7`",
    ):
        SpanCorruption().arrange(data("wordpiece"), Packing(1024, 128), EpochRandom(0))
    made = store("wordpiece", SENTINELS)
    assert (
        SpanCorruption().arrange(data("wordpiece", SENTINELS), Packing(1024, 128), EpochRandom(0)).pack(0).lengths.sum()
        <= 1024
    )
    assert made.tokenizer.has_role("sentinel 39")


def test_options_are_checked() -> None:
    assert parse_objective("spans(noise_density=0.3,mean_span_length=5)").objectives[0] == SpanCorruption(0.3, 5)
    for text, message in {
        "spans(noise_density=1.5)": "the share must be at least 0 and less than 1",
        "spans(mean_span_length=0.5)": "at least one token",
        "spans+mlm": "reads a source and generates a target, and cannot share them",
    }.items():
        with pytest.raises(PretuneError, match=message):
            parse_objective(text)


def test_short_texts_are_corrupted_too() -> None:
    for length in range(1, 12):
        hidden, spans = SpanCorruption().amounts(np.array([length]))
        assert 1 <= hidden[0] <= max(1, length - 1) and 1 <= spans[0] <= hidden[0]
    sequences = Sequences(
        np.array([5]), np.array([1]), np.array([0]), columns={"special": np.array([False])}, frame=("A",)
    )
    texts = strip_template(sequences)
    source, target = replace_by_sentinels(texts, np.array([0]), np.array([1]), np.array([1]), np.array([7, 8]))
    assert source.ids.tolist() == [7] and target.ids.tolist() == [7, 5, 8]


@pytest.mark.not_fast
@settings(max_examples=200)
@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=40).map(np.array),
    st.floats(0.0, 0.99),
    st.floats(1.0, 20.0),
    st.integers(0, 4),
    st.integers(0, 4),
)
def test_capacity_suffices_for_texts_of_any_lengths(
    lengths: np.ndarray, rate: float, mean: float, around: int, written_around: int
) -> None:
    objective = SpanCorruption(rate, mean)
    hidden, spans = objective.amounts(lengths)
    whole = lengths + max(around, written_around - 1)
    longest = int((hidden + spans + 1 + written_around).max())
    packing = Packing(int(whole.sum()), max(int(whole.max()), longest), sequences=len(lengths), fixed=True)
    read, written = objective.sides(packing)
    assert (lengths - hidden + spans + around).sum() <= read.tokens <= packing.tokens
    assert (hidden + spans + 1 + max(0, written_around - 1)).sum() <= written.tokens
    assert (hidden + spans + 1 + max(0, written_around - 1)).max() <= written.length
    assert objective.max_targets(packing)["spans"] == written.tokens
