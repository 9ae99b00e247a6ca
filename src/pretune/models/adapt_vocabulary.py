"""Adapts a trained model to another vocabulary or to longer texts."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import fields, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.models.model import Model, Network
from pretune.models.saving import ROLE_KEYS
from pretune.nn.embedding.positional_encoding import LearnedPositions, RotaryPositions, SinusoidalPositions
from pretune.nn.embedding.token_embedding import Embeddings
from pretune.nn.output_heads import FixedBias, TiedVocabularyHead, UntiedVocabularyHead
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.text.tokenizers.shared_vocabulary import match_tokens
from pretune.text.tokenizers.tokenizer import Tokenizer

EXAMPLES = 10  # the number of tokens shown in a report
# Modules with one entry per token: the names of their tensors, and the dimension that indexes tokens.
VOCABULARY: dict[type[nn.Module], tuple[tuple[str, ...], int]] = {
    Embeddings: (("tokens",), 0),
    TiedVocabularyHead: (("bias",), 0),
    UntiedVocabularyHead: (("output.weight", "output.bias"), 0),
    FixedBias: (("bias",), 1),
}
POSITION_KEYS = ("max_position_embeddings", "n_positions")


def replace_vocabulary(model: Model, tokenizer: Tokenizer) -> tuple[Model, dict[str, Any]]:
    """Return the model with another tokenizer, and a report.

    Tokens in both vocabularies keep their embeddings and output biases; new tokens start from the mean of the old ones.
    """
    old = model.require_tokenizer()
    where = match_tokens(old, tokenizer)
    made = _with_vocabulary(model, tokenizer, where)
    tokens = np.array(tokenizer.vocabulary)
    kept = np.isin(np.arange(old.size), where)
    return made, {
        "tokens": tokenizer.size,
        "matched": int((where >= 0).sum()),
        "from_the_mean": int((where < 0).sum()),
        "old_tokens_left_out": int((~kept).sum()),
        "matched_examples": tokens[where >= 0][-EXAMPLES:].tolist(),
        "unmatched_examples": tokens[where < 0][:EXAMPLES].tolist(),
    }


def add_separator(model: Model) -> Model:
    """Return the model with a separator added to its vocabulary, whose embedding starts from the mean of all others."""
    tokenizer = model.require_tokenizer().with_separator()
    added = tokenizer.role("separator")
    where = np.arange(max(model.config.vocab_size, tokenizer.size))  # an embedding may have more rows than tokens
    where[added] = -1
    return _with_vocabulary(model, tokenizer, where)


def _with_vocabulary(model: Model, tokenizer: Tokenizer, where: Array) -> Model:
    """Return the model with another tokenizer; `where` is the old id of each new token, or -1 to start from the mean."""
    if not isinstance(model.backbone.embed, Embeddings):
        raise PretuneError(
            f"{model.family.name}: the vocabulary is clustered by frequency, so it cannot be replaced by another one"
        )
    old = model.require_tokenizer()
    first = getattr(model.backbone.embed.positions, "first", 0)
    config = replace(model.config, vocab_size=len(where), **_special_ids(model.config, tokenizer))
    made = _rebuilt(model, config)
    moved = getattr(made.backbone.embed.positions, "first", 0) - first
    if moved:  # RoBERTa counts positions from the id of its padding token
        made = _rebuilt(model, replace(config, max_position_embeddings=config.max_position_embeddings + moved))
    state = model.root.tensors()
    for name, dimension in _vocabulary_tensors(made.root).items():
        if name in state:
            state[name] = _take(state[name], dimension, torch.from_numpy(where), old.size)
    if moved:
        for name, positions in _learned(made.root):
            state[name] = torch.cat([positions.weight[: positions.first], state[name][first:]])
    made.root.load_state_dict(state, strict=False)
    made.tokenizer = tokenizer
    return made


def extend_positions(
    model: Model, longest: int, how: Literal["copy", "interpolate"] = "copy"
) -> tuple[Model, dict[str, Any]]:
    """Return the model with more learned positions, and a report.

    The position embeddings are copied repeatedly, as those of RoBERTa for Longformer (Beltagy et al., 2020), or
    interpolated between the first and the last.
    """
    before = model.backbone.longest
    if before is None:
        raise PretuneError(
            f"{model.family.name}: there are no learned positions to extend: positions are "
            f"{_kind_of_positions(model.root)}, so the model reads longer texts without a change"
        )
    if not _learned(model.root):
        raise PretuneError(f"{model.family.name}: axial positions, {before} here, cannot be extended")
    if longest <= before:
        raise PretuneError(
            f"This {model.family.name} model already has {before} positions; give a number larger than that, not {longest}."
        )
    key = next(key for key in POSITION_KEYS if hasattr(model.config, key))
    made = _rebuilt(model, replace(model.config, **{key: getattr(model.config, key) + longest - before}))
    made.max_length = None
    state = model.root.tensors()
    for name, positions in _learned(made.root):
        if not positions.weight.requires_grad:  # a table of sinusoids
            state[name] = positions.weight
        elif name in state:
            start, rows = state[name][: positions.first], state[name][positions.first :]
            state[name] = torch.cat([start, _copied(rows, longest) if how == "copy" else _stretched(rows, longest)])
    made.root.load_state_dict(state, strict=False)
    made.tokenizer = model.tokenizer
    return made, {
        "positions": longest,
        "were": before,
        "new_ones": "copied over and over" if how == "copy" else "stretched",
    }


def _rebuilt(model: Model, config: Any) -> Model:
    """Return a model with another configuration and copies of the heads; vocabulary-sized tensors of heads are zeros."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = model.shape.apply(model.family.build(config))
    # One copy of all heads at once, since several names may share a head.
    root = Network(backbone, deepcopy(model.root.heads).items())
    for name, dimension in _vocabulary_tensors(root).items():
        if name.startswith("heads."):
            path, _, tensor = name.rpartition(".")
            module = root.get_submodule(path)
            shape = list(getattr(module, tensor).shape)
            shape[dimension] = config.vocab_size
            empty = getattr(module, tensor).new_zeros(shape)
            setattr(module, tensor, nn.Parameter(empty) if tensor in module._parameters else empty)
    return replace(model, config=config, root=root, tokenizer=None)


def _vocabulary_tensors(root: Network) -> dict[str, int]:
    """Return the names of the tensors with one entry per token, and the dimension that indexes tokens."""
    found: dict[str, int] = {}
    for path, module in root.named_modules():
        if type(module) in VOCABULARY:
            names, dimension = VOCABULARY[type(module)]
            found |= {f"{path}.{name}": dimension for name in names}
    return {name: dimension for name, dimension in found.items() if name in root.tensors()}


def _take(old: Tensor, dimension: int, where: Tensor, known: int) -> Tensor:
    """Return the entries of the old tensor for matched tokens, and the mean of its first `known` entries for others."""
    mean = old.narrow(dimension, 0, min(known, old.shape[dimension])).mean(dimension, keepdim=True)
    taken = old.index_select(dimension, where.clamp(min=0))
    matched = (where >= 0).view([-1 if number == dimension else 1 for number in range(old.dim())])
    return torch.where(matched, taken, mean).detach()


def _special_ids(config: Any, tokenizer: Tokenizer) -> dict[str, int | None]:
    """Return the values of a configuration's special-token ids for the new tokenizer."""
    roles = {**ROLE_KEYS, "pad_token_id": "padding"}
    found: dict[str, int | None] = {}
    for key in fields(config):
        if key.name in roles and (key.default is None or tokenizer.has_role(roles[key.name])):
            found[key.name] = tokenizer.roles.get(roles[key.name])
    if found.get("bos_token_id") is not None and type(config).bos_token_id is None:
        found["bos_token_id"] = None  # filled in from the template on saving
    return found


def _learned(root: Network) -> list[tuple[str, LearnedPositions]]:
    return [(f"{path}.weight", module) for path, module in root.named_modules() if isinstance(module, LearnedPositions)]


def _copied(rows: Tensor, longest: int) -> Tensor:
    return rows[torch.arange(longest) % len(rows)].detach()


def _stretched(rows: Tensor, longest: int) -> Tensor:
    # (rows, width) → (1, width, rows), the layout that `interpolate` expects
    stretched = F.interpolate(rows.detach().t()[None], longest, mode="linear", align_corners=True)
    return stretched[0].t().contiguous()


def _kind_of_positions(root: Network) -> str:
    modules = list(root.modules())
    if any(isinstance(module, RotaryPositions) for module in modules):
        return "rotary"
    if any(isinstance(module, SinusoidalPositions) for module in modules):
        return "sinusoidal"
    return "relative"
