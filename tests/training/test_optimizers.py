from __future__ import annotations

import torch
from torch import nn

from canary import make
from pretune.training.loop import train
from pretune.training.optimizers import Muon, hidden_matrices, make_optimizers, orthogonalize
from pretune.training.settings import Optimizer, fill


def test_norms_and_biases_are_not_decayed() -> None:
    root = make("mlm+nsp", 1).root
    (adamw,) = make_optimizers(root, fill(Optimizer, None))
    decayed, others = adamw.param_groups
    names = {p: n for n, p in root.named_parameters()}
    assert decayed["weight_decay"] == 0.01 and others["weight_decay"] == 0.0
    assert all(("norm" in names[p]) or ("bias" in names[p]) for p in others["params"])
    assert not any("norm" in names[p] or "bias" in names[p] for p in decayed["params"])
    assert len(decayed["params"]) + len(others["params"]) == len(list(root.parameters()))


def test_muon_takes_the_hidden_matrices_and_adamw_the_rest() -> None:
    root = make("mlm|lm", 1).root
    adamw, muon = make_optimizers(root, fill(Optimizer, Optimizer(name="muon")))
    names = {p: n for n, p in root.named_parameters()}
    mine = {names[p] for group in muon.param_groups for p in group["params"]}
    assert mine == {n for n in names.values() if n.startswith("backbone.layers.") and "part" in n and "norm" not in n}
    assert not mine & {names[p] for group in adamw.param_groups for p in group["params"]}
    assert set(hidden_matrices(root).values()) == {1, 3}


def test_orthogonalized_matrices_have_singular_values_near_one() -> None:
    torch.manual_seed(0)
    for shape in ((3, 16, 16), (2, 8, 40), (2, 40, 8)):
        values = torch.linalg.svdvals(orthogonalize(torch.randn(shape)))
        assert values.min() > 0.6 and values.max() < 1.3


def test_muon_moves_stacked_and_batched_matrices_as_if_each_were_alone() -> None:
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


def test_muon_is_the_librarys_muon_up_to_its_rate() -> None:
    """torch.optim.Muon, one matrix at a time, in bf16: the same direction."""
    torch.manual_seed(0)
    ours, theirs = (nn.Parameter(torch.zeros(24, 16)) for _ in range(2))
    gradient = torch.randn(24, 16)
    ours.grad, theirs.grad = gradient.clone(), gradient.clone()
    Muon({ours: 1}, 0.02, 0.95, 0.0).step()
    torch.optim.Muon([theirs], lr=0.02, momentum=0.95, weight_decay=0.0).step()
    cosine = nn.functional.cosine_similarity(ours.detach().flatten(), theirs.detach().flatten(), dim=0)
    assert cosine > 0.99


def test_muon_learns() -> None:
    training = make("mlm|lm", 25)
    training.optimizer = fill(Optimizer, Optimizer(name="muon", lr=3e-3, matrix_lr=0.02))
    first = train(make("mlm|lm", 1))
    assert train(training)["mlm"] < first["mlm"] - 0.3
