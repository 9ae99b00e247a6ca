"""The kernels of Longformer and BigBird agree with dense attention on a GPU, including gradients. Run with -m gpu."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from pretune.nn.attention.big_bird import BlockSparseAttention, block_sparse, random_numbers
from pretune.nn.attention.multi_head import AttentionContext, GlobalAttention
from pretune.nn.attention.patterns import Pattern, causal, document, full, global_keys, global_tokens, window
from pretune.nn.attention.query_key_layout import self_layout
from pretune.nn.attention.scaled_dot_product import attend_globally, attend_self, choose_backend
from pretune.packed import Capacity, Packed, pack

pytestmark = pytest.mark.gpu

HEADS = 4
LENGTHS = {"long": [900, 1800, 70, 1], "ones": [1] * 40, "one": [2500], "short": [128, 3, 77, 128, 9]}
SHARES = {"none": 0.0, "few": 0.005, "many": 0.3, "all": 1.0}


def ragged(lengths: list[int], padding: int, share: float, seed: int = 0) -> Packed:
    rng = np.random.default_rng(seed)
    n = sum(lengths)
    columns = {"global": rng.random(n) < share, "document": np.cumsum(rng.integers(0, 300, n) == 0)}
    capacity = Capacity(n + padding, len(lengths) + 3, max(128, *lengths))
    packed = pack(np.ones(n, dtype=np.int64), np.array(lengths), columns=columns, capacity=capacity)
    return packed.to(torch.device("cuda"))


def gradients(out: Tensor, inputs: list[Tensor], real: Tensor) -> list[Tensor]:
    """Return the output and the gradients of the inputs; there is no loss on padding."""
    slope = torch.randn(out.shape, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    loss = (out.float() * slope)[real].sum()
    return [x.detach().float()[real] for x in (out, *torch.autograd.grad(loss, inputs, materialize_grads=True))]


def random_qkv(packed: Packed, width: int, count: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    shape = len(packed), 3, HEADS, width
    drawn = [torch.randn(shape, device="cuda", generator=generator).bfloat16() for _ in range(count)]
    return [x.to(dtype).requires_grad_() for x in drawn]  # the same values in every dtype


def agree(found: list[Tensor], expected: list[Tensor]) -> None:
    for a, b in zip(found, expected, strict=True):
        assert torch.isfinite(a).all()
        assert float((a - b).norm() / (b.norm() + 0.01 * b.numel() ** 0.5)) < 2e-2


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_window_with_global_tokens(lengths: str, share: str) -> None:
    for padding, reach in ((0, 100), (300, 9)):
        packed = ragged(LENGTHS[lengths], padding, SHARES[share])
        layout, found = self_layout(packed), []
        for dtype, backend in ((torch.float32, "dense"), (torch.bfloat16, "sparse")):
            x = random_qkv(packed, 64, 2, dtype)
            found.append(gradients(attend_globally(*x, layout, window(reach), backend=backend), x, packed.ids > 0))  # type: ignore[arg-type]
        agree(found[1], found[0])


@pytest.mark.parametrize("width", [16, 32, 128])
def test_other_head_widths_and_one_projection(width: int) -> None:
    packed = ragged(LENGTHS["long"], 100, 0.01)
    big_bird = block_sparse(random_numbers(0, HEADS, 60, 3).cuda(), 32, "32")
    for pattern in (window(50) | global_tokens, (causal & window(70)) | global_tokens, big_bird):
        found = []
        for dtype, backend in ((torch.float32, "dense"), (torch.bfloat16, "sparse")):
            x = random_qkv(packed, width, 1, dtype)
            found.append(gradients(attend_self(*x, self_layout(packed), pattern, backend=backend), x, packed.ids > 0))  # type: ignore[arg-type]
        agree(found[1], found[0])


@pytest.mark.parametrize(("size", "random"), [(16, 3), (32, 1), (64, 3), (128, 2)])
def test_block_sparse(size: int, random: int) -> None:
    pattern = block_sparse(random_numbers(0, HEADS, 2900 // size + 1, random).cuda(), size, f"{size}, {random}")
    for lengths, padding in (([900, 1800, 70, 2900], 300), ([1] * 20, 0), ([2880, 1792, 64], 0)):
        packed = ragged(lengths, padding, 0.0)
        found = []
        for dtype, backend in ((torch.float32, "dense"), (torch.bfloat16, "sparse")):
            x = random_qkv(packed, 64, 1, dtype)
            found.append(gradients(attend_self(*x, self_layout(packed), pattern, backend=backend), x, packed.ids > 0))  # type: ignore[arg-type]
        agree(found[1], found[0])


def layers() -> dict[str, torch.nn.Module]:
    return {
        "longformer": GlobalAttention(256, HEADS, pattern=window(100)).cuda(),
        "bigbird": BlockSparseAttention(256, HEADS, size=64, random=3, blocks=64, layer=1).cuda(),
    }


@pytest.mark.parametrize("name", ["longformer", "bigbird"])
def test_layers_agree_when_compiled(name: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer = layers()[name]
    packed = ragged([900, 1800, 70], 300, 0.005)
    x = torch.randn(len(packed), 256, device="cuda")

    def loss(x: Tensor) -> Tensor:
        out = layer(x, AttentionContext(self_layout(packed)))
        return torch.where(packed.ids[:, None] > 0, out, 0.0).float().square().sum()

    found = []
    for function, half in ((loss, False), (loss, True), (torch.compile(loss, dynamic=False, fullgraph=True), True)):
        layer.zero_grad()
        own = x.clone().requires_grad_()
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            value = function(own)
        value.backward()
        found.append([g.float() for g in (own.grad, *(p.grad for p in layer.parameters())) if g is not None])
    for other in found[1:]:
        for one, expected in zip(other, found[0], strict=True):
            assert float((one - expected).norm() / (expected.norm() + 1e-6)) < 5e-2


@pytest.mark.parametrize("name", ["longformer", "bigbird"])
def test_the_host_does_not_wait(name: str) -> None:
    layer = layers()[name].bfloat16()
    packed = ragged([900, 1800, 70], 300, 0.005)
    x = torch.randn(len(packed), 256, device="cuda").bfloat16().requires_grad_()
    for repeat in range(2):
        torch.cuda.set_sync_debug_mode("error" if repeat else "default")  # the first time, kernels are compiled
        try:
            layer(x, AttentionContext(self_layout(packed))).sum().backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_only_patterns_of_exactly_this_form_use_the_kernels() -> None:
    packed = ragged([900, 70], 100, 0.01)
    layout = self_layout(packed)
    q = torch.randn(len(packed), HEADS, 64, device="cuda").bfloat16()
    sparse = block_sparse(random_numbers(0, HEADS, 60, 3).cuda(), 64, "64")
    expected: list[tuple[Pattern, str]] = [
        (window(9) | global_tokens, "sparse"),
        ((window(9) | global_tokens) & full, "sparse"),
        (sparse, "sparse"),
        (window(9) | global_keys, "flex"),
        ((window(9) | global_tokens) & document, "flex"),
        (sparse & document, "flex"),
        (window(9) | window(8) | global_tokens, "flex"),
    ]
    for pattern, backend in expected:
        assert choose_backend(q.requires_grad_(), layout, pattern, None, 0.0) == backend, pattern.name
    assert choose_backend(q.float(), layout, sparse, None, 0.0) == "flex"
    assert choose_backend(q, layout, sparse, None, 0.1) == "dense"
