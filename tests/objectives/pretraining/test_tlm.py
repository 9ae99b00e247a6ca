from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.models.loading import load_model
from pretune.models.model import Model, Network
from pretune.objectives import Data, parse_objective
from pretune.objectives.pretraining.arrangements import resample_groups
from pretune.objectives.pretraining.mlm import MLM
from pretune.objectives.pretraining.nsp import NSP
from pretune.objectives.pretraining.rtd import RTD
from pretune.objectives.pretraining.sop import SOP
from pretune.objectives.pretraining.tlm import TLM
from pretune.runtime.randomness import EpochRandom
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.sequences import Packing, Sequences, collate
from pretune.text.store.builder import StoreSettings, build_store
from pretune.text.store.store import Store, join_stores
from pretune.text.tokenizers.training import Kind
from pretune.training.data_streams import DataStream
from tests.support.objective_data import KINDS, TEMPLATE, TEMPLATES, data, parallel, stack, store
from tests.support.texts import RUSSIAN

LANGUAGES = {"de": 2, "en": 0, "ru": 1}


def source(kind: Kind = "wordpiece", template: str = "bert", **changes: Any) -> Data:
    made = replace(data(kind, template=template), rows=parallel(), languages=LANGUAGES, language_alpha=1.0)
    return replace(made, **changes)


def masked(made: Data, objective: TLM, draws: EpochRandom, tokens: int = 512) -> tuple[Sequences, Sequences]:
    plan = objective.arrange(made, Packing(tokens, 96), draws)
    index = draws.seed % len(plan)
    return plan.pack(index), objective.corrupt(plan.pack(index), made.tokenizer, draws)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 3),
    rate=st.sampled_from([0.05, 0.15, 0.4, 1.0]),
    template=st.sampled_from(["bert", "t5"]),
)
def test_both_sides_are_masked_and_targets_are_the_original_tokens(
    kind: Kind, seed: int, epoch: int, rate: float, template: str
) -> None:
    made, objective = source(kind, template), TLM(mask_rate=rate)
    clean, noisy = masked(made, objective, EpochRandom(seed, epoch))
    tokenizer, special = made.tokenizer, clean.columns["special"]
    at, target = noisy.targets["tlm"]
    assert (target == clean.ids[at]).all() and (np.diff(at) > 0).all() and not special[at].any()
    changed = np.flatnonzero(noisy.ids != clean.ids)
    assert set(changed) <= set(at)
    assert not (tokenizer.specials[noisy.ids[changed]] & (noisy.ids[changed] != tokenizer.role("mask"))).any()
    free = np.bincount(clean.owner[~special], minlength=len(clean.lengths))
    assert (np.bincount(clean.owner[at], minlength=len(clean.lengths)) == np.maximum(1, np.round(rate * free))).all()
    assert len(at) <= objective.max_targets(Packing(512, 96, sequences=len(clean.lengths)))["tlm"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("template", ["bert", "t5", "bart"])
def test_pairs_are_two_whole_texts_with_their_own_positions_and_languages(kind: Kind, template: str) -> None:
    made, draws = source(kind, template), EpochRandom(3)
    rows, frame = made.rows, TEMPLATES[template]
    assert isinstance(rows, LabeledRows) and rows.pairs is not None and rows.labels is not None
    encode, role = made.tokenizer.encode, made.tokenizer.role
    wanted = []
    for text, pair, label in zip(rows.texts, rows.pairs, rows.labels, strict=True):
        sides = [
            [i for item in frame.single for i in (encode(x) if item == "A" else [role(item)])] for x in (text, pair)
        ]
        if encode(text) and encode(pair) and sum(map(len, sides)) <= 96:
            languages = [LANGUAGES[name] for name, side in zip(label.split(), sides, strict=True) for _ in side]
            wanted.append((sides[0] + sides[1], languages, [*range(len(sides[0])), *range(len(sides[1]))]))
    plan = TLM().arrange(made, Packing(512, 96), draws)
    found = []
    for index in range(len(plan)):
        clean, noisy = plan.pack(index), TLM().corrupt(plan.pack(index), made.tokenizer, draws)
        assert noisy.positions is not None
        for start, end in zip(clean.offsets[:-1], clean.offsets[1:], strict=True):
            parts = (clean.ids, clean.columns["language"], noisy.positions)
            found.append(tuple(part[start:end].tolist() for part in parts))
        segment = clean.columns["segment"]
        assert (segment == (clean.columns["side"] if template != "t5" or frame.segments else 0)).all()
        packed = collate(noisy).packed[0]
        assert (packed.columns["language"].numpy() == noisy.columns["language"]).all() and "side" not in packed.columns
    assert sorted(found) == sorted(wanted)


def test_each_text_ends_with_the_last_token_of_the_template() -> None:
    made = source(template="bert")
    made.template = FAMILIES["xlnet"].template
    clean, noisy = masked(made, TLM(), EpochRandom(0))
    start, last = made.tokenizer.role("start"), np.append(noisy.positions[1:] == 0, True)  # type: ignore[index]
    assert (clean.ids[last] == start).all() and last.sum() == 2 * len(clean.lengths)
    assert (clean.columns["segment"] == clean.columns["side"]).all()


def test_batches_depend_only_on_seed_epoch_and_index() -> None:
    def contents(draws: EpochRandom, index: int, tokens: int = 256) -> dict[int, list[Any]]:
        made = source(language_alpha=0.5)
        plan = TLM().arrange(made, Packing(tokens, 96), draws)
        noisy = TLM().corrupt(plan.pack(index), made.tokenizer, draws)
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


def test_masking_and_replacement_rates_are_respected() -> None:
    hidden = free = kept = swapped = 0
    for seed in range(30):
        made = source()
        clean, noisy = masked(made, TLM(), EpochRandom(seed), 4096)
        at, target = noisy.targets["tlm"]
        hidden, free = hidden + len(at), free + int((~clean.columns["special"]).sum())
        kept += int((noisy.ids[at] == target).sum())
        swapped += int(((noisy.ids[at] != target) & (noisy.ids[at] != made.tokenizer.role("mask"))).sum())
    assert abs(hidden / free - 0.15) < 0.01
    assert abs(kept / hidden - 0.1) < 0.02 and abs(swapped / hidden - 0.1) < 0.02


def test_masked_tokens_do_not_appear_in_the_input() -> None:
    """Another token in a masked position changes nothing but the target."""
    made, draws = source(), EpochRandom(1)
    objective = TLM(mask_replace_prob=1.0, random_replace_prob=0.0)
    plan = objective.arrange(made, Packing(256, 96), draws)
    clean = objective.corrupt(plan.pack(0), made.tokenizer, draws)
    at, _ = clean.targets["tlm"]
    plain = np.flatnonzero(~made.tokenizer.specials)
    other = plan.pack(0)
    other.ids[at] = plain[(np.searchsorted(plain, other.ids[at]) + 5) % len(plain)]
    noisy = objective.corrupt(other, made.tokenizer, draws)
    assert (noisy.ids == clean.ids).all() and (noisy.targets["tlm"][1] != clean.targets["tlm"][1]).all()


def test_predictions_depend_on_both_sides_and_on_no_other_pair() -> None:
    made, draws = source(), EpochRandom(2)
    network = stack(made.tokenizer.size).eval()
    noisy = TLM().corrupt(TLM().arrange(made, Packing(160, 96), draws).pack(0), made.tokenizer, draws)
    batch, kept = collate(noisy), []

    def hook(*parts: Any) -> torch.Tensor:
        kept.append(parts[-1].detach().requires_grad_())
        return kept[-1]

    network.embed.register_forward_hook(hook)
    at, _ = noisy.targets["tlm"]
    states = network(*batch.packed).last
    for place in at[:: max(1, len(at) // 8)]:
        (gradient,) = torch.autograd.grad(states[place].square().sum(), kept, retain_graph=True)
        seen = (gradient.abs().sum(1) > 0).numpy()
        assert (seen == (noisy.owner == noisy.owner[place])).all()


# -- languages ------------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=200), st.sampled_from([0.0, 0.3, 0.7, 1.0]), st.integers(0, 9))
def test_language_proportions_are_smoothed(groups: list[int], power: float, seed: int) -> None:
    members = np.array(groups)
    chosen = resample_groups(members, power, EpochRandom(seed))
    kinds, counts = np.unique(members, return_counts=True)
    found = np.array([(members[chosen] == kind).sum() for kind in kinds])
    wanted = counts**power / (counts**power).sum() * len(members)
    assert (np.abs(found - wanted) <= 1).all()
    times = np.bincount(chosen, minlength=len(members))
    for kind in kinds:  # repeated evenly
        assert np.ptp(times[members == kind]) <= 1
    if power == 1:
        assert (chosen == np.arange(len(members))).all()


def test_each_epoch_reads_another_part_of_a_large_language() -> None:
    members = np.array([0] * 90 + [1] * 10)
    seen = [set(resample_groups(members, 0.5, EpochRandom(0, epoch)).tolist()) for epoch in range(6)]
    assert all(len(part) < 100 for part in seen) and len(set.union(*seen)) == 100 and seen[0] != seen[1]


@cache
def bilingual() -> Store:
    folder = Path(tempfile.mkdtemp())
    (folder / "ru.txt").write_text("\n".join(f"{text} {text}" for text in RUSSIAN * 2), encoding="utf-8")
    russian = build_store(
        [folder / "ru.txt"], store().tokenizer, folder / "ru", StoreSettings("ru", split_by="line"), 1
    )
    return join_stores([store(), russian])


@pytest.mark.parametrize("name", ["mlm", "lm", "nsp", "sop", "rtd"])
def test_documents_have_the_column_of_their_language(name: str) -> None:
    both, joint = bilingual(), parse_objective(name).joints[0]
    assert both.languages == ["en", "ru"]
    made = Data(both.tokenizer, TEMPLATE, store=both, documents=np.arange(both.documents), languages={"en": 4, "ru": 7})
    arranged: Any = joint.arrange(made, Packing(1024, 160), EpochRandom(1))
    bounds = both.sentence_offsets[both.document_offsets]
    russian = arranged.arrangement.starts >= bounds[store().documents]
    assert (arranged.arrangement.columns["language"] == np.where(russian, 7, 4)).all()
    assert russian.any() and not russian.all()
    if russian.shape[1] == 2:  # no pair can be classified by its languages
        assert (russian[:, 0] == russian[:, 1]).all()
    pack = joint.corrupt(arranged.pack(0), both.tokenizer, EpochRandom(1))
    assert (pack.columns["language"] == arranged.arrangement.columns["language"][pack.index, 0][pack.owner]).all()


@pytest.mark.parametrize("objective", [MLM(), NSP(), SOP(), RTD()])
def test_small_languages_are_oversampled(objective: Any) -> None:
    both = bilingual()
    made = Data(both.tokenizer, TEMPLATE, store=both, documents=np.arange(both.documents), languages={"en": 0, "ru": 1})

    def share(exponent: float) -> float:
        arranged: Any = objective.arrange(replace(made, language_alpha=exponent), Packing(1024, 160), EpochRandom(1))
        return float(arranged.arrangement.columns["language"][:, 0].mean())

    plain = share(1.0)
    wanted = plain**0.3 / (plain**0.3 + (1 - plain) ** 0.3)
    assert plain < 0.2 and share(0.3) == pytest.approx(wanted, abs=0.02)


@pytest.mark.parametrize("name", ["lm", "plm"])
def test_stateful_objectives_reject_several_languages(name: str) -> None:
    both = bilingual()
    made = Data(both.tokenizer, TEMPLATE, store=both, documents=np.arange(both.documents), languages={"en": 0, "ru": 1})
    with pytest.raises(PretuneError, match="a stateful objective reads text in one language"):
        parse_objective(f"{name}(stateful=true)").joints[0].arrange(made, Packing(64, 16), EpochRandom(0))


# -- models ---------------------------------------------------------------------------------------------------------


def xlm(languages: int = 3) -> Model:
    family = FAMILIES["xlm"]
    config = family.read_config(
        {"vocab_size": store().tokenizer.size, "emb_dim": 32, "n_layers": 1, "n_heads": 2, "n_langs": languages}
        | {"embed_init_std": 0.1, "dropout": 0.0, "lang2id": {"en": 0, "ru": 1, "de": 2}}
    )
    torch.manual_seed(0)
    return Model(family, config, Network(family.build(config)), store().tokenizer)


def test_language_and_position_embeddings_are_those_of_each_side() -> None:
    model, made = xlm(), source()
    model.add_heads(parse_objective("tlm").objectives)
    made = replace(made, template=model.family.template)
    stream = DataStream(parse_objective("tlm").joints[0], made, Packing(512, 96), seed=0)
    batch = stream.batch(0, 0, 0.0)
    model.root(stream.joint, batch).over(batch.counts).backward()
    columns = batch.packed[0].columns["language"]
    gradient = model.backbone.embed.columns["language"].weight.grad
    assert ((gradient.abs().sum(1) > 0) == torch.isin(torch.arange(3), columns)).all()
    longest = int(batch.packed[0].positions.max())
    assert longest < max(np.diff(batch.packed[0].host_offsets)) - 1
    assert not model.backbone.embed.positions.weight.grad[longest + 1 :].any()


def test_mlm_and_tlm_share_a_head_that_transformers_can_load(tmp_path: Path) -> None:
    for name in ("tlm|mlm", "mlm|tlm", "tlm"):
        model = xlm()
        mixture = parse_objective(name)
        model.add_heads(mixture.objectives)
        assert model.root.heads["tlm"] is model.root.heads["mlm"]
        torch.nn.init.normal_(model.root.heads["mlm"].bias)
        model.save(tmp_path)
        assert not (tmp_path / "head.safetensors").exists()
        again = load_model(tmp_path, mixture)
        assert torch.equal(again.root.heads["tlm"].bias, model.root.heads["mlm"].bias)
        assert again.config.lang2id == {"en": 0, "ru": 1, "de": 2}
    # It is exported as a masked language model, independently of the objective.
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["XLMWithLMHeadModel"]
    assert "pred_layer.proj.bias" in load_file(tmp_path / "model.safetensors")
    joined = parse_objective("tlm|mlm(span_boundary=true)")
    model = xlm()
    model.add_heads(joined.objectives)
    assert hasattr(model.root.heads["tlm"], "boundary")


def test_invalid_use_is_rejected() -> None:
    for text, message in {
        "tlm(mask_rate=0)": "mask_rate=0 is not a share",
        "tlm(mask_replace_prob=0.9,random_replace_prob=0.2)": "add up to more than 1",
        "tlm(language_pair=en)": "does not name two languages; write, for example, language_pair=en-fr",
        "tlm+mlm": "tlm and mlm each corrupt the text",
        "tlm+nsp": "tlm and nsp each need their own arrangement of the text",
    }.items():
        with pytest.raises(PretuneError, match=message):
            parse_objective(text)
    with pytest.raises(PretuneError, match="'tlm' learns from pairs of texts"):
        TLM().arrange(replace(source(), rows=None), Packing(256, 64), EpochRandom(0))
    with pytest.raises(PretuneError, match="no pair of non-empty texts fits into 5 tokens"):
        TLM().arrange(source(), Packing(256, 5), EpochRandom(0))
    gpt, modern = (FAMILIES[name] for name in ("gpt2", "modernbert"))
    small = {"vocab_size": 64, "n_embd": 16, "n_layer": 1, "n_head": 2}
    with pytest.raises(
        PretuneError, match="'tlm' needs a model with full attention, and the attention pattern of this one is causal"
    ):
        TLM().head(gpt.build(gpt.read_config(small)))
    sizes = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
    with pytest.raises(PretuneError, match="attention pattern of this one is window"):
        TLM().head(modern.build(modern.read_config(sizes | {"intermediate_size": 16})))
