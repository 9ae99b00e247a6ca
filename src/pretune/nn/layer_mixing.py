"""Features for a task: what of a backbone's layers its head stands on, and what stands between them.

Devlin et al. (2019) compare the choices of layers; the mix of all with learned weights is that of Peters et al. (2018, ELMo),
who put it beside vectors of words that are the task's own (`elmo`, or `elmo300` where these are 300 wide). `cove` is the top
of a translator's encoder beside its vectors of words (McCann et al., 2017), who also have the biattentive layers.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.nn.attention.functional import attend
from pretune.nn.attention.packed_layout import rearrange, reverse, self_layout
from pretune.nn.attention.patterns import full
from pretune.nn.compiler_exclusions import uncompiled
from pretune.nn.linear import Linear
from pretune.nn.recurrent import Recurrence, Rows
from pretune.packed import Packed
from pretune.runtime.errors import PretuneError, nearest

Layers = Literal["last", "embeddings", "second", "sum4", "concat4", "mix", "elmo", "cove"]
Top = Literal["", "mlp", "bilstm", "biattentive"]
WORDS = 100  # width of a task's own vectors of words, unless it says otherwise
KEPT: dict[str, tuple[int, ...] | Literal["all"]] = {
    "last": (-1,),
    "embeddings": (0,),
    "second": (-2,),
    "sum4": (-4, -3, -2, -1),
    "concat4": (-4, -3, -2, -1),
    "mix": "all",
    "elmo": "all",
    "cove": (0, -1),
}


class Mix(nn.Module):
    """γ · Σ softmax(s)_j · layer_j, with γ and s learned."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, layers: list[Tensor]) -> Tensor:
        """(n, width) each → (n, width).

        >>> Mix(2)([torch.zeros(1, 3), torch.ones(1, 3)]).tolist()
        [[0.5, 0.5, 0.5]]
        """
        shares = self.weights.softmax(0).to(layers[0].dtype)
        return self.scale.to(layers[0].dtype) * sum(share * layer for share, layer in zip(shares, layers, strict=True))


class TwoLSTMs(nn.Module):
    """LSTMs in both directions over each sequence, (n, inputs) → (n, 2 · width)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.ahead, self.back = Recurrence(inputs, width), Recurrence(inputs, width)

    @uncompiled  # rows are laid out by their lengths
    def forward(self, x: Tensor, packed: Packed) -> Tensor:
        """States of both directions side by side."""
        if not len(packed):
            return x.new_zeros(0, 2 * self.ahead.outputs)
        rows, turn = Rows.make(replace(packed, columns={})), reverse(packed)
        ahead, _ = self.ahead(rows.lay(x), rows)
        back, _ = self.back(rows.lay(rearrange(x, turn)), rows)
        return torch.cat([rows.back(ahead), rearrange(rows.back(back), turn)], 1)


class Biattentive(nn.Module):
    """The layers of the biattentive classification network, for one text that looks at itself: (n, inputs) → (n, width).

    A feed-forward layer and LSTMs encode the tokens; each looks at all others, c = Σ softmax(x · x') x'; LSTMs read x, its
    difference from c, and its product with c.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        half = width // 2
        self.inner = nn.Sequential(Linear(inputs, width), nn.ReLU())
        self.encode, self.integrate = TwoLSTMs(width, half), TwoLSTMs(6 * half, half)

    def forward(self, x: Tensor, packed: Packed) -> Tensor:
        """States of tokens that have looked at all others."""
        x = self.encode(self.inner(x), packed)
        one = x[:, None]  # a single head
        seen = attend(one, one, one, self_layout(packed), full, scale=1.0)[:, 0]
        return self.integrate(torch.cat([x, x - seen, x * seen], 1), packed)


class Features(nn.Module):
    """Some layers of a backbone as one, with an MLP or LSTMs on them where `top` says so."""

    def __init__(
        self,
        width: int,
        depth: int,
        layers: str,
        top: Top,
        *,
        vocabulary: int = 0,
        words: int = 0,
        uneven: bool = False,
    ) -> None:
        """`depth` counts the layers without the embeddings; `vocabulary` is for vectors of words of the task's own; `words`
        is the width of the backbone's; `uneven` layers, of several widths, cannot be mixed."""
        super().__init__()
        asked = re.fullmatch(r"(elmo)(\d+)", layers)
        layers, own = (asked[1], int(asked[2])) if asked else (layers, WORDS)
        for value, choices in ((layers, get_args(Layers)), (top, get_args(Top))):
            if value not in choices:
                raise PretuneError(f"unknown features {value!r}; {nearest(value, choices)}")
        if uneven and layers in ("mix", "elmo", "sum4", "concat4"):
            raise PretuneError(f"{layers} takes layers of one width, which this model's are not; take last or second")
        if layers in ("sum4", "concat4") and depth < 4:
            raise PretuneError(f"{layers} takes the last four layers, but this model has {depth}; take mix or second")
        self.layers, self.keep = layers, KEPT[layers]
        if layers in ("mix", "elmo"):
            self.mix = Mix(depth + 1)
        if layers == "elmo":
            self.words = nn.Parameter(torch.empty(vocabulary, own).normal_(std=own**-0.5))
        self.inside = words
        self.width = {"concat4": 4 * width, "elmo": width + own, "cove": width + words}.get(layers, width)
        if top == "mlp":
            self.mlp: nn.Module = nn.Sequential(Linear(self.width, width), nn.Tanh())
            self.width = width
        elif top == "bilstm":
            self.lstms: nn.Module = TwoLSTMs(self.width, width // 2)
            self.width = 2 * (width // 2)
        elif top == "biattentive":
            self.lstms = Biattentive(self.width, 2 * (width // 2))
            self.width = 2 * (width // 2)
        self.top = top

    def forward(self, states: list[Tensor], packed: Packed) -> Tensor:
        """Kept layers, (n, width) each → (n, width of the features)."""
        match self.layers:
            case "mix":
                x: Tensor = self.mix(states)
            case "elmo":
                own = F.embedding(packed.ids, self.words).to(states[0].dtype)
                x = torch.cat([own, self.mix(states)], -1)
            case "cove":
                x = torch.cat([states[0][:, : self.inside], states[1]], -1)
            case "concat4":
                x = torch.cat(states, -1)
            case _:
                x = torch.stack(states).sum(0)
        if self.top == "mlp":
            x = self.mlp(x)
        elif self.top in ("bilstm", "biattentive"):
            x = self.lstms(x, packed)
        return x
