"""Adaptation of a trained model to another vocabulary or to longer texts."""

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
    """Return a copy of a model for a new tokenizer, and a report with the numbers of tokens that have old embeddings.

    Tokens that the old vocabulary has, too, keep their embeddings; all others get the mean of the old embeddings.
    """
    old = model.require_tokenizer()
    old_ids = match_tokens(old, tokenizer)
    tokens, matched = np.array(tokenizer.vocabulary), old_ids >= 0
    return with_vocabulary(model, tokenizer, old_ids), {
        "tokens": tokenizer.size,
        "matched": int(matched.sum()),
        "initialized_from_mean": int((~matched).sum()),
        "dropped_tokens": int((~np.isin(np.arange(old.size), old_ids)).sum()),
        "matched_examples": tokens[matched][-EXAMPLES:].tolist(),
        "unmatched_examples": tokens[~matched][:EXAMPLES].tolist(),
    }


def add_special_token(model: Model, role: str) -> Model:
    """Return a copy of a model with an additional special token for `role`, such as separator.

    The embedding of the new token is the mean of all embeddings.
    """
    tokenizer = model.require_tokenizer().with_added(role)
    old_ids = np.arange(max(model.config.vocab_size, tokenizer.size))  # an embedding may have more rows than tokens
    old_ids[tokenizer.role(role)] = -1
    return with_vocabulary(model, tokenizer, old_ids)


def with_vocabulary(model: Model, tokenizer: Tokenizer, old_ids: Array) -> Model:
    """Return a copy of a model for a new tokenizer; `old_ids` has each token's old id, or -1 for the mean embedding."""
    if not isinstance(model.backbone.embed, Embeddings):
        raise PretuneError(
            f"{model.family.name}: the vocabulary is clustered by frequency, so it cannot be replaced; use a model of another family"
        )
    first = getattr(model.backbone.embed.positions, "first", 0)
    config = replace(model.config, vocab_size=len(old_ids), **_special_ids(model.config, tokenizer))
    adapted = _rebuilt(model, config)
    shift = getattr(adapted.backbone.embed.positions, "first", 0) - first
    if shift:  # RoBERTa counts positions from the id of its padding token
        adapted = _rebuilt(model, replace(config, max_position_embeddings=config.max_position_embeddings + shift))
    state, old_size = model.root.tensors(), model.require_tokenizer().size
    for name, dimension in _vocabulary_tensors(adapted.root).items():
        if name in state:
            state[name] = _take(state[name], dimension, torch.from_numpy(old_ids), old_size)
    if shift:
        for name, positions in _learned_positions(adapted.root):
            state[name] = torch.cat([positions.weight[: positions.first], state[name][first:]])
    adapted.root.load_state_dict(state, strict=False)
    adapted.tokenizer = tokenizer
    return adapted


def extend_positions(
    model: Model, longest: int, how: Literal["copy", "interpolate"] = "copy"
) -> tuple[Model, dict[str, Any]]:
    """Return a copy of a model with learned positions extended to `longest` tokens, and a report with both lengths.

    New position embeddings are copies of the old ones, repeated in order as in Longformer (Beltagy et al., 2020), or,
    with `how` = "interpolate", all position embeddings are interpolated from the old ones.
    """
    before = model.backbone.max_positions
    if before is None:
        raise PretuneError(
            f"{model.family.name}: there are no learned positions to extend: positions are "
            f"{_kind_of_positions(model.root)}, so the model reads longer texts as it is; export it without new positions"
        )
    if not _learned_positions(model.root):
        raise PretuneError(
            f"{model.family.name}: its {before} positions are axial, which cannot be extended; use a model of another "
            "family"
        )
    if longest <= before:
        raise PretuneError(
            f"this {model.family.name} model already has {before} positions; give a number above that, not {longest}"
        )
    key = next(key for key in POSITION_KEYS if hasattr(model.config, key))
    extended = _rebuilt(model, replace(model.config, **{key: getattr(model.config, key) + longest - before}))
    extended.max_length = None
    state = model.root.tensors()
    for name, positions in _learned_positions(extended.root):
        if not positions.weight.requires_grad:  # a table of sinusoids
            state[name] = positions.weight
        elif name in state:
            reserved, rows = state[name][: positions.first], state[name][positions.first :].detach()
            if how == "copy":
                rows = rows[torch.arange(longest) % len(rows)]
            else:  # `interpolate` expects (1, width, rows)
                rows = F.interpolate(rows.t()[None], longest, mode="linear", align_corners=True)[0].t()
            state[name] = torch.cat([reserved, rows])
    extended.root.load_state_dict(state, strict=False)
    extended.tokenizer = model.tokenizer
    method = "copied" if how == "copy" else "interpolated"
    return extended, {"positions": longest, "before": before, "initialization": method}


def _rebuilt(model: Model, config: Any) -> Model:
    """Return a copy of a model with a new configuration and without tokenizer; the caller sets its parameters.

    The backbone is randomly initialized; heads are copied, but their tensors with one entry per vocabulary token are 0.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = model.shape.apply(model.family.build(config))
    # One copy of all heads at once, since several names may share a head.
    root = Network(backbone, deepcopy(model.root.heads).items())
    for name, dimension in _vocabulary_tensors(root).items():
        if name.startswith("heads."):
            path, _, tensor = name.rpartition(".")
            module = root.get_submodule(path)
            old = getattr(module, tensor)
            shape = (*old.shape[:dimension], config.vocab_size, *old.shape[dimension + 1 :])
            empty = old.new_zeros(shape)
            setattr(module, tensor, nn.Parameter(empty) if tensor in module._parameters else empty)
    return replace(model, config=config, root=root, tokenizer=None)


def _vocabulary_tensors(root: Network) -> dict[str, int]:
    """Return the names of the tensors with one entry per vocabulary token, and the dimension of these entries."""
    tensors, dimensions = root.tensors(), dict[str, int]()
    for path, module in root.named_modules():
        names, dimension = VOCABULARY.get(type(module), ((), 0))
        dimensions |= {f"{path}.{name}": dimension for name in names if f"{path}.{name}" in tensors}
    return dimensions


def _take(old: Tensor, dimension: int, old_ids: Tensor, old_size: int) -> Tensor:
    """Return the entries of `old` at the indices `old_ids` along a dimension.

    For the index -1, the result has the mean of the first `old_size` entries of `old`.
    """
    mean = old.narrow(dimension, 0, min(old_size, old.shape[dimension])).mean(dimension, keepdim=True)
    taken = old.index_select(dimension, old_ids.clamp(min=0))
    matched = (old_ids >= 0).view([-1 if axis == dimension else 1 for axis in range(old.dim())])
    return torch.where(matched, taken, mean).detach()


def _special_ids(config: Any, tokenizer: Tokenizer) -> dict[str, int | None]:
    """Return the special-token ids of a configuration, such as pad_token_id, with the ids of a new tokenizer."""
    roles = {**ROLE_KEYS, "pad_token_id": "padding"}
    ids = {
        key.name: tokenizer.roles.get(roles[key.name])
        for key in fields(config)
        if key.name in roles and (key.default is None or tokenizer.has_role(roles[key.name]))
    }
    if ids.get("bos_token_id") is not None and type(config).bos_token_id is None:
        ids["bos_token_id"] = None  # filled in from the template on saving
    return ids


def _learned_positions(root: Network) -> list[tuple[str, LearnedPositions]]:
    """Return the modules with learned position embeddings, each with the name of its weight."""
    return [(f"{path}.weight", module) for path, module in root.named_modules() if isinstance(module, LearnedPositions)]


def _kind_of_positions(root: Network) -> str:
    """Return the kind of position encoding of a network without learned positions, for error messages."""
    kinds = {RotaryPositions: "rotary", SinusoidalPositions: "sinusoidal"}
    return next((kinds[type(module)] for module in root.modules() if type(module) in kinds), "relative")
