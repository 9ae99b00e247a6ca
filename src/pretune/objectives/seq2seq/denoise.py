"""Denoising (Lewis et al., 2020, BART): the encoder reads a corrupted text, the decoder writes the original.

text    I am happy to join with you today.
source  I am [MASK] with you today.
target  I am happy to join with you today.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from pretune.objectives.objective import Data
from pretune.objectives.registry import register_objective
from pretune.objectives.seq2seq.noise_functions import delete, infill, mask, reorder, rotate
from pretune.objectives.seq2seq.source_target import (
    Seq2Seq,
    check_fraction,
    language_token_name,
    make_source_and_target,
    set_language_tokens,
    strip_template,
    text_epoch,
    with_language,
    with_target_side,
)
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Epoch, Packing, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer


@register_objective
@dataclass(frozen=True)
class Denoise(Seq2Seq):
    """Denoising with any of BART's five kinds of noise; the defaults are those of BART-large.

    The kinds of noise are applied in the order of the options below.

    Parameters
    ----------
    permute_sentences, rotate
        Whether to put sentences in random order, and whether to rotate each text so that it starts at a random token.
    infill_rate, poisson_lambda
        The share of tokens to replace in spans of Poisson(`poisson_lambda`) tokens, each span by one mask token.
    mask_rate, delete_rate
        The shares of the remaining tokens to mask and to delete, one by one.
    language
        The language of all texts, for templates with a language token (mBART); by default, each text has its own.
    """

    permute_sentences: bool = True
    rotate: bool = False
    infill_rate: float = 0.3
    poisson_lambda: float = 3.0
    mask_rate: float = 0.0
    delete_rate: float = 0.0
    language: str = ""

    name: ClassVar[str] = "denoise"

    def __post_init__(self) -> None:
        for option in ("infill_rate", "mask_rate", "delete_rate"):
            check_fraction(self.name, option, getattr(self, option))
        if self.poisson_lambda <= 0:
            raise PretuneError(
                f"denoise(poisson_lambda={self.poisson_lambda:g}): the mean span length must be positive; give, for example, 3"
            )

    def arrange(self, data: Data, packing: Packing, draws: EpochRandom) -> Epoch:
        """Cut documents into spans of whole sentences, with a language token if the template has one (mBART)."""
        template = with_target_side(data.template)
        if "language" not in template.target or data.store is None:
            return text_epoch(replace(data, template=template), packing, draws)
        names = [self.language] if self.language else data.store.languages
        tokens = {name: language_token_name(name, data.tokenizer) for name in names}
        single, target = (with_language(items, tokens[names[0]]) for items in (template.single, template.target))
        epoch = text_epoch(replace(data, template=replace(template, single=single, target=target)), packing, draws)
        if len(names) > 1:
            roles = {data.languages[name]: data.tokenizer.role(f"language {token}") for name, token in tokens.items()}
            numbers = epoch.arrangement.columns["language"][:, 0]
            epoch.arrangement.labels["language"] = np.array([roles[int(number)] for number in numbers])
        return epoch

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Add the enabled kinds of noise to the source, one after the other; the target is the original text."""
        texts, index = strip_template(sequences), sequences.index
        noisy = texts
        if self.permute_sentences:
            begins = sequences.columns["sentence"][~sequences.columns["special"]]
            noisy = reorder(noisy, begins, draws, index)
        if self.rotate:
            noisy = rotate(noisy, draws, index)
        if self.infill_rate:
            noisy = infill(noisy, self.infill_rate, self.poisson_lambda, tokenizer.role("mask"), draws, index)
        if self.mask_rate:
            noisy = mask(noisy, self.mask_rate, tokenizer.role("mask"), draws, index)
        if self.delete_rate:
            noisy = delete(noisy, self.delete_rate, tokenizer.roles.get("mask", -1), draws, index)
        made = make_source_and_target(self.name, sequences, noisy, texts, tokenizer)
        language = next((item for item in sequences.frame if item.startswith("language ")), None)
        return made if language is None else set_language_tokens(made, tokenizer.role(language))
