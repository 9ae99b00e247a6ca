"""Combine the layers of a backbone into features for a task head, with optional layers on top.

Devlin et al. (2019) compare combinations of layers. The learned weighted sum of all (scalar mix) is that of Peters et
al. (2018, ELMo), who concatenate it with task-specific word vectors (`elmo`, or `elmo300` for a width of 300). `cove`
is the top layer of a translation encoder concatenated with its word vectors (McCann et al., 2017); the biattentive
layers are from the same paper.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.nn.attention.patterns import full
from pretune.nn.attention.query_key_layout import permute_rows, reverse_index, self_layout
from pretune.nn.attention.scaled_dot_product import attend
from pretune.nn.compiler_exclusions import exclude_from_compile
from pretune.nn.linear import Linear
from pretune.nn.recurrent import RecurrentCells, TimeMajorRows
from pretune.packed import Packed
from pretune.runtime.errors import PretuneError, suggest

LayerChoice = Literal["last", "embeddings", "second", "sum4", "concat4", "mix", "elmo", "cove"]
CHOSEN_LAYERS = re.compile(r"layers\(([\d,\s]+)\)")  # the layers with these numbers, concatenated; 0: the embeddings
TopLayers = Literal["", "mlp", "bilstm", "biattentive"]
WORD_VECTOR_WIDTH = 100  # default width of task-specific word vectors
KEPT_LAYERS: dict[str, tuple[int, ...] | Literal["all"]] = {
    "last": (-1,),
    "embeddings": (0,),
    "second": (-2,),
    "sum4": (-4, -3, -2, -1),
    "concat4": (-4, -3, -2, -1),
    "mix": "all",
    "elmo": "all",
    "cove": (0, -1),
}


class ScalarMix(nn.Module):
    """A scalar mix of layers, γ · Σⱼ softmax(s)ⱼ · layerⱼ, with learned γ and s."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, layers: list[Tensor]) -> Tensor:
        """Return the learned weighted sum of layers, (n, width) each: (n, width).

        >>> ScalarMix(2)([torch.zeros(1, 3), torch.ones(1, 3)]).tolist()
        [[0.5, 0.5, 0.5]]
        """
        shares = self.weights.softmax(0).to(layers[0].dtype)
        return self.scale.to(layers[0].dtype) * sum(share * layer for share, layer in zip(shares, layers, strict=True))


class BiLSTM(nn.Module):
    """A bidirectional LSTM over each sequence: (n, inputs) → (n, 2 · width)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.ahead, self.back = RecurrentCells(inputs, width), RecurrentCells(inputs, width)

    @exclude_from_compile  # the layout depends on the lengths
    def forward(self, x: Tensor, packed: Packed) -> Tensor:
        """Return the concatenated LSTM states of both directions: (n, inputs) → (n, 2 · width)."""
        if not len(packed):
            return x.new_zeros(0, 2 * self.ahead.outputs)
        rows, reverse = TimeMajorRows.make(replace(packed, columns={})), reverse_index(packed)
        ahead, _ = self.ahead(rows.to_time_major(x), rows)
        back, _ = self.back(rows.to_time_major(permute_rows(x, reverse)), rows)
        return torch.cat([rows.to_packed(ahead), permute_rows(rows.to_packed(back), reverse)], 1)


class Biattentive(nn.Module):
    """The encoder of the biattentive classification network (McCann et al., 2017) for a single text.

    A feed-forward layer and a bidirectional LSTM encode the tokens as vectors x. Each token attends to all tokens x' of
    its text, c = Σ softmax(x · x') x', and a second bidirectional LSTM reads x, x - c, and x · c.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        half = width // 2
        self.inner = nn.Sequential(Linear(inputs, width), nn.ReLU())
        self.encode, self.integrate = BiLSTM(width, half), BiLSTM(6 * half, half)

    def forward(self, x: Tensor, packed: Packed) -> Tensor:
        """Encode the tokens of each sequence: (n, inputs) → (n, width)."""
        x = self.encode(self.inner(x), packed)
        one = x[:, None]  # a single head
        attended = attend(one, one, one, self_layout(packed), full, scale=1.0)[:, 0]
        return self.integrate(torch.cat([x, x - attended, x * attended], 1), packed)


class LayerFeatures(nn.Module):
    """A combination of backbone layers, with an MLP or LSTMs on top: the features that a task head reads."""

    def __init__(
        self,
        width: int,
        depth: int,
        layers: str,
        top: TopLayers,
        *,
        vocabulary: int = 0,
        words: int = 0,
        mixed_widths: bool = False,
    ) -> None:
        """Build a combination of backbone layers; `layers` names the method, such as mix, and `top` the modules on top.

        `width` is the width of the layers, and `depth` their number without embeddings; `vocabulary` is the number of
        task-specific word vectors (for `elmo`), `words` the width of the backbone's word vectors (for `cove`);
        `mixed_widths` says whether layers have different widths.
        """
        super().__init__()
        chosen = CHOSEN_LAYERS.fullmatch(layers)
        numbers = tuple(sorted({int(number) for number in chosen[1].split(",") if number.strip()})) if chosen else ()
        if chosen and not (numbers and numbers[-1] <= depth):
            raise PretuneError(
                f"features {layers!r}: not all of these layers exist; choose layers from 0 (the embeddings) to {depth}"
            )
        elmo = re.fullmatch(r"(elmo)(\d+)", layers)
        layers, own = (elmo[1], int(elmo[2])) if elmo else (layers, WORD_VECTOR_WIDTH)
        layers, known = ("layers", ("layers",)) if chosen else (layers, get_args(LayerChoice))
        for value, choices in ((layers, known), (top, get_args(TopLayers))):
            if value not in choices:
                raise PretuneError(f"unknown features {value!r}; {suggest(value, choices)}")
        if mixed_widths and layers in ("mix", "elmo", "sum4", "concat4", "layers"):
            raise PretuneError(
                f"features {layers!r} need layers of one width, but the layers of this model have several widths; use 'last'"
            )
        if layers in ("sum4", "concat4") and depth < 4:
            raise PretuneError(f"features {layers!r} need 4 layers, but the model has {depth}; use 'mix' or 'second'")
        self.layers, self.keep = layers, numbers or KEPT_LAYERS[layers]
        if layers in ("mix", "elmo"):
            self.mix = ScalarMix(depth + 1)
        if layers == "elmo":
            self.words = nn.Parameter(torch.empty(vocabulary, own).normal_(std=own**-0.5))
        self.word_width = words
        self.width = {
            "concat4": 4 * width,
            "layers": len(numbers) * width,
            "elmo": width + own,
            "cove": width + words,
        }.get(layers, width)
        if top == "mlp":
            self.mlp: nn.Module = nn.Sequential(Linear(self.width, width), nn.Tanh())
            self.width = width
        elif top:
            half = width // 2
            self.lstms = BiLSTM(self.width, half) if top == "bilstm" else Biattentive(self.width, 2 * half)
            self.width = 2 * half
        self.top = top

    def forward(self, states: list[Tensor], packed: Packed) -> Tensor:
        """Combine layers of a backbone, (n, width) each, into features for a task head, (n, self.width)."""
        match self.layers:
            case "mix":
                x: Tensor = self.mix(states)
            case "elmo":
                own = F.embedding(packed.ids, self.words).to(states[0].dtype)
                x = torch.cat([own, self.mix(states)], -1)
            case "cove":
                x = torch.cat([states[0][:, : self.word_width], states[1]], -1)
            case "concat4" | "layers":
                x = torch.cat(states, -1)
            case _:
                x = torch.stack(states).sum(0)
        if self.top == "mlp":
            return self.mlp(x)
        return self.lstms(x, packed) if self.top else x
