"""Features for a task: what of a backbone's layers its head stands on, and what stands between them.

Devlin et al. (2019) compare the choices of layers; the mix of all with learned weights is that of Peters et al. (2018, ELMo).
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from pretune.errors import PretuneError, nearest
from pretune.nn.layout import padded_groups, self_layout
from pretune.nn.linear import Linear
from pretune.packed import Packed

Layers = Literal["last", "embeddings", "second", "sum4", "concat4", "mix"]
Top = Literal["", "mlp", "bilstm"]
KEPT: dict[Layers, tuple[int, ...] | Literal["all"]] = {
    "last": (-1,),
    "embeddings": (0,),
    "second": (-2,),
    "sum4": (-4, -3, -2, -1),
    "concat4": (-4, -3, -2, -1),
    "mix": "all",
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
        self.cells = nn.LSTM(inputs, width, bidirectional=True, batch_first=True)

    def forward(self, x: Tensor, packed: Packed) -> Tensor:
        """States of both directions side by side."""
        padded = padded_groups(self_layout(packed))
        rows = []
        for group in padded.groups:
            lengths = group.real_queries.sum(1).clamp(min=1).cpu()
            stream = pack_padded_sequence(x[group.queries], lengths, batch_first=True, enforce_sorted=False)
            out, _ = pad_packed_sequence(self.cells(stream)[0], batch_first=True, total_length=group.queries.shape[1])
            rows.append(out.flatten(0, 1))
        return torch.cat(rows)[padded.queries.back]


class Features(nn.Module):
    """Some layers of a backbone as one, with an MLP or LSTMs on them where `top` says so."""

    def __init__(self, width: int, depth: int, layers: Layers, top: Top) -> None:
        """`depth` counts the layers without the embeddings."""
        super().__init__()
        for value, choices in ((layers, get_args(Layers)), (top, get_args(Top))):
            if value not in choices:
                raise PretuneError(f"unknown features {value!r}; {nearest(value, choices)}")
        if layers in ("sum4", "concat4") and depth < 4:
            raise PretuneError(f"{layers} takes the last four layers, but this model has {depth}; take mix or second")
        self.layers, self.keep = layers, KEPT[layers]
        if layers == "mix":
            self.mix = Mix(depth + 1)
        self.width = 4 * width if layers == "concat4" else width
        if top == "mlp":
            self.mlp: nn.Module = nn.Sequential(Linear(self.width, width), nn.Tanh())
            self.width = width
        elif top == "bilstm":
            self.lstms = TwoLSTMs(self.width, width // 2)
            self.width = 2 * (width // 2)
        self.top = top

    def forward(self, states: list[Tensor], packed: Packed) -> Tensor:
        """Kept layers, (n, width) each → (n, width of the features)."""
        match self.layers:
            case "mix":
                x: Tensor = self.mix(states)
            case "concat4":
                x = torch.cat(states, -1)
            case _:
                x = torch.stack(states).sum(0)
        if self.top == "mlp":
            x = self.mlp(x)
        elif self.top == "bilstm":
            x = self.lstms(x, packed)
        return x
