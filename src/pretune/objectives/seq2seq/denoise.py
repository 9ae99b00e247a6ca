"""Denoising (Lewis et al., 2020, BART): the encoder reads a text with noise in it, the decoder writes the whole text.

I am happy to join with you today.
reads   I am [MASK] with you today.
writes  I am happy to join with you today.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from torch import nn

from pretune.nn.attention.patterns import Pattern
from pretune.objectives.objective import Data, Loss, TwoSided, token_loss
from pretune.objectives.registry import register_objective
from pretune.objectives.seq2seq.noise import delete, infill, mask, reorder, rotate
from pretune.objectives.seq2seq.source_target import (
    check_share,
    in_language,
    in_own_languages,
    name_of_token,
    shapes,
    text_epoch,
    texts_of,
    two_sides,
    writing_template,
)
from pretune.packed import Batch
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import Draws
from pretune.text.packing.sequences import Epoch, Packing, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone


@register_objective
@dataclass(frozen=True)
class Denoise(TwoSided):
    """Any of BART's five kinds of noise, in this order; the defaults are BART-large's.

    `permute`: sentences in random order. `rotate`: the text begins at a random token, and what was before it comes last.
    `infill`: that share of the tokens in spans, Poisson(`mean`) tokens long, each of which gives way to one mask; a span of
    no tokens puts a mask where nothing was. `mask`, `delete`: that share of the tokens left, one by one.
    `language` is whose token stands in the template, for a family that has one there (mBART); else each text's own.
    """

    permute: bool = True
    rotate: bool = False
    infill: float = 0.3
    mean: float = 3.0
    mask: float = 0.0
    delete: float = 0.0
    language: str = ""

    name: ClassVar[str] = "denoise"
    pattern: ClassVar[Pattern | None] = None
    insists: ClassVar[bool] = True
    stateful: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for option in ("infill", "mask", "delete"):
            check_share(self.name, option, getattr(self, option))
        if self.mean <= 0:
            raise PretuneError(f"denoise(mean={self.mean:g}): spans that are always empty hide nothing")

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """Documents in spans of whole sentences."""
        template = writing_template(data.template)
        if "language" not in template.target or data.store is None:
            return text_epoch(replace(data, template=template), packing, draws)
        names = [self.language] if self.language else data.store.languages
        tokens = {name: name_of_token(name, data.tokenizer) for name in names}
        single, target = (in_language(items, tokens[names[0]]) for items in (template.single, template.target))
        epoch = text_epoch(replace(data, template=replace(template, single=single, target=target)), packing, draws)
        if len(names) > 1:
            roles = {data.languages[name]: data.tokenizer.role(f"language {token}") for name, token in tokens.items()}
            spoken = epoch.arrangement.columns["language"][:, 0]
            epoch.arrangement.labels["language"] = np.array([roles[int(number)] for number in spoken])
        return epoch

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """Add noise of each kind in turn; what is to be written is the text as it was."""
        texts, index = texts_of(sequences), sequences.index
        noisy = texts
        if self.permute:
            begins = sequences.columns["sentence"][~sequences.columns["special"]]
            noisy = reorder(noisy, begins, draws, index)
        if self.rotate:
            noisy = rotate(noisy, draws, index)
        if self.infill:
            noisy = infill(noisy, self.infill, self.mean, tokenizer.role("mask"), draws, index)
        if self.mask:
            noisy = mask(noisy, self.mask, tokenizer.role("mask"), draws, index)
        if self.delete:
            noisy = delete(noisy, self.delete, tokenizer.roles.get("mask", -1), draws, index)
        made = two_sides(self.name, sequences, noisy, texts, tokenizer)
        language = next((item for item in sequences.frame if item.startswith("language ")), None)
        return made if language is None else in_own_languages(made, tokenizer.role(language))

    def sides(self, packing: Packing) -> tuple[Packing, Packing]:
        """Noise makes no text longer."""
        whole = (packing.tokens, packing.length)
        return shapes(packing, whole, whole)

    def room(self, packing: Packing) -> dict[str, int]:
        """Every token."""
        return {self.name: packing.tokens}

    def head(self, backbone: Backbone) -> nn.Module:
        """The family's way from states to the vocabulary."""
        return backbone.vocabulary_head()

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy of the whole text."""
        return token_loss(self.name, head, backbone, batch)
