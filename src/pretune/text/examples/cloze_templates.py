"""Parse cloze prompts such as `{text} It was [MASK].` (Schick and Schütze, 2021, PET).

{text} and {pair} stand for the texts of a row, other names in braces for its other fields; a prompt without any of them
is preceded by the texts. [MASK] stands for the answer, whatever the tokenizer's mask token is; generative models
continue the text there instead.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pretune.runtime.errors import PretuneError
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.sequence_parts import Part
from pretune.text.tokenizers.tokenizer import Tokenizer

TEXT, PAIR, GAP = "{text}", "{pair}", "[MASK]"


@dataclass(frozen=True)
class Cloze:
    """A cloze prompt as pieces in order, each with the space before it.

    >>> Cloze.parse("{text} It was [MASK].").pieces
    ('{text}', ' It was', ' [MASK]', '.')
    """

    pieces: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, pair: bool = False, more: Collection[str] = ()) -> Cloze:
        """Parse a prompt for rows with a single text or a pair of texts; `more` are the names of further fields."""
        text = text.replace("\\n", "\n")
        slots = [TEXT, PAIR, *(f"{{{name}}}" for name in more)]
        if not any(slot in text for slot in slots):
            text = " ".join([TEXT, *([PAIR] if pair else []), text])
        if text.count(GAP) != 1:
            raise PretuneError(
                f"cloze {text!r}: expected {GAP} once, in place of the answer, but found it {text.count(GAP)} times"
            )
        if (PAIR in text) != pair:
            raise PretuneError(
                f"cloze {text!r}: the examples are pairs of texts; add {PAIR} for the second text"
                if pair
                else f"cloze {text!r}: the examples are not pairs of texts; remove {PAIR}"
            )
        either = "|".join(map(re.escape, [*slots, GAP]))
        return cls(tuple(filter(None, re.split(rf"(\s*(?:{either}))", text))))

    @property
    def space(self) -> str:
        """Return the whitespace that separates the answer from the text before [MASK]."""
        (gap,) = (piece for piece in self.pieces if piece.endswith(GAP))
        return gap.removesuffix(GAP)

    def before(self) -> Cloze:
        """Return the part of the prompt before the gap."""
        place = next(number for number, piece in enumerate(self.pieces) if piece.endswith(GAP))
        return Cloze(self.pieces[:place])

    def parts(self, rows: LabeledRows, tokenizer: Tokenizer) -> list[Part]:
        """Return the parts from which the sequences of some rows are composed."""
        slots = placeholder_values(rows)
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

    def fill(self, rows: LabeledRows, row: int, answer: str = "") -> str:
        """Return the text of a row with an answer in the gap."""
        values = {name: str(texts[row]) for name, texts in placeholder_values(rows).items()} | {GAP: answer}
        named = ((piece, piece.lstrip()) for piece in self.pieces)
        return "".join(piece[: -len(name)] + values[name] if name in values else piece for piece, name in named)


def placeholder_values(rows: LabeledRows) -> Mapping[str, Sequence[str]]:
    """Return the values of each placeholder, one per row."""
    more = {f"{{{name}}}": cells for name, cells in rows.more.items()}
    return {TEXT: rows.texts, **({} if rows.pairs is None else {PAIR: rows.pairs}), **more}


def verbalizer_words(words: str, labels: Sequence[str]) -> list[str]:
    """Return the verbalizer word of each label; without `words`, the labels themselves.

    `words` is "good/bad", in the order of the labels, or "yes:good/no:bad".

    >>> verbalizer_words("yes:good/no:bad", ["no", "yes"])
    ['bad', 'good']
    """
    if not words:
        return list(labels)
    found = [word.strip() for word in words.split("/")]
    if all(":" in word for word in found):
        named = {label.strip(): word.strip() for label, _, word in (word.partition(":") for word in found)}
        if set(named) != set(labels):
            raise PretuneError(
                f"words {words}: expected a word for each of the labels {', '.join(labels)}, but found {', '.join(named)}"
            )
        return [named[label] for label in labels]
    if len(found) != len(labels):
        raise PretuneError(
            f"words {words}: expected one word for each of the {len(labels)} labels ({', '.join(labels)}), but found {len(found)}"
        )
    return found


def single_token(word: str, tokenizer: Tokenizer, space: str = " ") -> int:
    """Return the token id of a word in running text; raise an error if it is unknown or has several tokens."""
    ids = tokenizer.encode(space + word)
    if len(ids) != 1 or ids[0] == tokenizer.roles.get("unknown"):
        pieces = ", ".join(map(repr, tokenizer.tokens(ids)))
        raise PretuneError(
            f"word {word!r}: the tokenizer splits it into {pieces}; choose a word that is a single token"
        )
    return ids[0]
