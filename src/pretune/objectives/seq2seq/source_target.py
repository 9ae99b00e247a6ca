"""What objectives share that read one text with an encoder and write another with a decoder.

Both texts stand in the model's template. The decoder reads its side up to a token and predicts that token (teacher forcing),
so that a batch has two Packed: what the encoder reads, and what the decoder reads, one step late.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pretune.nn.attention.patterns import causal
from pretune.objectives.objective import Data
from pretune.objectives.pretraining.arrangements import spans_arrangement
from pretune.objectives.segment_ops import starts_of, totals
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import say
from pretune.runtime.randomness import Draws
from pretune.text.examples.labeled import Labeled
from pretune.text.packing.plan import Plan
from pretune.text.packing.sequences import Arrangement, Packing, Sequences, plan_lengths
from pretune.text.spans import spans_to_indices
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.tokenizer import Tokenizer

Array = np.ndarray[Any, np.dtype[Any]]
AROUND = 4  # tokens that a template puts around a text, at most; shapes have room for so many


@dataclass
class Texts:
    """Texts end to end, without what a template puts around them."""

    ids: Array  # (n,)
    lengths: Array  # (b,)


# -- arranging ------------------------------------------------------------------------------------------------------


@dataclass
class TextEpoch:
    """Spans of running text, one to a sequence, that know where sentences start (column `sentence`)."""

    arrangement: Arrangement
    plan: Plan
    sentences: Array  # where sentences start in the source, sorted

    def __len__(self) -> int:
        return len(self.plan)

    def sizes(self) -> Array:
        """(packs,) how many sequences each has."""
        return np.diff(self.plan.bounds)

    def pack(self, index: int) -> Sequences:
        """The sequences of a pack."""
        chosen = self.plan.pack(index)
        sequences = self.arrangement.take(chosen)
        sequences.frame = self.arrangement.template.target
        starts, lengths = self.arrangement.starts[chosen, 0], self.arrangement.spans[chosen, 0]
        first, last = (np.searchsorted(self.sentences, at) for at in (starts, starts + lengths))
        inside = spans_to_indices(first, last - first)
        begins = np.flatnonzero(~sequences.columns["special"])[starts_of(lengths)]  # where texts start in the sequences
        sentence = np.zeros(len(sequences.ids), dtype=bool)
        sentence[begins] = True
        sentence[self.sentences[inside] + np.repeat(begins - starts, last - first)] = True
        sequences.columns["sentence"] = sentence
        return sequences


def text_epoch(data: Data, packing: Packing, draws: Draws, spare: int = 0) -> TextEpoch:
    """Documents in spans of whole sentences, such that both sides of a sequence fit; `spare` tokens are left free."""
    template = writing_template(data.template)
    spare = max(spare, template_length(template.target) - 1 - template.overhead(pair=False))
    arrangement = spans_arrangement(replace(data, template=template), packing.length - spare, draws)
    assert data.store is not None
    plan = plan_lengths(arrangement.lengths + spare, packing, draws)
    return TextEpoch(arrangement, plan, data.store.sentence_offsets)


@dataclass
class PairEpoch:
    """Source sequences, and `per` target sequences for each: 2i and 2i + 1 belong to source i where there are two."""

    source: Arrangement
    target: Arrangement
    plan: Plan
    per: int = 1

    def __len__(self) -> int:
        return len(self.plan)

    def sizes(self) -> Array:
        """(packs,) how many source sequences each has."""
        return np.diff(self.plan.bounds)

    def pack(self, index: int) -> Sequences:
        """The sequences of a pack, the target side as the template has it."""
        chosen = self.plan.pack(index)
        sequences = self.source.take(chosen)
        sequences.second = self.target.take((chosen[:, None] * self.per + np.arange(self.per)).ravel())
        return sequences


def check_fits(rows: Labeled, fits: Array, packing: Packing, draws: Draws) -> None:
    """Say how many pairs are left out; refuse rows of which none is left."""
    if not fits.any():
        raise PretuneError(f"{rows.file}: no pair of texts, empty ones aside, fits into {packing.length} tokens")
    if not fits.all() and draws.epoch == 0:
        say(
            f"{rows.file}: {int((~fits).sum())} of {len(fits)} pairs are longer than {packing.length} tokens, "
            "or empty, and are left out"
        )


def writing_template(template: Template) -> Template:
    """A template that has a decoder's side: that of a family without one goes from start to end."""
    made = template if template.target else replace(template, target=("start", "A", "end"))
    assert max(map(template_length, (made.single, made.target))) <= AROUND
    return made


def template_length(items: tuple[str, ...]) -> int:
    """Tokens that are not the text's own."""
    return len(items) - 1


def in_language(items: tuple[str, ...], language: str) -> tuple[str, ...]:
    """Template items whose `language` is a certain one."""
    return tuple(f"language {language}" if item == "language" else item for item in items)


def name_of_token(language: str, tokenizer: Tokenizer) -> str:
    """The language as the tokenizer's token spells it: en is en_XX of mBART's."""
    longer = [role.removeprefix("language ") for role in tokenizer.roles if role.startswith(f"language {language}_")]
    return longer[0] if len(longer) == 1 and not tokenizer.has(f"language {language}") else language


def in_own_languages(sequences: Sequences, stands: int) -> Sequences:
    """Both sides with the tokens of their own languages (label `language`, if there is one) where another one `stands`."""
    own = sequences.labels.get("language")
    for side in (sequences, sequences.second):
        if own is not None and side is not None:
            at = np.flatnonzero(side.ids == stands)
            side.ids[at] = own[side.owner[at]]
    return sequences


# -- taking sequences apart and putting them together ---------------------------------------------------------------


def texts_of(sequences: Sequences) -> Texts:
    """The texts of some sequences."""
    free = ~sequences.columns["special"]
    return Texts(sequences.ids[free], totals(free, sequences.lengths))


def framed(texts: Texts, before: Array, after: Array) -> Texts:
    """Texts with the same tokens before and after each."""
    lengths = texts.lengths + len(before) + len(after)
    starts = starts_of(lengths)
    ids = np.empty(int(lengths.sum()), dtype=np.int64)
    ids[starts[:, None] + np.arange(len(before))] = before
    ids[(starts + lengths - len(after))[:, None] + np.arange(len(after))] = after
    ids[spans_to_indices(starts + len(before), texts.lengths)] = texts.ids
    return Texts(ids, lengths)


def two_sides(name: str, sequences: Sequences, source: Texts, target: Texts, tokenizer: Tokenizer) -> Sequences:
    """Read one text, write another: both in their templates."""
    one = sequences.ids[: sequences.lengths[0]]  # what is around its text is around every text
    text = np.flatnonzero(~sequences.columns["special"][: len(one)])
    read = framed(source, one[: text[0]], one[text[-1] + 1 :])
    place = sequences.frame.index("A")
    roles = np.array([0 if item == "A" else tokenizer.role(item) for item in sequences.frame])
    whole = framed(target, roles[:place], roles[place + 1 :])
    made = Sequences(read.ids, read.lengths, sequences.index, labels=sequences.labels)
    made.second = Sequences(whole.ids, whole.lengths, sequences.index)
    return shift(name, made)


def shift(name: str, sequences: Sequences) -> Sequences:
    """Teacher forcing: the decoder reads its side without the last token, and predicts it without the first."""
    whole = sequences.second
    assert whole is not None
    is_first, is_last = (np.zeros(len(whole.ids), dtype=bool) for _ in range(2))
    is_first[whole.offsets[:-1]] = is_last[whole.offsets[1:] - 1] = True
    made = Sequences(whole.ids[~is_last], whole.lengths - 1, whole.index, pattern=causal)
    made.targets[name] = (np.arange(len(made.ids)), whole.ids[~is_first])
    sequences.second = made
    return sequences


# -- shapes ---------------------------------------------------------------------------------------------------------


def shapes(
    packing: Packing, read: tuple[float, int], written: tuple[float, int], per: int = 1
) -> tuple[Packing, Packing]:
    """The two sides' packings, from the most tokens and the longest sequence of each; `per` sequences are written for one.

    What they leave free is cut into sequences too, for which both have room.
    """
    sizes = [(int(tokens), longest) for tokens, longest in (read, written)]
    spare = max(-(-tokens // longest) for tokens, longest in sizes)
    slots = min(packing.sequences, packing.tokens) + spare
    first, second = (replace(packing, tokens=tokens, length=longest, sequences=slots) for tokens, longest in sizes)
    return first, replace(second, sequences=per * slots)


def check_share(name: str, option: str, value: float) -> None:
    """Refuse what is no share."""
    if not 0 <= value < 1:
        raise PretuneError(f"{name}({option}={value:g}): a share lies between 0 and 1; give, say, 0.3")
