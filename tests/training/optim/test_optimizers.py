from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import torch
from torch import nn

from pretune.families import FAMILIES
from pretune.models.model import Network
from pretune.nn.linear import Linear
from pretune.objectives import OBJECTIVES
from pretune.training.loop import Training, train
from pretune.training.optim.optimizers import (
    Lamb,
    Muon,
    hidden_matrices,
    make_optimizers,
    orthogonalize,
    scale_lr_to_batch,
)
from pretune.training.recipe_sections import Monitoring, Optimizer, Schedule, resolve_section
from tests.support.drawn_shapes import SMALL
from tests.support.family_configs import BART
from tests.support.tiny_training_cases import make


def test_norms_and_biases_are_not_decayed() -> None:
    root = make("mlm+nsp", 1).root
    (adamw,) = make_optimizers(root, resolve_section(Optimizer, None))
    decayed, others = adamw.param_groups
    names = {p: n for n, p in root.named_parameters()}
    assert decayed["weight_decay"] == 0.01 and others["weight_decay"] == 0.0
    assert all(("norm" in names[p]) or ("bias" in names[p]) for p in others["params"])
    assert not any("norm" in names[p] or "bias" in names[p] for p in decayed["params"])
    assert len(decayed["params"]) + len(others["params"]) == len(list(root.parameters()))


def test_muon_optimizes_hidden_matrices_and_adamw_the_rest() -> None:
    root = make("mlm|lm", 1).root
    adamw, muon = make_optimizers(root, resolve_section(Optimizer, Optimizer(name="muon")))
    names = {p: n for n, p in root.named_parameters()}
    mine = {names[p] for group in muon.param_groups for p in group["params"]}
    assert mine == {n for n in names.values() if n.startswith("backbone.layers.") and "part" in n and "norm" not in n}
    assert not mine & {names[p] for group in adamw.param_groups for p in group["params"]}
    assert set(hidden_matrices(root).values()) == {1, 3}


def with_head(name: str) -> Network:
    """Return a tiny BERT with the head of an objective, or a network that the objective needs."""
    images = dict.fromkeys(("mrm", "itm", "vqa"), "vilbert")
    family = FAMILIES[{"bilm": "elmo-transformer", "skip_thought": "bart", **images}.get(name, "bert")]
    sizes = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 64, "max_position_embeddings": 60}
    sizes = BART if name == "skip_thought" else SMALL if name in images else sizes
    root = Network(family.build(family.read_config(sizes)))
    kind = OBJECTIVES[name]
    labeled = {"labels": ("a", "b", "c")} if "labels" in {field.name for field in fields(kind)} else {}
    root.heads[name] = kind(**labeled).head(root.backbone)
    return root


@pytest.mark.parametrize("name", OBJECTIVES)
def test_muon_optimizes_the_hidden_matrices_of_every_head(name: str) -> None:
    """These are layers inside a head, transforms and poolers, but not output layers or projections of embeddings."""
    root = with_head(name)
    adamw, muon = make_optimizers(root, resolve_section(Optimizer, Optimizer(name="muon")))
    names = {p: n for n, p in root.named_parameters()}
    mine = {names[p] for group in muon.param_groups for p in group["params"]}
    linear = {n for n, module in root.named_modules() if isinstance(module, nn.Linear)}
    outputs = {f"heads.{name}.{part}" for part in ("output", "score.output")}
    outputs |= {f"heads.coref.{part}" for part in ("mention", "pair", "attention")}  # one logit each
    hidden = {f"{n}.weight" for n in linear if n not in outputs and ".embed" not in n}
    assert mine == hidden
    assert {names[p] for group in adamw.param_groups for p in group["params"]} == set(names.values()) - hidden
    if name in ("rtd", "trtd"):
        layers = [n for n in mine if ".generator.backbone.layers." in n]
        assert len(layers) == 8 and f"heads.{name}.generator.heads.mlm.transform.dense.weight" in mine


def test_head_factor_scales_the_learning_rate_of_heads() -> None:
    settings = resolve_section(
        Optimizer, Optimizer(name="muon", lr=1.0, muon_lr=0.1, head_lr_factor=0.5, layer_decay=0.5)
    )
    root = with_head("rtd")
    rates = {
        p: group["peak"] for o in make_optimizers(root, settings) for group in o.param_groups for p in group["params"]
    }
    matrices = hidden_matrices(root)
    assert {rates[p] for p in root.heads.parameters() if p in matrices} == {0.05}
    assert {rates[p] for p in root.heads.parameters() if p not in matrices} == {0.5}
    layers = root.backbone.layers
    assert [{rates[p] for p in layer.parameters() if p in matrices} for layer in layers] == [{0.05}, {0.1}]
    assert {rates[p] for p in root.backbone.embed.parameters()} == {0.25}


def test_muon_is_skipped_if_no_hidden_matrix_is_trained() -> None:
    root = with_head("tag")  # its head has no hidden matrix
    root.backbone.requires_grad_(False)
    (adamw,) = make_optimizers(root, resolve_section(Optimizer, Optimizer(name="muon")))
    assert {p for group in adamw.param_groups for p in group["params"]} == set(root.heads.parameters())


def test_orthogonalized_matrices_have_singular_values_near_one() -> None:
    torch.manual_seed(0)
    for shape in ((3, 16, 16), (2, 8, 40), (2, 40, 8)):
        values = torch.linalg.svdvals(orthogonalize(torch.randn(shape)))
        assert values.min() > 0.6 and values.max() < 1.3


def test_muon_treats_stacked_and_batched_matrices_separately() -> None:
    torch.manual_seed(0)
    stacked = nn.Parameter(torch.randn(24, 8))
    parts = [nn.Parameter(piece.clone()) for piece in stacked.detach().chunk(3)]
    wide, wide_alone = nn.Parameter(torch.ones(8, 8)), nn.Parameter(torch.ones(8, 8))
    together = Muon({stacked: 3, wide: 1}, 0.1, 0.9, 0.01)
    apart = [Muon({p: 1}, 0.1, 0.9, 0.01) for p in [*parts, wide_alone]]
    for _ in range(3):
        stacked.grad, wide.grad = torch.randn(24, 8), torch.randn(8, 8)
        wide_alone.grad = wide.grad.clone()
        for piece, gradient in zip(parts, stacked.grad.chunk(3), strict=True):
            piece.grad = gradient.clone()
        together.step()
        for optimizer in apart:
            optimizer.step()
    torch.testing.assert_close(stacked.detach(), torch.cat([p.detach() for p in parts]))
    torch.testing.assert_close(wide.detach(), wide_alone.detach())


def test_muon_direction_equals_that_of_torch() -> None:
    """torch.optim.Muon updates one matrix at a time, in bf16."""
    torch.manual_seed(0)
    ours, theirs = (nn.Parameter(torch.zeros(24, 16)) for _ in range(2))
    gradient = torch.randn(24, 16)
    ours.grad, theirs.grad = gradient.clone(), gradient.clone()
    Muon({ours: 1}, 0.02, 0.95, 0.0).step()
    torch.optim.Muon([theirs], lr=0.02, momentum=0.95, weight_decay=0.0).step()
    cosine = nn.functional.cosine_similarity(ours.detach().flatten(), theirs.detach().flatten(), dim=0)
    assert cosine > 0.99


@pytest.mark.not_fast
def test_muon_learns() -> None:
    training = make("mlm|lm", 25)
    training.optimizer = resolve_section(Optimizer, Optimizer(name="muon", lr=3e-3, muon_lr=0.02))
    first = train(make("mlm|lm", 1))
    assert train(training)["mlm"] < first["mlm"] - 0.3


@pytest.mark.parametrize("decay", [0.05, 0.0])
def test_lamb_equals_the_published_algorithm(decay: float) -> None:
    """This is algorithm 2 of You et al. (2020), for one matrix, one vector and three stacked matrices."""
    torch.manual_seed(0)
    matrix, vector, stacked = (torch.randn(shape, dtype=torch.float64) for shape in ((6, 4), (5,), (6, 4)))
    lr, (b1, b2), eps = 0.1, (0.9, 0.99), 1e-6
    parameters = [nn.Parameter(t.clone()) for t in (matrix, vector, stacked)]
    groups = [
        {"params": [parameters[0], parameters[2]], "weight_decay": decay},
        {"params": [parameters[1]], "layer_adaptation": False},
    ]
    optimizer = Lamb(groups, lr, (b1, b2), eps, stacked={parameters[2]: 3})
    expected = [matrix, vector, *stacked.chunk(3)]
    moments = [(torch.zeros_like(t), torch.zeros_like(t)) for t in expected]
    for step in range(1, 5):
        gradients = [torch.randn_like(t) for t in (matrix, vector, stacked)]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        for i, gradient in enumerate([gradients[0], gradients[1], *gradients[2].chunk(3)]):
            m, v = moments[i]
            m, v = b1 * m + (1 - b1) * gradient, b2 * v + (1 - b2) * gradient**2
            moments[i] = m, v
            move = (m / (1 - b1**step)) / ((v / (1 - b2**step)).sqrt() + eps)
            if i != 1:
                move = move + decay * expected[i]
                move = move * expected[i].norm() / move.norm()
            expected[i] = expected[i] - lr * move
    torch.testing.assert_close(parameters[0].detach(), expected[0])
    torch.testing.assert_close(parameters[1].detach(), expected[1])
    torch.testing.assert_close(parameters[2].detach(), torch.cat(expected[2:]))


def test_lamb_scales_the_steps_of_matrices_without_decay_too() -> None:
    root = make("mlm+nsp", 1).root
    (lamb,) = make_optimizers(root, resolve_section(Optimizer, Optimizer(name="lamb", lr=0.1, weight_decay=0.0)))
    torch.manual_seed(0)
    before = {}
    for p in root.parameters():
        p.data += 0.1 * torch.randn_like(p)
        p.grad, before[p] = torch.randn_like(p), p.detach().clone()
    lamb.step()
    stacked = {module.weight: module.stacked for module in root.modules() if isinstance(module, Linear)}
    for p, old in before.items():
        for now, then in zip(p.detach().chunk(stacked.get(p, 1)), old.chunk(stacked.get(p, 1)), strict=True):
            length = (
                then.norm() if p.dim() > 1 else then.numel() ** 0.5
            )  # Adam's first step is the sign of each gradient
            torch.testing.assert_close((now - then).norm(), torch.as_tensor(0.1 * length), rtol=1e-3, atol=0.0)


RATES = {
    "adamw": 1e-3,
    "adam": 1e-3,
    "radam": 3e-3,
    "adafactor": 1e-2,
    "lamb": 1e-2,
    "sgd": 0.3,
    "asgd": 0.3,
    "muon": 3e-3,
}


@pytest.mark.end_to_end
@pytest.mark.parametrize("name", RATES)
def test_every_optimizer_learns_and_resumes_bit_identically(name: str, tmp_path: Path) -> None:
    kinds, _ = get_args(get_type_hints(Optimizer)["name"])  # a Literal, and None
    assert set(RATES) == set(get_args(kinds))

    def training(folder: str, steps: int) -> Training:
        made = make("mlm+nsp", steps, run=tmp_path / folder)
        made.optimizer = resolve_section(Optimizer, Optimizer(name=name, lr=RATES[name], weight_decay=0.1))  # type: ignore[arg-type]
        made.monitor = resolve_section(Monitoring, Monitoring(save_every=4, log_every=1))
        made.schedule = Schedule("constant", 0.0, 1.0)
        return made

    whole = training("whole", 12)
    train(whole)
    losses = [json.loads(line)["mlm"] for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert sum(losses[-3:]) / 3 < sum(losses[:3]) / 3 - 0.02
    train(training("cut", 4))
    again = training("cut", 12)
    train(again, resume=True)
    for (key, one), other in zip(whole.root.state_dict().items(), again.root.state_dict().values(), strict=True):
        assert torch.equal(one, other), key


def test_learning_rates_scale_with_the_batch_if_requested(capsys: pytest.CaptureFixture[str]) -> None:
    settings = Optimizer(lr=1e-4, muon_lr=0.01, reference_batch_size=1000)
    scaled = scale_lr_to_batch(settings, 4000)
    assert (scaled.lr, scaled.muon_lr) == (pytest.approx(4e-4), pytest.approx(0.04))
    assert scale_lr_to_batch(Optimizer(lr=1e-4), 4000).lr == 1e-4


def test_layer_decay_lowers_the_learning_rate_of_lower_layers() -> None:
    root = make("mlm+nsp", 1).root
    (adamw,) = make_optimizers(root, resolve_section(Optimizer, Optimizer(lr=1.0, layer_decay=0.5)))
    rates = {p: group["peak"] for group in adamw.param_groups for p in group["params"]}
    layers = root.backbone.layers
    assert all(rates[p] == 1.0 for p in root.heads.parameters())
    assert {rates[p] for p in layers[-1].parameters()} == {1.0}
    assert {rates[p] for p in layers[0].parameters()} == {0.5 ** (len(layers) - 1)}
    assert {rates[p] for p in root.backbone.embed.parameters()} == {0.5 ** len(layers)}
    assert len(rates) == len(list(root.parameters()))
    decays = {p: group["weight_decay"] for group in adamw.param_groups for p in group["params"]}
    assert all(decays[p] == (0.01 if p.dim() > 1 else 0.0) for p in rates)


def test_l2_regularization_is_off_by_default() -> None:
    assert resolve_section(Optimizer, Optimizer(name="adam")).weight_decay == 0.0
    assert resolve_section(Optimizer, Optimizer(name="adam", weight_decay=0.1)).weight_decay == 0.1
    assert resolve_section(Optimizer, None, {"name": "sgd", "weight_decay": 1e-6}).weight_decay == 1e-6
    assert (
        resolve_section(Optimizer, Optimizer(name="lamb")).weight_decay
        == resolve_section(Optimizer, None).weight_decay
        == 0.01
    )
