from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pretune import PretuneError
from pretune.families.encoders.bert import BERT, BertConfig, build
from pretune.models.loading import load_model
from pretune.models.model import Model, Network
from pretune.objectives import Data, JointObjective, parse_objective
from pretune.objectives.objective import divide_by_totals
from pretune.objectives.pretraining import rtd
from pretune.objectives.pretraining.rtd import RTD, sample_tokens
from pretune.packed import Batch, Capacity
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing, Sequences, collate
from pretune.text.tokenizers.training import Kind
from tests.support.objective_data import KINDS, data
from tests.support.parity import Ragged
from tests.support.tiny_training_cases import TEMPLATE, VOCABULARY, bert, encoder, modern, store

PACKING = Packing(512, 64)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**40), epoch=st.integers(0, 2), rate=st.sampled_from([0.15, 0.5]))
def test_generator_predicts_masked_tokens_and_discriminator_all_tokens(
    kind: Kind, seed: int, epoch: int, rate: float
) -> None:
    source, objective, draws = data(kind), RTD(mask_rate=rate), EpochRandom(seed, epoch)
    plan = objective.arrange(source, PACKING, draws)
    clean = plan.pack(seed % len(plan))
    noisy = objective.corrupt(plan.pack(seed % len(plan)), source.tokenizer, draws)
    at, target = noisy.targets["generator"]
    special = clean.columns["special"]
    assert (target == clean.ids[at]).all() and not special[at].any()
    assert (noisy.ids[at] == source.tokenizer.role("mask")).all()
    assert set(np.flatnonzero(noisy.ids != clean.ids)) <= set(at)
    free = np.bincount(clean.owner[~special], minlength=len(clean.lengths))
    wanted = np.where(free > 0, np.maximum(1, np.round(rate * free)), 0)
    assert (np.bincount(clean.owner[at], minlength=len(free)) == wanted).all()
    every, originals = noisy.targets["rtd"]
    assert (every == np.arange(len(clean.ids))).all() and (originals == clean.ids).all()
    room = objective.max_targets(replace(PACKING, sequences=40))
    assert len(at) <= room["generator"] and len(every) <= room["rtd"]


def small_batch(capacity: Capacity | None = None) -> tuple[Sequences, Batch]:
    """Return a batch of random tokens below the vocabulary size of the tiny encoder."""
    chance = np.random.default_rng(0)
    ids = chance.integers(10, VOCABULARY, 60)
    special = np.zeros(60, dtype=bool)
    special[[0, 19, 20, 39, 40, 59]] = True
    ids[special] = 3
    sequences = Sequences(ids.copy(), np.full(3, 20), np.arange(3), {"special": special})
    noisy = RTD(mask_rate=0.3).corrupt(replace(sequences, ids=ids.copy()), data().tokenizer, EpochRandom(0))
    return sequences, collate(noisy, capacity)


def make_root(name: str = "rtd(generator_size=0.5)", factory: Any = encoder) -> tuple[Network, JointObjective]:
    torch.manual_seed(0)
    root = Network(factory())
    mixture = parse_objective(name)
    for objective in mixture.objectives:
        root.heads[objective.name] = objective.head(root.backbone)
    return root, mixture.joints[0]


@pytest.mark.parametrize("factory", [bert, modern, encoder])
def test_discriminator_reads_the_text_with_sampled_replacements(factory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clean, batch = small_batch()
    root, joint = make_root(factory=factory)
    fills = torch.full((len(batch.targets["generator"].at),), 7)
    fills[::2] = batch.targets["generator"].target[::2]  # every other sample is the original token
    monkeypatch.setattr(rtd, "sample_tokens", lambda logits, temperature: fills)
    loss = root.eval()(joint, batch)
    assert loss.packed is None  # only set between the parts of a joint objective
    at = batch.targets["generator"].at
    expected = torch.from_numpy(clean.ids).clone()
    expected[at] = fills
    head: Any = root.heads["rtd"]
    logits = head(root.backbone(replace(batch.packed[0], ids=expected)).last)
    replaced = torch.zeros(60)
    replaced[at[1::2]] = 1
    assert (replaced == (expected != torch.from_numpy(clean.ids))).all()  # 7 is not a token of the text
    torch.testing.assert_close(loss.sums["rtd"], F.binary_cross_entropy_with_logits(logits, replaced, reduction="sum"))
    assert loss.weights == {"rtd": 50.0, "generator": 1.0}
    flagged = (logits > 0).float()
    found = {k: float(v.detach()) for k, v in {**loss.sums, **loss.logs}.items()}
    metrics = divide_by_totals(found, batch.counts)
    assert metrics["rtd/replaced"] == pytest.approx(float(replaced.mean()))
    assert metrics["rtd/accuracy"] == pytest.approx(float((flagged == replaced).float().mean()))
    assert metrics["rtd/recall"] == pytest.approx(float((flagged * replaced).sum() / replaced.sum()))
    assert metrics["rtd/precision"] == pytest.approx(float((flagged * replaced).sum() / max(1, flagged.sum())))
    assert "generator/accuracy" in metrics and not any(name.endswith("/of") for name in metrics)


def test_padding_and_unused_targets_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rtd, "sample_tokens", lambda logits, temperature: logits.argmin(-1))
    root, joint = make_root()
    _, plain = small_batch()
    _, padded = small_batch(Capacity(100, 8, 20, {"generator": 30, "rtd": 100}))
    assert plain.counts == padded.counts and plain.counts["rtd"] == 60
    one, other = root.eval()(joint, plain), root(joint, padded)
    for name, value in {**one.sums, **one.logs}.items():
        torch.testing.assert_close({**other.sums, **other.logs}[name], value)


def test_generator_learns_only_from_its_own_loss_and_shares_the_embedding() -> None:
    root, joint = make_root()
    _, batch = small_batch()
    head: Any = root.heads["rtd"]
    names = [name for name, _ in head.named_parameters()]
    assert all(p.shape != root.backbone.embed.tokens.shape for p in head.parameters())
    loss = root(joint, batch)
    loss.sums["rtd"].backward(retain_graph=True)
    for name, parameter in head.named_parameters():
        assert (parameter.grad is None) == name.startswith("generator."), name
    before = root.backbone.embed.tokens.grad.clone()
    loss.sums["generator"].backward()
    assert not torch.equal(before, root.backbone.embed.tokens.grad)
    assert all(p.grad is not None for p in head.parameters())
    assert {"dense.weight", "output.bias", "generator.heads.mlm.bias", "generator.backbone.embed.project.weight"} <= {
        *names
    }


@pytest.mark.parametrize(
    ("name", "at_start", "at_half", "at_end"),
    [
        ("rtd(temperature=3)", 3.0, 3.0, 3.0),
        ("rtd(temperature=3,final_temperature=1)", 3.0, 2.0, 1.0),
        ("rtd(final_temperature=2)", 1.0, 1.5, 2.0),
    ],
)
def test_temperature_changes_linearly_during_training(
    name: str, at_start: float, at_half: float, at_end: float
) -> None:
    source, joint = data(), parse_objective(name).joints[0]
    for progress, wanted in ((0.0, at_start), (0.5, at_half), (1.0, at_end)):
        draws = EpochRandom(0, progress=progress)
        objective = joint.objectives[0]
        sequences = objective.corrupt(objective.arrange(source, PACKING, draws).pack(0), source.tokenizer, draws)
        column = (
            collate(sequences, Capacity(600, 20, 64, {"generator": 100, "rtd": 600})).packed[0].columns["temperature"]
        )
        assert (column[: len(sequences.ids)] == wanted).all()


def test_evaluation_uses_the_same_options_whatever_training_uses() -> None:
    assert RTD(mask_rate=0.3, temperature=3.0, final_temperature=2.0).for_evaluation() == RTD()


def test_temperature_of_1_is_the_default_and_adds_no_column() -> None:
    _, batch = small_batch()
    assert "temperature" not in batch.packed[0].columns


def test_samples_have_the_temperature_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float | None] = []

    def sample(logits: torch.Tensor, temperature: torch.Tensor | None = None) -> torch.Tensor:
        seen.append(None if temperature is None else float(temperature))
        return sample_tokens(logits, temperature)

    monkeypatch.setattr(rtd, "sample_tokens", sample)
    root, joint = make_root("rtd(generator_size=0.5,temperature=2.5)")
    _, batch = small_batch(Capacity(100, 8, 20, {"generator": 30, "rtd": 100}))
    batch.packed[0].columns["temperature"] = (torch.arange(100) < 60) * 2.5  # 0 at filler
    root(joint, batch)
    _, plain = small_batch()
    root(joint, plain)
    assert seen == [2.5, None]


def test_a_high_temperature_flattens_the_samples() -> None:
    logits = torch.tensor([4.0, 0.0, -2.0, 2.0]).expand(20_000, 4)
    torch.manual_seed(0)
    shares = torch.bincount(sample_tokens(logits, torch.tensor(2.0)), minlength=4) / 20_000
    expected = (logits[0] / 2).softmax(-1)
    assert ((shares - expected).abs() <= 5 * (expected * (1 - expected) / 20_000).sqrt()).all()


@pytest.mark.parametrize("name", ["rtd(temperature=0)", "rtd(final_temperature=-1)", "trtd(temperature=0)"])
def test_temperatures_must_be_positive(name: str) -> None:
    with pytest.raises(PretuneError, match=r"temperature=.* expected a number that is above 0 and finite"):
        parse_objective(name)


def test_samples_follow_the_softmax_and_the_seed() -> None:
    logits = torch.tensor([2.0, 0.0, -1.0, 1.0, -torch.inf]).expand(20_000, 5)
    torch.manual_seed(1)
    first = sample_tokens(logits)
    shares = torch.bincount(first, minlength=5) / 20_000
    expected = logits[0].softmax(-1)
    assert ((shares - expected).abs() <= 5 * (expected * (1 - expected) / 20_000).sqrt()).all()
    torch.manual_seed(1)
    assert torch.equal(sample_tokens(logits), first)
    torch.manual_seed(2)
    assert not torch.equal(sample_tokens(logits), first)


def test_steps_depend_on_the_seed() -> None:
    root, joint = make_root()
    _, batch = small_batch()
    sums = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        sums.append(float(root(joint, batch).sums["rtd"].detach()))
    assert sums[0] == sums[2] != sums[1]


@pytest.mark.parametrize("name", ["rtd+nsp", "sop+rtd"])
def test_joint_objectives_read_the_text_with_replacements(name: str) -> None:
    root, joint = make_root(name)
    source = Data(store().tokenizer, TEMPLATE, store=store(), documents=np.arange(store().documents))
    plan = joint.arrange(source, PACKING, EpochRandom(0))
    batch = collate(joint.corrupt(plan.pack(0), source.tokenizer, EpochRandom(0)))
    read: list[Any] = []
    root.backbone.register_forward_hook(lambda module, given, out: read.append(given[0]))
    loss = root(joint, batch)
    assert set(loss.sums) == {"rtd", "generator", name.replace("rtd", "").strip("+")}
    assert len(read) == 1  # one forward pass for all
    assert not torch.equal(read[0].ids, batch.packed[0].ids)


def test_generator_sizes_follow_the_options() -> None:
    class Wide(nn.Module):
        width = 768
        detection_activation = staticmethod(torch.nn.functional.gelu)

        def __init__(self) -> None:
            super().__init__()
            self.embed = bert().embed

        def groups(self) -> Any:
            return [("embed", []), *[(f"layer {i}", []) for i in range(12)]]

    def sizes(objective: RTD) -> tuple[int, int, int, int]:
        found = objective.head(Wide()).exports()["generator"].sizes  # type: ignore[arg-type, operator]
        return tuple(found.values())  # type: ignore[return-value]

    with torch.device("meta"):
        assert sizes(RTD()) == (192, 12, 3, 768)
        assert sizes(RTD(generator_size=1 / 3)) == (256, 12, 4, 1024)  # ELECTRA-base
        assert sizes(RTD(generator_layers=2, generator_hidden_size=64, generator_heads=2)) == (64, 2, 2, 256)
        with pytest.raises(PretuneError, match="the generator's width 64 is not divisible by 3 heads"):
            sizes(RTD(generator_hidden_size=64, generator_heads=3))


def randomize(root: Network) -> None:
    for parameter in root.parameters():  # norms and biases too, so that nothing agrees by accident
        torch.nn.init.normal_(parameter, std=0.2)


def test_both_networks_match_those_of_transformers() -> None:
    """ELECTRA's discriminator and generator have BERT's tensor names, except for the prefix and the projection."""
    from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

    size = {"vocab_size": 60, "num_hidden_layers": 2, "max_position_embeddings": 40, "hidden_dropout_prob": 0.0}
    config = BertConfig(**size, hidden_size=32, num_attention_heads=4, intermediate_size=64)  # type: ignore[arg-type]
    root = Network(build(config))
    root.heads["rtd"] = RTD(generator_hidden_size=16, generator_heads=2).head(root.backbone)
    randomize(root)
    common = {**size, "attention_probs_dropout_prob": 0.0, "embedding_size": 32}
    discriminator = ElectraForPreTraining(
        ElectraConfig(**common, hidden_size=32, num_attention_heads=4, intermediate_size=64)
    ).eval()
    generator = ElectraForMaskedLM(
        ElectraConfig(**common, hidden_size=16, num_attention_heads=2, intermediate_size=64)
    ).eval()
    head: Any = root.heads["rtd"]
    tensors = dict(root.named_parameters())

    def theirs(ours: dict[str, Any]) -> dict[str, Any]:
        published, rest = BERT.table.write(ours)
        found = {name.replace("bert.", "electra.", 1): tensor for name, tensor in published.items()}
        renamed = {
            "cls.predictions.transform": "generator_predictions", "cls.predictions.bias": "generator_lm_head.bias",
            "backbone.embed.project": "electra.embeddings_project", "heads.rtd.dense": "discriminator_predictions.dense",
            "heads.rtd.output": "discriminator_predictions.dense_prediction",
        }  # fmt: skip
        for old, new in renamed.items():
            found = {name.replace(old, new): tensor for name, tensor in {**found, **rest}.items()}
            rest = {}
        return {name: tensor for name, tensor in found.items() if not name.startswith("heads.")}

    for reference, ours in ((discriminator, tensors), (generator, head.exports()["generator"].tensors(tensors))):
        missing, unexpected = reference.load_state_dict(theirs(ours), strict=False)
        assert not unexpected and set(missing) <= {"generator_lm_head.weight"}
        reference.tie_weights()
    ragged = Ragged.make(60)
    loss, _ = rtd.run_generator(head.generator, root.backbone, ragged.packed, every_target(ragged))
    labels = torch.where(ragged.attention_mask.bool(), ragged.input_ids, -100)
    expected = generator(**ragged.inputs, labels=labels).loss
    torch.testing.assert_close(loss.sums["generator"] / len(ragged.packed), expected, atol=1e-5, rtol=1e-5)
    logits = head(root.backbone(ragged.packed).last)
    torch.testing.assert_close(logits, ragged.flat(discriminator(**ragged.inputs).logits), atol=1e-5, rtol=1e-5)


def every_target(ragged: Ragged) -> Any:
    from pretune.packed import pack_targets

    return pack_targets(np.arange(len(ragged.packed)), ragged.packed.ids.numpy())


def test_generator_is_exported_if_the_family_supports_it(tmp_path: Path) -> None:
    from transformers import BertForMaskedLM

    config = BertConfig(
        vocab_size=64, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=96,
        max_position_embeddings=40, hidden_dropout_prob=0.0,
    )  # fmt: skip
    model = Model(replace(BERT, companions=("generator",)), config, Network(build(config)))
    model.add_heads(parse_objective("rtd(generator_size=1,generator_layers=1)").objectives)
    randomize(model.root)
    model.save(tmp_path)
    reference, report = BertForMaskedLM.from_pretrained(tmp_path / "generator", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    ragged = Ragged.make(60)
    loss, _ = rtd.run_generator(
        model.root.heads["rtd"].generator,
        model.backbone,
        ragged.packed,
        every_target(ragged),  # type: ignore[union-attr]
    )
    labels = torch.where(ragged.attention_mask.bool(), ragged.input_ids, -100)
    expected = reference.eval()(**ragged.inputs, labels=labels).loss
    torch.testing.assert_close(loss.sums["generator"] / len(ragged.packed), expected, atol=1e-5, rtol=1e-5)

    plain = Model(BERT, config, model.root)
    plain.save(tmp_path / "plain")
    assert not (tmp_path / "plain" / "generator").exists()
    again = load_model(tmp_path / "plain", parse_objective("rtd(generator_size=1,generator_layers=1)"))
    for name, tensor in again.root.tensors().items():
        assert torch.equal(tensor, model.root.tensors()[name])
