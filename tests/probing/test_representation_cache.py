"""Vectors are found by their text and span, survive a restart, and are computed again if their file is damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pretune.probing.representation_cache import SATURATION, Passage, RepresentationCache, model_digest
from tests.support.tiny_models import random_model, small_tokenizer

PASSAGES = [Passage("a text"), Passage("a text", (0, 1)), Passage("another")]


def filled(folder: Path) -> RepresentationCache:
    cache = RepresentationCache(folder)
    cache.add(PASSAGES[:2], [torch.eye(2), torch.full((2, 3), 7.0)])
    cache.add(PASSAGES[2:], [torch.tensor([[5.0, 6.0]]), torch.zeros(1, 3)])
    return cache


def test_vectors_are_read_in_the_order_asked_for_from_several_segments(tmp_path: Path) -> None:
    filled(tmp_path)
    cache = RepresentationCache(tmp_path)
    assert cache.missing([*PASSAGES, Passage("new"), Passage("new")]) == [Passage("new")]
    assert cache.read([PASSAGES[2], PASSAGES[1], PASSAGES[1]], 0).tolist() == [[5, 6], [0, 1], [0, 1]]
    assert (cache.width(0), cache.width(1)) == (2, 3)


def test_large_states_are_clipped_instead_of_becoming_infinite(tmp_path: Path) -> None:
    cache = RepresentationCache(tmp_path)
    cache.add(PASSAGES[:1], [torch.tensor([[1e9, -1e9]])])
    assert cache.read(PASSAGES[:1], 0).tolist() == [[SATURATION, -SATURATION]]


@pytest.mark.parametrize("damage", ["flipped", "truncated", "empty", "garbage"])
def test_damaged_segment_is_removed_and_its_passages_are_missing(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)
    cache = filled(tmp_path)
    first = cache.files[cache.places[PASSAGES[0].key][0]]
    content = bytearray(first.read_bytes())
    content[-1] ^= 255
    whole = {"flipped": content, "truncated": content[:-9], "empty": b"", "garbage": b"\xff" * 64}
    first.write_bytes(whole[damage])
    reopened = RepresentationCache(tmp_path)
    assert reopened.missing(PASSAGES) == PASSAGES[:2]
    assert not first.exists() and "damaged" in capsys.readouterr().err
    assert reopened.read(PASSAGES[2:], 0).tolist() == [[5, 6]]


def test_half_written_segment_is_ignored(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / ".tmp-0123").write_bytes(b"half")
    assert RepresentationCache(tmp_path).missing(PASSAGES) == []


def test_digest_changes_with_weights_and_length_only() -> None:
    model, same = (random_model("bert", small_tokenizer("wordpiece"), "mlm") for _ in range(2))
    assert model_digest(model) == model_digest(same)
    same.max_length = 9
    assert model_digest(model) != model_digest(same)
    before = model_digest(model)
    next(iter(model.backbone.parameters())).view(-1)[0] += 1
    assert model_digest(model) != before


def test_keys_of_lone_surrogates_differ() -> None:
    assert len({Passage("\ud800").key, Passage("\ud801").key, Passage("").key}) == 3
    assert np.frombuffer(Passage("a").key, dtype=np.uint8).shape == (16,)
