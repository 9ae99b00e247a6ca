"""Translation replaced token detection (Chi et al., 2021, XLM-E): `rtd` over a text and its translation in one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from torch import nn

from pretune.nn.attention.patterns import Pattern, full
from pretune.objectives.objective import Data, LearnsFromRows, Loss
from pretune.objectives.pretraining.masking import check_share
from pretune.objectives.pretraining.rtd import detection_loss, hide_and_judge, make_head, room_for
from pretune.objectives.pretraining.tlm import begin_anew, check_attention, check_languages, pairs_epoch
from pretune.objectives.registry import register_objective
from pretune.packed import Batch
from pretune.runtime.randomness import Draws
from pretune.text.corpus.files import Errors
from pretune.text.corpus.parallel import read_languages
from pretune.text.examples.labeled import Labeled
from pretune.text.packing.sequences import Epoch, Packing, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone


@register_objective
@dataclass(frozen=True)
class TRTD(LearnsFromRows):
    """The pairs of `tlm`, tokens of both sides hidden, filled in by the generator of `rtd` and judged as `rtd` does it.

    Beside `rtd` both use its generator, and the `size`, `layers`, `width` and `heads` given there.
    """

    rate: float = 0.15
    weight: float = 50.0
    size: float = 0.25
    layers: int | None = None
    width: int | None = None
    heads: int | None = None
    languages: str = ""
    text: str = ""
    pair: str = ""

    name: ClassVar[str] = "trtd"
    pattern: ClassVar[Pattern | None] = full
    insists: ClassVar[bool] = True
    stateful: ClassVar[bool] = False
    corrupts: ClassVar[bool] = True
    head_of: ClassVar[str] = "rtd"  # one generator and one discriminator for both

    def __post_init__(self) -> None:
        check_share(self.name, rate=self.rate, size=self.size)
        check_languages(self.name, self.languages)

    def read_rows(self, files: Sequence[str | Path], errors: Errors = "strict") -> Labeled:
        """Tables of pairs, or files in twos whose lines belong together."""
        return read_languages(files, {"text": str(self.text), "pair": str(self.pair)}, self.languages, errors)

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """A pair to a sequence, as `tlm` has them."""
        return pairs_epoch(self.name, data, packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """Hide tokens of both sides from the generator. The second side begins at position 0 again."""
        return begin_anew(hide_and_judge(sequences, tokenizer, draws, self.rate, self.name))

    def room(self, packing: Packing) -> dict[str, int]:
        """Those of `rtd`."""
        return room_for(packing, self.rate, self.name)

    def head(self, backbone: Backbone) -> nn.Module:
        """Generator and discriminator's head."""
        check_attention(self.name, backbone)
        return make_head(backbone, self.size, self.layers, self.width, self.heads)

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """The generator's cross-entropy, and the discriminator's at every token of what the generator made."""
        return detection_loss(self.name, self.weight, head, backbone, batch)
