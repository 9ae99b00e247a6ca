from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.objectives import parse_objective
from pretune.objectives.pretraining.masking import (
    choose_masked,
    first_of_run,
    geometric_weights,
    inverse_length_weights,
    run_starts,
    span_units,
)
from pretune.objectives.pretraining.mlm import MLM
from pretune.objectives.pretraining.span_boundary import PLACES, boundary_targets
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import Kind
from pretune.training.data_streams import DataStream
from tests.support.objective_data import KINDS, data

PHRASES = [
    "of the",
    "in the",
    "is a",
    "the same",
    "can be",
    "This is",
    "a call",
    "if the",
    "в Тверь",
    "비가 내렸습니다",
]
UNITS = ["token", "word", "span", "ngram", "phrase"]


@cache
def phrase_file() -> str:
    path = Path(tempfile.mkdtemp()) / "phrases.txt"
    path.write_text("\n".join([*PHRASES, "", "alone"]), encoding="utf-8")
    return str(path)


def make(unit: str = "token", **options: Any) -> MLM:
    return MLM(unit=unit, phrases=phrase_file() if unit == "phrase" else None, **options)  # type: ignore[arg-type]


def masked(kind: Kind, objective: MLM, seed: int, epoch: int, progress: float = 0.0) -> tuple[Sequences, Sequences]:
    source = data(kind)
    draws = EpochRandom(seed, epoch, progress)
    plan = objective.arrange(source, Packing(1024, 64), draws)
    index = seed % len(plan)
    return plan.pack(index), objective.corrupt(plan.pack(index), source.tokenizer, draws)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 3),
    rate=st.sampled_from([0.05, 0.15, 0.4, 1.0]),
    unit=st.sampled_from(UNITS),
    boundary=st.booleans(),
)
def test_targets_are_the_original_tokens_and_special_tokens_are_never_masked(
    kind: Kind, seed: int, epoch: int, rate: float, unit: str, boundary: bool
) -> None:
    clean, noisy = masked(kind, make(unit, mask_rate=rate, span_boundary=boundary), seed, epoch)
    at, target = noisy.targets["mlm"]
    special = clean.columns["special"]
    assert (target == clean.ids[at]).all()
    assert (np.diff(at) > 0).all()
    assert not special[at].any()
    changed = np.flatnonzero(noisy.ids != clean.ids)
    assert set(changed) <= set(at)
    tokenizer = data(kind).tokenizer
    inserted = noisy.ids[changed]
    assert not (tokenizer.specials[inserted] & (inserted != tokenizer.role("mask"))).any()
    free = np.bincount(clean.owner[~special], minlength=len(clean.lengths))
    chosen = np.bincount(clean.owner[at], minlength=len(clean.lengths))
    wanted = np.where(free > 0, np.maximum(1, np.round(rate * free)), 0)
    if unit == "token" or rate == 1.0:
        assert (chosen == wanted).all()
    else:
        assert (chosen <= wanted).all()
    if boundary:
        assert_boundaries_are_valid(clean, noisy)


def assert_boundaries_are_valid(clean: Sequences, noisy: Sequences) -> None:
    """Check that each target lies between two unmasked tokens of its sequence, with only masked tokens between."""
    hidden = np.zeros(len(clean.ids), dtype=bool)
    hidden[noisy.targets["mlm"][0]] = True
    places, target = noisy.targets["boundary"]
    left, right, place = places.T
    assert (target == clean.ids[left + 1 + place]).all()
    assert not hidden[left].any() and not hidden[right].any()
    assert (clean.owner[left] == clean.owner[right]).all()
    run_starts = np.cumsum(np.append(0, hidden))
    assert (run_starts[right] - run_starts[left + 1] == right - left - 1).all()
    # Special tokens are boundaries too; only targets deep inside a long span are dropped.
    assert len(set((left + 1 + place).tolist())) == len(target)
    assert len(target) >= hidden.sum() - np.maximum(0, right - left - 1 - PLACES).sum()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unit", ["word", "span", "ngram", "phrase"])
def test_whole_words_are_masked(kind: Kind, unit: str) -> None:
    clean, noisy = masked(kind, make(unit, mask_rate=0.3), 3, 0)
    at = set(noisy.targets["mlm"][0].tolist())
    word = np.cumsum(clean.columns["word"] | clean.columns["special"])
    assert at
    for number in {word[i] for i in at}:
        members = set(np.flatnonzero((word == number) & ~clean.columns["special"]))
        assert members <= at


@pytest.mark.parametrize("unit", ["word", "span", "ngram", "phrase"])
def test_all_units_respect_the_masking_rate(unit: str) -> None:
    hidden = free = 0
    for seed in range(20):
        clean, noisy = masked("wordpiece", make(unit), seed, 0)
        hidden += len(noisy.targets["mlm"][0])
        free += int((~clean.columns["special"]).sum())
    deviation = (0.15 * 0.85 / free) ** 0.5
    assert (
        0.15 - 0.005 - 4 * deviation < hidden / free < 0.15 + 4 * deviation
    )  # words that do not fit the budget are dropped


@pytest.mark.parametrize(
    ("unit", "shares"), [("span", geometric_weights(0.2, 10)), ("ngram", inverse_length_weights(3))]
)
def test_span_lengths_follow_their_distribution(unit: str, shares: Any) -> None:
    counts = np.zeros(len(shares))
    for seed in range(40):
        clean = masked("wordpiece", make(unit), seed, 0)[0]
        units = span_units(clean, EpochRandom(seed), shares)
        breaks = np.append(run_starts(clean, units), True)
        assert (
            units.unit[run_starts(clean, units)] == units.first[run_starts(clean, units)]
        ).all()  # no span crosses a break
        starts = np.append(np.flatnonzero(units.unit == units.first), len(units.first))
        lengths = np.diff(starts)
        assert (units.unit <= units.first).all() and lengths.max() <= len(shares)
        whole = ~breaks[starts[1:]]  # the others are truncated at the end of the text
        # Spans that would be truncated tend to be long: count only where the longest span would have fit.
        room = np.diff(np.append(np.flatnonzero(breaks[:-1]), len(units.first)))
        ends = np.cumsum(room)[np.cumsum(breaks[:-1])[starts[:-1]] - 1]
        whole &= starts[:-1] + len(shares) < ends
        counts += np.bincount(lengths[whole], minlength=len(shares) + 1)[1:]
    expected = shares / shares.sum()
    deviation = np.sqrt(expected * (1 - expected) / counts.sum())
    assert counts.sum() > 1000
    assert (np.abs(counts / counts.sum() - expected) < 5 * deviation).all()


def test_masking_probability_is_nearly_uniform_over_positions() -> None:
    """The last span is truncated to fit the budget, which slightly favors the first words."""
    bare = {"special": np.zeros(60, dtype=bool), "word": np.ones(60, dtype=bool)}
    many = Sequences(
        np.arange(60 * 2000), np.full(2000, 60), np.arange(2000), {k: np.tile(v, 2000) for k, v in bare.items()}
    )
    hidden = (
        np.bincount(
            choose_masked(many, 0.15, EpochRandom(0), span_units(many, EpochRandom(0), geometric_weights(0.2, 10))) % 60
        )
        / 2000
    )
    assert hidden.mean() == pytest.approx(0.15)
    deviation = (0.15 * 0.85 / 2000) ** 0.5
    assert (np.abs(hidden - 0.15) < 0.035 + 4 * deviation).all()
    assert (np.abs(hidden[6:-6] - 0.15) < 0.005 + 4 * deviation).all()


def test_all_tokens_of_a_span_get_the_same_replacement() -> None:
    tokenizer = data().tokenizer
    replacements = {"mask": 0, "same": 0, "other": 0}
    for seed in range(40):
        clean, noisy = masked("wordpiece", make("span"), seed, 0)
        at = noisy.targets["mlm"][0]
        for span in np.split(at, np.flatnonzero(np.diff(at) != 1) + 1):
            masks = noisy.ids[span] == tokenizer.role("mask")
            same = noisy.ids[span] == clean.ids[span]
            assert masks.all() or same.all() or not masks.any()
            replacements["mask" if masks.all() else "same" if same.all() else "other"] += 1
    total = sum(replacements.values())
    deviation = (0.8 * 0.2 / total) ** 0.5
    assert abs(replacements["mask"] / total - 0.8) < 5 * deviation
    assert abs(replacements["other"] / total - 0.1) < 5 * deviation


def test_spans_do_not_cross_sequences_without_special_tokens() -> None:
    word = np.ones(40, dtype=bool)
    bare = Sequences(
        np.arange(40), np.full(4, 10), np.arange(4), {"special": np.zeros(40, dtype=bool), "word": word.copy()}
    )
    for seed in range(50):
        draws = EpochRandom(seed)
        units = span_units(bare, draws, geometric_weights(0.2, 10))
        assert (units.unit // 10 == units.first // 10).all()
        at = choose_masked(bare, 0.5, draws, units)
        first = first_of_run(bare, at)
        assert (first // 10 == at // 10).all()
        good, places = boundary_targets(bare, at, first)
        assert ((places[:, 0] // 10 == at[good] // 10) & (places[:, 1] // 10 == at[good] // 10)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_phrases_are_masked_whole(kind: Kind) -> None:
    """All words of a phrase are masked, or none of them."""
    tokenizer = data(kind).tokenizer
    seen = hidden = 0
    for seed in range(12):
        clean, noisy = masked(kind, make("phrase", mask_rate=0.3), seed, 0)
        at = np.zeros(len(clean.ids), dtype=bool)
        at[noisy.targets["mlm"][0]] = True
        for text in (" of the", " can be"):  # no other phrase overlaps these and begins earlier
            phrase = tokenizer.encode(text)
            begins = [
                i
                for i in range(len(clean.ids) - len(phrase))
                if clean.ids[i : i + len(phrase)].tolist() == phrase
                and clean.columns["word"][i]
                and (clean.columns["word"] | clean.columns["special"])[i + len(phrase)]
            ]
            for i in begins:
                seen += 1
                hidden += at[i]
                assert at[i : i + len(phrase)].all() or not at[i : i + len(phrase)].any()
    assert seen > 10 and hidden


@pytest.mark.parametrize(
    "name", ["mlm(static_masks=3)", "mlm(static_masks=3,unit=span)+nsp", "mlm(static_masks=3)+sop"]
)
def test_copies_repeat_the_same_masks_in_another_order(name: str) -> None:
    joint = parse_objective(name).joints[0]

    def read(epoch: int) -> list[tuple[int, ...]]:
        """Return all corrupted sequences of an epoch."""
        plan = joint.arrange(data(), Packing(512, 48), EpochRandom(7, epoch))
        found = []
        for index in range(len(plan)):
            noisy = joint.corrupt(plan.pack(index), data().tokenizer, EpochRandom(7, epoch))
            found += [tuple(part.tolist()) for part in np.split(noisy.ids, noisy.offsets[1:-1])]
        return found

    first, second, fourth = read(0), read(1), read(3)
    assert sorted(first) == sorted(fourth) and first != fourth
    assert sorted(first) != sorted(second)


@pytest.mark.parametrize(
    "name",
    [
        "mlm",
        "mlm(unit=span,span_boundary=true)",
        "mlm(unit=ngram)+sop",
        "rtd+nsp",
        "0.5*mlm(unit=word)|0.5*rtd",
        "item",
    ],
)
def test_batches_depend_only_on_seed_epoch_and_index(name: str) -> None:
    mixture = parse_objective(name)
    for number, joint in enumerate(mixture.joints):
        made = []
        for wanted in ([(0, 0), (0, 1), (2, 1)], [(2, 1), (0, 1), (0, 0), (1, 0)]):  # in any order of requests
            stream = DataStream(joint, data(), Packing(512, 48, fixed=True), seed=number)
            made.append({place: stream.batch(*place, progress=0.5) for place in wanted})
        for place in [(0, 0), (0, 1), (2, 1)]:
            one, other = (batches[place] for batches in made)
            assert torch.equal(one.packed[0].ids, other.packed[0].ids) and one.counts == other.counts
            assert set(one.targets) == set(joint.max_targets(stream.packing))
            for term, targets in one.targets.items():
                assert torch.equal(targets.at, other.targets[term].at)
                assert torch.equal(targets.target, other.targets[term].target)


def test_invalid_options_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n \n", encoding="utf-8")
    (tmp_path / "single.txt").write_text("alone\n", encoding="utf-8")
    for text, message in {
        "mlm(unit=spam)": "mlm: unit='spam': input should be .*'span'",
        f"mlm(phrases={phrase_file()})": "phrases=FILE applies only to unit=phrase",
        f"mlm(unit=phrase,phrases={tmp_path}/none.txt)": "none.txt: no such phrase file; write one",
        f"mlm(unit=phrase,phrases={tmp_path}/empty.txt)": "empty.txt: the phrase file is empty; write one phrase per line",
        "mlm(mask_rate=15)": "mlm: mask_rate=15 is not a share; give a number greater than 0 and at most 1",
        "mlm(final_mask_rate=none)": "final_mask_rate=.*input should be",
        "rtd(mask_rate=0)": "rtd: mask_rate=0 is not a share",
        "item(mask_rate=-1)": "item: mask_rate=-1",
        "mlm(mask_replace_prob=0.9,random_replace_prob=0.2)": "mask_replace_prob=0.9 and random_replace_prob=0.2 add up to more than 1",
    }.items():
        with pytest.raises(PretuneError, match=message):
            parse_objective(text)
    with pytest.raises(PretuneError, match=r"single\.txt: none of the 1 lines is a phrase of two or more words"):
        masked("wordpiece", MLM(unit="phrase", phrases=str(tmp_path / "single.txt")), 0, 0)
    with pytest.raises(PretuneError, match="unit=phrase needs a list of phrases here"):
        masked("wordpiece", MLM(unit="phrase"), 0, 0)


@pytest.mark.parametrize("name", ["mlm", "mlm(unit=span)", "rtd", "item"])
def test_tokenizers_without_a_mask_token_are_rejected(name: str) -> None:
    whole = data().tokenizer
    roles = {role: token for role, token in whole.role_tokens.items() if role != "mask"}
    joint = parse_objective(name).joints[0]
    sequences = joint.arrange(data(), Packing(512, 48), EpochRandom(0)).pack(0)
    with pytest.raises(PretuneError, match="tokenizer has no 'mask' token"):
        joint.corrupt(sequences, Tokenizer(whole.backend, roles), EpochRandom(0))


def test_replacements_follow_their_proportions() -> None:
    counts = {"mask": 0, "same": 0, "other": 0}
    tokenizer = data().tokenizer
    for seed in range(40):
        noisy = masked("wordpiece", MLM(mask_rate=0.5), seed, 0)[1]
        at, target = noisy.targets["mlm"]
        counts["mask"] += int((noisy.ids[at] == tokenizer.role("mask")).sum())
        counts["same"] += int((noisy.ids[at] == target).sum())
        counts["other"] += int(((noisy.ids[at] != target) & (noisy.ids[at] != tokenizer.role("mask"))).sum())
    total = sum(counts.values())
    deviation = (0.8 * 0.2 / total) ** 0.5
    assert abs(counts["mask"] / total - 0.8) < 5 * deviation
    assert abs(counts["other"] / total - 0.1) < 5 * deviation + 0.1 / 900  # a random token may be the original one
    assert abs(counts["same"] / total - 0.1) < 5 * deviation + 0.1 / 900


def test_masking_rate_follows_its_schedule() -> None:
    objective = MLM(mask_rate=0.4, final_mask_rate=0.1)
    sizes = [len(masked("wordpiece", objective, 0, 0, progress)[1].targets["mlm"][0]) for progress in (0.0, 0.5, 1.0)]
    tokens = int((~masked("wordpiece", objective, 0, 0)[0].columns["special"]).sum())
    assert np.array(sizes) / tokens == pytest.approx([0.4, 0.25, 0.1], abs=0.02)


def test_masks_depend_only_on_epoch_and_seed() -> None:
    objective = MLM()
    first = masked("wordpiece", objective, 0, 0)[1].targets["mlm"][0]
    assert (first == masked("wordpiece", objective, 0, 0)[1].targets["mlm"][0]).all()
    plan = objective.arrange(data(), Packing(1024, 64), EpochRandom(0))
    other = objective.corrupt(plan.pack(0), data().tokenizer, EpochRandom(0, epoch=1)).targets["mlm"][0]
    assert set(first) != set(other)


def test_masks_do_not_depend_on_the_pack() -> None:
    objective, draws = MLM(), EpochRandom(5)
    packs = {}
    for tokens in (256, 1024):
        plan = objective.arrange(data(), Packing(tokens, 64), draws)
        for index in range(len(plan)):
            noisy = objective.corrupt(plan.pack(index), data().tokenizer, draws)
            for place, number in enumerate(noisy.index):
                start, end = noisy.offsets[place], noisy.offsets[place + 1]
                packs.setdefault(int(number), []).append(noisy.ids[start:end].tolist())
    assert all(len(versions) == 2 and versions[0] == versions[1] for versions in packs.values())


def test_targets_fit_max_targets() -> None:
    for rate in (0.15, 0.5):
        objective = MLM(mask_rate=rate)
        packing = Packing(512, 64, sequences=40, fixed=True)
        plan = objective.arrange(data(), packing, EpochRandom(1))
        for index in range(len(plan)):
            noisy = objective.corrupt(plan.pack(index), data().tokenizer, EpochRandom(1))
            assert len(noisy.targets["mlm"][0]) <= objective.max_targets(packing)["mlm"]


@pytest.mark.parametrize("name", ["mlm+nsp", "mlm|lm", "rtd"])
def test_chunked_logits_equal_unchunked_logits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from pretune.objectives import objective
    from tests.support.tiny_training_cases import make as make_training

    found = []
    wide = make_training(name, 1).root.backbone.embed.vocabulary
    for most in (1 << 30, 300 * 7):
        monkeypatch.setattr(objective, "MAX_LOGITS", most)
        training = make_training(name, 1)
        saved = 0

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal saved
            if tensor.shape[-1:] == (wide,):  # logits, or a tensor as large
                saved += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            losses = [training.root(stream.joint, stream.batch(0, 0, 0.0)) for stream in training.streams.streams]
        values = [loss.sums[term] for loss in losses for term in loss.sums]
        logs = [loss.logs[term] for loss in losses for term in loss.logs]
        torch.stack(values).sum().backward()
        grads = [p.grad for p in training.root.parameters() if p.grad is not None]
        found.append((saved, [*(v.detach() for v in values), *logs, *grads]))
    (whole, one), (chunked, other) = found
    assert chunked < 0.2 * whole
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
