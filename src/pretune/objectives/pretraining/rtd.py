"""Replaced token detection (Clark et al., 2020, ELECTRA): classify each token as original or replaced by a generator.

The generator, a small masked language model, fills in masked tokens; the backbone is the discriminator, which classifies
every token of the result. The generator belongs to the objective's head and shares only the backbone's embedding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.backbones.backbone import Backbone
from pretune.backbones.transformer_stack import TransformerStack
from pretune.nn.attention.multi_head import SelfAttention
from pretune.nn.attention.patterns import Pattern, full
from pretune.nn.blocks import PostNorm, TransformerLayer
from pretune.nn.embedding.positional_encoding import RotaryPositions
from pretune.nn.embedding.token_embedding import ProjectedEmbeddings
from pretune.nn.feed_forward import FeedForward
from pretune.nn.initialization import initialize
from pretune.nn.linear import LayerNorm, Linear, OutputLinear
from pretune.nn.output_heads import DenseTransform, TiedVocabularyHead
from pretune.objectives.objective import Export, Loss, classification_loss, map_logits_in_chunks
from pretune.objectives.pretraining.arrangements import ReadsDocuments
from pretune.objectives.pretraining.masking import check_positive_fractions, choose_masked, max_masked
from pretune.objectives.registry import register_objective
from pretune.packed import Batch, Packed, Targets
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer


class Generator(nn.Module):
    """A small masked language model (ELECTRA's generator) that reads the embeddings of the discriminator."""

    def __init__(self, backbone: Backbone, width: int, layers: int, heads: int) -> None:
        super().__init__()
        vocabulary, vectors = backbone.embed.tokens.shape
        dropout = backbone.embed.dropout.rate
        # A backbone that encodes positions only inside its layers gives embeddings without positions.
        rotary = RotaryPositions(width // heads) if backbone.embed.positions is None else None

        def layer() -> TransformerLayer:
            attention = SelfAttention(width, heads, rotary=rotary)
            feed_forward = FeedForward(width, 4 * width)
            return TransformerLayer(
                attention=PostNorm(attention, LayerNorm(width, 1e-12), dropout),
                feed_forward=PostNorm(feed_forward, LayerNorm(width, 1e-12), dropout),
            )

        def head() -> TiedVocabularyHead:
            transform = DenseTransform(width, F.gelu, LayerNorm(vectors, 1e-12), outputs=vectors)
            return TiedVocabularyHead(vocabulary, transform)

        embed: Any = ProjectedEmbeddings(vectors, width)
        self.backbone = TransformerStack(
            embed, [layer() for _ in range(layers)], vocabulary_head=head, pooler=nn.Identity
        )
        self.heads = nn.ModuleDict({"mlm": head()})


class RTDHead(nn.Module):
    """The head of replaced token detection: a generator, and a discriminator that returns one logit per token."""

    def __init__(self, backbone: Backbone, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.generator = Generator(backbone, width, layers, heads)
        self.activation = backbone.detection_activation
        self.dense = Linear(backbone.width, backbone.width)
        self.output = OutputLinear(backbone.width, 1)
        initialize(self)

    def exports(self) -> dict[str, Export]:
        """Return the parts of the head that can be saved as separate models: the generator, a masked language model."""
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
        """Return the discriminator's logits (n,) for hidden states (n, width)."""
        return self.output(self.activation(self.dense(states)))[:, 0]


@register_objective
@dataclass(frozen=True)
class RTD(ReadsDocuments):
    """Replaced token detection: a share `mask_rate` of the tokens is masked and filled in by a generator.

    The loss of the discriminator, which classifies tokens as original or replaced, is multiplied by
    `discriminator_weight`. By default, the generator has the backbone's number of layers, `generator_size` times its
    width, and one attention head per 64 units. As in the released code, special tokens are classified too, and a
    correct fill counts as original. As in the paper, all chosen tokens become [MASK] (the released code leaves 15 % of
    them unchanged). A share `kept_masks` of them is [MASK] for the discriminator, too, and is not classified; this is
    meant for a sum with an objective that predicts tokens, such as `rtd+corrective`.
    """

    mask_rate: float = 0.15
    discriminator_weight: float = 50.0
    generator_size: float = 0.25
    generator_layers: int | None = None
    generator_hidden_size: int | None = None
    generator_heads: int | None = None
    temperature: float = 1.0
    final_temperature: float | None = None
    kept_masks: float = 0.0

    name: ClassVar[str] = "rtd"
    pattern: ClassVar[Pattern | None] = full
    corrupts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive_fractions(self.name, mask_rate=self.mask_rate, generator_size=self.generator_size)

    def temperature_at(self, progress: float) -> float:
        """Return the softmax temperature of the generator's samples at a share of the training, from 0 to 1."""
        last = self.temperature if self.final_temperature is None else self.final_temperature
        return self.temperature + (last - self.temperature) * progress

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Mask tokens; masked tokens are targets of the generator, and all tokens are targets of the discriminator."""
        mask = tokenizer.role("mask")
        at = choose_masked(sequences, self.mask_rate, draws)
        sequences.targets[generator_term(self.name)] = (at, sequences.ids[at])
        sequences.targets[self.name] = (np.arange(len(sequences.ids)), sequences.ids.copy())
        sequences.ids[at] = mask
        if (self.temperature, self.final_temperature or 1.0) != (1.0, 1.0):
            temperature = self.temperature_at(draws.progress)
            sequences.columns["temperature"] = np.full(len(sequences.ids), temperature, dtype=np.float32)
        return sequences

    def for_evaluation(self) -> Self:
        """Return the objective with a masking rate of 15 % and samples from the generator's own softmax everywhere."""
        return replace(self, mask_rate=0.15, temperature=1.0, final_temperature=None, kept_masks=0.0)

    def max_targets(self, packing: Packing) -> dict[str, int]:
        """Return the maximum number of targets per batch: masked tokens (generator) and all tokens (discriminator)."""
        return {generator_term(self.name): max_masked(packing, self.mask_rate), self.name: packing.tokens}

    def head(self, backbone: Backbone) -> nn.Module:
        """Return a new generator together with the output layers of the discriminator."""
        width = self.generator_hidden_size or max(8, 8 * round(self.generator_size * backbone.width / 8))
        heads = self.generator_heads or max(1, width // 64)
        if width % heads:
            raise PretuneError(
                f"rtd: the generator's width {width} is not divisible by {heads} heads; change generator_hidden_size or generator_heads"
            )
        layers = self.generator_layers or sum("embed" not in name for name, _ in backbone.groups())
        return RTDHead(backbone, width, layers, heads)

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the generator's cross-entropy at masked tokens and the discriminator's at all tokens."""
        (packed,) = batch.packed
        hidden, every = batch.targets[generator_term(self.name)], batch.targets[self.name]
        parts: Any = head
        loss, fills = run_generator(parts.generator, backbone, packed, hidden, generator_term(self.name))
        weight = every.weight
        original = torch.where(weight > 0, every.target, packed.ids)
        if self.kept_masks:
            stays = torch.rand(fills.shape, device=fills.device) < self.kept_masks
            fills = torch.where(stays, packed.ids[hidden.at], fills)
        read = replace(packed, ids=fill_in_tokens(original, hidden, fills))
        if self.kept_masks:
            weight = weight * ((packed.ids == original) | (packed.ids != read.ids))
        logits = head(backbone(read).last).float()
        replaced = (read.ids != original).float()
        losses = F.binary_cross_entropy_with_logits(logits, replaced, reduction="none")
        loss.sums[self.name] = (losses * weight).sum()
        loss.weights[self.name] = self.discriminator_weight
        judged = detection_logs(logits.detach() > 0, replaced > 0, weight)
        loss.logs |= {f"{self.name}/{metric}": value for metric, value in judged.items()}
        loss.packed = (read,)
        return loss

    def describe_target(self, at: Array, target: Array, ids: Array, spell: Callable[[Array], str]) -> str | None:
        """Return text with one letter per token: "r" for each replaced token, and "o" for each original one."""
        return " ".join("r" if replaced else "o" for replaced in ids != target)


def generator_term(name: str) -> str:
    """Return the name of the generator's loss term, given the name of the objective."""
    return "generator" if name == RTD.name else f"{name}_generator"


def detection_logs(flagged: Tensor, replaced: Tensor, weight: Tensor) -> dict[str, Tensor]:
    """Return the counts from which accuracy, precision, and recall of the discriminator are computed, by metric.

    `flagged` (n,) is True for tokens that the discriminator calls replaced, `replaced` (n,) for tokens that are
    replaced, and `weight` (n,) is 0 for padding. A key such as `recall/of` has the denominator of `recall`.
    """
    found = (weight * (flagged & replaced)).sum()
    return {
        "replaced": (weight * replaced).sum(),
        "accuracy": (weight * (flagged == replaced)).sum(),
        "precision": found,
        "precision/of": (weight * flagged).sum(),
        "recall": found,
        "recall/of": (weight * replaced).sum(),
    }


def run_generator(
    generator: Any, backbone: Backbone, packed: Packed, hidden: Targets, term: str = "generator"
) -> tuple[Loss, Tensor]:
    """Return the generator's loss at the masked tokens `hidden`, and one sampled token id for each of them.

    `packed` are the sequences with their masks, and `term` is the name of the loss term.
    """
    vectors = backbone.embed.vectors(packed)
    # The same for all tokens of a batch; a tensor, so that a change does not compile the model anew. Filler has 0.
    temperature = packed.columns["temperature"].amax() if "temperature" in packed.columns else None
    states = generator.backbone(replace(packed, columns={**packed.columns, "vectors": vectors})).last[hidden.at]

    def look(logits: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        loss = classification_loss(term, logits, Targets(target, target, weight))
        return loss.sums[term], loss.logs[f"{term}/accuracy"], sample_tokens(logits.detach(), temperature)

    found = map_logits_in_chunks(generator.heads["mlm"], states, backbone.embed.tokens, hidden, look)
    losses, right, fills = zip(*found, strict=True)
    sums = {term: torch.stack(losses).sum()}
    return Loss(sums, logs={f"{term}/accuracy": torch.stack(right).sum()}), torch.cat(fills)


def sample_tokens(logits: Tensor, temperature: Tensor | None = None) -> Tensor:
    """Sample one token id per row of logits (m, vocabulary), by the Gumbel-max trick; temperature 1 by default."""
    chance = torch.rand(logits.shape, device=logits.device).clamp(1e-9, 1 - 1e-7)
    noise = -torch.log(-torch.log(chance))
    return (logits.float() + (noise if temperature is None else temperature * noise)).argmax(-1)


def fill_in_tokens(ids: Tensor, targets: Targets, values: Tensor) -> Tensor:
    """Return the token ids (n,) with `values` filled in at the positions of the targets, except targets of weight 0."""
    nowhere = torch.full_like(targets.at, ids.shape[0])
    at = torch.where(targets.weight > 0, targets.at, nowhere)
    return torch.cat([ids, ids[:1]]).scatter(0, at, values)[: ids.shape[0]]
