"""The attention function `attend`, which has five implementations with the same result:

- dense: padded scaled-dot-product attention; used on the CPU, and the reference for the others.
- flash: PyTorch's variable-length kernel, for full, causal and window patterns without a score modification, in half
  precision on CUDA.
- tiles: a Triton kernel for self-attention in short sequences, with the same limits as flash.
- sparse: Triton kernels for self-attention with the patterns of Longformer and BigBird, in bf16 on CUDA.
- decode: a Triton kernel for one query per sequence and a cache with fixed shapes, with the patterns of flash, on CUDA.
- flex: compiled flex_attention with a block mask built from offsets and columns, for everything else on CUDA.

A query that may attend to no key has the output 0 and no gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pretune.nn.attention.flex_block_mask import block_mask
from pretune.nn.attention.patterns import (
    GlobalWindow,
    Pattern,
    PatternColumns,
    RandomBlocks,
    effective_pattern,
    global_keys,
    global_queries,
    global_tokens,
)
from pretune.nn.attention.query_key_layout import (
    AttentionLayout,
    PaddedGroup,
    PaddedRows,
    TokenColumns,
    as_int32,
    padded_groups,
)
from pretune.nn.attention.sparse_layout import find_global_tokens, random_block_table, split_into_blocks
from pretune.nn.kernels import supports_custom_kernels

Backend = Literal["dense", "flash", "flex", "sparse", "tiles", "decode"]
# A score modification: (logit, head, query columns, key columns) → logit, where everything broadcasts
ScoreMod = Callable[[Tensor, Tensor, PatternColumns, PatternColumns], Tensor]
# A value modification: (weights (b, heads, Lq, Lk), query columns, key columns) → a term of the output, (b, heads, Lq, d)
ValueMod = Callable[[Tensor, PatternColumns, PatternColumns], Tensor]
SHORT_KERNEL_MAX_LENGTH = 512  # longest sequences for the Triton kernel
DENSE_MAX_LENGTH = 1024  # longest sequences for the dense path where shapes vary
KERNEL_HEAD_WIDTHS = (16, 32, 64, 128)  # head widths that tensor cores support
KERNEL_BLOCK_SIZES = (16, 32, 64, 128)  # of BigBird's blocks
DECODE_HEAD_WIDTHS: tuple[int, ...] = (8, 16, 32, 64, 128)  # head widths of the kernel for single queries


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: AttentionLayout,
    pattern: Pattern,
    score: ScoreMod | None = None,
    scale: float | None = None,
    *,
    dropout: float = 0.0,
    backend: Backend | None = None,
    stages: int | None = None,
    values: ValueMod | None = None,
) -> Tensor:
    """Return the attention output, (n, heads, d), of n packed queries, keys and values, (n, heads, d) each.

    Tokens attend within the sequences of `layout`, as far as `pattern` allows; d is the head width.
    `score` modifies the logits, which `scale` multiplies (by default 1 / √d). `backend` selects an implementation (by
    default the fastest). `stages` is the number of key blocks that the flex kernel prefetches; fewer take less memory.
    `values` adds a term that is computed from the attention weights, which only the dense implementation has.

    >>> from pretune.nn.attention.query_key_layout import self_layout
    >>> from pretune.nn.attention.patterns import causal
    >>> from pretune.packed import pack_lists
    >>> x = torch.randn(5, 2, 8)
    >>> attend(x, x, x, self_layout(pack_lists([[1, 2, 3], [4, 5]])), causal).shape
    torch.Size([5, 2, 8])
    """
    if values is not None:
        backend = "dense"
    match backend or choose_backend(q, layout, pattern, score, dropout):
        case "dense":
            return _dense(q, k, v, layout, pattern, score, scale, dropout, values)
        case "flash":
            return _flash(q, k, v, layout, pattern, scale)
        case "flex":
            return _flex(q, k, v, layout, pattern, score, scale, stages)
        case "sparse":
            qkv = torch.stack([q, k, v], 1)
            return _sparse(qkv, qkv, layout, pattern, scale)
        case "decode":
            return _decode(q, k, v, layout, pattern, scale)
        case "tiles":
            return _tiles(torch.stack([q, k, v], 1), layout, pattern, scale)


def attend_self(
    qkv: Tensor, layout: AttentionLayout, pattern: Pattern, *, dropout: float = 0.0, backend: Backend | None = None
) -> Tensor:
    """Compute self-attention of n packed tokens, with queries, keys and values in one tensor.

    The shapes are (n, 3, heads, d) → (n, heads, d), where d is the head width.
    """
    q, k, v = qkv.unbind(1)
    if backend is None:
        backend = choose_backend(q, layout, pattern, None, dropout)
        short = layout.queries.max_length <= SHORT_KERNEL_MAX_LENGTH and q.shape[-1] in KERNEL_HEAD_WIDTHS
        if backend == "flash" and short and supports_custom_kernels(q):
            backend = "tiles"
    if backend == "tiles":
        return _tiles(qkv, layout, pattern, None)
    if backend == "sparse":
        return _sparse(qkv, qkv, layout, pattern, None)
    return attend(q, k, v, layout, pattern, dropout=dropout, backend=backend)


def attend_globally(
    qkv: Tensor,
    global_qkv: Tensor,
    layout: AttentionLayout,
    pattern: Pattern,
    batch: Pattern | None = None,
    *,
    dropout: float = 0.0,
    backend: Backend | None = None,
) -> Tensor:
    """Compute self-attention of n packed tokens, of which global tokens have projections of their own (Longformer).

    Tokens attend to those that `pattern` allows and to the global tokens of their sequence, with queries, keys and
    values from `qkv`; global tokens attend to all tokens of their sequence, with those from `global_qkv`. The pattern
    of the batch restricts both. The shapes are (n, 3, heads, d) → (n, heads, d), where d is the head width.
    """
    both = effective_pattern(pattern | global_tokens, batch)
    if backend is None and choose_backend(qkv[:, 0], layout, both, None, dropout) == "sparse":
        backend = "sparse"
    if backend == "sparse":
        return _sparse(qkv, global_qkv, layout, both, None)
    local = attend_self(qkv, layout, effective_pattern(pattern | global_keys, batch), dropout=dropout, backend=backend)
    # Computed for all tokens to keep shapes static; tokens that are not global attend to nothing here.
    from_global = attend_self(
        global_qkv, layout, effective_pattern(global_queries, batch), dropout=dropout, backend=backend
    )
    return torch.where(layout.queries.columns["global"][:, None, None] > 0, from_global, local)


def choose_backend(
    q: Tensor, layout: AttentionLayout, pattern: Pattern, score: ScoreMod | None, dropout: float
) -> Backend:
    """Return the fastest implementation that supports an attention call: dense, decode, flash, sparse or flex.

    Only dense supports dropout, and only dense and decode key-value caches; flash and sparse support neither score
    modifications nor fp32. Flex is compiled for each shape, which pays off in training and for long sequences.
    """
    if not q.is_cuda or dropout > 0 or layout.keys.used is not None:
        return "dense"
    if layout.static is not None:
        plain = pattern.reach is not None and score is None and q.shape[-1] in DECODE_HEAD_WIDTHS
        return "decode" if plain and layout.queries.max_length == 1 else "dense"
    if score is not None and torch.are_deterministic_algorithms_enabled():
        return "dense"  # flex sums the gradients of learned tables in a nondeterministic order
    if pattern.reach is not None and score is None and q.dtype in (torch.bfloat16, torch.float16):
        return "flash"
    if score is None and supports_custom_kernels(q) and _has_sparse_kernel(q.shape[-1], layout, pattern):
        return "sparse"
    sizes_vary = not torch.compiler.is_compiling() and not torch.is_grad_enabled()
    return "dense" if sizes_vary and layout.keys.max_length <= DENSE_MAX_LENGTH else "flex"


# -- flash ----------------------------------------------------------------------------------------------------------


def _flash(q: Tensor, k: Tensor, v: Tensor, layout: AttentionLayout, pattern: Pattern, scale: float | None) -> Tensor:
    """Compute attention over packed sequences by PyTorch's variable-length flash attention."""
    from torch.nn.attention.varlen import varlen_attn

    assert pattern.reach is not None
    offsets = layout.queries.offsets, layout.keys.offsets
    longest = layout.queries.max_length, layout.keys.max_length
    mixed = varlen_attn(q, k, v, *offsets, *longest, scale=scale, window_size=pattern.reach)
    assert isinstance(mixed, Tensor)
    return mixed


# -- tiles ----------------------------------------------------------------------------------------------------------


def _tiles(qkv: Tensor, layout: AttentionLayout, pattern: Pattern, scale: float | None) -> Tensor:
    """Compute self-attention over packed sequences by the Triton kernel for short sequences."""
    from pretune.nn.kernels.short_attention import UNLIMITED, short_attention

    assert pattern.reach is not None
    left, right = (UNLIMITED if reach < 0 else reach for reach in pattern.reach)
    scale = qkv.shape[-1] ** -0.5 if scale is None else scale
    return short_attention(qkv, *layout.queries.bounds, scale, left, right)[0]


# -- sparse ---------------------------------------------------------------------------------------------------------


def _has_sparse_kernel(width: int, layout: AttentionLayout, pattern: Pattern) -> bool:
    """Return whether there is a kernel for a pattern in self-attention with heads of this width."""
    form = pattern.form
    plain = layout.queries is layout.keys and layout.stride == 1 and width in KERNEL_HEAD_WIDTHS
    if isinstance(form, RandomBlocks):
        return plain and form.size in KERNEL_BLOCK_SIZES and form.numbers.shape[2] > 0
    # Without a window, or if only one side has global tokens, a part of the kernel would have nothing to do.
    return plain and form is not None and form.reach is not None and form.keys and form.queries


def _sparse(qkv: Tensor, global_qkv: Tensor, layout: AttentionLayout, pattern: Pattern, scale: float | None) -> Tensor:
    """Compute self-attention over packed sequences by the Triton kernels for Longformer and BigBird."""
    side, form = layout.queries, pattern.form
    scale = qkv.shape[-1] ** -0.5 if scale is None else scale
    if isinstance(form, RandomBlocks):
        from pretune.nn.kernels.block_sparse_attention import block_sparse_attention

        blocks = split_into_blocks(side, form.size)
        name = ("random blocks", pattern.name)  # every layer has its own
        if name not in layout.cache:
            layout.cache[name] = random_block_table(blocks, form)
        tables = blocks.tiles, blocks.order, layout.cache[name]
        return block_sparse_attention(qkv, *tables, scale, form.size, form.short, side.max_length)[0]
    from pretune.nn.kernels.global_attention import global_attention
    from pretune.nn.kernels.short_attention import UNLIMITED

    assert isinstance(form, GlobalWindow) and form.reach is not None
    found = find_global_tokens(side)
    tokens = *side.bounds, found.flags, found.before, found.listed, side.offsets
    left, right = (UNLIMITED if reach < 0 else reach for reach in form.reach)
    return global_attention(qkv, global_qkv, *tokens, scale, left, right)[0]


# -- decode ---------------------------------------------------------------------------------------------------------


def _decode(q: Tensor, k: Tensor, v: Tensor, layout: AttentionLayout, pattern: Pattern, scale: float | None) -> Tensor:
    """Compute attention of one query per sequence to a cache with fixed shapes by a Triton kernel."""
    from pretune.nn.kernels.decode_attention import UNLIMITED, decode_attention

    assert pattern.reach is not None and layout.static is not None
    static, left = layout.static, pattern.reach[0]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return decode_attention(q, k, v, static.used, static.slots, static.table, UNLIMITED if left < 0 else left, scale)


# -- flex -----------------------------------------------------------------------------------------------------------


def _flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: AttentionLayout,
    pattern: Pattern,
    score: ScoreMod | None,
    scale: float | None,
    stages: int | None,
) -> Tensor:
    """Compute attention over packed sequences by compiled flex_attention."""
    queries, keys = as_int32(layout.queries), as_int32(layout.keys)
    score_mod = None
    if score is not None:

        def score_mod(logit: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score(logit, h, TokenColumns(queries, i), TokenColumns(keys, j))

    out = _compiled_flex()(
        q.transpose(0, 1).unsqueeze(0),  # (1, heads, n, d)
        k.transpose(0, 1).unsqueeze(0),
        v.transpose(0, 1).unsqueeze(0),
        score_mod=score_mod,
        block_mask=block_mask(layout, pattern),
        scale=scale,
        kernel_options=None if stages is None else {"num_stages": stages},
    )
    return out.squeeze(0).transpose(0, 1)  # type: ignore[no-any-return]


_COMPILED: list[Any] = []


def _compiled_flex() -> Any:
    """Return flex_attention in compiled form, or as it is while the model that calls it is itself being compiled."""
    from torch.nn.attention.flex_attention import flex_attention

    if torch.compiler.is_compiling():
        return flex_attention
    if not _COMPILED:
        _COMPILED.append(torch.compile(flex_attention, dynamic=False))
    return _COMPILED[0]


# -- dense ----------------------------------------------------------------------------------------------------------


def _padded_columns(layout: AttentionLayout, group: PaddedGroup, heads: int = 1) -> tuple[TokenColumns, TokenColumns]:
    """Return the per-token features of the queries and of the keys of a padded group.

    They broadcast to (b, heads, Lq, Lk): sequences, heads, queries and keys per sequence.
    """
    query, key = group.queries[:, None, :, None], group.keys[:, None, None, :]
    head = torch.arange(heads, device=query.device)[:, None, None]
    return TokenColumns(layout.queries, query, head), TokenColumns(layout.keys, key)


def _dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: AttentionLayout,
    pattern: Pattern,
    score: ScoreMod | None,
    scale: float | None,
    dropout: float,
    values: ValueMod | None,
) -> Tensor:
    """Compute attention on padded groups of sequences, by dense scaled-dot-product attention."""
    padded = padded_groups(layout)
    groups = padded.groups
    if layout.static is not None:
        k, v = layout.static.gather(k), layout.static.gather(v)
    if padded.traced and torch.onnx.is_in_onnx_export() and score is None and values is None:
        mask, without_keys = _masks(layout, groups[0], pattern, 0)
        if mask is not None and without_keys is None and pattern.heads == 1:
            return _graph_attention(q, k, v, layout, pattern, mask, scale)
    own_rows = _pad(q, [(group.queries, group.query_stride) for group in groups], lambda: padded.queries)
    key_rows, value_rows = (
        _pad(x, [(group.keys, group.key_stride) for group in groups], lambda: padded.keys) for x in (k, v)
    )
    rows = []
    for number, (group, own, keys, vectors) in enumerate(zip(groups, own_rows, key_rows, value_rows, strict=True)):
        mask, without_keys = _masks(layout, group, pattern, number)
        if score is None and values is None:
            if mask is not None and (padded.traced or layout.static is not None):
                mask = _additive_mask(layout, mask, pattern, number, q.dtype)
            out = F.scaled_dot_product_attention(own, keys, vectors, mask, dropout_p=dropout, scale=scale)
        else:
            out = _with_score(own, keys, vectors, layout, group, mask, score, scale, dropout, values)
        own = out.transpose(1, 2).reshape(-1, *q.shape[1:-1], v.shape[-1])  # (b · Lq, heads, d)
        if without_keys is not None:
            # Filled here so that the gradient reaches the attention in one memory layout whatever the mask is: cuDNN's backward
            # assumes the strides of the first gradient of a shape for all later ones.
            own = own.masked_fill(without_keys.transpose(1, 2).flatten(0, 1), 0.0)
        rows.append(own)
    if len(groups) == 1 and groups[0].query_stride is not None:
        return rows[0]
    mapping = padded.queries
    return _FromRows.apply(torch.cat(rows), mapping.token, mapping.inverse, mapping.padding)  # type: ignore[no-untyped-call, no-any-return]


def _graph_attention(
    q: Tensor, k: Tensor, v: Tensor, layout: AttentionLayout, pattern: Pattern, mask: Tensor, scale: float | None
) -> Tensor:
    """Return dense attention of a traced batch, (n, heads, d), as one operator of an ONNX graph and the padding around it."""
    padded = padded_groups(layout)
    (group,) = padded.groups
    heads, width = int(q.shape[1]), int(q.shape[2])  # constants of the graph

    def pad(x: Tensor, at: Tensor, rows: PaddedRows, stride: int | None) -> Tensor:  # (n, heads, d) → (b, L, heads · d)
        x = x.reshape(-1, heads * width)
        return (x if stride is not None else x.index_select(0, rows.token)).view(
            at.shape[0], at.shape[1], heads * width
        )

    own = pad(q, group.queries, padded.queries, group.query_stride)
    keys, vectors = (pad(x, group.keys, padded.keys, group.key_stride) for x in (k, v))
    plain = pattern.name == "full"
    hidden = group.real_keys.int() if plain else _additive_mask(layout, mask, pattern, 0, torch.float32)
    mixed = GraphAttention.apply(own, keys, vectors, hidden, heads, width**-0.5 if scale is None else scale)  # type: ignore[no-untyped-call]
    rows = mixed.view(-1, heads, width)
    return rows if group.query_stride is not None else rows.index_select(0, padded.queries.inverse)


class GraphAttention(torch.autograd.Function):
    """Attention of b padded sequences, as the operator MultiHeadAttention of ONNX Runtime in an exported graph.

    It replaces a dozen standard operators per layer, which cost more than the products for short texts.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, heads: int, scale: float) -> Tensor:
        """Return the attention output, (b, Lq, heads · d), of queries (b, Lq, heads · d), keys and values.

        `mask` is 1 for keys that are not padding, (b, Lk), or is added to the logits, (b, 1, Lq, Lk).
        """
        q, k, v = (x.view(*x.shape[:2], heads, -1).transpose(1, 2) for x in (q, k, v))
        allowed = mask[:, None, None, :] > 0 if mask.dim() == 2 else mask
        return F.scaled_dot_product_attention(q, k, v, allowed, scale=scale).transpose(1, 2).flatten(2)

    @staticmethod
    def symbolic(graph: Any, q: Any, k: Any, v: Any, mask: Any, heads: int, scale: float) -> Any:
        """Return the node of the ONNX graph."""
        from torch.onnx.symbolic_helper import _optional_input_placeholder_tensor  # the exporter has imported it

        absent = _optional_input_placeholder_tensor(graph)  # type: ignore[no-untyped-call]
        padding, bias = (mask, absent) if mask.type().dim() == 2 else (absent, mask)
        out = graph.op(
            "com.microsoft::MultiHeadAttention", q, k, v, absent, padding, bias, num_heads_i=heads, scale_f=scale
        )
        out.setType(q.type())
        return out


def _pad(x: Tensor, groups: list[tuple[Tensor, int | None]], mapping: Callable[[], PaddedRows]) -> list[Tensor]:
    """Pad n packed tokens, (n, heads, d), to (b, heads, L, d) for each group of b sequences; as a view if possible.

    `groups` has each group's token indices, (b, L), and the stride between its sequences, if they lie in order;
    `mapping` returns the mapping between tokens and places in the groups, which a view does not need.
    """
    if len(groups) == 1 and (stride := groups[0][1]) is not None:
        b, longest = groups[0][0].shape
        return [x.view(b, stride, *x.shape[1:])[:, :longest].transpose(1, 2)]
    rows = mapping()
    parts = _ToRows.apply(x, rows.token, rows.inverse, rows.unmapped).split([at.numel() for at, _ in groups])  # type: ignore[no-untyped-call]
    return [part.view(*at.shape, *x.shape[1:]).transpose(1, 2) for part, (at, _) in zip(parts, groups, strict=True)]


class _ToRows(torch.autograd.Function):
    """An autograd function that pads packed tokens; its backward pass is a gather, faster than a scatter-add."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, inverse: Tensor, unmapped: Tensor | None) -> Tensor:
        ctx.save_for_backward(inverse, unmapped)
        return x.index_select(0, token)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inverse, unmapped = ctx.saved_tensors
        grad = gradients[0].index_select(0, inverse)
        return grad if unmapped is None else grad.masked_fill(unmapped[:, None, None], 0.0), None, None, None


class _FromRows(torch.autograd.Function):
    """An autograd function that removes padding, back to packed tokens; padding gets gradient 0."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, token: Tensor, inverse: Tensor, padding: Tensor) -> Tensor:
        ctx.save_for_backward(token, padding)
        return rows.index_select(0, inverse)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        token, padding = ctx.saved_tensors
        return gradients[0].index_select(0, token).masked_fill(padding[:, None, None], 0.0), None, None, None


def _masks(
    layout: AttentionLayout, group: PaddedGroup, pattern: Pattern, group_number: int
) -> tuple[Tensor | None, Tensor | None]:
    """Return the attention mask of a padded group and the mask of its queries that may attend to no key.

    The first, (b, 1, Lq, Lk) for b sequences with Lq queries and Lk keys, is None if all queries attend to all keys; it
    has one mask per head if the pattern differs between heads. The second, (b, 1, Lq, 1), is None if every query has a
    key; in the first mask, queries without keys attend to all, because an empty softmax is NaN.
    """
    name = ("masks", pattern.name, group_number)
    if name in layout.cache:
        return layout.cache[name]  # type: ignore[no-any-return]
    mask = without_keys = None
    if not (pattern.name == "full" and group.unpadded):
        query, key = _padded_columns(layout, group, pattern.heads)
        mask = group.real_keys[:, None, None, :] & pattern.allow(query, key)  # (b, 1 or heads, Lq or 1, Lk)
        if layout.static is None:
            empty = ~mask.any(-1, keepdim=True)
            mask = mask | empty
            if layout.keys.used is not None and bool(mask.all()):  # a decoding step of sequences of one length
                mask = None
            # An exported program cannot look at the values, so it always has the second mask.
            if torch.compiler.is_exporting() or bool((empty & group.real_queries[:, None, :, None]).any()):
                without_keys = empty.expand(-1, -1, group.queries.shape[1], -1)
    if pattern.heads == 1:  # masks per head are large and belong to one layer
        layout.cache[name] = mask, without_keys
    return mask, without_keys


def attention_mask(layout: AttentionLayout, group: PaddedGroup, pattern: Pattern, number: int) -> Tensor | None:
    """Return the attention mask, (b, 1, Lq, Lk), of padded group number `number` of a layout.

    It is None if all queries attend to all keys. b is the number of sequences, Lq and Lk are their queries and keys.
    """
    return _masks(layout, group, pattern, number)[0]


def _additive_mask(
    layout: AttentionLayout, mask: Tensor, pattern: Pattern, group_number: int, kind: torch.dtype
) -> Tensor:
    """Return a boolean attention mask as numbers of the type `kind` to add to the logits: 0 or the lowest number.

    The layout caches the result, so that a traced or recorded graph computes it only once.
    """
    name = ("additive mask", pattern.name, group_number)
    if name in layout.cache:
        return layout.cache[name]  # type: ignore[no-any-return]
    additive = torch.zeros((), dtype=kind, device=mask.device).masked_fill(~mask, torch.finfo(kind).min)
    if pattern.heads == 1:
        layout.cache[name] = additive
    return additive


def _with_score(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: AttentionLayout,
    group: PaddedGroup,
    mask: Tensor | None,
    score: ScoreMod | None,
    scale: float | None,
    dropout: float,
    values: ValueMod | None,
) -> Tensor:
    """Compute dense attention in separate steps: logits, score modification, softmax, dropout, weighted mean."""
    weights = F.dropout(_softmax_weights(q, k, layout, group, mask, score, scale), dropout)
    mixed = weights @ v
    return mixed if values is None else mixed + values(weights, *_padded_columns(layout, group))


def _softmax_weights(
    q: Tensor,
    k: Tensor,
    layout: AttentionLayout,
    group: PaddedGroup,
    mask: Tensor | None,
    score: ScoreMod | None,
    scale: float | None,
) -> Tensor:
    """Return the attention weights of a padded group, (b, heads, Lq, Lk), for b sequences of Lq queries and Lk keys.

    `q` and `k` are padded to (b, heads, Lq, d) and (b, heads, Lk, d).
    """
    logits = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if score is not None:
        heads = torch.arange(q.shape[1], device=q.device)[None, :, None, None]
        logits = score(logits, heads, *_padded_columns(layout, group))
    if mask is not None:
        logits = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
    return logits.softmax(-1)


def padded_weights(
    q: Tensor,
    k: Tensor,
    layout: AttentionLayout,
    pattern: Pattern,
    score: ScoreMod | None = None,
    scale: float | None = None,
) -> Tensor:
    """Return the attention weights of self-attention in each packed sequence, (sequences, heads, L, L).

    L is the length of the longest sequence. Weights of padding, and of queries that may attend to no key, are 0.
    """
    sequences, longest = layout.queries.offsets.shape[0] - 1, layout.queries.max_length
    weights = q.new_zeros(sequences, q.shape[1], longest, longest)
    for number, group in enumerate(padded_groups(layout).groups):
        mask, without_keys = _masks(layout, group, pattern, number)
        own, keys = q[group.queries].transpose(1, 2), k[group.keys].transpose(1, 2)  # (b, heads, L, d)
        found = _softmax_weights(own, keys, layout, group, mask, score, scale)
        attends = group.real_queries[:, None, :, None]
        found = found * (attends if without_keys is None else attends & ~without_keys)
        length = found.shape[-1]
        weights[layout.queries.sequence[group.queries[:, 0]].long(), :, :length, :length] = found
    return weights
