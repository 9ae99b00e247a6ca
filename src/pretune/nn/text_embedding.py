"""Text embeddings: pool the hidden states of a text into one vector, then transform that vector.

The parts are those of sentence-transformers (Reimers and Gurevych, 2019, arXiv:1908.10084): one or several poolings side by
side, then dense layers, layer normalization, dropout and scaling to unit length, in any order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, NotRequired, Self

import torch
import torch.nn.functional as F
from annotated_types import Ge, Le
from torch import Tensor, nn
from typing_extensions import TypedDict

from pretune.nn.dropout import Dropout as DropoutLayer
from pretune.nn.linear import LayerNorm as LayerNormLayer
from pretune.nn.linear import Linear
from pretune.nn.pooling import pool
from pretune.packed import Packed
from pretune.runtime.errors import PretuneError, nearest
from pretune.runtime.parsing import conform

POOLINGS = ("mean", "max", "start", "last", "mean_sqrt_len", "weighted_mean")
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
ACTIVATIONS: dict[str, type[nn.Module]] = {
    kind.__name__: kind
    for kind in (
        *(
            nn.Identity,
            nn.Tanh,
            nn.Sigmoid,
            nn.ReLU,
            nn.ReLU6,
            nn.LeakyReLU,
            nn.ELU,
            nn.SELU,
            nn.GELU,
            nn.SiLU,
            nn.Mish,
        ),
        *(nn.Softplus, nn.Softsign, nn.Tanhshrink, nn.Hardtanh, nn.LogSigmoid),
    )
}
PROMPT = "prompt"  # the column that marks the tokens of a prompt


@dataclass(frozen=True)
class Dense:
    """A linear layer, an activation, and optionally a residual connection around both."""

    in_features: int
    out_features: int
    bias: bool = True
    activation: str = "Tanh"  # a class of torch.nn without arguments
    residual: bool = False
    kind: ClassVar[str] = "dense"

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise PretuneError(
                f"the dense layer of a text embedding has the activation {self.activation!r}, which pretune does not "
                f"know; {nearest(self.activation, ACTIVATIONS)}"
            )

    def width(self, width: int) -> int:
        """Return the size of the vectors it gives for vectors of size `width`."""
        return check_width("dense layer", self.in_features, width) and self.out_features

    def build(self) -> nn.Module:
        """Return the layer with new parameters."""
        return DenseLayer(self)


@dataclass(frozen=True)
class LayerNorm:
    """Layer normalization of the vector."""

    dimension: int
    kind: ClassVar[str] = "layer_norm"

    def width(self, width: int) -> int:
        """Return the size of the vectors it gives for vectors of size `width`."""
        return check_width("layer normalization", self.dimension, width)

    def build(self) -> nn.Module:
        """Return the layer with new parameters."""
        return NormLayer(self.dimension)


@dataclass(frozen=True)
class Dropout:
    """Dropout in training."""

    share: float
    kind: ClassVar[str] = "dropout"

    def width(self, width: int) -> int:
        """Return `width`: the size of vectors stays."""
        return width

    def build(self) -> nn.Module:
        """Return the layer."""
        return DropoutLayer(self.share)


@dataclass(frozen=True)
class Normalize:
    """Scaling to unit length."""

    kind: ClassVar[str] = "normalize"

    def width(self, width: int) -> int:
        """Return `width`: the size of vectors stays."""
        return width

    def build(self) -> nn.Module:
        """Return the layer."""
        return UnitLength()


Transform = Dense | LayerNorm | Dropout | Normalize
TRANSFORMS: dict[str, type[Transform]] = {part.kind: part for part in (Dense, LayerNorm, Dropout, Normalize)}


# What `TextEmbedding.write` writes into config.json.
Size = Annotated[int, Ge(1), Le(1 << 20)]


class DenseEntry(TypedDict):
    """A dense layer."""

    kind: Literal["dense"]
    in_features: Size
    out_features: Size
    bias: NotRequired[bool]
    activation: NotRequired[str]
    residual: NotRequired[bool]


class LayerNormEntry(TypedDict):
    """Layer normalization."""

    kind: Literal["layer_norm"]
    dimension: Size


class DropoutEntry(TypedDict):
    """Dropout."""

    kind: Literal["dropout"]
    share: Annotated[float, Ge(0), Le(1)]


class NormalizeEntry(TypedDict):
    """Scaling to unit length."""

    kind: Literal["normalize"]


Entry = DenseEntry | LayerNormEntry | DropoutEntry | NormalizeEntry


class Written(TypedDict):
    """A text embedding."""

    pooling: list[str]
    transforms: NotRequired[list[Entry]]
    truncate_dim: NotRequired[Size | None]
    include_prompt: NotRequired[bool]
    prompts: NotRequired[dict[str, str]]
    default_prompt_name: NotRequired[str | None]
    similarity: NotRequired[str]


@dataclass(frozen=True)
class TextEmbedding:
    """A description of how the vector of a text comes from the hidden states of its tokens.

    It is saved in config.json, in the section `pretune`, and read from the modules of a sentence-transformers folder.

    >>> TextEmbedding(("mean",), (Normalize(),)).width(384)
    384
    """

    pooling: tuple[str, ...] = ("mean",)  # several give their vectors side by side
    transforms: tuple[Transform, ...] = ()
    truncate_dim: int | None = None  # the vector is cut to its first so many numbers
    include_prompt: bool = True  # whether the tokens of a prompt are pooled, too
    prompts: Mapping[str, str] = field(default_factory=dict, hash=False)  # by name; put before texts
    default_prompt_name: str | None = None  # that of texts for which none is chosen
    similarity: str = "cosine"  # how vectors are compared

    def __post_init__(self) -> None:
        for mode in self.pooling:
            if mode not in POOLINGS:
                raise PretuneError(f"pooling {mode!r} is not known for text embeddings; {nearest(mode, POOLINGS)}")
        if self.similarity not in SIMILARITIES:
            raise PretuneError(f"similarity {self.similarity!r} is not known; {nearest(self.similarity, SIMILARITIES)}")
        if self.default_prompt_name is not None:
            self.find_prompt(self.default_prompt_name)

    @property
    def prompt(self) -> str:
        """The text that is put before every text unless another prompt is chosen."""
        return "" if self.default_prompt_name is None else self.find_prompt(self.default_prompt_name)

    def find_prompt(self, name: str) -> str:
        """Return the prompt of this name."""
        if name not in self.prompts:
            raise PretuneError(f"the model has no prompt named {name!r}; {nearest(name, self.prompts)}")
        return self.prompts[name]

    @property
    def learned(self) -> bool:
        """Whether it has parameters, which a description alone does not bring back."""
        return any(isinstance(part, Dense | LayerNorm) for part in self.transforms)

    @property
    def normalized(self) -> bool:
        """Whether vectors have unit length."""
        last = [part for part in self.transforms if not isinstance(part, Dropout)][-1:]
        return last == [Normalize()] and self.truncate_dim is None

    def changed(self, pooling: str | None = None, normalize: bool = False) -> Self:
        """Return the same with another pooling, such as `mean` or `start+mean`, or with vectors of unit length."""
        modes = tuple(pooling.split("+")) if pooling else self.pooling
        further = (Normalize(),) if normalize and not self.normalized else ()
        return replace(self, pooling=modes, transforms=(*self.transforms, *further))

    def width(self, hidden: int) -> int:
        """Return the size of its vectors, for states of size `hidden`."""
        width = hidden * len(self.pooling)
        for part in self.transforms:
            width = part.width(width)
        return min(width, self.truncate_dim or width)

    def describe(self, hidden: int) -> dict[str, Any]:
        """Return the facts about its vectors for reports."""
        facts: dict[str, Any] = {"pooling": "+".join(self.pooling), "dimension": self.width(hidden)}
        facts |= {"normalized": self.normalized, "similarity": self.similarity}
        named = {name: prompt for name, prompt in self.prompts.items() if prompt}
        return facts | ({"prompts": named} if named else {})

    def write(self) -> dict[str, Any]:
        """Return it for config.json; what is as usual is left out."""
        transforms = [{"kind": part.kind, **asdict(part)} for part in self.transforms]
        content = {**asdict(self), "pooling": list(self.pooling), "transforms": transforms}
        usual = asdict(TextEmbedding()) | {"transforms": [], "pooling": None}
        return {name: value for name, value in content.items() if value != usual[name]}

    @classmethod
    def read(cls, content: Any, where: str) -> Self:
        """Return what `write` has written; `where` names the file, for errors."""
        known = conform(content, Written, f"{where}: embedding")
        if unknown := sorted(content.keys() - Written.__annotations__.keys()):
            raise PretuneError(f"{where}: embedding has {', '.join(unknown)}, which pretune does not know")
        parts: list[dict[str, Any]] = [dict(part) for part in known.get("transforms", ())]
        transforms = tuple(TRANSFORMS[part.pop("kind")](**part) for part in parts)
        arguments: dict[str, Any] = {**known, "pooling": tuple(known["pooling"]), "transforms": transforms}
        return cls(**arguments)


class TextEmbeddingHead(nn.Module):
    """Turns the states of texts into their vectors, as described."""

    def __init__(self, embedding: TextEmbedding, hidden: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.width = embedding.width(hidden)
        self.transforms = nn.ModuleList(part.build() for part in embedding.transforms)

    def forward(self, states: Tensor, packed: Packed) -> Tensor:
        """(n, hidden) → (sequences, width)."""
        marked = None if self.embedding.include_prompt else packed.columns.get(PROMPT)
        kept = None if marked is None else marked == 0
        vectors = torch.cat([pool(states, packed, mode, kept) for mode in self.embedding.pooling], -1)
        for transform in self.transforms:
            vectors = transform(vectors)
        return vectors[:, : self.width]


# The names of parameters are those of sentence-transformers, so that files of weights are read and written as they are.


class DenseLayer(nn.Module):
    """See `Dense`."""

    def __init__(self, dense: Dense) -> None:
        super().__init__()
        self.linear = Linear(dense.in_features, dense.out_features, dense.bias)
        self.activation = ACTIVATIONS[dense.activation]()
        self.residual: nn.Module | None = None
        if dense.residual:
            same = dense.in_features == dense.out_features
            self.residual = nn.Identity() if same else Linear(dense.in_features, dense.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, inputs) → (rows, outputs)."""
        y: Tensor = self.activation(self.linear(x))
        return y if self.residual is None else y + self.residual(x)


class NormLayer(nn.Module):
    """See `LayerNorm`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = LayerNormLayer(width)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, width) → the same."""
        y: Tensor = self.norm(x)
        return y


class UnitLength(nn.Module):
    """See `Normalize`."""

    def forward(self, x: Tensor) -> Tensor:
        """(rows, width) → the same, of length 1."""
        return F.normalize(x, dim=-1)


def check_width(part: str, takes: int, width: int) -> int:
    """Return the size of vectors if a part takes it, and refuse it otherwise."""
    if takes != width:
        raise PretuneError(
            f"the {part} of the text embedding takes vectors of size {takes}, but gets some of size {width}; "
            "choose a pooling that gives that size"
        )
    return width
