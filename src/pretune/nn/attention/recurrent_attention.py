"""Attention of a recurrent decoder to its source, with several compatibility functions.

dot             s · h                    Luong et al., 2015, arXiv:1508.04025
scaled          s · h / √d               Vaswani et al., 2017, arXiv:1706.03762
multiplicative  s · W h                  Luong et al., 2015
additive        v · tanh(W s + U h)      Bahdanau et al., 2015, arXiv:1409.0473
cosine          β cos(s, h), β learned   Graves et al., 2014, arXiv:1410.5401

Attention is global, over the whole source; local, around a position that follows the target or is predicted, with
Gaussian decay (Luong et al., 2015); or hard, at one state, sampled in training and the most likely otherwise (Xu et
al., 2015, arXiv:1502.03044; here with straight-through gradients).
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.nn.attention.query_key_layout import AttentionLayout, padded_groups
from pretune.nn.dropout import Noise
from pretune.nn.linear import Linear
from pretune.runtime.errors import PretuneError

Compatibility = Literal["dot", "scaled", "multiplicative", "additive", "cosine"]
AttentionRange = Literal["global", "local", "local-monotonic", "hard"]


class RecurrentAttention(nn.Module):
    """Attention of a recurrent decoder over the encoder's states (Bahdanau et al., 2015; Luong et al., 2015)."""

    def __init__(
        self,
        queries: int,
        keys: int,
        score: Compatibility,
        reach: AttentionRange = "global",
        inner: int = 0,
        window: int = 10,
    ) -> None:
        """Build the attention for queries and keys of the given widths; `score` names the compatibility function.

        `reach` is global, local, around one source token, or hard, as in the module's docstring. `inner` is the hidden
        width of additive attention (0: that of the queries); local attention reaches `window` source tokens to each
        side.
        """
        super().__init__()
        if score in ("dot", "scaled", "cosine") and queries != keys:
            raise PretuneError(
                f"{score} attention needs queries and keys of the same width, not {queries} and {keys}; "
                "choose multiplicative or additive attention"
            )
        self.score, self.reach, self.window = score, reach, window
        if score == "multiplicative":
            self.key = Linear(keys, queries, bias=False)
        elif score == "additive":
            self.query, self.key = Linear(queries, inner or queries), Linear(keys, inner or queries, bias=False)
            self.vector = nn.Parameter(torch.empty(inner or queries).uniform_(-0.1, 0.1))
        elif score == "cosine":
            self.sharpness = nn.Parameter(torch.ones(()))
        if reach == "local":
            self.place = Linear(queries, queries, bias=False)
            self.place_vector = nn.Parameter(torch.empty(queries).uniform_(-0.1, 0.1))
        self.noise = Noise()

    def forward(self, queries: Tensor, keys: Tensor, layout: AttentionLayout) -> tuple[Tensor, Tensor]:
        """Attend from n queries to m keys, (m, width), in the sequences of `layout`.

        Return the contexts, (n, width), and the attention weights, (n, keys of the longest source).
        """
        padded = padded_groups(layout)
        groups, inverse = padded.groups, padded.queries.inverse
        prepared = self.prepare(keys)
        positions = layout.queries.columns["position"]
        contexts, weights = [], []
        longest = max((group.keys.shape[1] for group in groups), default=0)
        for number, group in enumerate(groups):
            own, places = queries[group.queries], positions[group.queries]
            share = self.weigh(own, prepared[group.keys], group.real_keys, places, number)
            contexts.append((share @ keys[group.keys]).flatten(0, 1))
            weights.append(F.pad(share, (0, longest - share.shape[2])).flatten(0, 1))
        return torch.cat(contexts)[inverse], torch.cat(weights)[inverse]

    def prepare(self, keys: Tensor) -> Tensor:
        """Return the encoder states `keys` in the form that `compare` takes, computed once for all decoder steps."""
        match self.score:
            case "multiplicative" | "additive":
                return self.key(keys)
            case "cosine":
                return F.normalize(keys, dim=-1)
        return keys

    def weigh(self, queries: Tensor, prepared: Tensor, real: Tensor, positions: Tensor, number: int = 0) -> Tensor:
        """Return the attention weights, (b, q, k), of q queries per sequence over k keys, in b sequences.

        `prepared` are keys that `prepare` returned; `real`, (b, k), is False for padding keys; `positions`, (b, q), are
        the positions of the queries; `number` varies the samples of hard attention.
        """
        logits = self.compare(queries, prepared).float()
        visible = real[:, None].expand(logits.shape)
        places = torch.arange(real.shape[1], device=real.device)
        decay = None
        if self.reach.startswith("local"):
            last = real.sum(1)[:, None] - 1  # (b, 1)
            center = torch.minimum(positions, last).to(logits.dtype)
            if self.reach == "local":
                center = last * torch.sigmoid(torch.tanh(self.place(queries)).float() @ self.place_vector.float())
                decay = torch.exp(-((places - center[:, :, None]) ** 2) / (2 * (self.window / 2) ** 2))
            # A position between two states is near both, however narrow the window.
            visible = visible & ((places - center[:, :, None]).abs() <= max(self.window, 0.5))
        share = logits.masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num(0.0)
        share = share if decay is None else share * decay
        if self.reach == "hard":
            share = self.choose(share, number)
        return share.to(queries.dtype)

    def compare(self, queries: Tensor, prepared: Tensor) -> Tensor:
        """Return the attention logits, (b, q, k), of queries, (b, q, …), and of keys from `prepare`, (b, k, …)."""
        match self.score:
            case "additive":
                inner = torch.tanh(self.query(queries)[:, :, None] + prepared[:, None])  # (b, q, k, inner)
                return inner @ self.vector.to(inner.dtype)
            case "scaled":
                queries = queries * queries.shape[-1] ** -0.5
            case "cosine":
                queries = self.sharpness.to(queries.dtype) * F.normalize(queries, dim=-1)
        return queries @ prepared.transpose(1, 2)

    def choose(self, share: Tensor, number: int) -> Tensor:
        """Choose one key per query, and return one-hot weights, (b, q, k), with straight-through gradients.

        In training the key is sampled with the probabilities `share`, (b, q, k), and `number` varies the sample;
        otherwise it is the most probable key.
        """
        scores = share.clamp(min=1e-20).log()
        if self.training:  # the maximum after Gumbel noise is a sample from the weights
            uniform = torch.special.ndtr(self.noise(tuple(share.shape), number, share.device)).clamp(1e-6, 1 - 1e-6)
            scores = scores - (-uniform.log()).log()
        one = F.one_hot(scores.masked_fill(share == 0, -torch.inf).argmax(-1), share.shape[-1]).to(share.dtype)
        return one + share - share.detach()
