"""Layouts of packed tokens, and of tokens that a traced graph packs from padded rows."""

from __future__ import annotations

from dataclasses import fields, replace

import torch

from pretune.nn.attention.query_key_layout import TracedPacked, padded_groups, self_layout, token_layout
from pretune.nn.recurrent import TimeMajorRows
from pretune.packed import Packed, pack_lists


def traced(packed: Packed, lengths: list[int]) -> TracedPacked:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    places = mask.flatten().nonzero().squeeze(1)
    return TracedPacked(
        **{field.name: getattr(packed, field.name) for field in fields(packed)}, mask=mask, places=places
    )


def test_a_traced_batch_has_the_layout_of_a_packed_one() -> None:
    plain = pack_lists([[1, 2, 3], [4], [5, 6]])
    batch = traced(plain, [3, 1, 2])
    assert torch.equal(token_layout(batch).sequence, token_layout(plain).sequence)
    assert torch.equal(self_layout(batch).queries.bounds[0], self_layout(plain).queries.bounds[0])
    (group,) = padded_groups(self_layout(batch)).groups
    assert plain.ids[group.queries][group.real_queries].tolist() == plain.ids.tolist()
    rows = TimeMajorRows.make(batch)
    assert rows.sizes.tolist() == TimeMajorRows.make(plain).sizes.tolist() and rows.real is batch.mask


def test_changed_copies_of_a_traced_batch_keep_its_mask() -> None:
    batch = traced(pack_lists([[1, 2], [3]]), [2, 1])
    assert replace(batch, columns={}).mask is batch.mask
    changed = batch.map(torch.clone)
    assert isinstance(changed, TracedPacked) and changed.mask is batch.mask
