"""Attention is one function.

    attend(q, k, v, layout, pattern, score=None, scale=None)

q is (n, heads, d), k and v are (m, heads, d); the layout says which tokens belong together, the pattern who may look at whom,
the score bends the logits. Four paths compute the same:

- dense: padded scaled-dot-product attention. The CPU's path, and the oracle for the others.
- flash: PyTorch's variable-length kernel, for plain patterns without a score, in half precision on CUDA.
- tiles: our kernel for the same in short sequences, where queries, keys and values are of the same tokens.
- flex: compiled flex_attention with a block mask built from offsets and columns, for everything else on CUDA.

A row that sees nothing yields 0 and no gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pretune.nn.block_mask import block_mask
from pretune.nn.kernels import ours
from pretune.nn.layout import Group, Indexed, Layout, Rows, narrowed, padded_groups
from pretune.nn.patterns import Columns, Pattern

Path = Literal["dense", "flash", "flex", "tiles"]
# (logit, head, query columns, key columns) → logit; everything broadcasts
Bend = Callable[[Tensor, Tensor, Columns, Columns], Tensor]
SHORT = 512  # sequences up to here are the tiles' business
DENSE = 1024  # sequences up to here are dense where sizes vary
TILE_WIDTHS = (16, 32, 64, 128)  # of heads, as tensor cores want them


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    pattern: Pattern,
    score: Bend | None = None,
    scale: float | None = None,
    *,
    dropout: float = 0.0,
    path: Path | None = None,
    stages: int | None = None,
) -> Tensor:
    """Each query's weighted mean of the values it may look at: (n, heads, d).

    `stages`: how many blocks of keys the flex kernel has on their way at once; fewer take less of its memory.

    >>> from pretune.nn.layout import self_layout
    >>> from pretune.nn.patterns import causal
    >>> from pretune.packed import pack_lists
    >>> x = torch.randn(5, 2, 8)
    >>> attend(x, x, x, self_layout(pack_lists([[1, 2, 3], [4, 5]])), causal).shape
    torch.Size([5, 2, 8])
    """
    match path or choose_path(q, layout, pattern, score, dropout):
        case "dense":
            return _dense(q, k, v, layout, pattern, score, scale, dropout)
        case "flash":
            return _flash(q, k, v, layout, pattern, scale)
        case "flex":
            return _flex(q, k, v, layout, pattern, score, scale, stages)
        case "tiles":
            return _tiles(torch.stack([q, k, v], 1), layout, pattern, scale)


def attend_self(
    qkv: Tensor, layout: Layout, pattern: Pattern, *, dropout: float = 0.0, path: Path | None = None
) -> Tensor:
    """The same for queries, keys and values of the same tokens, stacked: (n, 3, heads, d) → (n, heads, d)."""
    q, k, v = qkv.unbind(1)
    if path is None:
        path = choose_path(q, layout, pattern, None, dropout)
        if path == "flash" and layout.queries.longest <= SHORT and q.shape[-1] in TILE_WIDTHS and ours(q):
            path = "tiles"
    if path == "tiles":
        return _tiles(qkv, layout, pattern, None)
    return attend(q, k, v, layout, pattern, dropout=dropout, path=path)


def choose_path(q: Tensor, layout: Layout, pattern: Pattern, score: Bend | None, dropout: float) -> Path:
    """The fastest path that can do it. The fast ones know neither dropout nor slots, flash neither scores nor fp32; flex has to
    be compiled for every size anew, which pays in training, or where texts are long.
    """
    if not q.is_cuda or dropout > 0 or layout.keys.used is not None:
        return "dense"
    if score is not None and torch.are_deterministic_algorithms_enabled():
        return "dense"  # flex adds gradients of learned tables up in any order
    if pattern.reach is not None and score is None and q.dtype in (torch.bfloat16, torch.float16):
        return "flash"
    sizes_vary = not torch.compiler.is_compiling() and not torch.is_grad_enabled()
    return "dense" if sizes_vary and layout.keys.longest <= DENSE else "flex"


# -- flash ----------------------------------------------------------------------------------------------------------


def _flash(q: Tensor, k: Tensor, v: Tensor, layout: Layout, pattern: Pattern, scale: float | None) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    assert pattern.reach is not None
    mixed = varlen_attn(
        q,
        k,
        v,
        layout.queries.offsets,
        layout.keys.offsets,
        layout.queries.longest,
        layout.keys.longest,
        scale=scale,
        window_size=pattern.reach,
    )
    assert isinstance(mixed, Tensor)
    return mixed


# -- tiles ----------------------------------------------------------------------------------------------------------


def _tiles(qkv: Tensor, layout: Layout, pattern: Pattern, scale: float | None) -> Tensor:
    from pretune.nn.kernels.tiles import UNLIMITED, attend_tiles

    assert pattern.reach is not None
    left, right = (UNLIMITED if reach < 0 else reach for reach in pattern.reach)
    scale = qkv.shape[-1] ** -0.5 if scale is None else scale
    mixed: Tensor = attend_tiles(qkv, *layout.queries.bounds, scale, left, right)[0]
    return mixed


# -- flex -----------------------------------------------------------------------------------------------------------


def _flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    pattern: Pattern,
    score: Bend | None,
    scale: float | None,
    stages: int | None,
) -> Tensor:
    queries, keys = narrowed(layout.queries), narrowed(layout.keys)
    bend = None
    if score is not None:

        def bend(logit: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score(logit, h, Indexed(queries, i), Indexed(keys, j))

    out = _compiled_flex()(
        q.transpose(0, 1).unsqueeze(0),  # (1, heads, n, d)
        k.transpose(0, 1).unsqueeze(0),
        v.transpose(0, 1).unsqueeze(0),
        score_mod=bend,
        block_mask=block_mask(layout, pattern),
        scale=scale,
        kernel_options=None if stages is None else {"num_stages": stages},
    )
    return out.squeeze(0).transpose(0, 1)  # type: ignore[no-any-return]


_COMPILED: list[Any] = []


def _compiled_flex() -> Any:
    """flex_attention compiled by itself; inside a compiled model it becomes part of that."""
    from torch.nn.attention.flex_attention import flex_attention

    if torch.compiler.is_compiling():
        return flex_attention
    if not _COMPILED:
        _COMPILED.append(torch.compile(flex_attention, dynamic=False))
    return _COMPILED[0]


# -- dense ----------------------------------------------------------------------------------------------------------


def _padded_columns(layout: Layout, group: Group, heads: int = 1) -> tuple[Indexed, Indexed]:
    """Columns of all tokens of a group, shaped to broadcast against (b, heads, Lq, Lk)."""
    query, key = group.queries[:, None, :, None], group.keys[:, None, None, :]
    head = torch.arange(heads, device=query.device)[:, None, None]
    return Indexed(layout.queries, query, head), Indexed(layout.keys, key)


def _dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    pattern: Pattern,
    score: Bend | None,
    scale: float | None,
    dropout: float,
) -> Tensor:
    padded = padded_groups(layout)
    groups = padded.groups
    own_rows = _pad(q, [(group.queries, group.every_query) for group in groups], padded.queries)
    key_rows, value_rows = (_pad(x, [(group.keys, group.every_key) for group in groups], padded.keys) for x in (k, v))
    rows = []
    for number, (group, own, keys, values) in enumerate(zip(groups, own_rows, key_rows, value_rows, strict=True)):
        seen, blind = _seen(layout, group, pattern, number)
        if score is None:
            if seen is not None and padded.traced:
                seen = _added(layout, seen, pattern, number)
            out = F.scaled_dot_product_attention(own, keys, values, seen, dropout_p=dropout, scale=scale)
        else:
            out = _with_score(own, keys, values, layout, group, seen, score, scale, dropout)
        own = out.transpose(1, 2).reshape(-1, *q.shape[1:-1], v.shape[-1])  # (b · Lq, heads, d)
        if blind is not None:
            # Filled here so that the gradient reaches the attention in one layout whatever the mask is: cuDNN's backward takes
            # the strides of the first gradient of a shape for those of all later ones.
            own = own.masked_fill(blind.transpose(1, 2).flatten(0, 1), 0.0)
        rows.append(own)
    if len(groups) == 1 and groups[0].every_query is not None:
        return rows[0]
    at = padded.queries
    return _FromRows.apply(torch.cat(rows), at.at, at.back, at.spare)  # type: ignore[no-untyped-call, no-any-return]


def _pad(x: Tensor, groups: list[tuple[Tensor, int | None]], rows: Rows) -> list[Tensor]:
    """(n, heads, d) → (b, heads, L, d) for each group, a view where sequences lie in order."""
    if len(groups) == 1 and (every := groups[0][1]) is not None:
        b, longest = groups[0][0].shape
        return [x.view(b, every, *x.shape[1:])[:, :longest].transpose(1, 2)]
    parts = _ToRows.apply(x, rows.at, rows.back, rows.lost).split([at.numel() for at, _ in groups])  # type: ignore[no-untyped-call]
    return [part.view(*at.shape, *x.shape[1:]).transpose(1, 2) for part, (at, _) in zip(parts, groups, strict=True)]


class _ToRows(torch.autograd.Function):
    """Tokens laid out in padded rows. Nothing is learned from rows that only pad, so that the backward looks up too: adding
    gradients up by index takes a CPU longer than the attention itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, at: Tensor, back: Tensor, lost: Tensor | None) -> Tensor:
        ctx.save_for_backward(back, lost)
        return x.index_select(0, at)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        back, lost = ctx.saved_tensors
        grad = slopes[0].index_select(0, back)
        return grad if lost is None else grad.masked_fill(lost[:, None, None], 0.0), None, None, None


class _FromRows(torch.autograd.Function):
    """Padded rows back as tokens; rows that only pad have no gradient."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, at: Tensor, back: Tensor, spare: Tensor) -> Tensor:
        ctx.save_for_backward(at, spare)
        return rows.index_select(0, back)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        at, spare = ctx.saved_tensors
        return slopes[0].index_select(0, at).masked_fill(spare[:, None, None], 0.0), None, None, None


def _seen(layout: Layout, group: Group, pattern: Pattern, number: int) -> tuple[Tensor | None, Tensor | None]:
    """(b, 1, Lq, Lk) who sees whom, and (b, 1, Lq, 1) who sees nobody; None where all do and where nobody does.
    With a row for each head where the pattern tells heads apart.

    In the first, rows that see nobody see everybody instead: a softmax over nothing would be NaN, in the gradient too.
    """
    name = ("seen", pattern.name, number)
    if name in layout.cache:
        return layout.cache[name]  # type: ignore[no-any-return]
    seen = blind = None
    if not (pattern.name == "full" and group.even):
        query, key = _padded_columns(layout, group, pattern.heads)
        seen = group.real_keys[:, None, None, :] & pattern.allow(query, key)  # (b, 1 or heads, Lq or 1, Lk)
        empty = ~seen.any(-1, keepdim=True)
        seen = seen | empty
        if layout.keys.used is not None and bool(seen.all()):  # a step of sequences of one length
            seen = None
        if bool((empty & group.real_queries[:, None, :, None]).any()):
            blind = empty.expand(-1, -1, group.queries.shape[1], -1)
    if pattern.heads == 1:  # others are large, and one layer's own
        layout.cache[name] = seen, blind
    return seen, blind


def seen_by(layout: Layout, group: Group, pattern: Pattern, number: int) -> Tensor | None:
    """(b, 1, Lq, Lk) who sees whom in a group of this number; None where all do."""
    return _seen(layout, group, pattern, number)[0]


def _added(layout: Layout, seen: Tensor, pattern: Pattern, number: int) -> Tensor:
    """What to add to logits so that only what is seen counts, made once for all layers: of a mask, a traced graph would make it
    at each of them, and look for rows that see nobody, of which there are none here."""
    name = ("added", pattern.name, number)
    if name in layout.cache:
        return layout.cache[name]  # type: ignore[no-any-return]
    added = torch.zeros(()).masked_fill(~seen, torch.finfo(torch.float32).min)
    if pattern.heads == 1:
        layout.cache[name] = added
    return added


def _with_score(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    group: Group,
    seen: Tensor | None,
    score: Bend,
    scale: float | None,
    dropout: float,
) -> Tensor:
    """Attention spelled out: logits, score, softmax, mean."""
    logits = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    heads = torch.arange(q.shape[1], device=q.device)[None, :, None, None]
    logits = score(logits, heads, *_padded_columns(layout, group))
    if seen is not None:
        logits = logits.masked_fill(~seen, torch.finfo(logits.dtype).min)
    return F.dropout(logits.softmax(-1), dropout) @ v
