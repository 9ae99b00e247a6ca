"""All attention implementations agree on a GPU for random ragged batches, including gradients. Run with -m gpu."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from pretune.nn.attention.big_bird import block_sparse, random_numbers
from pretune.nn.attention.patterns import (
    Pattern,
    causal,
    dilated,
    document,
    full,
    global_keys,
    global_queries,
    global_tokens,
    permutation,
    prefix,
    window,
)
from pretune.nn.attention.query_key_layout import self_layout
from pretune.nn.attention.relative_position_bias import T5RelativeBias
from pretune.nn.attention.scaled_dot_product import attend, attend_self
from pretune.nn.attention.score_mods import ScoreModBuilder
from pretune.packed import Capacity, Packed, pack

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _forget_compiled() -> None:
    torch._dynamo.reset()  # every test has its own shapes


HEADS, WIDTH = 4, 64
PLAIN = {"full": full, "causal": causal, "window": window(9), "causal window": causal & window(9)}
OTHERS = {
    "prefix": prefix,
    "permutation": permutation,
    "prefix window": prefix & window(30),
    "dilated": dilated(5, 3),
    "longformer": window(9) | global_tokens,
}
LONG = {
    "window": window(200),
    "longformer": window(100) | global_tokens,
    "longformer's first": window(100) | global_keys,
    "longformer's second": global_queries,
    "document": document,
}
LENGTHS = [[128] * 8, [3, 128, 1, 77, 128, 50, 9, 64, 33], [1] * 40]


def ragged(lengths: list[int], padding: int, seed: int) -> Packed:
    rng = np.random.default_rng(seed)
    n = sum(lengths)
    columns = {name: rng.integers(0, 2, n) for name in ("prefix", "stream")}
    columns["global"] = rng.integers(0, 20, n) == 0
    columns["document"] = np.cumsum(rng.integers(0, 300, n) == 0)
    columns["order"] = np.concatenate([rng.permutation(size) for size in lengths])
    capacity = Capacity(n + padding, len(lengths) + 3, max(128, *lengths))
    packed = pack(np.ones(n, dtype=np.int64), np.array(lengths), columns=columns, capacity=capacity)
    return packed.to(torch.device("cuda"))


def run(
    packed: Packed, pattern: Pattern, backend: str, dtype: torch.dtype, bias: ScoreModBuilder | None
) -> list[Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    n = len(packed)
    q, k, v, weight = (torch.randn(n, HEADS, WIDTH, device="cuda", generator=generator) for _ in range(4))
    q, k, v = (x.bfloat16().to(dtype).requires_grad_() for x in (q, k, v))  # the same values in every dtype
    layout = self_layout(packed)
    score = None if bias is None else bias(q, layout)
    out = attend(q, k, v, layout, pattern, score, backend=backend)  # type: ignore[arg-type]
    real = packed.ids > 0  # the columns of padding are arbitrary: patterns may differ there
    (out.float() * weight)[real].sum().backward()
    return [x.detach().float()[real] for x in (out, q.grad, k.grad, v.grad)]  # type: ignore[union-attr]


def distance(found: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest difference relative to the expected values (gradients of single tokens are zero)."""
    return max(
        float((a - b).norm() / (b.norm() + 0.01 * b.numel() ** 0.5)) for a, b in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize("name", [*PLAIN, *OTHERS])
def test_flex_agrees_with_dense(name: str) -> None:
    packed = ragged(LENGTHS[1], 300, seed=1)
    pattern = {**PLAIN, **OTHERS}[name]
    dense = run(packed, pattern, "dense", torch.float32, None)
    assert distance(run(packed, pattern, "flex", torch.float32, None), dense) < 2e-3
    if name in ("full", "permutation"):
        assert distance(run(packed, pattern, "flex", torch.bfloat16, None), dense) < 2e-2


@pytest.mark.parametrize("name", LONG)
def test_flex_agrees_with_dense_where_most_blocks_are_not_listed(name: str) -> None:
    packed = ragged([900, 1800, 70, 3000], 300, seed=1)
    dense = run(packed, LONG[name], "dense", torch.float32, None)
    assert distance(run(packed, LONG[name], "flex", torch.float32, None), dense) < 2e-3
    assert distance(run(packed, LONG[name], "flex", torch.bfloat16, None), dense) < 2e-2


def big_bird() -> Pattern:
    return block_sparse(random_numbers(0, HEADS, 190, 3).cuda(), 16, "16")


def test_big_bird_on_flex_agrees_with_dense() -> None:
    packed = ragged([900, 1800, 70, 2900], 300, seed=1)
    dense, flex = (run(packed, big_bird(), backend, torch.float32, None) for backend in ("dense", "flex"))
    assert distance(flex, dense) < 2e-3


@pytest.mark.parametrize("name", ["longformer", "longformer's second", "big bird"])
def test_sparse_patterns_inside_a_compiled_model(name: str) -> None:
    packed = ragged([900, 1800, 70, 2900], 300, seed=1)
    qkv = torch.randn(len(packed), 3, HEADS, WIDTH, device="cuda").bfloat16()
    pattern = big_bird() if name == "big bird" else LONG[name]

    def loss(x: Tensor, backend: str) -> Tensor:
        q, k, v = x.sin().unbind(1)
        out = attend(q, k, v, self_layout(packed), pattern, backend=backend) * 2  # type: ignore[arg-type]
        return torch.where(packed.ids[:, None, None] > 0, out, 0.0).float().square().sum()  # padding may differ

    grads = []
    for function, backend in ((loss, "dense"), (torch.compile(loss, dynamic=False), "flex")):
        x = qkv.clone().requires_grad_()
        function(x, backend).backward()
        grads.append(x.grad.float())  # type: ignore[union-attr]
    assert distance(grads[1:], grads[:1]) < 3e-2


@pytest.mark.parametrize("lengths", LENGTHS, ids=["even", "ragged", "ones"])
@pytest.mark.parametrize("name", PLAIN)
def test_flash_and_short_attention_agree_with_dense(name: str, lengths: list[int]) -> None:
    for padding in (0, 300):
        packed = ragged(lengths, padding, seed=len(lengths))
        dense = run(packed, PLAIN[name], "dense", torch.float32, None)
        for backend in ("flash", "tiles"):
            assert distance(run(packed, PLAIN[name], backend, torch.bfloat16, None), dense) < 2e-2


def test_score_mods_and_their_gradients_agree() -> None:
    packed = ragged(LENGTHS[1], 100, seed=3)
    grads = []
    for backend in ("dense", "flex"):
        bias = T5RelativeBias(HEADS).cuda()
        torch.manual_seed(0)
        torch.nn.init.normal_(bias.weight)
        found = run(packed, full, backend, torch.float32, bias)
        assert bias.weight.grad is not None
        grads.append([*found, bias.weight.grad])
    assert distance(grads[1], grads[0]) < 2e-3


def test_queries_that_see_no_key_are_zero_on_flex() -> None:
    packed = ragged([40, 90], 50, seed=1)
    first_rows = Pattern("first rows", lambda query, key: (query["position"] < 5) & (key["position"] >= 0))
    dense, flex = (run(packed, first_rows, backend, torch.float32, None) for backend in ("dense", "flex"))
    assert distance(flex, dense) < 2e-3
    assert not flex[0][5:40].any()


def test_short_attention_inside_a_compiled_model() -> None:
    """All sequences are in use, so that an off-by-one error would show."""
    packed = ragged(LENGTHS[1], 128 * 3, seed=1)
    qkv = torch.randn(len(packed), 3, HEADS, WIDTH, device="cuda").bfloat16()

    def loss(x: Tensor, backend: str | None) -> Tensor:
        return (attend_self(x.sin(), self_layout(packed), full, backend=backend) * 2).float().square().sum()  # type: ignore[arg-type]

    grads = []
    for function, backend in ((loss, "dense"), (torch.compile(loss, dynamic=False), None)):
        x = qkv.clone().requires_grad_()
        function(x, backend).backward()
        grads.append(x.grad.float())  # type: ignore[union-attr]
    assert distance(grads[1:], grads[:1]) < 2e-2
