from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.models.loading import load_model
from pretune.models.model import Model, Network
from pretune.objectives import Data, parse_objective
from pretune.objectives.pretraining import rtd
from pretune.objectives.pretraining.tlm import TLM
from pretune.objectives.pretraining.trtd import TRTD
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing, collate
from pretune.text.store.builder import StoreSettings, build_store
from pretune.text.store.store import join_stores
from pretune.text.tokenizers.training import Kind
from pretune.training.data_streams import DataStream
from tests.support.objective_data import KINDS, data, parallel, store
from tests.support.texts import RUSSIAN

LANGUAGES = {"de": 2, "en": 0, "ru": 1}


def source(kind: Kind = "wordpiece", template: str = "bert", **changes: Any) -> Data:
    made = replace(data(kind, template=template), rows=parallel(), languages=LANGUAGES, language_alpha=1.0)
    return replace(made, **changes)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10)
@given(
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 2),
    rate=st.sampled_from([0.15, 0.5, 1.0]),
    template=st.sampled_from(["bert", "t5"]),
)
def test_sequences_equal_those_of_tlm_and_targets_those_of_rtd(
    kind: Kind, seed: int, epoch: int, rate: float, template: str
) -> None:
    made, objective, draws, packing = (
        source(kind, template),
        TRTD(mask_rate=rate),
        EpochRandom(seed, epoch),
        Packing(512, 96),
    )
    plan = objective.arrange(made, packing, draws)
    clean = plan.pack(seed % len(plan))
    noisy = objective.corrupt(plan.pack(seed % len(plan)), made.tokenizer, draws)
    at, target = noisy.targets["trtd_generator"]
    special = clean.columns["special"]
    assert (target == clean.ids[at]).all() and not special[at].any()
    assert (noisy.ids[at] == made.tokenizer.role("mask")).all()
    assert set(np.flatnonzero(noisy.ids != clean.ids)) <= set(at)
    free = np.bincount(clean.owner[~special], minlength=len(clean.lengths))
    assert (np.bincount(clean.owner[at], minlength=len(free)) == np.maximum(1, np.round(rate * free))).all()
    every, originals = noisy.targets["trtd"]
    assert (every == np.arange(len(clean.ids))).all() and (originals == clean.ids).all()
    room = objective.max_targets(replace(packing, sequences=len(clean.lengths)))
    assert len(at) <= room["trtd_generator"] and len(every) <= room["trtd"] and set(room) == set(noisy.targets)
    other = TLM().arrange(made, packing, draws).pack(seed % len(plan))
    positions = TLM().corrupt(other, made.tokenizer, draws).positions
    assert positions is not None and noisy.positions is not None and (noisy.positions == positions).all()
    assert (noisy.columns["language"] == other.columns["language"]).all()


def test_batches_depend_only_on_seed_epoch_and_index() -> None:
    def contents(draws: EpochRandom, index: int, tokens: int = 256) -> dict[int, list[Any]]:
        made = source(language_alpha=0.5)
        noisy = TRTD().corrupt(TRTD().arrange(made, Packing(tokens, 96), draws).pack(index), made.tokenizer, draws)
        parts = np.split(noisy.ids, noisy.offsets[1:-1])
        return {int(i): part.tolist() for i, part in zip(noisy.index, parts, strict=True)}

    first = contents(EpochRandom(3, 1), 1)
    assert first == contents(EpochRandom(3, 1), 1)
    assert all(
        first != contents(draws, index)
        for draws, index in ((EpochRandom(4, 1), 1), (EpochRandom(3, 2), 1), (EpochRandom(3, 1), 2))
    )
    everything = contents(EpochRandom(3, 1), 0, 1 << 20)  # the masks of a sequence do not depend on its pack
    assert all(everything[index] == ids for index, ids in first.items())


def model(family: str = "xlm") -> Model:
    """Return a small model; an XLM has embeddings of three languages."""
    size = store().tokenizer.size
    shapes = {
        "xlm": {"emb_dim": 32, "n_layers": 1, "n_heads": 2, "n_langs": 3, "embed_init_std": 0.1, "dropout": 0.0}
        | {"lang2id": {"en": 0, "ru": 1, "de": 2}},
        "electra": {"embedding_size": 16, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        | {"intermediate_size": 48, "hidden_dropout_prob": 0.0},
    }
    config = FAMILIES[family].read_config({"vocab_size": size, **shapes[family]})
    torch.manual_seed(0)
    return Model(FAMILIES[family], config, Network(FAMILIES[family].build(config)), store().tokenizer)


def test_loss_equals_that_of_rtd_under_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rtd, "sample_tokens", lambda logits, temperature: logits.argmin(-1))
    made, network = source(), model()
    mixture = parse_objective("rtd(discriminator_weight=7)|trtd(discriminator_weight=7)")
    network.add_heads(mixture.objectives)
    stream = DataStream(mixture.joints[1], replace(made, template=network.family.template), Packing(512, 96), seed=0)
    batch = stream.batch(0, 0, 0.0)
    found = network.root.eval()(stream.joint, batch)
    names = {"trtd": "rtd", "trtd_generator": "generator"}
    batch.targets = {names[term]: targets for term, targets in batch.targets.items()}
    expected = network.root(mixture.joints[0], batch)
    rename = lambda name: name.replace("trtd_generator", "generator").replace("trtd", "rtd")  # noqa: E731
    assert {rename(name): weight for name, weight in found.weights.items()} == expected.weights
    for name, value in {**found.sums, **found.logs}.items():
        torch.testing.assert_close(value, {**expected.sums, **expected.logs}[rename(name)])


@pytest.mark.parametrize("name", ["rtd", "trtd"])
def test_generator_and_discriminator_use_language_embeddings(name: str, tmp_path: Path) -> None:
    """Either loss alone gives gradients to the embeddings of the languages that were read, and to no others."""
    (tmp_path / "ru.txt").write_text("\n".join(RUSSIAN * 2), encoding="utf-8")
    russian = build_store(
        [tmp_path / "ru.txt"], store().tokenizer, tmp_path / "ru", StoreSettings("ru", split_by="line"), 1
    )
    both, network, mixture = join_stores([store(), russian]), model(), parse_objective(name)
    network.add_heads(mixture.objectives)
    documents = np.arange(both.documents)
    made = source(store=both, documents=documents, language_alpha=0.3)
    made.template = network.family.template
    stream = DataStream(mixture.joints[0], made, Packing(1024, 96), seed=0)
    batch = stream.batch(0, 0, 0.0)
    languages_read = torch.isin(torch.arange(3), batch.packed[0].columns["language"])
    assert languages_read.tolist() == [True, True, name == "trtd"]
    vectors = network.backbone.embed.columns["language"].weight
    for term in batch.targets:
        network.root.zero_grad()
        network.root(stream.joint, batch).sums[term].backward()
        assert ((vectors.grad.abs().sum(1) > 0) == languages_read).all()


@pytest.mark.not_fast
def test_rtd_and_trtd_share_a_head_and_both_networks_are_exported(tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM, AutoModelForPreTraining

    for name in (
        "trtd",
        "trtd|rtd(generator_hidden_size=16,generator_layers=1)",
        "rtd(generator_hidden_size=16,generator_layers=1)|trtd",
    ):
        network, mixture = model("electra"), parse_objective(name)
        network.add_heads(mixture.objectives)
        head: Any = network.root.heads["trtd"]
        assert head is network.root.heads["rtd"]
        assert head.generator.backbone.width == (16 if "|" in name else 8)  # the sizes are those given to rtd
        network.save(tmp_path)
        again = load_model(tmp_path, mixture, seed=9)
        assert again.root.heads["trtd"] is again.root.heads["rtd"]
        for tensor, value in network.root.tensors().items():
            assert torch.equal(value, again.root.tensors()[tensor])
        for kind, folder in ((AutoModelForPreTraining, tmp_path), (AutoModelForMaskedLM, tmp_path / "generator")):
            _, report = kind.from_pretrained(folder, output_loading_info=True)
            assert not report["missing_keys"] and not report["unexpected_keys"]


def test_padding_and_unused_targets_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rtd, "sample_tokens", lambda logits, temperature: logits.argmin(-1))
    made, network, joint = source(), model(), parse_objective("trtd").joints[0]
    network.add_heads(joint.objectives)
    network.root.eval()
    plan = joint.arrange(made, Packing(256, 96), EpochRandom(0))
    packing = Packing(400, 96, sequences=20, fixed=True)
    one, other = (
        collate(joint.corrupt(plan.pack(0), made.tokenizer, EpochRandom(0)), capacity)
        for capacity in (None, joint.capacity(packing))
    )
    assert one.counts == other.counts
    found, expected = network.root(joint, other), network.root(joint, one)
    for name, value in {**expected.sums, **expected.logs}.items():
        torch.testing.assert_close({**found.sums, **found.logs}[name], value)


def test_invalid_use_is_rejected() -> None:
    for text, message in {
        "trtd(mask_rate=0)": "trtd: mask_rate=0 is not a share",
        "trtd(generator_size=2)": "trtd: generator_size=2 is not a share",
        "trtd(language_pair=en)": r"trtd\(language_pair=en\): this does not name two languages; write, for example, language_pair=en-fr",
        "trtd+rtd": "trtd and rtd each corrupt the text",
        "trtd+nsp": "trtd and nsp each need their own arrangement of the text",
    }.items():
        with pytest.raises(PretuneError, match=message):
            parse_objective(text)
    with pytest.raises(PretuneError, match="'trtd' learns from pairs of texts; give it a table of pairs"):
        TRTD().arrange(replace(source(), rows=None), Packing(256, 64), EpochRandom(0))
    with pytest.raises(PretuneError, match="no pair of non-empty texts fits into 5 tokens"):
        TRTD().arrange(source(), Packing(256, 5), EpochRandom(0))
    gpt = FAMILIES["gpt2"]
    small = {"vocab_size": 64, "n_embd": 16, "n_layer": 1, "n_head": 2}
    with pytest.raises(PretuneError, match="'trtd' needs a model with full attention"):
        TRTD().head(gpt.build(gpt.read_config(small)))
    with pytest.raises(PretuneError, match="the generator's width 64 is not divisible by 3 heads"):
        TRTD(generator_hidden_size=64, generator_heads=3).head(model().backbone)
