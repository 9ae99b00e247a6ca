"""Prune a tokenizer's vocabulary to the tokens that given texts need, keeping their tokenization unchanged."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np
import tokenizers

from pretune.runtime.errors import PretuneError
from pretune.text.tokenizers.tokenizer import Tokenizer

BATCH = 1000  # texts tokenized at once


def used_tokens(tokenizer: Tokenizer, texts: Iterable[str]) -> set[int]:
    """Return the set of the ids of all tokens that occur in texts."""
    used: set[int] = set()
    remaining = iter(texts)
    while batch := list(islice(remaining, BATCH)):
        ids, _ = tokenizer.encode_parts([[text] for text in batch])
        used.update(np.unique(ids).tolist())
    return used


def prune_vocabulary(tokenizer: Tokenizer, texts: Iterable[str]) -> Tokenizer:
    """Return a tokenizer whose vocabulary is reduced to the tokens that `texts` need.

    The special tokens and all single characters are kept, too, and, for BPE, all tokens from which kept tokens are
    merged. The tokenization of `texts` does not change.
    """
    used = used_tokens(tokenizer, texts)
    if not used - set(np.flatnonzero(tokenizer.specials).tolist()):
        raise PretuneError("no text was given to select the vocabulary, so pruning would remove all tokens; pass texts")
    content = json.loads(tokenizer.backend.to_str())
    model = content["model"]
    kept_tokens = {token["content"] for token in content["added_tokens"]} | set(tokenizer.role_tokens.values())
    kept_tokens |= {tokenizer.vocabulary[number] for number in used}
    match model["type"]:
        case "Unigram":
            pieces = model["vocab"]
            number = model.get("unk_id")
            unknown = pieces[number][0] if number is not None else None
            kept = [piece for piece in pieces if piece[0] in kept_tokens | {unknown} or _is_character(piece[0], "")]
            model["vocab"] = kept
            model["unk_id"] = next((place for place, piece in enumerate(kept) if piece[0] == unknown), None)
            names = [piece[0] for piece in kept]
        case "WordPiece" | "BPE" | "WordLevel":
            prefix = model.get("continuing_subword_prefix") or ""
            if model["type"] != "WordLevel":
                kept_tokens |= {token for token in model["vocab"] if _is_character(token, prefix)}
            if model["type"] == "BPE":
                kept_tokens = _with_parts(model["merges"], kept_tokens, prefix)
                merges = model["merges"]
                model["merges"] = [m for m in merges if {*_sides(m), _merged(m, prefix)} <= kept_tokens]
            names = [token for token in sorted(model["vocab"], key=model["vocab"].get) if token in kept_tokens]
            model["vocab"] = {token: place for place, token in enumerate(names)}
        case kind:
            advice = "use WordPiece, BPE, Unigram or WordLevel"
            raise PretuneError(f"vocabularies of {kind} tokenizers cannot be pruned; {advice}")
    numbers = {token: place for place, token in enumerate(names)}
    for token in content["added_tokens"]:
        token["id"] = numbers.setdefault(token["content"], len(numbers))
    content["post_processor"] = None  # its ids are the old ones; saving the tokenizer with a model adds a new one
    backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    return Tokenizer(backend, tokenizer.role_tokens, tokenizer.characters, tokenizer.names)


def _is_character(token: str, prefix: str) -> bool:
    """Return whether a token is a single character or byte; `prefix`, which marks continuations, is not counted."""
    return len(token.removeprefix(prefix)) <= 1 or (token.startswith("<0x") and len(token) == 6)


def _sides(pair: Any) -> tuple[str, str]:
    first, second = pair.split(" ") if isinstance(pair, str) else pair
    return first, second


def _merged(pair: Any, prefix: str) -> str:
    first, second = _sides(pair)
    return first + second.removeprefix(prefix)


def _with_parts(merges: Iterable[Any], tokens: set[str], prefix: str) -> set[str]:
    """Return the set of `tokens`, extended by all tokens that BPE merges into them, directly or in several steps.

    `prefix` marks tokens that continue a word.
    """
    parts: dict[str, set[str]] = {}
    for pair in merges:
        parts.setdefault(_merged(pair, prefix), set()).update(_sides(pair))
    found, waiting = set(tokens), list(tokens)
    while waiting:
        new = parts.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found
