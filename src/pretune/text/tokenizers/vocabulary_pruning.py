"""A tokenizer without the tokens that some texts do not need; it cuts those texts as it did before."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import tokenizers

from pretune.runtime.errors import PretuneError
from pretune.text.tokenizers.tokenizer import Tokenizer

SOME = 1000  # texts tokenized at once


def used_tokens(tokenizer: Tokenizer, texts: Iterable[str]) -> set[int]:
    """The ids that texts are cut into."""
    used: set[int] = set()
    some: list[str] = []

    def look() -> None:
        ids, _ = tokenizer.encode_parts([[text] for text in some])
        used.update(np.unique(ids).tolist())
        some.clear()

    for text in texts:
        some.append(text)
        if len(some) == SOME:
            look()
    if some:
        look()
    return used


def trim(tokenizer: Tokenizer, texts: Iterable[str]) -> Tokenizer:
    """The same with only the tokens that texts are cut into, what these are made of, single letters, and all special ones.

    Other texts are still cut, into shorter pieces.
    """
    used = used_tokens(tokenizer, texts)
    if not used - set(np.flatnonzero(tokenizer.specials).tolist()):
        raise PretuneError("no text to trim the vocabulary to: nothing of it would be left")
    content = json.loads(tokenizer.backend.to_str())
    model = content["model"]
    spared = {token["content"] for token in content["added_tokens"]} | set(tokenizer.role_tokens.values())
    spared |= {tokenizer.vocabulary[number] for number in used}
    match model["type"]:
        case "Unigram":
            pieces = model["vocab"]
            number = model.get("unk_id")
            unknown = pieces[number][0] if number is not None else None
            kept = [piece for piece in pieces if piece[0] in spared | {unknown} or single(piece[0], "")]
            model["vocab"] = kept
            model["unk_id"] = next((place for place, piece in enumerate(kept) if piece[0] == unknown), None)
            names = [piece[0] for piece in kept]
        case "WordPiece" | "BPE" | "WordLevel":
            marks = model.get("continuing_subword_prefix") or ""
            if model["type"] != "WordLevel":
                spared |= {token for token in model["vocab"] if single(token, marks)}
            if model["type"] == "BPE":
                spared = with_parts(model["merges"], spared, marks)
                model["merges"] = [pair for pair in model["merges"] if {*parts(pair), joined(pair, marks)} <= spared]
            names = [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1]) if token in spared]
            model["vocab"] = {token: place for place, token in enumerate(names)}
        case kind:
            raise PretuneError(f"a vocabulary of the kind {kind} cannot be trimmed")
    numbers = {token: place for place, token in enumerate(names)}
    for token in content["added_tokens"]:
        token["id"] = numbers.setdefault(token["content"], len(numbers))
    content["post_processor"] = (
        None  # it has ids of before; whoever saves the tokenizer with a model puts its own there
    )
    backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    return Tokenizer(backend, tokenizer.role_tokens, tokenizer.characters, tokenizer.names)


def single(token: str, mark: str) -> bool:
    """Whether a token is one letter, with or without what marks it as the inside of a word."""
    return len(token.removeprefix(mark)) <= 1 or (token.startswith("<0x") and len(token) == 6)


def parts(pair: Any) -> tuple[str, str]:
    """The two sides of a merge, which older files have as one string."""
    first, second = pair.split(" ") if isinstance(pair, str) else pair
    return first, second


def joined(pair: Any, mark: str) -> str:
    """What a merge makes of its sides."""
    first, second = parts(pair)
    return first + second.removeprefix(mark)


def with_parts(merges: Iterable[Any], tokens: set[str], mark: str) -> set[str]:
    """Tokens and all that they are merged from."""
    made: dict[str, list[tuple[str, str]]] = {}
    for pair in merges:
        made.setdefault(joined(pair, mark), []).append(parts(pair))
    found, waiting = set(tokens), list(tokens)
    while waiting:
        for token in (part for pair in made.get(waiting.pop(), []) for part in pair):
            if token not in found:
                found.add(token)
                waiting.append(token)
    return found
