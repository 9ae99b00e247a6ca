"""Text embeddings: pool the hidden states of a text into one vector, then transform that vector.

The parts are those of sentence-transformers (Reimers and Gurevych, 2019, arXiv:1908.10084): one or several concatenated
poolings, then dense layers, layer normalization, dropout and scaling to unit length, in any order.
"""

from __future__ import annotations

from collections import OrderedDict
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
from pretune.runtime.errors import PretuneError, suggest
from pretune.runtime.parsing import validate_schema

POOLINGS = ("mean", "max", "cls", "last", "mean_sqrt_len", "weighted_mean")
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
_ACTIVATIONS = """
    Identity Tanh Sigmoid ReLU ReLU6 LeakyReLU ELU SELU GELU SiLU Mish Softplus Softsign Tanhshrink Hardtanh LogSigmoid
"""
DENSE_ACTIVATIONS: dict[str, type[nn.Module]] = {name: getattr(nn, name) for name in _ACTIVATIONS.split()}
PROMPT_COLUMN = "prompt"  # the column that marks the tokens of a prompt


@dataclass(frozen=True)
class DenseSpec:
    """The configuration of a linear layer with an activation and, optionally, a residual connection around the two."""

    in_features: int
    out_features: int
    bias: bool = True
    activation: str = "Tanh"  # a class of torch.nn without arguments
    residual: bool = False
    kind: ClassVar[str] = "dense"

    def __post_init__(self) -> None:
        if self.activation not in DENSE_ACTIVATIONS:
            raise PretuneError(
                f"the dense layer of a text embedding has the unknown activation {self.activation!r}; "
                f"{suggest(self.activation, DENSE_ACTIVATIONS)}"
            )

    def width(self, width: int) -> int:
        """Return the output size of this dense layer; raise an error if `width` is not its input size."""
        return check_width("dense layer", self.in_features, width) and self.out_features

    def build(self) -> nn.Module:
        """Build the dense layer that this configuration describes, with newly initialized parameters."""
        return DenseLayer(self)


@dataclass(frozen=True)
class LayerNormSpec:
    """The configuration of a layer-norm step applied to text embeddings."""

    dimension: int
    kind: ClassVar[str] = "layer_norm"

    def width(self, width: int) -> int:
        """Return `width`, or raise an error if this layer-norm step is configured for another size."""
        return check_width("layer normalization", self.dimension, width)

    def build(self) -> nn.Module:
        """Build the layer-norm module that this configuration describes, with newly initialized parameters."""
        return nn.Sequential(OrderedDict(norm=LayerNormLayer(self.dimension)))


@dataclass(frozen=True)
class DropoutSpec:
    """The configuration of a dropout step applied to text embeddings in training."""

    share: float
    kind: ClassVar[str] = "dropout"

    def width(self, width: int) -> int:
        """Return `width`: dropout does not change the size of embeddings."""
        return width

    def build(self) -> nn.Module:
        """Build the dropout module that this configuration describes."""
        return DropoutLayer(self.share)


@dataclass(frozen=True)
class NormalizeSpec:
    """The configuration of a step that scales text embeddings to unit length."""

    kind: ClassVar[str] = "normalize"

    def width(self, width: int) -> int:
        """Return `width`: scaling to unit length does not change the size of embeddings."""
        return width

    def build(self) -> nn.Module:
        """Build the module that scales embeddings to unit length."""
        return NormalizeLayer()


TransformSpec = DenseSpec | LayerNormSpec | DropoutSpec | NormalizeSpec
TRANSFORMS: dict[str, type[TransformSpec]] = {
    part.kind: part for part in (DenseSpec, LayerNormSpec, DropoutSpec, NormalizeSpec)
}


# The schema of what `TextEmbedding.write` writes into config.json.
Size = Annotated[int, Ge(1), Le(1 << 20)]


class DenseEntry(TypedDict):
    """The config.json entry of a dense layer applied to text embeddings."""

    kind: Literal["dense"]
    in_features: Size
    out_features: Size
    bias: NotRequired[bool]
    activation: NotRequired[str]
    residual: NotRequired[bool]


class LayerNormEntry(TypedDict):
    """The config.json entry of a layer-norm step applied to text embeddings."""

    kind: Literal["layer_norm"]
    dimension: Size


class DropoutEntry(TypedDict):
    """The config.json entry of a dropout step applied to text embeddings."""

    kind: Literal["dropout"]
    share: Annotated[float, Ge(0), Le(1)]


class NormalizeEntry(TypedDict):
    """The config.json entry of a step that scales text embeddings to unit length."""

    kind: Literal["normalize"]


TransformEntry = DenseEntry | LayerNormEntry | DropoutEntry | NormalizeEntry


class TextEmbeddingEntry(TypedDict):
    """The config.json entry of a text embedding: its pooling, the steps after it, and its prompts."""

    pooling: list[str]
    transforms: NotRequired[list[TransformEntry]]
    truncate_dim: NotRequired[Size | None]
    include_prompt: NotRequired[bool]
    prompts: NotRequired[dict[str, str]]
    default_prompt_name: NotRequired[str | None]
    similarity: NotRequired[str]


@dataclass(frozen=True)
class TextEmbedding:
    """A description of how a text's hidden states become its embedding: pooling, then layers (sentence-transformers).

    >>> TextEmbedding(("mean",), (NormalizeSpec(),)).width(384)
    384
    """

    pooling: tuple[str, ...] = ("mean",)  # the vectors of several are concatenated
    transforms: tuple[TransformSpec, ...] = ()
    truncate_dim: int | None = None  # vectors are truncated to this size
    include_prompt: bool = True  # whether the tokens of a prompt are pooled as well
    prompts: Mapping[str, str] = field(default_factory=dict, hash=False)  # by name; a prompt is prepended to texts
    default_prompt_name: str | None = None  # of texts for which no prompt is chosen
    similarity: str = "cosine"  # how vectors are compared

    def __post_init__(self) -> None:
        for mode in self.pooling:
            if mode not in POOLINGS:
                raise PretuneError(f"unknown pooling {mode!r} of a text embedding; {suggest(mode, POOLINGS)}")
        if self.similarity not in SIMILARITIES:
            raise PretuneError(f"unknown similarity {self.similarity!r}; {suggest(self.similarity, SIMILARITIES)}")
        if self.default_prompt_name is not None:
            self.find_prompt(self.default_prompt_name)

    @property
    def prompt(self) -> str:
        """Return the default prompt, which is prepended to every text unless another is chosen; '' if there is none."""
        return "" if self.default_prompt_name is None else self.find_prompt(self.default_prompt_name)

    def find_prompt(self, name: str) -> str:
        """Return the prompt with a given name, or raise an error with suggestions."""
        if name not in self.prompts:
            raise PretuneError(f"the model has no prompt named {name!r}; {suggest(name, self.prompts)}")
        return self.prompts[name]

    @property
    def has_parameters(self) -> bool:
        """Return whether the layers after the pooling have trainable parameters."""
        return any(isinstance(part, DenseSpec | LayerNormSpec) for part in self.transforms)

    @property
    def normalized(self) -> bool:
        """Return whether text embeddings are normalized to unit length."""
        last = [part for part in self.transforms if not isinstance(part, DropoutSpec)][-1:]
        return last == [NormalizeSpec()] and self.truncate_dim is None

    def with_options(self, pooling: str | None = None, normalize: bool = False) -> Self:
        """Return a copy of this description with another `pooling`, such as `start+mean`, or with unit-length vectors.

        If `pooling` is None, the pooling stays the same; `normalize` adds a step that scales vectors to unit length.
        """
        modes = tuple(pooling.split("+")) if pooling else self.pooling
        further = (NormalizeSpec(),) if normalize and not self.normalized else ()
        return replace(self, pooling=modes, transforms=(*self.transforms, *further))

    def width(self, hidden: int) -> int:
        """Return the size of text embeddings, given `hidden`, the width of the hidden states."""
        width = hidden * len(self.pooling)
        for part in self.transforms:
            width = part.width(width)
        return min(width, self.truncate_dim or width)

    def describe(self, hidden: int) -> dict[str, Any]:
        """Return the pooling, dimension, similarity and prompts, for reports; `hidden` is the hidden states' width."""
        facts: dict[str, Any] = {"pooling": "+".join(self.pooling), "dimension": self.width(hidden)}
        facts |= {"normalized": self.normalized, "similarity": self.similarity}
        named = {name: prompt for name, prompt in self.prompts.items() if prompt}
        return facts | ({"prompts": named} if named else {})

    def write(self) -> dict[str, Any]:
        """Return this description of a text embedding as a mapping for config.json, without default values."""
        transforms = [{"kind": part.kind, **asdict(part)} for part in self.transforms]
        content = {**asdict(self), "pooling": list(self.pooling), "transforms": transforms}
        defaults = asdict(TextEmbedding()) | {"transforms": [], "pooling": None}
        return {name: value for name, value in content.items() if value != defaults[name]}

    @classmethod
    def read(cls, content: Any, where: str) -> Self:
        """Build a text embedding's description from a mapping in config.json; `where` names the file in errors."""
        entry = validate_schema(content, TextEmbeddingEntry, f"{where}: embedding")
        if unknown := sorted(content.keys() - TextEmbeddingEntry.__annotations__.keys()):
            hint = suggest(unknown[0], TextEmbeddingEntry.__annotations__, "remove them")
            raise PretuneError(f"{where}: `embedding` has the unknown keys {', '.join(unknown)}; {hint}")
        parts: list[dict[str, Any]] = [dict(part) for part in entry.get("transforms", ())]
        transforms = tuple(TRANSFORMS[part.pop("kind")](**part) for part in parts)
        arguments: dict[str, Any] = {**entry, "pooling": tuple(entry["pooling"]), "transforms": transforms}
        return cls(**arguments)


class TextEmbeddingHead(nn.Module):
    """The head that turns the hidden states of texts into their embeddings."""

    def __init__(self, embedding: TextEmbedding, hidden: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.width = embedding.width(hidden)
        self.transforms = nn.ModuleList(part.build() for part in embedding.transforms)

    def forward(self, states: Tensor, packed: Packed) -> Tensor:
        """Return text embeddings, given the hidden states of tokens: (n, hidden) → (sequences, width)."""
        prompt = None if self.embedding.include_prompt else packed.columns.get(PROMPT_COLUMN)
        included = None if prompt is None else prompt == 0
        vectors = torch.cat([pool(states, packed, mode, included) for mode in self.embedding.pooling], -1)
        for transform in self.transforms:
            vectors = transform(vectors)
        return vectors[:, : self.width]


# Parameters are named as in sentence-transformers, so that files of weights are read and written as they are.


class DenseLayer(nn.Module):
    """A linear layer with an activation and, optionally, a residual connection, as configured by `DenseSpec`."""

    def __init__(self, dense: DenseSpec) -> None:
        super().__init__()
        self.linear = Linear(dense.in_features, dense.out_features, dense.bias)
        self.activation = DENSE_ACTIVATIONS[dense.activation]()
        self.residual: nn.Module | None = None
        if dense.residual:
            same = dense.in_features == dense.out_features
            self.residual = nn.Identity() if same else Linear(dense.in_features, dense.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to vectors: (rows, inputs) → (rows, outputs)."""
        y: Tensor = self.activation(self.linear(x))
        return y if self.residual is None else y + self.residual(x)


class NormalizeLayer(nn.Module):
    """A layer that scales vectors to unit length."""

    def forward(self, x: Tensor) -> Tensor:
        """Scale vectors, (rows, width), to unit length."""
        return F.normalize(x, dim=-1)


def check_width(part: str, expected: int, width: int) -> int:
    """Return `width`, the size of embeddings, or raise an error if the transform `part` expects another size."""
    if expected != width:
        raise PretuneError(
            f"the {part} of the text embedding expects vectors of size {expected}, but gets vectors of size {width}; "
            f"choose another pooling, so that the vectors have the size {expected}"
        )
    return width
