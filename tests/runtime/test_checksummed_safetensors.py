"""Tests of safetensors files with checksums: every damaged byte is detected."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from pretune.runtime.checksummed_safetensors import CHECKSUM, check_finite, read_tensors, write_tensors
from pretune.runtime.errors import PretuneError

TENSORS = {
    "a": torch.arange(12.0).view(3, 4),
    "б": torch.ones(5).bfloat16(),
    "empty": torch.zeros(0, 3),
    "whole": torch.tensor([1, 2]),
}


def same(found: dict[str, torch.Tensor]) -> bool:
    return found.keys() == TENSORS.keys() and all(
        tensor.dtype == found[name].dtype and torch.equal(tensor, found[name]) for name, tensor in TENSORS.items()
    )


def test_tensors_are_restored_and_other_programs_can_read_them(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_tensors(path, TENSORS, {"format": "pt"})
    assert same(read_tensors(path)) and same(load_file(path))
    with safe_open(path, "pt") as file:
        assert file.metadata()["format"] == "pt" and len(file.metadata()[CHECKSUM]) == 64
    save_file(TENSORS, path)  # from another program: no checksum
    assert same(read_tensors(path))


@pytest.mark.not_fast
def test_every_flipped_bit_is_detected_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_tensors(path, TENSORS)
    good = path.read_bytes()
    refused = 0
    for place in range(len(good)):
        raw = bytearray(good)
        raw[place] ^= 1 << random.Random(place).randrange(8)
        path.write_bytes(raw)
        try:
            assert same(read_tensors(path)), place
        except PretuneError:
            refused += 1
    assert refused > 0.8 * len(good)  # the rest is whitespace and the name of the checksum


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 12\n", "git lfs pull"),
        (b"", "damaged or truncated"),
        (b"\x10", "damaged or truncated"),
        (b"\xff" * 100, "header is damaged"),
        ((20).to_bytes(8, "little") + b"[" * 20, "damaged or truncated"),
        ((60_000).to_bytes(8, "little") + b"[" * 60_000, "damaged or truncated"),
        ((2).to_bytes(8, "little") + b"[]", "damaged or truncated"),
        ((4).to_bytes(8, "little") + b"null", "damaged or truncated"),
    ],
)
def test_files_that_are_not_safetensors_are_rejected(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(PretuneError, match=message):
        read_tensors(path)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2])
def test_nan_and_infinity_are_rejected_by_name(bad: float, kind: torch.dtype) -> None:
    tensors = {"good": torch.full((4,), 3.0e38), "layer.weight": torch.tensor([1.0, bad, 2.0]).to(kind)}
    with pytest.raises(PretuneError, match=r"NaN or infinity in layer\.weight,"):
        check_finite(tensors, Path("model.safetensors"))
    check_finite({"good": tensors["good"]}, Path("model.safetensors"))  # its sum overflows
