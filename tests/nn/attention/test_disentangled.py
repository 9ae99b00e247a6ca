"""Disentangled attention: buckets match transformers, clipped distances do not matter, both paths agree."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from pretune.nn.attention.disentangled import (
    DisentangledAttention,
    RelativeEmbeddings,
    SeparateProjections,
    SharedProjections,
)
from pretune.nn.attention.multi_head import AttentionContext
from pretune.nn.attention.patterns import full
from pretune.nn.attention.query_key_layout import self_layout
from pretune.nn.attention.scaled_dot_product import attend
from pretune.nn.attention.score_mods import DisentangledScore
from pretune.nn.convolution import Convolution
from pretune.nn.initialization import initialize
from pretune.packed import pack_lists


@pytest.mark.parametrize(("buckets", "max_distance"), [(8, 14), (8, 40), (32, 64), (256, 512)])
def test_buckets_match_transformers(buckets: int, max_distance: int) -> None:
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    distances = torch.arange(-600, 601)
    theirs = make_log_bucket_position(distances, buckets, max_distance).long().clamp(-buckets, buckets - 1)
    score = DisentangledScore(max_distance, buckets)
    ours = score.bucket(distances.clamp(-max_distance, max_distance)).clamp(-buckets, buckets - 1)
    assert torch.equal(ours, theirs)


def test_embeddings_of_absent_distances_do_not_matter() -> None:
    torch.manual_seed(0)
    attention = initialize(DisentangledAttention(16, 2, SeparateProjections(16, 2), DisentangledScore(30)), 0.3)
    vectors, layout = torch.randn(60, 16), self_layout(pack_lists([[1] * 5, [1] * 3]))
    x = torch.randn(8, 16)
    out = attention(x, AttentionContext(layout, distances=vectors))
    far = vectors.clone()
    far[: 30 - 4] = far[30 + 5 :] = 9.0  # distances from −4 to 4 are there
    assert torch.equal(attention(x, AttentionContext(layout, distances=far)), out)
    near = vectors.clone()
    near[30 + 4] = 9.0
    assert not torch.allclose(attention(x, AttentionContext(layout, distances=near)), out)


@pytest.mark.not_fast
@pytest.mark.parametrize("buckets", [0, 8])
def test_both_paths_agree(buckets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pretune.nn.attention.scaled_dot_product._compiled_flex", lambda: flex_attention)
    torch.manual_seed(0)
    score, layout = DisentangledScore(12, buckets), self_layout(pack_lists([[1] * 20, [1] * 3, [1] * 9]))
    q, k, v = torch.randn(3, 32, 2, 8).unbind()
    near = score.num_reachable(20)
    score_mod = score(q, k, *torch.randn(2, 2 * near, 2, 8).unbind(), layout)
    dense, flex = (attend(q, k, v, layout, full, score_mod, 0.2, backend=backend) for backend in ("dense", "flex"))  # type: ignore[arg-type]
    torch.testing.assert_close(dense, flex, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [SeparateProjections, SharedProjections])
def test_sequences_are_independent_and_only_relative_positions_matter(
    kind: type[SeparateProjections | SharedProjections],
) -> None:
    torch.manual_seed(0)
    attention = initialize(DisentangledAttention(16, 2, kind(16, 2), DisentangledScore(6, 4)), 0.3)
    distances = initialize(RelativeEmbeddings(8, 16), 0.3)()
    x = torch.randn(9, 16)
    together = pack_lists([[1] * 5, [1] * 4])
    out = attention(x, AttentionContext(self_layout(together), distances=distances))
    alone = attention(x[5:], AttentionContext(self_layout(pack_lists([[1] * 4])), distances=distances))
    torch.testing.assert_close(out[5:], alone)
    together.positions += 100
    torch.testing.assert_close(attention(x, AttentionContext(self_layout(together), distances=distances)), out)


def test_a_convolution_stays_inside_its_sequence() -> None:
    torch.manual_seed(0)
    convolution, plain = Convolution(6, 3), torch.nn.Conv1d(6, 6, 3, padding=1)
    convolution.load_state_dict(plain.state_dict())
    x, lengths = torch.randn(9, 6), [5, 1, 3]
    ours = convolution(x, self_layout(pack_lists([[1] * length for length in lengths])))
    theirs = [plain(part.t()[None])[0].t() for part in x.split(lengths)]
    torch.testing.assert_close(ours, torch.cat(theirs))
