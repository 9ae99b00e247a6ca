"""Tests that cached texts are not tokenized again, and that damaged cache files are ignored."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pretune.text.tokenizers import token_cache
from pretune.text.tokenizers.token_cache import FEWEST, cached_tokens, use_token_cache


def test_texts_are_tokenized_once(tmp_path: Path) -> None:
    calls = []

    def make() -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
        calls.append(1)
        return np.arange(5, dtype=np.uint16), np.array([2, 3])

    texts = ["a text"] * FEWEST
    cached_tokens(lambda: "x", texts, make)
    assert len(calls) == 1 and token_cache._FOLDER.get() is None
    with use_token_cache(tmp_path):
        first, again = cached_tokens(lambda: "x", texts, make), cached_tokens(lambda: "x", texts, make)
        assert len(calls) == 2 and again[0].dtype == np.uint16 and (first[1] == again[1]).all()
        cached_tokens(lambda: "y", texts, make)  # another tokenizer
        cached_tokens(lambda: "x", ["a", " text", *texts[2:]], make)  # other texts with the same letters
        cached_tokens(lambda: "x", texts[1:], make)  # too few to cache
        assert len(calls) == 5 and len(list(tmp_path.iterdir())) == 3
        for path in tmp_path.iterdir():
            path.write_bytes(path.read_bytes()[:40])
        cached_tokens(lambda: "x", texts, make)
        assert len(calls) == 6
    cached_tokens(lambda: "x", texts, make)
    assert len(calls) == 7
