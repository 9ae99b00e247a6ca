"""Text-to-text tasks (Raffel et al., 2020, T5): read a source text and generate a target text.

summarize: Heavy rain has flooded …     Floods in the north
cola sentence: The course is jumping.   unacceptable

An encoder-decoder encodes the source and decodes the target. A decoder-only model reads source, delimiter and target in
one sequence (Radford et al., 2019, GPT-2), and learns to predict the target only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
from torch import Tensor, nn

from pretune.backbones.backbone import Backbone
from pretune.metrics.additive import AdditiveMetrics
from pretune.metrics.classification import most_frequent
from pretune.metrics.generated_text import closed_set_metrics, text_metrics
from pretune.metrics.per_example import ScoredAnswer, score_texts
from pretune.metrics.question_answering import normalize
from pretune.nn.attention.patterns import causal
from pretune.objectives.in_context_prompt import InContextPrompt, Row
from pretune.objectives.objective import Data, TwoSided
from pretune.objectives.pretraining.token_prediction import TokenPrediction
from pretune.objectives.registry import register_task
from pretune.objectives.seq2seq.source_target import (
    SourceTargetEpoch,
    check_fraction,
    shift_targets,
    side_packings,
    with_language,
)
from pretune.objectives.task import Answer, Task, fitted
from pretune.objectives.tasks.classify import sorted_labels
from pretune.objectives.word_baselines import sentences
from pretune.packed import Batch
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError, shorten, suggest
from pretune.runtime.randomness import EpochRandom
from pretune.text.examples.labeled import LabeledRows, TableChunk
from pretune.text.examples.text_to_text import read_text_to_text
from pretune.text.packing.sequence_parts import Part, compose_sequences
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, Sequences, plan_epoch, plan_lengths
from pretune.text.spans import span_indices
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.token_trie import TokenTrie
from pretune.text.tokenizers.tokenizer import Tokenizer

TextMetric = Literal["exact_match", "word_f1", "rouge", "bleu"]
SHOWN = 40  # characters of the most frequent answer in messages
PRIMARY_METRICS = {"exact_match": "exact_match", "word_f1": "word_f1", "rouge": "rougeL", "bleu": "bleu"}


@dataclass(frozen=True)
class TextPrompt(InContextPrompt):
    """An in-context prompt whose answer is generated text; `no_answer` is the text that means "no answer"."""

    no_answer: str = ""  # the text that says that a question cannot be answered

    def gold(self, row: Row) -> str:
        """Return the gold answer of an example as text; the first one if there are several."""
        label = row["label"]
        return label if isinstance(label, str) else label[0]["text"] if label else self.no_answer

    def answer(self, row: Row, output: str) -> Answer:
        """Return the generated text `output` as an answer, or "" if it is the text that means "no answer"."""
        return {"answer": "" if normalize(output) == normalize(self.no_answer) else output}


@register_task
@dataclass(frozen=True)
class Generate(TokenPrediction, TwoSided, Task):
    """Text-to-text generation: read a source text and generate a target text, the answer.

    The source begins with `prefix`; a pair of texts is written as in T5, with the names in `fields`: sentence1: …
    sentence2: … Answers have at most `max_new_tokens` tokens and are found with `num_beams` beams; with `constrained`,
    only training answers are possible. `delimiter` precedes the answer in a decoder-only model. `language_pair`, such
    as en-ro, is for models with language tokens. `drop_invalid` drops rows without source or target.
    """

    prefix: str = ""
    fields: str = "sentence1/sentence2"
    constrained: bool = False
    max_new_tokens: int = 64
    num_beams: int = 1
    metric: TextMetric = "exact_match"
    label_smoothing: float = 0.0
    delimiter: str = "="
    language_pair: str = ""
    drop_invalid: bool = False
    labels: Sequence[str] = fitted(())

    name: ClassVar[str] = "generate"
    shared_head: ClassVar[str] = "lm"
    distillable: ClassVar[bool] = True
    in_context_template: ClassVar[str] = "{text}\n[MASK]"
    output_per: ClassVar[Literal["sequence", "token", "text"]] = "text"

    def __post_init__(self) -> None:
        check_fraction(self.name, "label_smoothing", self.label_smoothing)
        if self.metric not in get_args(TextMetric):
            raise PretuneError(
                f"generate(metric={self.metric}): unknown metric; {suggest(self.metric, get_args(TextMetric))}"
            )
        for option, value in {"max_new_tokens": self.max_new_tokens, "num_beams": self.num_beams}.items():
            if value < 1:
                raise PretuneError(f"generate({option}={value}): the value is too small; give 1 or more")
        if len(self.fields.split("/")) != 2:
            raise PretuneError(
                f"generate(fields={self.fields}): this does not name both texts; write, for example, fields=question/context"
            )
        if self.language_pair and len(self.language_pair.split("-")) != 2:
            raise PretuneError(
                f"generate(language_pair={self.language_pair}): this does not name two languages; write, for example, language_pair=en-ro"
            )

    @property
    def single_label(self) -> bool:
        """Return whether generated answers are restricted to a fixed set of labels."""
        return self.constrained

    @property
    def primary_metric(self) -> str:
        """Return the name of the metric by which models are compared."""
        return "accuracy" if self.constrained else PRIMARY_METRICS[self.metric]

    # -- examples ---------------------------------------------------------------------------------------------------

    def read(self, file: str | Path | TableChunk, columns: Mapping[str, str], *, answered: bool = True) -> LabeledRows:
        """Read one or two source texts and, if `answered`, a target per row.

        `columns` maps roles, such as text, to the names of columns.
        """
        return read_text_to_text(file, columns, answered=answered, drop_invalid=self.drop_invalid)

    def fit(self, examples: LabeledRows) -> Self:
        """Return the task; with `constrained`, a copy that has the answers of the training examples as labels."""
        return (
            replace(self, labels=tuple(sorted_labels(examples.file, examples.labels or ())))
            if self.constrained
            else self
        )

    def sources(self, rows: Any) -> list[str]:
        """Return the source text of each row: the prefix of the task, then its text or its pair of texts."""
        if not isinstance(rows, LabeledRows):
            raise PretuneError(
                "the task 'generate' needs rows with a source and a target; give it a .csv, .tsv, .jsonl or .parquet file"
            )
        texts = rows.texts
        if rows.pairs is not None:
            first, second = self.fields.split("/")
            texts = [f"{first}: {a} {second}: {b}" for a, b in zip(texts, rows.pairs, strict=True)]
        return [f"{self.prefix.strip()} {text}".strip() for text in texts]

    def spell(self, target: str, template: Template) -> str:
        """Return a target text in the form that is tokenized: for a decoder-only model, with a space before it."""
        return target if template.target else f" {target}"

    # -- arranging --------------------------------------------------------------------------------------------------

    def frames(self, template: Template) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the templates of source and target: the names of special tokens, with "A" for the text."""
        if not template.target:
            return template.single[: template.single.index("A") + 1], ("A", "end")
        if not self.language_pair:
            return template.single, template.target
        first, second = self.language_pair.split("-")
        return with_language(template.single, first), with_language(template.target, second)

    def delimit(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """Return the token ids of the delimiter between source and target in a decoder-only model."""
        ids = tokenizer.encode(f" {self.delimiter}")
        if not ids:
            raise PretuneError(
                f"generate(delimiter={self.delimiter!r}): the delimiter has no token in this tokenizer; choose another delimiter"
            )
        return tuple(ids)

    def closed_trie(self, tokenizer: Tokenizer, template: Template) -> TokenTrie:
        """Return a trie of the token ids of all allowed answers, each with its end token, to constrain decoding."""
        _, frame = self.frames(template)
        end = tokenizer.role(frame[frame.index("A") + 1])
        spelled = {label: tokenizer.encode(self.spell(label, template)) for label in self.labels}
        for label, ids in spelled.items():
            if not ids or set(ids) & {end, tokenizer.roles.get("unknown", -1)}:
                raise PretuneError(f"the tokenizer cannot encode the answer {label!r}; choose another word for it")
        return TokenTrie([*ids, end] for ids in spelled.values())

    def most(self, data: Data) -> int:
        """Return the maximum number of tokens of a generated answer; with `constrained`, that of the longest label."""
        return self.closed_trie(data.tokenizer, data.template).longest if self.constrained else self.max_new_tokens

    def tokenize_examples(self, data: Data, length: int) -> Arrangement:
        """Return the source of each row as a sequence, as it is read to generate the answer.

        In a decoder-only model, the sequence leaves room for the answer, so that both have at most `length` tokens.
        """
        frame, _ = self.frames(data.template)
        parts: list[Part] = [self.sources(data.rows)]
        if not data.template.target:
            parts.append(self.delimit(data.tokenizer))
        spare = 0 if data.template.target else min(self.most(data), length // 2)
        arrangement = compose_sequences(parts, data.tokenizer, frame, length - spare)
        if data.rows.labels is not None:
            arrangement.labels["tokens"] = self.costs(*self.both_sides(data, length))  # lengths in training
        return arrangement

    def arrange(self, data: Data, packing: Packing, draws: EpochRandom) -> Epoch:
        """Return the shuffled batches of an epoch: source and target of each row, joined for a decoder-only model."""
        source, target = self.both_sides(data, packing.length)
        if target is None:
            return plan_epoch(source, packing, draws)
        return SourceTargetEpoch(source, plan_lengths(self.costs(source, target), packing, draws), target)

    def costs(self, source: Arrangement, target: Arrangement | None) -> Array:
        """Return the number of tokens of each row in a batch, (rows,): the longer of source and target.

        Without `target`, as in a decoder-only model, `source` has the joined sequences of both.
        """
        return source.lengths if target is None else np.maximum(source.lengths, target.lengths - 1)

    def both_sides(self, data: Data, length: int) -> tuple[Arrangement, Arrangement | None]:
        """Return the tokenized sources and targets, from the cache of `data` if they were tokenized before.

        For a decoder-only model, return one sequence per row, of source and target joined, and None.
        """
        found: tuple[Arrangement, Arrangement | None] = data.cached(
            (self.name, self.prefix, self.fields, length), lambda: self._both_sides(data, length)
        )
        return found

    def _both_sides(self, data: Data, length: int) -> tuple[Arrangement, Arrangement | None]:
        """Tokenize and return sources and targets; for a decoder-only model, return joined sequences and None."""
        sources, (read, written) = self.sources(data.rows), self.frames(data.template)
        targets = [self.spell(target, data.template) for target in data.rows.labels]
        if data.template.target:
            source = compose_sequences([sources], data.tokenizer, read, length)
            # The decoder never reads the last token of the target.
            return source, compose_sequences([targets], data.tokenizer, written, length + 1)
        parts: list[Part] = [sources, self.delimit(data.tokenizer), targets]
        whole = compose_sequences(parts, data.tokenizer, (*read, *written[1:]), length)
        whole.labels["written"] = whole.spans[:, -1] + len(written) - 1
        return whole, None

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Set the tokens of the target text as prediction targets, each predicted from the tokens before it."""
        if sequences.second is not None:
            return shift_targets(self.name, sequences)
        written = sequences.labels["written"]
        at = span_indices(sequences.offsets[1:] - 1 - written, written)
        sequences.targets[self.name] = (at, sequences.ids[at + 1])
        sequences.pattern = causal
        return sequences

    def sides(self, packing: Packing) -> tuple[Packing, Packing]:
        """Return the size limits of source and target batches: both have the token limits of `packing`."""
        whole = (packing.tokens, packing.length)
        return side_packings(packing, whole, whole)

    # -- answering --------------------------------------------------------------------------------------------------

    def outputs(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Tensor:
        """Return the next-token logits at each token of the target text, (tokens, vocabulary)."""
        out: Tensor = head(backbone(*batch.packed).last, backbone.embed.tokens)
        return out

    def answers(self, outputs: Sequence[Array], arrangement: Arrangement, examples: LabeledRows) -> list[Answer]:
        """Return the generated text of each row, given the generated token ids `outputs`."""
        tokenizer = arrangement.tokenizer
        known = {tokenizer.decode(tokenizer.encode(label)).strip(): label for label in self.labels}
        texts = [tokenizer.decode(ids).strip() for ids in outputs]
        return [{"answer": known.get(text, text)} for text in texts]

    # -- evaluation -------------------------------------------------------------------------------------------------

    def metric_sums(self, answers: Sequence[Answer], examples: Any) -> AdditiveMetrics | None:
        """Return the metrics of generated texts as sums over examples; None if answers are restricted to labels."""
        return None if self.constrained else text_metrics(answers, examples, self)

    def metrics(self, answers: Sequence[Answer], examples: Any) -> dict[str, float]:
        """Return the metrics of generated texts, with classification metrics if answers are restricted to labels."""
        return closed_set_metrics(answers, examples, self) if self.constrained else super().metrics(answers, examples)

    def judge(self, answers: Sequence[Answer], examples: Any) -> list[ScoredAnswer]:
        """Score each generated answer by its word F1 with the gold text."""
        return score_texts(answers, examples, self)

    def majority_answers(self, learned: Any, judged: Any) -> tuple[str, list[Answer]]:
        """Return a description of the most frequent training answer, and this answer for each of the rows `judged`.

        `learned` are the training rows.
        """
        usual = most_frequent(learned.labels)
        return repr(shorten(usual, SHOWN)), [{"answer": usual}] * len(judged)

    def simple_baselines(self, learned: Any, judged: Any) -> dict[str, list[Answer]]:
        """Return the answers of two baselines to the rows `judged`, by baseline: the source, and its first sentence."""
        if self.constrained:
            return {}
        found = {"a copy of the source": judged.texts, "the first sentence": [sentences(x)[0] for x in judged.texts]}
        return {name: [{"answer": text} for text in texts] for name, texts in found.items()}

    def in_context_prompt(self, rows: Sequence[Row], settings: Mapping[str, Any]) -> TextPrompt:
        """Return an in-context prompt whose answer is generated text."""
        return TextPrompt(max_tokens=self.max_new_tokens)

    def demonstration(self) -> LabeledRows:
        """Return examples of the task: two movie reviews with their sentiment."""
        labels = ["positive", "negative"]
        return LabeledRows(Path("example"), {}, ["a delightful film", "two hours I want back"], None, labels)

    def describe_target(self, at: Array, target: Array, ids: Array, spell: Callable[[Array], str]) -> str | None:
        """Return None: targets are tokens of the text and need no description."""
        return None
