"""Masked language modeling (Devlin et al., 2019): predict tokens that were hidden, from both sides.

Units: tokens; whole words; spans (Joshi et al., 2020, SpanBERT); n-grams (Lan et al., 2020, ALBERT); phrases (Sun et al., 2019,
ERNIE). Masks are new each epoch (Liu et al., 2019, RoBERTa) or a fixed number of copies, as BERT had it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from torch import nn

from pretune.nn.attention.patterns import Pattern, full
from pretune.objectives.objective import Data, Loss, Objective, vocabulary_loss
from pretune.objectives.pretraining import masking
from pretune.objectives.pretraining.arrangements import spans_epoch
from pretune.objectives.pretraining.span_boundary import BoundaryHead, boundary_targets
from pretune.objectives.registry import register_objective
from pretune.packed import Batch
from pretune.runtime.errors import PretuneError, nearest
from pretune.runtime.randomness import Draws
from pretune.text.corpus.phrases import check_phrases, load_phrases
from pretune.text.packing.sequences import Epoch, Packing, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone

Unit = Literal["token", "word", "span", "ngram", "phrase"]


@register_objective
@dataclass(frozen=True)
class MLM(Objective):
    """Of the chosen tokens 80 % become [MASK], 10 % a random token, 10 % stay; of spans, all tokens have one fate.

    `rate` is the share of tokens chosen; with `final_rate` it moves there linearly over training. With `copies`, there are
    so many masks of each text, and epochs take them in turn. Spans have up to `longest` words (10; n-grams 3), each further
    word with a chance of 1 - `stop`. `phrases` is a file, a phrase a line. With `boundary`, hidden tokens are predicted from
    the ends of their span too.
    """

    rate: float = 0.15
    final_rate: float | None = None
    masked: float = 0.8
    swapped: float = 0.1
    unit: Unit = "token"
    copies: int = 0
    stop: float = 0.2
    longest: int | None = None
    phrases: str | None = None
    boundary: bool = False

    name: ClassVar[str] = "mlm"
    pattern: ClassVar[Pattern | None] = full
    insists: ClassVar[bool] = False
    stateful: ClassVar[bool] = False
    corrupts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        units = get_args(Unit)
        if self.unit not in units:
            raise PretuneError(f"{self.name}: unknown unit {self.unit!r}; {nearest(str(self.unit), units)}")
        masking.check_share(self.name, rate=self.rate, final_rate=self.final_rate, stop=self.stop)
        if self.masked + self.swapped > 1 + 1e-9:
            raise PretuneError(f"{self.name}: masked={self.masked:g} and swapped={self.swapped:g} are more than all")
        if (self.unit == "phrase") != (self.phrases is not None):
            raise PretuneError(
                f"{self.name}: unit=phrase and phrases=FILE go together; find phrases in a store with: pretune phrases"
            )
        if self.phrases is not None:
            check_phrases(self.phrases)

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """Documents in spans of whole sentences."""
        return spans_epoch(data, packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """Hide tokens; targets are the originals."""
        rate = self.rate
        if self.final_rate is not None:
            rate += (self.final_rate - self.rate) * draws.progress
        at = masking.choose(sequences, rate, draws, self._units(sequences, tokenizer, draws))
        first = masking.join(sequences, at) if self.unit == "span" or self.boundary else None
        shares = {"masked": self.masked, "swapped": self.swapped}
        together = first if self.unit == "span" else None
        original = masking.hide(sequences, at, tokenizer, draws, together=together, **shares)
        sequences.targets[self.name] = (at, original)
        if self.boundary and first is not None:
            good, places = boundary_targets(sequences, at, first)
            sequences.targets["boundary"] = (places, original[good])
        return sequences

    def _units(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> masking.Units | None:
        match self.unit:
            case "token":
                return None
            case "word":
                return masking.words(sequences)
            case "span":
                return masking.spans(sequences, draws, masking.geometric(self.stop, self.longest or 10))
            case "ngram":
                return masking.spans(sequences, draws, masking.inverse(self.longest or 3))
            case "phrase":
                return masking.phrases(sequences, load_phrases(str(self.phrases), tokenizer))

    def room(self, packing: Packing) -> dict[str, int]:
        """round(rate · length) of each sequence can add half a target each."""
        rate = max(self.rate, self.final_rate or 0.0)
        sequences = min(packing.sequences, packing.tokens)
        most = min(packing.tokens, int(rate * packing.tokens) + sequences // 2 + 1)
        return {self.name: most, "boundary": most} if self.boundary else {self.name: most}

    def head(self, backbone: Backbone) -> nn.Module:
        """The family's way from states to the vocabulary, and one from boundaries."""
        head = backbone.vocabulary_head()
        if self.boundary:
            head.add_module("boundary", BoundaryHead(backbone))
        return head

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy at the chosen positions alone."""
        targets = batch.targets[self.name]
        states, tokens = backbone(*batch.packed).last, backbone.embed.tokens
        loss = vocabulary_loss(self.name, head, states[targets.at], tokens, targets)
        if self.boundary:
            ends: Any = head.boundary
            targets = batch.targets["boundary"]
            again = vocabulary_loss("boundary", ends, ends.look(states, targets.at), tokens, targets)
            loss.sums |= again.sums
            loss.logs |= again.logs
        return loss
