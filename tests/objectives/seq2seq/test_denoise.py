from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.objectives import parse_objective
from pretune.objectives.seq2seq.denoise import Denoise
from pretune.objectives.seq2seq.noise_functions import infill
from pretune.objectives.seq2seq.source_target import FlatTexts, strip_template
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing, Sequences
from pretune.text.tokenizers.training import Kind
from tests.support.objective_data import KINDS, TEMPLATES, data, store

PLAIN = {"permute_sentences": False, "infill_rate": 0.0}
NOISES = {
    "permute_sentences": Denoise(infill_rate=0.0),
    "rotate": Denoise(**PLAIN | {"rotate": True}),
    "infill": Denoise(permute_sentences=False),
    "mask": Denoise(**PLAIN | {"mask_rate": 0.3}),
    "delete": Denoise(**PLAIN | {"delete_rate": 0.3}),
    "all": Denoise(rotate=True, mask_rate=0.2, delete_rate=0.2),
    "bart": Denoise(),
}


def rows(texts: FlatTexts) -> list[list[int]]:
    return [part.tolist() for part in np.split(texts.ids, np.cumsum(texts.lengths)[:-1])]


def corrupted(
    kind: Kind, objective: Denoise, seed: int, epoch: int = 0, template: str = "bart"
) -> tuple[Sequences, Sequences, list[list[int]], list[list[int]]]:
    """Return the pack before and after, the texts before, and the encoder's input without its template."""
    source = data(kind, template=template)
    draws = EpochRandom(seed, epoch)
    plan = objective.arrange(source, Packing(1024, 64), draws)
    clean = plan.pack(seed % len(plan))
    noisy = objective.corrupt(plan.pack(seed % len(plan)), source.tokenizer, draws)
    single = source.template.single
    before, after = single.index("A"), len(single) - single.index("A") - 1
    read = [part[before : len(part) - after] for part in rows(FlatTexts(noisy.ids, noisy.lengths))]
    return clean, noisy, rows(strip_template(clean)), read


def is_subsequence(part: list[int], whole: list[int]) -> bool:
    rest = iter(whole)
    return all(token in rest for token in part)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8)
@given(
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 3),
    name=st.sampled_from(sorted(NOISES)),
    template=st.sampled_from(sorted(TEMPLATES)),
)
def test_target_is_the_whole_text_and_the_source_is_not_longer(
    kind: Kind, seed: int, epoch: int, name: str, template: str
) -> None:
    clean, noisy, texts, read = corrupted(kind, NOISES[name], seed, epoch, template)
    assert noisy.second is not None
    tokenizer = data(kind).tokenizer
    target = TEMPLATES[template].target or ("start", "A", "end")
    written = rows(FlatTexts(noisy.second.targets["denoise"][1], noisy.second.lengths))
    inputs = rows(FlatTexts(noisy.second.ids, noisy.second.lengths))
    for text, one, wrote, late in zip(texts, read, written, inputs, strict=True):
        whole = [i for item in target for i in (text if item == "A" else [tokenizer.role(item)])]
        assert wrote == whole[1:] and late == whole[:-1]
        assert len(one) <= len(text)
        # Only masks are new.
        mask = tokenizer.role("mask")
        assert not Counter(i for i in one if i != mask) - Counter(text)
    around = len(TEMPLATES[template].single) - 1
    assert (noisy.lengths <= clean.lengths).all() and (noisy.lengths >= around + 1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_noise_has_its_documented_effect(kind: Kind) -> None:
    mask = data(kind).tokenizer.role("mask")
    for seed in range(5):
        _, _, texts, read = corrupted(kind, NOISES["rotate"], seed)
        for text, one in zip(texts, read, strict=True):
            assert one in [text[i:] + text[:i] for i in range(len(text))]
        _, _, texts, read = corrupted(kind, NOISES["mask"], seed)
        for text, one in zip(texts, read, strict=True):
            assert len(one) == len(text)
            assert all(b in (a, mask) for a, b in zip(text, one, strict=True))
            assert one.count(mask) == max(1, round(0.3 * len(text)))
        _, _, texts, read = corrupted(kind, NOISES["delete"], seed)
        for text, one in zip(texts, read, strict=True):
            assert is_subsequence(one, text)
            assert len(one) == len(text) - min(max(1, round(0.3 * len(text))), len(text) - 1)
        _, _, texts, read = corrupted(kind, NOISES["infill"], seed)
        for text, one in zip(texts, read, strict=True):
            kept = [i for i in one if i != mask]
            assert is_subsequence(kept, text)
            assert len(kept) >= len(text) - max(1, round(0.3 * len(text)))


@pytest.mark.parametrize("kind", KINDS)
def test_permuted_sentences_stay_whole(kind: Kind) -> None:
    objective, source, moved = NOISES["permute_sentences"], data(kind), 0
    bounds = set(store(kind).sentence_offsets.tolist())
    plan = objective.arrange(source, Packing(1024, 64), EpochRandom(0))
    for index in range(len(plan)):
        clean, other = plan.pack(index), plan.pack(index)
        text = ~clean.columns["special"]
        other.ids[text] = clean.ids[text] = np.arange(int(text.sum())) + 5000  # each token gets a unique id
        noisy = objective.corrupt(other, source.tokenizer, EpochRandom(0))
        starts = plan.arrangement.starts[clean.index, 0]  # type: ignore[attr-defined]
        for row, start in enumerate(starts):
            at = slice(clean.offsets[row] + 1, clean.offsets[row + 1] - 1)  # without start and separator
            begins, was, read = clean.columns["sentence"][at], clean.ids[at], noisy.ids[at]
            assert begins.tolist() == [place == 0 or start + place in bounds for place in range(len(was))]
            sentences = np.split(was, np.flatnonzero(begins)[1:])
            order = [number for number in read if number in was[begins]]  # first tokens, in reading order
            wanted = [token for first in order for s in sentences if s[0] == first for token in s]
            assert read.tolist() == wanted and len(order) == len(sentences)
            moved += read.tolist() != was.tolist()
    assert moved > 5


def test_infilled_span_lengths_are_poisson_and_may_be_zero() -> None:
    rows_, size = 400, 200
    texts = FlatTexts(np.tile(np.arange(size) + 10, rows_), np.full(rows_, size))
    filled = infill(texts, 0.3, 3.0, 1, EpochRandom(0), np.arange(rows_))
    lengths: list[int] = []
    for part in np.split(filled.ids, np.cumsum(filled.lengths)[:-1]):
        kept = part != 1
        assert kept.sum() == size - 60
        # The number of tokens that a mask between two tokens replaces, if no second mask is next to it.
        for at in np.flatnonzero(~kept):
            if 0 < at < len(part) - 1 and kept[at - 1] and kept[at + 1]:
                lengths.append(int(part[at + 1] - part[at - 1] - 1))
    shares = Counter(lengths)
    for number, wanted in enumerate([0.0498, 0.1494, 0.2240, 0.2240, 0.1680]):
        assert abs(shares[number] / len(lengths) - wanted) < 0.02
    assert abs(np.mean(lengths) - 3) < 0.1


def test_infilled_positions_are_uniform() -> None:
    rows_, size = 4000, 60
    texts = FlatTexts(np.tile(np.arange(size) + 10, rows_), np.full(rows_, size))
    filled = infill(texts, 0.3, 3.0, 1, EpochRandom(0), np.arange(rows_))
    stays = np.bincount(filled.ids[filled.ids != 1] - 10, minlength=size) / rows_
    # Fewer spans can cover the ends than the middle.
    assert np.abs(stays[5:-5] - 0.69).max() < 0.03 and stays[[0, -1]].max() < 0.9
    assert np.abs(stays - stays[::-1]).max() < 0.04


def test_options_are_checked_and_a_missing_mask_token_is_reported() -> None:
    assert parse_objective("denoise(infill_rate=0.2,permute_sentences=false)").objectives[0] == Denoise(
        permute_sentences=False, infill_rate=0.2
    )
    for text, message in {
        "denoise(mask_rate=1)": "the share must be at least 0 and less than 1",
        "denoise(poisson_lambda=0)": "the mean span length must be positive",
        "denoise+nsp": "alternate the objectives with",
    }.items():
        with pytest.raises(PretuneError, match=message):
            parse_objective(text)
    source = data()
    plan = Denoise().arrange(source, Packing(512, 64), EpochRandom(0))
    roles = {role: token for role, token in source.tokenizer.role_tokens.items() if role != "mask"}
    without = type(source.tokenizer)(source.tokenizer.backend, roles)
    with pytest.raises(PretuneError, match="no 'mask' token"):
        Denoise().corrupt(plan.pack(0), without, EpochRandom(0))
    deleting = Denoise(**PLAIN | {"delete_rate": 0.3})
    assert deleting.corrupt(plan.pack(0), without, EpochRandom(0)).second is not None


def test_language_token_is_placed_by_the_template() -> None:
    from dataclasses import replace

    from pretune.text.corpus.documents import Document
    from pretune.text.tokenizers.template import Template
    from pretune.text.tokenizers.tokenizer import Tokenizer
    from pretune.text.tokenizers.training import train_on_documents

    source = data()
    assert isinstance(source.tokenizer, Tokenizer)
    speaking = train_on_documents(
        [Document("a b c d e f " * 9, source.store.folder, 1)], "bpe", 60, languages=["en", "fr"]
    )  # type: ignore[union-attr]
    template = Template(single=("A", "end", "language"), pair=(), target=("language", "A", "end"))
    plan = Denoise(language="fr").arrange(
        replace(source, template=template, tokenizer=speaking), Packing(256, 32), EpochRandom(0)
    )
    noisy = Denoise(language="fr").corrupt(plan.pack(0), speaking, EpochRandom(0))
    french = speaking.role("language fr")
    assert noisy.second is not None
    assert (noisy.ids[noisy.offsets[1:] - 1] == french).all()
    assert (noisy.second.ids[noisy.second.offsets[:-1]] == french).all()


def test_each_text_has_the_token_of_its_language(tmp_path: Path) -> None:
    from pretune.families.encoder_decoders.mbart import MBART
    from pretune.objectives import Data
    from pretune.text.corpus.documents import Document
    from pretune.text.store.builder import StoreSettings, build_store
    from pretune.text.store.store import join_stores
    from pretune.text.tokenizers.training import train_on_documents

    texts = {"en": "a b c. d e f.", "fr": "u v w. x y z."}
    tokenizer = train_on_documents(
        [Document(t * 9, tmp_path, 1) for t in texts.values()], "bpe", 90, languages=["en_XX", "fr"]
    )
    stores = []
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text("\n".join([text] * 5), encoding="utf-8")
        settings = StoreSettings(language=name, split_by="line")
        stores.append(build_store([tmp_path / f"{name}.txt"], tokenizer, tmp_path / name, settings, 1))
    english, french = tokenizer.role("language en_XX"), tokenizer.role("language fr")
    both = join_stores(stores)
    source = Data(tokenizer, MBART.template, store=both, documents=np.arange(10), languages={"en": 0, "fr": 1})
    noisy = Denoise().corrupt(
        Denoise().arrange(source, Packing(900, 32), EpochRandom(0)).pack(0), tokenizer, EpochRandom(0)
    )
    assert noisy.second is not None
    spoken = noisy.ids[noisy.offsets[1:] - 1]
    assert sorted(spoken.tolist()) == sorted([english] * 5 + [french] * 5)
    assert (noisy.second.ids[noisy.second.offsets[:-1]] == spoken).all()
    for first, last, language in zip(noisy.offsets[:-1], noisy.offsets[1:], spoken, strict=True):
        own = "abcdef." if language == english else "uvwxyz."
        assert set(tokenizer.decode(noisy.ids[first : last - 1]).replace(" ", "")) <= set(own)
