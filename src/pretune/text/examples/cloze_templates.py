"""Parse cloze prompts such as `{text} It was [MASK].` (Schick and Schütze, 2021, PET).

{text} and {pair} stand for the texts of a row, other names in braces for its other fields; a prompt without any
placeholder is preceded by the texts. [MASK] stands for the answer, whatever the tokenizer's mask token is; generative
models continue the text there instead.
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
    """A cloze prompt as a list of placeholders and fixed texts; each piece includes the space before it.

    >>> Cloze.parse("{text} It was [MASK].").pieces
    ('{text}', ' It was', ' [MASK]', '.')
    """

    pieces: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, pair: bool = False, more: Collection[str] = ()) -> Cloze:
        """Parse a cloze prompt with placeholders for a text, a second text (if `pair`), and the columns in `more`."""
        text = text.replace("\\n", "\n")
        slots = [TEXT, PAIR, *(f"{{{name}}}" for name in more)]
        if not any(slot in text for slot in slots):
            text = " ".join([TEXT, *([PAIR] if pair else []), text])
        if (count := text.count(GAP)) != 1:
            raise PretuneError(f"cloze {text!r}: expected {GAP} once, in place of the answer, not {count} times")
        if (PAIR in text) != pair:
            are, advice = ("are", f"add {PAIR} for the second text") if pair else ("are not", f"remove {PAIR}")
            raise PretuneError(f"cloze {text!r}: the examples {are} pairs of texts; {advice}")
        either = "|".join(map(re.escape, [*slots, GAP]))
        return cls(tuple(filter(None, re.split(rf"(\s*(?:{either}))", text))))

    @property
    def space(self) -> str:
        """Return the whitespace directly before [MASK] in a cloze prompt."""
        return next(piece for piece in self.pieces if piece.endswith(GAP)).removesuffix(GAP)

    def before(self) -> Cloze:
        """Return a cloze prompt that consists of the pieces of this one up to, but not including, [MASK]."""
        place = next(number for number, piece in enumerate(self.pieces) if piece.endswith(GAP))
        return Cloze(self.pieces[:place])

    def parts(self, rows: LabeledRows, tokenizer: Tokenizer) -> list[Part]:
        """Return the parts of a cloze prompt, from which `compose_sequences` builds the sequences of `rows`.

        A placeholder becomes a list of texts, one per row; a fixed text becomes its token ids, and [MASK] the id of the
        mask token, which are the same for all rows.
        """
        values = placeholder_values(rows)
        parts: list[Part] = []
        for piece in self.pieces:
            name = piece.lstrip()
            if name == GAP:
                parts.append((tokenizer.role("mask"),))
            elif name in values:
                parts.append([piece[: -len(name)] + str(text) for text in values[name]])
            elif ids := tokenizer.encode(piece):
                parts.append(tuple(ids))
        return parts

    def fill(self, rows: LabeledRows, row: int, answer: str = "") -> str:
        """Return the cloze prompt for the row with the index `row` as text, with `answer` in place of [MASK]."""
        values = {name: str(texts[row]) for name, texts in placeholder_values(rows).items()} | {GAP: answer}
        names = ((piece, piece.lstrip()) for piece in self.pieces)
        return "".join(piece[: -len(name)] + values[name] if name in values else piece for piece, name in names)


def placeholder_values(rows: LabeledRows) -> Mapping[str, Sequence[str]]:
    """Return a mapping from placeholder, such as "{text}", to the texts that replace it, one per row."""
    extra = {f"{{{name}}}": cells for name, cells in rows.extra.items()}
    return {TEXT: rows.texts, **({} if rows.pairs is None else {PAIR: rows.pairs}), **extra}


def verbalizer_words(words: str, labels: Sequence[str]) -> list[str]:
    """Return the verbalizer word of each label; if `words` is empty, the labels themselves.

    `words` is either a list such as "good/bad", in the order of the labels, or a mapping such as "yes:good/no:bad".

    >>> verbalizer_words("yes:good/no:bad", ["no", "yes"])
    ['bad', 'good']
    """
    if not words:
        return list(labels)
    parts, listed = [word.strip() for word in words.split("/")], ", ".join(labels)
    if all(":" in part for part in parts):
        named = {label.strip(): word.strip() for label, _, word in (part.partition(":") for part in parts)}
        if set(named) != set(labels):
            found = ", ".join(named)
            raise PretuneError(
                f"words {words}: expected a word for each of the labels {listed}, but found {found}; correct the labels"
            )
        return [named[label] for label in labels]
    if len(parts) != len(labels):
        wanted = f"one word for each of the {len(labels)} labels ({listed})"
        raise PretuneError(f"words {words}: expected {wanted}, but found {len(parts)}; add or remove words")
    return parts


def single_token(word: str, tokenizer: Tokenizer, space: str = " ") -> int:
    """Return the token id of a word preceded by `space`; raise an error if it is not exactly one known token."""
    ids = tokenizer.encode(space + word)
    if len(ids) != 1 or ids[0] == tokenizer.roles.get("unknown"):
        tokens = ", ".join(map(repr, tokenizer.tokens(ids)))
        raise PretuneError(
            f"word {word!r}: the tokenizer splits it into {tokens}; choose a word that is a single token"
        )
    return ids[0]
