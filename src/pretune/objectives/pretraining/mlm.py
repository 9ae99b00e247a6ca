"""Masked language modeling (Devlin et al., 2019): predict masked tokens from both sides.

Masking units are tokens, whole words, spans (Joshi et al., 2020, SpanBERT), n-grams (Lan et al., 2020, ALBERT), or phrases
(Sun et al., 2019, ERNIE). Masks are drawn anew in each epoch (Liu et al., 2019, RoBERTa), or there is a fixed number of
masked copies of each text, as in BERT.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self, get_args

from torch import nn

from pretune.backbones.backbone import Backbone
from pretune.nn.attention.patterns import Pattern, full
from pretune.objectives.objective import Loss, vocabulary_loss
from pretune.objectives.pretraining import masking
from pretune.objectives.pretraining.arrangements import ReadsDocuments
from pretune.objectives.pretraining.span_boundary import BoundaryHead, boundary_targets
from pretune.objectives.registry import register_objective
from pretune.packed import Batch
from pretune.runtime.errors import PretuneError, suggest
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing, Sequences
from pretune.text.tokenizers.phrase_matching import check_phrase_file, load_phrases
from pretune.text.tokenizers.tokenizer import Tokenizer

Unit = Literal["token", "word", "span", "ngram", "phrase"]


@register_objective
@dataclass(frozen=True)
class MLM(ReadsDocuments):
    """Masked language modeling: 80 % of the chosen tokens become [MASK], 10 % a random token, and 10 % stay.

    Parameters
    ----------
    mask_rate, final_mask_rate
        The share of tokens that are chosen; with `final_mask_rate`, it changes linearly to that share during training.
    mask_replace_prob, random_replace_prob
        The shares of the chosen tokens that become [MASK] and that become random tokens.
    unit
        What is masked as a whole: token, word, span, ngram or phrase. All tokens of a span are replaced in the same way.
    static_masks
        The number of different masks of each text, used in turn by the epochs; 0 draws new masks in each epoch.
    span_geometric_p, max_span_length
        The parameter of geometric span lengths, and the most words of a span (default 10) or an n-gram (default 3).
    phrases
        A file with one phrase per line, for `unit=phrase`; without a file, pretraining finds phrases in its text.
    span_boundary
        Whether masked tokens are also predicted from the tokens next to their span (SpanBERT).
    """

    mask_rate: float = 0.15
    final_mask_rate: float | None = None
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1
    unit: Unit = "token"
    static_masks: int = 0
    span_geometric_p: float = 0.2
    max_span_length: int | None = None
    phrases: str | None = None
    span_boundary: bool = False

    name: ClassVar[str] = "mlm"
    purpose: ClassVar[tuple[str, str]] = ("It is a masked language model, which fills in missing words", "fill-mask")
    pattern: ClassVar[Pattern | None] = full
    corrupts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        units = get_args(Unit)
        if self.unit not in units:
            raise PretuneError(f"{self.name}: unknown unit {self.unit!r}; {suggest(str(self.unit), units)}")
        masking.check_positive_fractions(
            self.name,
            mask_rate=self.mask_rate,
            final_mask_rate=self.final_mask_rate,
            span_geometric_p=self.span_geometric_p,
        )
        masking.check_replacements(self.name, self.mask_replace_prob, self.random_replace_prob)
        if self.phrases is not None and self.unit != "phrase":
            raise PretuneError(f"{self.name}: phrases=FILE applies only to unit=phrase; set unit=phrase too")
        if self.phrases is not None:
            check_phrase_file(self.phrases)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Mask tokens, and set the original tokens as prediction targets."""
        rate = self.mask_rate
        if self.final_mask_rate is not None:
            rate += (self.final_mask_rate - self.mask_rate) * draws.progress
        at = masking.choose_masked(sequences, rate, draws, self._units(sequences, tokenizer, draws))
        first = masking.first_of_run(sequences, at) if self.unit == "span" or self.span_boundary else None
        shares = {"masked": self.mask_replace_prob, "swapped": self.random_replace_prob}
        together = first if self.unit == "span" else None
        original = masking.mask_tokens(sequences, at, tokenizer, draws, together=together, **shares)
        sequences.targets[self.name] = (at, original)
        if self.span_boundary and first is not None:
            good, places = boundary_targets(sequences, at, first)
            sequences.targets["boundary"] = (places, original[good])
        return sequences

    def _units(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> masking.MaskingUnits | None:
        """Return the units that are masked as a whole, such as words or spans; None for single tokens."""
        match self.unit:
            case "token":
                return None
            case "word":
                return masking.word_units(sequences)
            case "span":
                return masking.span_units(
                    sequences, draws, masking.geometric_weights(self.span_geometric_p, self.max_span_length or 10)
                )
            case "ngram":
                return masking.span_units(sequences, draws, masking.inverse_length_weights(self.max_span_length or 3))
            case "phrase":
                if self.phrases is None:
                    raise PretuneError(
                        f"{self.name}: unit=phrase needs a list of phrases here; give phrases=FILE, which `pretune phrases` writes"
                    )
                return masking.phrase_units(sequences, load_phrases(self.phrases, tokenizer))

    def for_evaluation(self) -> Self:
        """Return the objective with BERT's masks, 15 % of single tokens drawn anew, so that losses are comparable."""
        own: dict[str, Any] = {"mask_rate": 0.15, "final_mask_rate": None, "unit": "token", "static_masks": 0}
        own |= {"mask_replace_prob": 0.8, "random_replace_prob": 0.1, "phrases": None, "span_boundary": False}
        return replace(self, **own)

    def max_targets(self, packing: Packing) -> dict[str, int]:
        """Return the maximum number of prediction targets per batch: the masked tokens, at the highest masking rate."""
        most = masking.max_masked(packing, max(self.mask_rate, self.final_mask_rate or 0.0))
        return {self.name: most, "boundary": most} if self.span_boundary else {self.name: most}

    def head(self, backbone: Backbone) -> nn.Module:
        """Return a new output layer over the vocabulary and, with `span_boundary`, one that reads span boundaries."""
        head = backbone.vocabulary_head()
        if self.span_boundary:
            head.add_module("boundary", BoundaryHead(backbone))
        return head

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the cross-entropy at masked tokens; with `span_boundary`, also that of predictions from boundaries."""
        targets = batch.targets[self.name]
        states, tokens = backbone(*batch.packed).last, backbone.embed.tokens
        loss = vocabulary_loss(self.name, head, states[targets.at], tokens, targets)
        if self.span_boundary:
            ends: Any = head.boundary
            targets = batch.targets["boundary"]
            from_ends = vocabulary_loss("boundary", ends, ends.look(states, targets.at), tokens, targets)
            loss.sums |= from_ends.sums
            loss.logs |= from_ends.logs
        return loss
