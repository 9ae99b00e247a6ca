"""Recurrent layers: the kernels against torch's modules and against the step-by-step implementation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from pretune.nn.dropout import share_dropout_seed
from pretune.nn.recurrent import (
    FlattenWeights,
    RecurrentCells,
    TimeMajorRows,
    VariationalDropout,
    has_recurrent_layers,
    run_by_steps,
)
from pretune.packed import Packed, pack_lists

RAGGED, EVEN = [[5, 6, 7, 8, 9], [9], [4, 5, 6], [11, 10, 9, 8]], [[5, 6, 7], [8, 9, 1], [4, 5, 6]]
SHAPES: dict[str, dict[str, Any]] = {"lstm": {}, "gru": {"cell": "gru"}, "projected": {"projection": 3}}


def layer(kind: str) -> RecurrentCells:
    torch.manual_seed(0)
    made = RecurrentCells(6, 5, **SHAPES[kind])
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.5)
    return made


def torch_equivalent(ours: RecurrentCells) -> nn.RNNBase:
    kind: Any = nn.LSTM if ours.cell == "lstm" else nn.GRU
    options = {} if ours.weight_hr is None else {"proj_size": ours.outputs}
    theirs = kind(ours.inputs, ours.width, **options)
    for name, weight in zip(theirs._flat_weights_names, ours.weights(torch.float32), strict=True):
        getattr(theirs, name).data.copy_(weight)
    return theirs


def vectors(packed: Packed) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(len(packed), 6, requires_grad=True)


@pytest.mark.parametrize("texts", [RAGGED, EVEN], ids=["ragged", "even"])
@pytest.mark.parametrize("kind", SHAPES)
def test_a_layer_matches_torch_on_padded_texts(kind: str, texts: list[list[int]]) -> None:
    ours, packed = layer(kind), pack_lists(texts)
    theirs, x, rows = torch_equivalent(ours), vectors(packed), TimeMajorRows.make(packed)
    out, state = ours(x[rows.order], rows)
    lengths = torch.tensor([len(text) for text in texts])
    padded = pad_sequence(list(x.split(lengths.tolist())))
    wanted, last = theirs(pack_padded_sequence(padded, lengths, enforce_sorted=False))
    wanted = pad_packed_sequence(wanted)[0]
    wanted = torch.cat([wanted[:length, i] for i, length in enumerate(lengths.tolist())])
    torch.testing.assert_close(rows.to_packed(out), wanted)
    for part, other in zip(rows.final_state(state, len(texts)), last if ours.cell == "lstm" else [last], strict=True):
        torch.testing.assert_close(part, other[0])
    loss = torch.randn(len(packed), ours.outputs)
    gradients = torch.autograd.grad((rows.to_packed(out) * loss).sum(), [x, *ours.parameters()])
    others = torch.autograd.grad((wanted * loss).sum(), [x, *theirs._flat_weights])
    named = dict(zip(["x", *theirs._flat_weights_names], others, strict=True))
    for name, gradient in zip(["x", *dict(ours.named_parameters())], gradients, strict=True):
        named_as = {"x": "x", "bias": "bias_ih_l0"}.get(name, f"{name}_l0")
        torch.testing.assert_close(gradient, named[named_as], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("texts", [RAGGED, EVEN], ids=["ragged", "even"])
@pytest.mark.parametrize("kind", SHAPES)
def test_the_step_by_step_implementation_matches_the_kernels(kind: str, texts: list[list[int]]) -> None:
    ours, packed = layer(kind), pack_lists(texts)
    rows = TimeMajorRows.make(packed)
    x = vectors(packed)[rows.order]
    state = tuple(torch.randn(len(texts), width) for width in ours.state_widths)
    out, after = ours(x, rows, state)
    again, last = run_by_steps(x, rows.sizes, state, ours.weights(torch.float32), ours.cell)
    torch.testing.assert_close(out, again)
    torch.testing.assert_close(after, last)


def test_clipped_cells_and_states_stay_within_bounds() -> None:
    ours, packed = layer("projected"), pack_lists(RAGGED)
    rows = TimeMajorRows.make(packed)
    x = 20 * vectors(packed)[rows.order]
    wide, state = ours(x, rows)
    assert wide.abs().max() > 0.2 and state[1].abs().max() > 0.5
    ours.clip = (0.5, 0.2)
    out, state = ours(x, rows)
    assert out.abs().max() <= 0.2 and state[1].abs().max() <= 0.5
    ours.clip = (1e9, 1e9)
    torch.testing.assert_close(ours(x, rows)[0], wide)


@pytest.mark.parametrize("kind", SHAPES)
def test_truncated_bptt_changes_gradients_only(kind: str) -> None:
    ours, packed = layer(kind), pack_lists(RAGGED)
    rows, x = TimeMajorRows.make(packed), vectors(packed)
    whole, state = ours(x[rows.order], rows)
    cut, last = ours(x[rows.order], rows, None, 2)
    torch.testing.assert_close(whole, cut)
    torch.testing.assert_close(state, last)
    first = torch.autograd.grad(rows.to_packed(whole)[4].sum(), x, retain_graph=True)[0]
    near = torch.autograd.grad(rows.to_packed(cut)[4].sum(), x)[0]  # the fifth token of the first text begins a window
    assert (first[:5].abs().sum(1) > 0).all()
    assert (near.abs().sum(1) > 0).nonzero().flatten().tolist() == [4]


def test_weight_dropout_is_constant_during_a_step() -> None:
    ours = RecurrentCells(6, 40, drop=0.5).train()
    seed = share_dropout_seed(ours, torch.device("cpu"))
    seed.fill_(3)
    dropped = ours.weights(torch.float32)[1]
    assert 0.45 < (dropped == 0).float().mean() < 0.55
    torch.testing.assert_close(dropped[dropped != 0], 2 * ours.weight_hh[dropped != 0])
    assert torch.equal(dropped, ours.weights(torch.float32)[1])
    seed.fill_(4)
    assert not torch.equal(dropped, ours.weights(torch.float32)[1])
    assert torch.equal(ours.eval().weights(torch.float32)[1], ours.weight_hh)


def test_variational_dropout_has_one_mask_for_all_time_steps() -> None:
    locked, packed = VariationalDropout(0.5).train(), pack_lists(RAGGED)
    share_dropout_seed(locked, torch.device("cpu")).fill_(1)
    rows = TimeMajorRows.make(packed)
    out = rows.to_packed(locked(torch.ones(len(packed), 64), rows))
    assert set(out.unique().tolist()) == {0.0, 2.0}
    for text in out.split([len(text) for text in RAGGED]):
        assert (text == text[0]).all()
    assert not torch.equal(out[0], out[5])
    assert torch.equal(locked.eval()(out, rows), out)


def test_variational_dropout_agrees_on_rows_of_equal_length() -> None:
    """Rows of equal length need no lookup; the second text is one token shorter in the other batch."""
    locked = VariationalDropout(0.5)
    share_dropout_seed(locked, torch.device("cpu")).fill_(7)
    even, ragged = (TimeMajorRows.make(pack_lists(texts)) for texts in ([[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 5]]))
    assert even.equal_lengths and not ragged.equal_lengths
    assert torch.equal(locked(torch.ones(6, 8), even)[:5], locked(torch.ones(5, 8), ragged))


def test_flattened_weights_keep_values_and_gradients() -> None:
    torch.manual_seed(0)
    cells = RecurrentCells(3, 5, projection=2)
    plain = [one.to(torch.bfloat16) for one in cells.parameters()]
    made = FlattenWeights.apply(torch.bfloat16, *cells.parameters())
    assert all(torch.equal(one, other) for one, other in zip(made, plain, strict=True))
    starts = [one.data_ptr() for one in made]
    assert starts == sorted(starts)
    assert made[0].untyped_storage().data_ptr() == starts[0] == made[-1].untyped_storage().data_ptr()
    sum((one * number).sum() for number, one in enumerate(made)).backward()
    for number, one in enumerate(cells.parameters()):
        assert one.grad is not None and one.grad.dtype == torch.float32
        assert torch.equal(one.grad, torch.full_like(one, number))


def test_rows_begin_at_documents_and_sequences_continue() -> None:
    fresh = torch.tensor([0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0])
    packed = pack_lists(RAGGED, columns={"document_start": fresh.numpy()})
    rows, ours = TimeMajorRows.make(packed), layer("lstm")
    x = vectors(packed)
    carry = tuple(torch.randn(4, 5) for _ in range(2))
    out, state = ours(x[rows.order], rows, rows.initial_state(carry))
    out = rows.to_packed(out)
    parts = pack_lists([[0] * 2, [0] * 3, [0], [0] * 3, [0] * 4])
    alone = TimeMajorRows.make(parts)
    zero = torch.zeros(5)
    before = tuple(torch.stack([part[0], zero, zero, part[2], part[3]]) for part in carry)
    wanted, after = ours(x[alone.order], alone, alone.initial_state(before))
    torch.testing.assert_close(out, alone.to_packed(wanted))
    for part, other in zip(rows.final_state(state, 4), alone.final_state(after, 5), strict=True):
        torch.testing.assert_close(part, other[[1, 2, 3, 4]])


def test_recurrent_networks_need_host_synchronization() -> None:
    assert has_recurrent_layers(nn.Sequential(RecurrentCells(2, 2))) and has_recurrent_layers(nn.LSTM(2, 2))
    assert not has_recurrent_layers(nn.Linear(2, 2))
