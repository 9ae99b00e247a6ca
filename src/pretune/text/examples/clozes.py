"""Clozes: a text with a gap that an answer fills, as in `{text} It was [MASK].` (Schick and Schütze, 2021, PET).

{text} and {pair} stand for the texts of a row, further names in braces for what else it has; where there is none of them, the texts
come first. [MASK] is the gap, whatever a tokenizer's own token is; a model that writes goes on there instead.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pretune.runtime.errors import PretuneError
from pretune.text.examples.labeled import Labeled
from pretune.text.packing.sequence_parts import Part
from pretune.text.tokenizers.tokenizer import Tokenizer

TEXT, PAIR, GAP = "{text}", "{pair}", "[MASK]"


@dataclass(frozen=True)
class Cloze:
    """Pieces in order, each with the space before it.

    >>> Cloze.parse("{text} It was [MASK].").pieces
    ('{text}', ' It was', ' [MASK]', '.')
    """

    pieces: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, pair: bool = False, more: Collection[str] = ()) -> Cloze:
        """Read a cloze for rows of one text, or of a pair, that have `more` under these names."""
        text = text.replace("\\n", "\n")
        slots = [TEXT, PAIR, *(f"{{{name}}}" for name in more)]
        if not any(slot in text for slot in slots):
            text = " ".join([TEXT, *([PAIR] if pair else []), text])
        if text.count(GAP) != 1:
            raise PretuneError(
                f"cloze {text!r}: it takes one {GAP}, where the answer stands, and has {text.count(GAP)}"
            )
        if (PAIR in text) != pair:
            raise PretuneError(
                f"cloze {text!r}: there are pairs of texts, and no {PAIR} for the second of them"
                if pair
                else f"cloze {text!r}: there are no pairs of texts for {PAIR}"
            )
        either = "|".join(map(re.escape, [*slots, GAP]))
        return cls(tuple(filter(None, re.split(rf"(\s*(?:{either}))", text))))

    @property
    def space(self) -> str:
        """What stands between the text before the gap and the answer."""
        (gap,) = (piece for piece in self.pieces if piece.endswith(GAP))
        return gap.removesuffix(GAP)

    def before(self) -> Cloze:
        """What stands before the gap."""
        place = next(number for number, piece in enumerate(self.pieces) if piece.endswith(GAP))
        return Cloze(self.pieces[:place])

    def parts(self, rows: Labeled, tokenizer: Tokenizer) -> list[Part]:
        """What the sequences of some rows are composed of."""
        slots = slots_of(rows)
        found: list[Part] = []
        for piece in self.pieces:
            name = piece.lstrip()
            if name == GAP:
                found.append((tokenizer.role("mask"),))
            elif name in slots:
                found.append([piece[: -len(name)] + str(text) for text in slots[name]])
            elif ids := tokenizer.encode(piece):
                found.append(tuple(ids))
        return found

    def fill(self, rows: Labeled, row: int, answer: str = "") -> str:
        """The whole text of a row with an answer in it."""
        values = {name: str(texts[row]) for name, texts in slots_of(rows).items()} | {GAP: answer}
        named = ((piece, piece.lstrip()) for piece in self.pieces)
        return "".join(piece[: -len(name)] + values[name] if name in values else piece for piece, name in named)


def slots_of(rows: Labeled) -> Mapping[str, Sequence[str]]:
    """What stands for each slot, row by row."""
    more = {f"{{{name}}}": cells for name, cells in rows.more.items()}
    return {TEXT: rows.texts, **({} if rows.pairs is None else {PAIR: rows.pairs}), **more}


def name_words(words: str, labels: Sequence[str]) -> list[str]:
    """The word of each label: good/bad in the order of the labels, or yes:good/no:bad; without any, the labels themselves.

    >>> name_words("yes:good/no:bad", ["no", "yes"])
    ['bad', 'good']
    """
    if not words:
        return list(labels)
    found = [word.strip() for word in words.split("/")]
    if all(":" in word for word in found):
        named = {label.strip(): word.strip() for label, _, word in (word.partition(":") for word in found)}
        if set(named) != set(labels):
            raise PretuneError(f"words {words}: they name {', '.join(named)}, but the labels are {', '.join(labels)}")
        return [named[label] for label in labels]
    if len(found) != len(labels):
        raise PretuneError(f"words {words}: {len(found)} of them for {len(labels)} labels ({', '.join(labels)})")
    return found


def one_token(word: str, tokenizer: Tokenizer, space: str = " ") -> int:
    """The token that a word is in running text; one that is cut into several, or unknown, is refused."""
    ids = tokenizer.encode(space + word)
    if len(ids) != 1 or ids[0] == tokenizer.roles.get("unknown"):
        pieces = ", ".join(map(repr, tokenizer.tokens(ids)))
        raise PretuneError(
            f"word {word!r}: this tokenizer has no token for it ({pieces}); take a word that is one token"
        )
    return ids[0]
