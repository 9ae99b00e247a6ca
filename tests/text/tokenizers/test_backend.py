"""Sizes in hostile tokenizer files do not reach the `tokenizers` library, which would end the process."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
import tokenizers

from pretune import PretuneError
from pretune.text.tokenizers.backend import build_backend
from pretune.text.tokenizers.sentencepiece_normalizer import build_normalizers

HUGE_RULES = (2**32 - 16).to_bytes(4, "little") + bytes(64)  # "4 GiB of rules follow", and 64 bytes do


def content() -> dict[str, Any]:
    model = tokenizers.models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]")
    return json.loads(tokenizers.Tokenizer(model).to_str())


@pytest.mark.parametrize("nested", [False, True])
def test_compiled_rules_of_the_wrong_size_are_refused(nested: bool) -> None:
    rules = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(HUGE_RULES).decode()}
    normalizer = {"type": "Sequence", "normalizers": [rules]} if nested else rules
    with pytest.raises(PretuneError, match=r"tokenizer\.json: the normalization rules are damaged"):
        build_backend(json.dumps(content() | {"normalizer": normalizer}), "tokenizer.json")
    with pytest.raises(PretuneError, match="the normalization rules are damaged"):
        build_normalizers("nmt_nfkc", HUGE_RULES)


def test_padding_is_removed() -> None:
    padding = {"strategy": {"Fixed": 2**44}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
               "pad_type_id": 0, "pad_token": "a"}  # fmt: skip
    backend = build_backend(json.dumps(content() | {"padding": padding}), "tokenizer.json")
    assert backend.padding is None and backend.encode("a").ids == [0]
