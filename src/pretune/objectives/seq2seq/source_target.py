"""The shared parts of sequence-to-sequence objectives: an encoder reads a source text, a decoder generates a target text.

Both texts are in the model's template. With teacher forcing, the decoder reads the target up to a token and predicts that
token, so a batch has two Packed: the encoder's input, and the decoder's input, shifted by one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from pretune.nn.attention.patterns import causal
from pretune.objectives.objective import Data, TwoSided
from pretune.objectives.pretraining.arrangements import arrange_document_spans
from pretune.objectives.pretraining.token_prediction import TokenPrediction
from pretune.objectives.segment_ops import segment_starts, segment_sum
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import log_info
from pretune.runtime.randomness import EpochRandom
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, PlannedEpoch, Sequences, plan_lengths
from pretune.text.spans import span_indices
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.tokenizer import Tokenizer

MAX_TEMPLATE_TOKENS = 4  # the most special tokens that a template puts around a text; fixed shapes have room for them


@dataclass
class FlatTexts:
    """Texts without special tokens, concatenated into one array of token ids; lengths[i] is the length of text i."""

    ids: Array  # (n,)
    lengths: Array  # (b,)


class Seq2Seq(TokenPrediction, TwoSided):
    """Base class of encoder-decoder objectives with the cross-entropy of the generated target text as their loss."""

    owns_arrangement: ClassVar[bool] = True

    def arrange(self, data: Data, packing: Packing, draws: EpochRandom) -> Epoch:
        """Cut documents into spans of whole sentences, and shuffle the spans into packed batches."""
        return text_epoch(data, packing, draws)

    def sides(self, packing: Packing) -> tuple[Packing, Packing]:
        """Return the batch limits of source and target, each of which may be as long as `packing` allows."""
        whole = (packing.tokens, packing.length)
        return side_packings(packing, whole, whole)


# -- epochs -----------------------------------------------------------------------------------------------------------


@dataclass
class TextEpoch(PlannedEpoch):
    """An epoch of spans of running text, one per sequence, with a column `sentence` that marks where sentences start.

    `sentences` has the positions in the token store at which sentences start, sorted.
    """

    sentences: Array  # where sentences start in the token store, sorted

    def pack(self, index: int) -> Sequences:
        """Return the sequences of batch `index`, with a column `sentence` that marks where sentences start."""
        chosen = self.plan.pack(index)
        sequences = self.arrangement.take(chosen)
        sequences.frame = self.arrangement.template.target
        starts, lengths = self.arrangement.starts[chosen, 0], self.arrangement.spans[chosen, 0]
        first, last = (np.searchsorted(self.sentences, at) for at in (starts, starts + lengths))
        inside = span_indices(first, last - first)
        # where texts start in the sequences
        begins = np.flatnonzero(~sequences.columns["special"])[segment_starts(lengths)]
        sentence = np.zeros(len(sequences.ids), dtype=bool)
        sentence[begins] = True
        sentence[self.sentences[inside] + np.repeat(begins - starts, last - first)] = True
        sequences.columns["sentence"] = sentence
        return sequences


def text_epoch(data: Data, packing: Packing, draws: EpochRandom, spare: int = 0) -> TextEpoch:
    """Cut documents into spans of whole sentences, so that at least `spare` tokens are left free in each sequence.

    The free tokens leave room for tokens that an objective, or the template of the target, adds to a span.
    """
    template = with_target_side(data.template)
    spare = max(spare, count_special_items(template.target) - 1 - template.num_special_tokens(pair=False))
    arrangement = arrange_document_spans(replace(data, template=template), packing.length - spare, draws)
    plan = plan_lengths(arrangement.lengths + spare, packing, draws)
    return TextEpoch(arrangement, plan, data.require_store("this objective").sentence_offsets)


@dataclass
class SourceTargetEpoch(PlannedEpoch):
    """An epoch of source sequences with `per` targets each.

    Source i has the targets per · i to per · (i + 1) - 1.
    """

    target: Arrangement
    per: int = 1

    def pack(self, index: int) -> Sequences:
        """Return the source sequences of batch `index` and, as `second`, their target sequences.

        The targets are not yet shifted for teacher forcing.
        """
        chosen = self.plan.pack(index)
        sequences = self.arrangement.take(chosen)
        sequences.second = self.target.take((chosen[:, None] * self.per + np.arange(self.per)).ravel())
        return sequences


def report_dropped_pairs(rows: LabeledRows, fits: Array, packing: Packing, draws: EpochRandom) -> None:
    """Log how many pairs of texts do not fit into a sequence or have an empty text; raise an error if none fits.

    `fits` has one boolean per pair.
    """
    if not fits.any():
        raise PretuneError(
            f"{rows.file}: no pair of non-empty texts fits into {packing.length} tokens; increase batch.max_length"
        )
    if not fits.all() and draws.epoch == 0:
        log_info(
            f"{rows.file}: left out {int((~fits).sum())} of {len(fits)} pairs, which are empty or longer than "
            f"{packing.length} tokens"
        )


def with_target_side(template: Template) -> Template:
    """Return the input template with a target part; by default a start token, the text, and an end token."""
    made = template if template.target else replace(template, target=("start", "A", "end"))
    assert max(map(count_special_items, (made.single, made.target))) <= MAX_TEMPLATE_TOKENS
    return made


def count_special_items(items: tuple[str, ...]) -> int:
    """Return the number of special tokens in a template, which are all of its items except the text."""
    return len(items) - 1


def with_language(items: tuple[str, ...], language: str) -> tuple[str, ...]:
    """Return the items of a template, with the placeholder "language" replaced by the token of `language`."""
    return tuple(f"language {language}" if item == "language" else item for item in items)


def language_token_name(language: str, tokenizer: Tokenizer) -> str:
    """Return the name of a language's token in the tokenizer, such as en_XX for en in mBART."""
    longer = [role.removeprefix("language ") for role in tokenizer.roles if role.startswith(f"language {language}_")]
    return longer[0] if len(longer) == 1 and not tokenizer.has_role(f"language {language}") else language


def set_language_tokens(sequences: Sequences, stands: int) -> Sequences:
    """Replace each placeholder token in source and target by the language token of its sequence.

    `stands` is the token id of the placeholder. `sequences.labels["language"]` has the id of the language token of each
    sequence; without it, nothing is replaced.
    """
    own = sequences.labels.get("language")
    for side in (sequences, sequences.second):
        if own is not None and side is not None:
            at = np.flatnonzero(side.ids == stands)
            side.ids[at] = own[side.owner[at]]
    return sequences


# -- building both sides ----------------------------------------------------------------------------------------------


def strip_template(sequences: Sequences) -> FlatTexts:
    """Return packed sequences as FlatTexts, without their special tokens."""
    free = ~sequences.columns["special"]
    return FlatTexts(sequences.ids[free], segment_sum(free, sequences.lengths))


def add_template_tokens(texts: FlatTexts, before: Array, after: Array) -> FlatTexts:
    """Return the texts with the special tokens `before` added before each text and `after` after it."""
    lengths = texts.lengths + len(before) + len(after)
    starts = segment_starts(lengths)
    ids = np.empty(int(lengths.sum()), dtype=np.int64)
    ids[starts[:, None] + np.arange(len(before))] = before
    ids[(starts + lengths - len(after))[:, None] + np.arange(len(after))] = after
    ids[span_indices(starts + len(before), texts.lengths)] = texts.ids
    return FlatTexts(ids, lengths)


def make_source_and_target(
    name: str, sequences: Sequences, source: FlatTexts, target: FlatTexts, tokenizer: Tokenizer
) -> Sequences:
    """Wrap source and target texts in their templates, and return them as sequences for teacher forcing.

    The template of the source is read from `sequences`, that of the target from `sequences.frame`. `name` is the loss
    term of the target tokens.
    """
    one = sequences.ids[: sequences.lengths[0]]  # all sequences have the same special tokens around their texts
    text = np.flatnonzero(~sequences.columns["special"][: len(one)])
    read = add_template_tokens(source, one[: text[0]], one[text[-1] + 1 :])
    place = sequences.frame.index("A")
    roles = np.array([0 if item == "A" else tokenizer.role(item) for item in sequences.frame])
    whole = add_template_tokens(target, roles[:place], roles[place + 1 :])
    made = Sequences(read.ids, read.lengths, sequences.index, labels=sequences.labels)
    made.second = Sequences(whole.ids, whole.lengths, sequences.index)
    return shift_targets(name, made)


def shift_targets(name: str, sequences: Sequences) -> Sequences:
    """Set up teacher forcing: the decoder reads each token of the target and predicts the next one.

    `name` is the loss term of the predictions.
    """
    whole = sequences.second
    assert whole is not None
    is_first, is_last = (np.zeros(len(whole.ids), dtype=bool) for _ in range(2))
    is_first[whole.offsets[:-1]] = is_last[whole.offsets[1:] - 1] = True
    made = Sequences(whole.ids[~is_last], whole.lengths - 1, whole.index, pattern=causal)
    made.targets[name] = (np.arange(len(made.ids)), whole.ids[~is_first])
    sequences.second = made
    return sequences


# -- shapes -----------------------------------------------------------------------------------------------------------


def side_packings(
    packing: Packing, read: tuple[float, int], written: tuple[float, int], per: int = 1
) -> tuple[Packing, Packing]:
    """Return the batch limits of sources and of targets, derived from `packing`, with slots for padding sequences.

    `read` (sources) and `written` (targets) are pairs: the maximum number of tokens per batch, and of tokens per
    sequence. Each source has `per` targets.
    """
    sizes = [(int(tokens), longest) for tokens, longest in (read, written)]
    spare = max(-(-tokens // longest) for tokens, longest in sizes)
    slots = min(packing.sequences, packing.tokens) + spare
    first, second = (replace(packing, tokens=tokens, length=longest, sequences=slots) for tokens, longest in sizes)
    return first, replace(second, sequences=per * slots)


def check_fraction(name: str, option: str, value: float) -> None:
    """Raise an error if `value`, given for the option `option` of the objective `name`, is not in [0, 1)."""
    if not 0 <= value < 1:
        raise PretuneError(
            f"{name}({option}={value:g}): the share must be at least 0 and less than 1; give, for example, 0.3"
        )


def check_languages(name: str, languages: str) -> None:
    """Raise an error if `languages` is neither empty nor a pair of languages such as en-fr; `name` is the objective."""
    if languages and len(languages.split("-")) != 2:
        raise PretuneError(
            f"{name}(language_pair={languages}): this does not name two languages; write, for example, language_pair=en-fr"
        )
