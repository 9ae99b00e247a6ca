"""int8 kernels: exact on processors with and without VNNI, or not used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pretune import PretuneError
from pretune.nn.linear import Linear
from pretune.nn.quantized import int8
from pretune.nn.quantized.int8 import LARGEST_7_BIT, Int8Linear, choose_engine, multiplies_exactly, pack_weight
from pretune.runtime.compressed_tensors import quantize_rows


@pytest.fixture(autouse=True)
def clear_engine_cache() -> Iterator[None]:
    """Clear the cache of tested engines."""
    multiplies_exactly.cache_clear()
    yield
    multiplies_exactly.cache_clear()


def multiply(x: Tensor, weight: Tensor, without_vnni: bool) -> Tensor:
    """Multiply uint8 (n, inputs) by int8 (outputs, inputs); without VNNI, add pairs of products in 16 bits."""
    products = x.long()[:, None] * weight.long()[None]  # (n, outputs, inputs)
    pairs = products.unflatten(2, (-1, 2)).sum(3)
    return (pairs.clamp(-(2**15), 2**15 - 1) if without_vnni else pairs).sum(2)


def emulate(monkeypatch: pytest.MonkeyPatch, without_vnni: bool) -> None:
    """Replace torch's kernels by emulations of a processor."""

    def linear(x: Tensor, packed: Any) -> Tensor:
        weight, scale, bias = packed
        low, high = min(0.0, float(x.min())), max(0.0, float(x.max()))
        step = max(high - low, 1e-12) / 255
        zero = round(-low / step)
        whole = (x / step + zero).round().clamp(0, 255)
        sums = multiply(whole, weight, without_vnni) - zero * weight.long().sum(1)
        return sums * step * scale + (0.0 if bias is None else bias)

    monkeypatch.setattr(int8, "linear_dynamic", linear)
    monkeypatch.setattr(int8, "pack_weight", lambda weight, scale, bias, engine: (weight, scale, bias))


def random_linear() -> tuple[Linear, Tensor]:
    torch.manual_seed(0)
    linear = Linear(64, 48, stacked=3).requires_grad_(False)
    # All of one sign, as activations after a ReLU and some heads' weights are: what saturates first.
    linear.weight.abs_()
    return linear, torch.randn(7, 64).abs()


def test_emulated_kernels_saturate_with_8_bits_and_not_with_7() -> None:
    linear, x = random_linear()
    whole = (255 * x / x.max()).round()
    for largest, same in ((127, False), (LARGEST_7_BIT, True)):
        weight, _ = quantize_rows(linear.weight, largest)
        assert torch.equal(multiply(whole, weight, True), multiply(whole, weight, False)) == same
    worst, weight = (
        torch.full((1, 2), 255),
        torch.tensor([[LARGEST_7_BIT, LARGEST_7_BIT], [-LARGEST_7_BIT, -LARGEST_7_BIT]]),
    )
    assert multiply(worst, weight, True).tolist() == [[32640, -32640]]


def test_layers_agree_with_and_without_vnni(monkeypatch: pytest.MonkeyPatch) -> None:
    linear, x = random_linear()
    found = []
    for without_vnni in (False, True):
        emulate(monkeypatch, without_vnni)
        found.append(Int8Linear.from_linear(linear, "dynamic")(x))
    assert torch.equal(*found)
    expected = linear(x)
    assert float((found[0] - expected).abs().max()) < 0.02 * float(expected.abs().max())


def test_8_bit_weights_raise_an_error() -> None:
    """Folders made by other means may have such weights: right on some processors, wrong on others."""
    linear, x = random_linear()
    made = Int8Linear.from_linear(linear, "dynamic")
    made.weight, made.scale = quantize_rows(linear.weight)
    with pytest.raises(PretuneError, match="quantize the model again"):
        made(x)


@pytest.mark.parametrize("kind", ["dynamic", "weight-only"])
def test_layers_are_accurate_on_this_processor(kind: str) -> None:
    linear, x = random_linear()
    made = Int8Linear.from_linear(linear, kind)
    assert made.weight.dtype == torch.int8
    expected = F.linear(x, made.weight * made.scale[:, None], linear.bias)
    assert float((made(x) - expected).abs().max()) < 0.02 * float(expected.abs().max())
    assert float((made(x) - linear(x)).abs().max()) < 0.03 * float(expected.abs().max())


def test_all_engines_of_torch_agree() -> None:
    linear, x = random_linear()
    made = Int8Linear.from_linear(linear, "dynamic")
    step = float(x.max()) / 255 * float(linear.weight.max())  # a value between two steps may be rounded either way
    found = {}
    for engine in torch.backends.quantized.supported_engines:
        if engine != "none" and multiplies_exactly(engine):
            found[engine] = int8.linear_dynamic(x, pack_weight(made.weight, made.scale, made.bias, engine))
    assert choose_engine() in found
    for out in found.values():
        torch.testing.assert_close(out, found[choose_engine()], rtol=0, atol=2 * step)


def test_packing_restores_the_engine() -> None:
    before = torch.backends.quantized.engine
    choose_engine()
    assert torch.backends.quantized.engine == before


def test_inexact_engines_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test kernels that saturate, kernels that raise, and machines without an exact engine."""
    torch_kernel, torch_pack = int8.linear_dynamic, int8.pack_weight
    real = choose_engine()
    known = ["broken", "absent", real]
    monkeypatch.setattr(type(torch.backends.quantized), "supported_engines", known)
    monkeypatch.setattr(int8, "ENGINES", {"other": tuple(known)})
    monkeypatch.setattr(int8.platform, "machine", lambda: "abacus")

    def pack(weight: Tensor, scale: Tensor, bias: Tensor | None, engine: str) -> Any:
        if engine == "absent":
            raise RuntimeError("unknown architecture")
        return engine, torch_pack(weight, scale, bias, real)

    def linear(x: Tensor, packed: Any) -> Tensor:
        engine, weight = packed
        out = torch_kernel(x, weight)
        return out.clamp(-1000.0, 1000.0) if engine == "broken" else out

    monkeypatch.setattr(int8, "pack_weight", pack)
    monkeypatch.setattr(int8, "linear_dynamic", linear)
    assert choose_engine() == real
    known.pop()
    with pytest.raises(PretuneError, match="no int8 kernels that give exact results"):
        choose_engine()
    with pytest.raises(PretuneError, match="use `pretune quantize --backend onnx` instead"):
        Int8Linear.from_linear(Linear(4, 4), "dynamic")


def test_machines_use_their_fastest_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "multiplies_exactly", lambda engine: True)
    for machine, engine in (("x86_64", "x86"), ("AMD64", "x86"), ("aarch64", "qnnpack"), ("arm64", "qnnpack")):
        monkeypatch.setattr(int8.platform, "machine", lambda machine=machine: machine)
        monkeypatch.setattr(type(torch.backends.quantized), "supported_engines", ["qnnpack", "onednn", "x86", "fbgemm"])
        assert choose_engine() == engine


def test_engines_are_tested_on_the_cpu_while_a_model_is_built_on_the_meta_device() -> None:
    found = choose_engine()
    multiplies_exactly.cache_clear()
    with torch.device("meta"):
        assert choose_engine() == found
