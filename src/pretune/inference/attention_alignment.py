"""Word alignments from cross-attention: the source words that a decoder attends to, as weights and as heat maps."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pretune.nn.attention.multi_head import CrossAttention
from pretune.nn.attention.query_key_layout import AttentionLayout, padded_groups
from pretune.packed import Packed
from pretune.runtime.arrays import Array
from pretune.runtime.atomic_io import write_bytes
from pretune.runtime.errors import PretuneError
from pretune.runtime.figures import draw_heat_map, figure_fonts
from pretune.text.tokenizers.tokenizer import Tokenizer

MAX_HEAT_MAPS = 9  # heat maps in one figure


@dataclass(frozen=True)
class WordAlignment:
    """The source and target words of a text pair, and the attention weight of each target word on each source word."""

    source: list[str]
    target: list[str]
    weights: Array  # (target, source); rows sum to 1, or to less with local attention


def cross_attention_weights(backbone: Any, source: Packed, target: Packed) -> Tensor:
    """Return the cross-attention weights of each of n target tokens on the tokens of its source sequence.

    The result is (n, tokens of the longest source). The weights of a Transformer are means over the heads of the
    second-to-last decoder layer, or of the only layer.
    """
    if hasattr(backbone, "align"):
        found: Tensor = backbone.align(source, target)
        return found
    attentions = [module for module in backbone.modules() if isinstance(module, CrossAttention)]
    if not attentions:
        raise PretuneError("this model has no cross-attention, so it has no alignments; translate without alignments")
    inputs: list[tuple[Any, ...]] = []
    chosen = attentions[max(0, len(attentions) - 2)]
    handle = chosen.register_forward_pre_hook(lambda module, given: inputs.append(given))
    try:
        backbone(source, target)
    finally:
        handle.remove()
    x, context = inputs[0]
    return head_weights(chosen, x, context.source, context.source_layout)


def head_weights(attention: CrossAttention, x: Tensor, source: Tensor, layout: AttentionLayout) -> Tensor:
    """Return the cross-attention weights of n decoder states `x` on encoder states (`source`), averaged over heads.

    The result is (n, tokens of the longest source); `layout` tells which states belong to which sequence.
    """
    q = attention.query(x).view(-1, attention.heads, attention.head_width)
    k = attention.keys_and_values(source)[0]
    scale = attention.head_width**-0.5 if attention.scale is None else attention.scale
    padded = padded_groups(layout)
    groups, back = padded.groups, padded.queries.inverse
    longest = max((group.keys.shape[1] for group in groups), default=0)
    rows = []
    for group in groups:
        logits = torch.einsum("bqhd,bkhd->bhqk", q[group.queries], k[group.keys]).float() * scale
        logits = logits.masked_fill(~group.real_keys[:, None, None], -torch.inf)
        share = logits.softmax(-1).mean(1)
        rows.append(F.pad(share, (0, longest - share.shape[2])).flatten(0, 1))
    return torch.cat(rows)[back]


def align_words(weights: Array, source: Sequence[int], target: Sequence[int], tokenizer: Tokenizer) -> WordAlignment:
    """Return the attention weights between words, given those between tokens.

    The shape of `weights` is (target tokens, source tokens); `source` and `target` are the token ids. Weights are summed
    over the tokens of a source word and averaged over the tokens of a target word.
    """
    over, under = token_words(source, tokenizer), token_words(target, tokenizer.target)
    summed = np.stack([weights[:, a:b].sum(1) for _, a, b in over], 1)
    shared = np.stack([summed[a:b].mean(0) for _, a, b in under]) if under else np.zeros((0, len(over)))
    return WordAlignment([word for word, _, _ in over], [word for word, _, _ in under], shared)


def token_words(ids: Sequence[int], tokenizer: Tokenizer) -> list[tuple[str, int, int]]:
    """Return (word, start, end) for each word of a token sequence; the word has the tokens from start to end - 1."""
    tokens = np.asarray(ids, dtype=np.int64)
    if not len(tokens):
        return []
    starts = tokenizer.word_starts(tokens) | tokenizer.specials[tokens]
    starts[1:] |= tokenizer.specials[tokens[:-1]]
    edges = [*np.flatnonzero(starts).tolist(), len(tokens)]
    return [(tokenizer.decode(ids[a:b], specials=True).strip(), a, b) for a, b in pairwise(edges)]


def draw_alignments(alignments: Sequence[WordAlignment], file: Path) -> None:
    """Draw alignments as heat maps in one figure and save it, with the source words on top and the target words at left."""
    with figure_fonts(word for one in alignments for word in (*one.source, *one.target)):
        figure = alignment_figure(alignments[:MAX_HEAT_MAPS])
        buffer = io.BytesIO()
        figure.savefig(buffer, format=file.suffix.removeprefix(".") or "png", dpi=120)
    write_bytes(file, buffer.getvalue())


def alignment_figure(alignments: Sequence[WordAlignment]) -> Any:
    """Return a figure with a heat map of each alignment, with the source words on top and the target words at left."""
    from matplotlib.figure import Figure

    columns = min(3, len(alignments))
    lines = -(-len(alignments) // columns)
    sides = [(1.8 + 0.32 * len(one.source), 0.9 + 0.32 * len(one.target)) for one in alignments]
    size = (columns * max(width for width, _ in sides), lines * max(height for _, height in sides))
    figure = Figure(figsize=size, layout="constrained")
    for number, one in enumerate(alignments, 1):
        axes = figure.add_subplot(lines, columns, number)
        style: dict[str, Any] = {"cmap": "gray", "vmin": 0.0, "vmax": 1.0, "aspect": "equal"}
        image = draw_heat_map(axes, one.weights, rows=one.target, columns=one.source, **style)
        axes.tick_params(axis="x", top=True, labeltop=True, bottom=False, labelbottom=False, rotation=90)
        figure.colorbar(image, ax=axes, label="attention weight", shrink=0.8, pad=0.02)
    return figure
