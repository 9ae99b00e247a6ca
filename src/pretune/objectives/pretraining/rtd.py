"""Replaced token detection (Clark et al., 2020, ELECTRA): which tokens did a small generator put there?

The generator fills gaps as a masked language model does; the backbone, the discriminator, judges every token of what comes
out. The generator is among the objective's own parameters. It shares the backbone's embedding, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.backbones.encoder import Encoder
from pretune.nn.attention.multi_head import Attention
from pretune.nn.attention.patterns import Pattern, full
from pretune.nn.blocks import Layer, PostNorm
from pretune.nn.embeddings import Given
from pretune.nn.feed_forward import FeedForward
from pretune.nn.initialization import initialize
from pretune.nn.linear import LayerNorm, Linear, OutputLinear
from pretune.nn.output_heads import Transform, VocabularyHead
from pretune.nn.positional_encoding import Rotary
from pretune.objectives.objective import Data, Export, Loss, Objective, classification_loss, in_chunks
from pretune.objectives.pretraining.arrangements import spans_epoch
from pretune.objectives.pretraining.masking import check_share, choose
from pretune.objectives.registry import register_objective
from pretune.packed import Batch, Packed, Targets
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import Draws
from pretune.text.packing.sequences import Epoch, Packing, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone


class Generator(nn.Module):
    """A small encoder over vectors that it is given, and a way to the vocabulary. Its parts have the names of a model's."""

    def __init__(self, backbone: Backbone, width: int, layers: int, heads: int) -> None:
        super().__init__()
        vocabulary, vectors = backbone.embed.tokens.shape
        dropout = backbone.embed.dropout.share
        # A backbone that knows positions only inside its layers gives vectors that know nothing of them.
        rotary = Rotary(width // heads) if backbone.embed.positions is None else None

        def layer() -> Layer:
            attention = Attention(width, heads, rotary=rotary)
            feed_forward = FeedForward(width, 4 * width)
            return Layer(
                attention=PostNorm(attention, LayerNorm(width, 1e-12), dropout),
                feed_forward=PostNorm(feed_forward, LayerNorm(width, 1e-12), dropout),
            )

        def head() -> VocabularyHead:
            transform = Transform(width, F.gelu, LayerNorm(vectors, 1e-12), outputs=vectors)
            return VocabularyHead(vocabulary, transform)

        embed: Any = Given(vectors, width)
        self.backbone = Encoder(embed, [layer() for _ in range(layers)], vocabulary_head=head, pooler=nn.Identity)
        self.heads = nn.ModuleDict({"mlm": head()})


class RTDHead(nn.Module):
    """The generator, and the discriminator's last two maps: from a state to one logit, positive for a replaced token."""

    def __init__(self, backbone: Backbone, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.generator = Generator(backbone, width, layers, heads)
        self.dense = Linear(backbone.width, backbone.width)
        self.output = OutputLinear(backbone.width, 1)
        initialize(self)

    def exports(self) -> dict[str, Export]:
        """The generator, as a masked language model."""
        layers: Any = self.generator.backbone.layers
        attention, feed_forward = layers[0].attention.part, layers[0].feed_forward.part
        sizes = {
            "hidden_size": self.generator.backbone.width,
            "num_hidden_layers": len(layers),
            "num_attention_heads": attention.heads,
            "intermediate_size": feed_forward.inner.out_features,
        }
        return {"generator": Export("heads.rtd.generator.", sizes, frozenset({"mlm"}))}

    def forward(self, states: Tensor) -> Tensor:
        """(n, width) → (n,)."""
        return self.output(F.gelu(self.dense(states)))[:, 0]


@register_objective
@dataclass(frozen=True)
class RTD(Objective):
    """A share `rate` of the tokens is hidden and filled in by the generator; the discriminator's loss counts `weight` times.

    The generator has as many `layers` as the backbone, its width times `size`, and a head for 64 of that; or what is given.
    As in the released code, every real token is judged, special ones too, and a fill that is right counts as original. As in
    the paper, all that is hidden becomes [MASK] (the code leaves 15 % of it as it was).
    """

    rate: float = 0.15
    weight: float = 50.0
    size: float = 0.25
    layers: int | None = None
    width: int | None = None
    heads: int | None = None

    name: ClassVar[str] = "rtd"
    pattern: ClassVar[Pattern | None] = full
    insists: ClassVar[bool] = False
    stateful: ClassVar[bool] = False
    corrupts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_share(self.name, rate=self.rate, size=self.size)

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """Documents in spans of whole sentences."""
        return spans_epoch(data, packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """Hide tokens from the generator. Term `rtd` has all tokens, in order, with the originals."""
        return hide_and_judge(sequences, tokenizer, draws, self.rate, self.name)

    def room(self, packing: Packing) -> dict[str, int]:
        """round(rate · length) of each sequence can add half a target each; every token is judged."""
        return room_for(packing, self.rate, self.name)

    def head(self, backbone: Backbone) -> nn.Module:
        """Generator and discriminator's head."""
        return make_head(backbone, self.size, self.layers, self.width, self.heads)

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """The generator's cross-entropy, and the discriminator's at every token of what the generator made."""
        return detection_loss(self.name, self.weight, head, backbone, batch)


def filling(name: str) -> str:
    """The term of the generator's loss beside that of an objective."""
    return "generator" if name == RTD.name else f"{name}_generator"


def hide_and_judge(sequences: Sequences, tokenizer: Tokenizer, draws: Draws, rate: float, name: str) -> Sequences:
    """Tokens hidden from the generator, and all tokens, in order, with the originals as targets."""
    mask = tokenizer.role("mask")
    at = choose(sequences, rate, draws)
    sequences.targets[filling(name)] = (at, sequences.ids[at])
    sequences.targets[name] = (np.arange(len(sequences.ids)), sequences.ids.copy())
    sequences.ids[at] = mask
    return sequences


def room_for(packing: Packing, rate: float, name: str) -> dict[str, int]:
    """The most targets of both terms."""
    sequences = min(packing.sequences, packing.tokens)
    hidden = min(packing.tokens, int(rate * packing.tokens) + sequences // 2 + 1)
    return {filling(name): hidden, name: packing.tokens}


def make_head(backbone: Backbone, size: float, layers: int | None, width: int | None, heads: int | None) -> RTDHead:
    """Generator and discriminator's head, of the size asked for."""
    width = width or max(8, 8 * round(size * backbone.width / 8))
    heads = heads or max(1, width // 64)
    if width % heads:
        raise PretuneError(f"rtd: a generator of width {width} cannot have {heads} heads; give width and heads")
    layers = layers or sum("embed" not in name for name, _ in backbone.groups())
    return RTDHead(backbone, width, layers, heads)


def detection_loss(name: str, weight: float, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
    """The generator's loss and, `weight` times, the discriminator's at every token of what the generator made."""
    (packed,) = batch.packed
    hidden, every = batch.targets[filling(name)], batch.targets[name]
    parts: Any = head
    loss, fills = generate(parts.generator, backbone, packed, hidden, filling(name))
    original = torch.where(every.weight > 0, every.target, packed.ids)
    read = replace(packed, ids=put(original, hidden, fills))
    logits = head(backbone(read).last).float()
    replaced = (read.ids != original).float()
    losses = F.binary_cross_entropy_with_logits(logits, replaced, reduction="none")
    loss.sums[name] = (losses * every.weight).sum()
    loss.weights[name] = weight
    judged = detection_logs(logits.detach() > 0, replaced > 0, every.weight)
    loss.logs |= {f"{name}/{what}": value for what, value in judged.items()}
    loss.packed = (read,)
    return loss


def detection_logs(flagged: Tensor, replaced: Tensor, weight: Tensor) -> dict[str, Tensor]:
    """Share replaced, accuracy, precision and recall."""
    found = (weight * (flagged & replaced)).sum()
    return {
        "replaced": (weight * replaced).sum(),
        "accuracy": (weight * (flagged == replaced)).sum(),
        "precision": found,
        "precision/of": (weight * flagged).sum(),
        "recall": found,
        "recall/of": (weight * replaced).sum(),
    }


def generate(
    generator: Any, backbone: Backbone, packed: Packed, hidden: Targets, term: str = "generator"
) -> tuple[Loss, Tensor]:
    """The generator's loss, under the name of a term, and a token drawn for each gap."""
    vectors = backbone.embed.vectors(packed)
    states = generator.backbone(replace(packed, columns={**packed.columns, "vectors": vectors})).last[hidden.at]

    def look(logits: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        loss = classification_loss(term, logits, Targets(target, target, weight))
        return loss.sums[term], loss.logs[f"{term}/accuracy"], draw(logits.detach())

    found = in_chunks(generator.heads["mlm"], states, backbone.embed.tokens, hidden, look)
    losses, right, fills = zip(*found, strict=True)
    sums = {term: torch.stack(losses).sum()}
    return Loss(sums, logs={f"{term}/accuracy": torch.stack(right).sum()}), torch.cat(fills)


def draw(logits: Tensor) -> Tensor:
    """(m, vocabulary) → (m,) drawn from the softmax: the largest of logits with Gumbel noise."""
    chance = torch.rand(logits.shape, device=logits.device).clamp(1e-9, 1 - 1e-7)
    return (logits.float() - torch.log(-torch.log(chance))).argmax(-1)


def put(ids: Tensor, targets: Targets, values: Tensor) -> Tensor:
    """(n,) ids with values at some places; targets that are not used change nothing."""
    nowhere = torch.full_like(targets.at, ids.shape[0])
    at = torch.where(targets.weight > 0, targets.at, nowhere)
    return torch.cat([ids, ids[:1]]).scatter(0, at, values)[: ids.shape[0]]
