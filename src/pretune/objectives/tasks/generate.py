"""Text to text (Raffel et al., 2020, T5): every task is a text that is read and a text that is written.

summarize: Heavy rain has flooded …     Floods in the north
cola sentence: The course is jumping.   unacceptable

An encoder-decoder reads the one and writes the other. A single stack reads the source, a delimiter and the target one after
the other (Radford et al., 2019, GPT-2), and learns to predict the target alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

import numpy as np
from torch import Tensor, nn

from pretune.nn.attention.patterns import Pattern, causal
from pretune.objectives.objective import Data, Loss, token_loss
from pretune.objectives.seq2seq.source_target import PairEpoch, check_share, in_language, shapes, shift
from pretune.objectives.task import Answer, fitted
from pretune.objectives.tasks.classify import find_labels
from pretune.packed import Batch
from pretune.runtime.errors import PretuneError, nearest
from pretune.runtime.randomness import Draws
from pretune.text.examples.labeled import Excerpt, Labeled
from pretune.text.examples.text_to_text import read_text_to_text
from pretune.text.packing.sequence_parts import Part, compose
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, Sequences, plan_epoch, plan_lengths
from pretune.text.spans import spans_to_indices
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.token_trie import Trie
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone

Array = np.ndarray[Any, np.dtype[Any]]
Judging = Literal["exact", "words", "rouge", "bleu"]
DECIDES = {"exact": "exact_match", "words": "word_f1", "rouge": "rougeL", "bleu": "bleu"}


@dataclass(frozen=True)
class Generate:
    """What is read begins with `prefix`; a pair of texts is read as T5 has it, by the names of its `fields`: sentence1: … sentence2: …

    Answers have at most `tokens` tokens, and are looked for with so many `beams`. With `closed` they are those of training and no
    others. `delimiter` stands before the answer in a single stack; `languages`, say en-ro, where the template has some.
    `drop_bad`: rows without a text to read or to write are left out.
    """

    prefix: str = ""
    fields: str = "sentence1/sentence2"
    closed: bool = False
    tokens: int = 64
    beams: int = 1
    judged: Judging = "exact"
    smoothing: float = 0.0
    delimiter: str = "="
    languages: str = ""
    drop_bad: bool = False
    labels: Sequence[str] = fitted(())

    name: ClassVar[str] = "generate"
    head_of: ClassVar[str] = "lm"
    pattern: ClassVar[Pattern | None] = None
    insists: ClassVar[bool] = True
    stateful: ClassVar[bool] = False
    each: ClassVar[Literal["text"]] = "text"

    def __post_init__(self) -> None:
        check_share(self.name, "smoothing", self.smoothing)
        if self.judged not in get_args(Judging):
            raise PretuneError(
                f"generate(judged={self.judged}): unknown metric; {nearest(self.judged, get_args(Judging))}"
            )
        for option in ("tokens", "beams"):
            if getattr(self, option) < 1:
                raise PretuneError(f"generate({option}={getattr(self, option)}): 1 or more")
        if len(self.fields.split("/")) != 2:
            raise PretuneError(
                f"generate(fields={self.fields}): name both texts of a pair, as in fields=question/context"
            )
        if self.languages and len(self.languages.split("-")) != 2:
            raise PretuneError(f"generate(languages={self.languages}): name two, as in languages=en-ro")

    @property
    def decides(self) -> str:
        """The metric by which models are compared."""
        return "accuracy" if self.closed else DECIDES[self.judged]

    # -- examples ---------------------------------------------------------------------------------------------------

    def read(self, file: str | Path | Excerpt, columns: Mapping[str, str], *, answered: bool = True) -> Labeled:
        """Rows of a table: a text or two to read, and one to write."""
        return read_text_to_text(file, columns, answered=answered, drop_bad=self.drop_bad)

    def fit(self, examples: Labeled) -> Self:
        """With the answers there are, if no others are allowed."""
        return replace(self, labels=tuple(find_labels(examples.file, examples.labels or ()))) if self.closed else self

    def sources(self, rows: Any) -> list[str]:
        """What is read of each row."""
        if not isinstance(rows, Labeled):
            raise PretuneError(
                "generate learns from rows with a source and a target; give it a .csv, .tsv, .jsonl or .parquet file"
            )
        texts = rows.texts
        if rows.pairs is not None:
            first, second = self.fields.split("/")
            texts = [f"{first}: {a} {second}: {b}" for a, b in zip(texts, rows.pairs, strict=True)]
        return [f"{self.prefix.strip()} {text}".strip() for text in texts]

    def spell(self, target: str, template: Template) -> str:
        """A target as it is written: in a single stack it goes on from a delimiter, with a space between them."""
        return target if template.target else f" {target}"

    # -- arranging --------------------------------------------------------------------------------------------------

    def frames(self, template: Template) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What stands around the text that is read, and around the one that is written."""
        if not template.target:
            return template.single[: template.single.index("A") + 1], ("A", "end")
        if not self.languages:
            return template.single, template.target
        first, second = self.languages.split("-")
        return in_language(template.single, first), in_language(template.target, second)

    def delimit(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """The delimiter's tokens."""
        ids = tokenizer.encode(f" {self.delimiter}")
        if not ids:
            raise PretuneError(
                f"generate(delimiter={self.delimiter!r}): this tokenizer reads nothing in it; take another"
            )
        return tuple(ids)

    def closed_trie(self, tokenizer: Tokenizer, template: Template) -> Trie:
        """The answers that are allowed, each with the token that ends it."""
        _, frame = self.frames(template)
        end = tokenizer.role(frame[frame.index("A") + 1])
        spelled = {label: tokenizer.encode(self.spell(label, template)) for label in self.labels}
        for label, ids in spelled.items():
            if not ids or set(ids) & {end, tokenizer.roles.get("unknown", -1)}:
                raise PretuneError(f"answer {label!r}: this tokenizer cannot spell it; take another word")
        return Trie([*ids, end] for ids in spelled.values())

    def most(self, data: Data) -> int:
        """Tokens that an answer can have."""
        return self.closed_trie(data.tokenizer, data.template).longest if self.closed else self.tokens

    def lay_out(self, data: Data, length: int) -> Arrangement:
        """What is read, a row to a sequence. A single stack has room left for what it shall write.

        Label `tokens` is how many a row has in training, where its target is known.
        """
        frame, _ = self.frames(data.template)
        parts: list[Part] = [self.sources(data.rows)]
        if not data.template.target:
            parts.append(self.delimit(data.tokenizer))
        spare = 0 if data.template.target else min(self.most(data), length // 2)
        laid = compose(parts, data.tokenizer, frame, length - spare)
        if data.rows.labels is not None:
            laid.labels["tokens"] = self.costs(*self.both_sides(data, length))
        return laid

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """Both texts of each row, in two sequences or in one; too long ones are cut."""
        source, target = self.both_sides(data, packing.length)
        if target is None:
            return plan_epoch(source, packing, draws)
        return PairEpoch(source, target, plan_lengths(self.costs(source, target), packing, draws))

    def costs(self, source: Arrangement, target: Arrangement | None) -> Array:
        """(m,) tokens of the longer side of each row."""
        return source.lengths if target is None else np.maximum(source.lengths, target.lengths - 1)

    def both_sides(self, data: Data, length: int) -> tuple[Arrangement, Arrangement | None]:
        """What is read and what is written, or both in one; tokenized once."""
        found: tuple[Arrangement, Arrangement | None] = data.once(
            (self.name, self.prefix, self.fields, length), lambda: self._both_sides(data, length)
        )
        return found

    def _both_sides(self, data: Data, length: int) -> tuple[Arrangement, Arrangement | None]:
        sources, (read, written) = self.sources(data.rows), self.frames(data.template)
        targets = [self.spell(target, data.template) for target in data.rows.labels]
        if data.template.target:
            source = compose([sources], data.tokenizer, read, length)
            return source, compose([targets], data.tokenizer, written, length + 1)  # the last is never read
        parts: list[Part] = [sources, self.delimit(data.tokenizer), targets]
        whole = compose(parts, data.tokenizer, (*read, *written[1:]), length)
        whole.labels["written"] = whole.spans[:, -1] + len(written) - 1
        return whole, None

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """The target is predicted, each token from those before it."""
        if sequences.second is not None:
            return shift(self.name, sequences)
        written = sequences.labels["written"]
        at = spans_to_indices(sequences.offsets[1:] - 1 - written, written)
        sequences.targets[self.name] = (at, sequences.ids[at + 1])
        sequences.pattern = causal
        return sequences

    def sides(self, packing: Packing) -> tuple[Packing, Packing]:
        """Packs are planned by the longer side of each row."""
        whole = (packing.tokens, packing.length)
        return shapes(packing, whole, whole)

    def room(self, packing: Packing) -> dict[str, int]:
        """Everything that is written."""
        return {self.name: packing.tokens}

    # -- learning and answering -------------------------------------------------------------------------------------

    def head(self, backbone: Backbone) -> nn.Module:
        """The family's way from states to the vocabulary."""
        return backbone.vocabulary_head()

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy of what is written."""
        return token_loss(self.name, head, backbone, batch, self.smoothing)

    def outputs(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Tensor:
        """(n, vocabulary) logits of what may follow each token of the side that is written."""
        out: Tensor = head(backbone(*batch.packed).last, backbone.embed.tokens)
        return out

    def answers(self, outputs: Sequence[Array], laid: Arrangement, examples: Labeled) -> list[Answer]:
        """The texts of the tokens that were written for each row."""
        tokenizer = laid.tokenizer
        known = {tokenizer.decode(tokenizer.encode(label)).strip(): label for label in self.labels}
        texts = [tokenizer.decode(ids).strip() for ids in outputs]
        return [{"answer": known.get(text, text)} for text in texts]
