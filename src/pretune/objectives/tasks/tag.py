"""Sequence labeling: assign a tag to each word, for entities, parts of speech, chunks, or semantic roles."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise, repeat
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from torch import nn

from pretune.backbones.backbone import Backbone
from pretune.metrics.additive import AdditiveMetrics
from pretune.metrics.classification import most_frequent
from pretune.metrics.per_example import ScoredAnswer, score_tags
from pretune.metrics.sequence_labeling import most_frequent_tags, tag_metrics
from pretune.nn.output_heads import TokenHead
from pretune.objectives.objective import Data, Loss, classification_loss
from pretune.objectives.registry import register_task
from pretune.objectives.task import Answer, Task, fitted
from pretune.packed import Batch
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import log_info
from pretune.runtime.randomness import EpochRandom
from pretune.text.examples.labeled import Row, TableChunk
from pretune.text.examples.tag_schemes import OUTSIDE, all_tags, convert_tags, detect_scheme, parse_tags, write_tags
from pretune.text.examples.tagged import TaggedSentences, WordSplitting, read_tagged, tagged_rows
from pretune.text.packing.sequences import Arrangement, Packing, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer

MAX_PREDICATE_TOKENS = 16  # tokens of a predicate that are repeated after the sentence


@register_task
@dataclass(frozen=True)
class Tag(Task):
    """Sequence labeling: one of the tags `labels` per word, in the tagging scheme `scheme` (auto: that of the data).

    A word's tag is predicted at its first token. Long sentences are read in windows that overlap by about `overlap`
    tokens; a word's tag comes from the window in which it has the most context. With a column `predicate`, the tags are
    the semantic roles of that predicate.
    """

    labels: Sequence[str] = fitted(())
    scheme: Literal["auto", "plain", "BIO", "IOB1", "BIOES"] = "auto"
    overlap: int = 32
    predicate: str | None = None
    dropout: float = 0.1
    default_tag: str = ""  # the tag of words without a token
    splitting: WordSplitting = "spaces"  # how texts are split into words; punctuation if trained on annotated spans

    name: ClassVar[str] = "tag"
    purpose: ClassVar[tuple[str, str]] = ("It tags the words of a text", "token-classification")
    output_per: ClassVar[Literal["sequence", "token", "text"]] = "token"
    combinable: ClassVar[bool] = True

    @property
    def written(self) -> str:
        """Return the tagging scheme, such as BIO; `auto` is replaced by the scheme that is detected from the labels."""
        return detect_scheme([[label] for label in self.labels]) if self.scheme == "auto" else self.scheme

    @property
    def primary_metric(self) -> str:
        """Return the name of the metric by which models are compared."""
        return "accuracy" if self.written == "plain" else "f1"

    def rows(self, file: Path) -> Iterator[tuple[int, Row]]:
        """Yield the sentences of a file with their line numbers."""
        return tagged_rows(file)

    def read(
        self, file: str | Path | TableChunk, columns: Mapping[str, str], *, answered: bool = True
    ) -> TaggedSentences:
        """Read sentences, with one tag per word if `answered`; the option `splitting` says how to split plain text."""
        return read_tagged(file, columns, tags=answered, predicate=self.predicate, splitting=self.splitting)

    def fit(self, examples: TaggedSentences) -> Self:
        """Return a copy of the task with the tags of the training data as its labels.

        In schemes such as BIO, each type of span gets all of its tags, even if the data lacks some.
        """
        assert examples.tags is not None
        counts = Counter(tag for tags in examples.tags for tag in tags)
        found = detect_scheme(examples.tags)
        scheme = found if self.scheme == "auto" else self.scheme
        if found == "plain" != scheme:
            odd = next(tag for tag in counts if detect_scheme([[tag]]) == "plain")
            raise PretuneError(
                f"{examples.file}: {odd!r} is not a tag of the scheme {scheme}, such as B-PER or O; correct this tag, or set tag(scheme=plain)"
            )
        if scheme == "plain" != self.scheme and (stray := stray_tags(counts)):
            raise PretuneError(
                f"{examples.file}: {sum(stray.values())} of {sum(counts.values()):,} words have a tag such as {next(iter(stray))!r}, "
                "which marks neither a span, as the other tags do, nor a word outside of spans (O); correct these tags, or set tag(scheme=plain)"
            )
        if len(counts) < 2:
            problem = f"every word has the tag {next(iter(counts))!r}" if counts else "the file has no words"
            raise PretuneError(
                f"{examples.file}: {problem}, but tagging needs at least two tags; check the column of tags"
            )
        if scheme == "plain":
            return replace(self, labels=tuple(sorted(counts)), scheme=scheme, default_tag=counts.most_common(1)[0][0])
        marked = [parse_tags(tags) for tags in examples.tags]
        sizes = map(len, examples.tags)
        broken = sum(map(operator.ne, map(write_tags, marked, sizes, repeat(found)), examples.tags))
        if broken:
            log_info(
                f"{examples.file}: {broken} of {len(examples)} sentences have tags that violate the scheme {found}; they are corrected as conlleval does"
            )
        kinds = sorted({entity.kind for entities in marked for entity in entities})
        splitting: WordSplitting = "punctuation" if examples.originals else self.splitting
        labels = tuple(all_tags(kinds, scheme))
        return replace(self, labels=labels, scheme=scheme, default_tag=OUTSIDE, splitting=splitting)

    def tokenize_examples(self, data: Data, length: int) -> Arrangement:
        """Return one sequence per sentence, or per window of a long one; a predicate, if any, is appended to it."""
        if not isinstance(data.rows, TaggedSentences):
            raise PretuneError(
                "the task 'tag' needs tagged words; give a file in CoNLL column format, a .conllu file or a .jsonl file"
            )
        tokens = data.tokens
        roles = tokens.predicates is not None
        rooms = np.full(len(data.rows), length - data.template.num_special_tokens(pair=roles), dtype=np.int64)
        if roles:
            rooms -= tokens.predicates[:, 1].clip(max=MAX_PREDICATE_TOKENS)
        if rooms.min(initial=1) < 1:
            raise PretuneError(f"sequences of {length} tokens leave no room for text; increase the maximum length")
        sentence, starts, spans, cut = tokens.windows(rooms, self.overlap)
        starts, spans = starts[:, None], spans[:, None]
        if roles:
            second = tokens.predicates[sentence]
            starts, spans = (
                np.hstack([starts, second[:, :1]]),
                np.hstack([spans, second[:, 1:].clip(max=MAX_PREDICATE_TOKENS)]),
            )
        known = {"word": tokens.word}
        if data.rows.tags is not None:
            tags = self.encode_tags(data.rows)
            known["tag"] = np.where(tokens.word < 0, -1, tags[tokens.word] if len(tags) else -1)
        return Arrangement(
            tokens.rows,
            data.tokenizer,
            data.template,
            starts,
            spans,
            {"example": sentence},
            truncated=cut,
            columns={"again": np.tile([0, 1], (len(sentence), 1))} if roles else {},
            tokens=known,
        )

    def encode_tags(self, rows: TaggedSentences) -> Array:
        """Return the class index of each word's tag, (words,), after conversion to the task's scheme.

        The index is -1 for a tag that was not in the training data.
        """
        assert rows.tags is not None
        number = {label: i for i, label in enumerate(self.labels)}
        found = [[number.get(tag, -1) for tag in convert_tags(tags, self.written)] for tags in rows.tags]
        missed = [row for row, classes in enumerate(found) if -1 in classes]
        if missed:
            odd = rows.tags[missed[0]][found[missed[0]].index(-1)]
            count = sum(classes.count(-1) for classes in found)
            log_info(
                f"{rows.location(missed[0])}: tag {odd!r} was not in training; words with unknown tags count as wrong ({count} in all)"
            )
        return np.array([i for classes in found for i in classes], dtype=np.int64)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Set the tag of each word as the target of its first token; an appended predicate has no targets."""
        if "tag" in sequences.columns:
            tags = np.where(sequences.columns.get("again", 0), -1, sequences.columns["tag"])
            at = np.flatnonzero(tags >= 0)
            sequences.targets[self.name] = (at, tags[at])
        return sequences

    def max_targets(self, packing: Packing) -> dict[str, int]:
        """Return an upper bound on the number of targets per batch: one per token, as each can start a word."""
        return {self.name: packing.tokens}

    def head(self, backbone: Backbone) -> nn.Module:
        """Build a head with one logit per tag for each token."""
        return TokenHead(backbone.width, len(self.labels), backbone.tagger(), self.dropout)

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the cross-entropy of the tag of each word in a batch."""
        targets = batch.targets[self.name]
        return classification_loss(self.name, head(backbone(*batch.packed).last[targets.at]), targets)

    def answers(self, outputs: Sequence[Array], arrangement: Arrangement, examples: TaggedSentences) -> list[Answer]:
        """Return each word's tag with its probability and, in schemes such as BIO, the tagged spans."""
        bounds = np.concatenate([[0], np.cumsum([len(words) for words in examples.words], dtype=np.int64)])
        tags = np.full(bounds[-1], -1, dtype=np.int64)
        probabilities = np.zeros(bounds[-1])
        shown = np.full(bounds[-1], -1, dtype=np.int64)  # distance to the nearer end of the window
        lead = arrangement.template.single.index("A")
        for logits, start, span in zip(outputs, arrangement.starts[:, 0], arrangement.spans[:, 0], strict=True):
            word = arrangement.tokens["word"][start : start + span]
            at = np.flatnonzero(word >= 0)
            near = np.minimum(at, span - 1 - at)
            at = at[near > shown[word[at]]]
            chosen, rows = word[at], logits[lead + at].astype(np.float64)
            shown[chosen] = np.minimum(at, span - 1 - at)
            tags[chosen] = rows.argmax(-1)
            probabilities[chosen] = 1 / np.exp(rows - rows.max(-1, keepdims=True)).sum(-1)
        usual = self.default_tag or (OUTSIDE if OUTSIDE in self.labels else self.labels[0])
        names = [usual if tag < 0 else self.labels[tag] for tag in tags]
        return [
            self._answer(examples, row, names[begin:end], probabilities[begin:end])
            for row, (begin, end) in enumerate(pairwise(bounds))
        ]

    def combine(self, answers: Sequence[Answer], examples: TaggedSentences, row: int) -> Answer:
        """Return an ensemble's answer for sentence `row`: for each word, the tag with the highest mean probability."""
        tags, probabilities = list[str](), list[float]()
        for place in range(len(examples.words[row])):
            shares = Counter[str]()
            for answer in answers:
                shares[answer["tags"][place]] += answer["probabilities"][place] / len(answers)
            tag, share = shares.most_common(1)[0]
            tags.append(tag)
            probabilities.append(share)
        return self._answer(examples, row, tags, np.array(probabilities))

    def _answer(self, examples: TaggedSentences, row: int, tags: list[str], probabilities: Array) -> Answer:
        """Return the answer for sentence number `row`, with its tags corrected to follow the tagging scheme.

        `tags` are the predicted tags of its words, with their `probabilities`.
        """
        words = examples.words[row]
        tags = convert_tags(tags, self.written)
        answer: Answer = {"tags": tags, "probabilities": probabilities.tolist()}
        if self.written != "plain":
            answer["entities"] = [
                {"label": e.kind, "text": " ".join(words[e.first : e.last + 1]), "first": e.first, "last": e.last}
                for e in parse_tags(tags)
            ]
            if examples.originals:
                text, bounds = examples.originals[row]
                for entity in answer["entities"]:
                    start, end = bounds[entity["first"]][0], bounds[entity["last"]][1]
                    entity |= {"text": text[start:end], "start": start, "end": end}
        return answer

    def metric_sums(self, answers: Sequence[Answer], examples: Any) -> AdditiveMetrics:
        """Return the accuracy of tags and, in schemes such as BIO, precision, recall and F1 of tagged spans."""
        return tag_metrics(answers, examples, self)

    def gold_and_predicted(self, answers: Sequence[Answer], examples: Any) -> tuple[list[Any], list[Any]]:
        """Return two lists with one entry per sentence: the sequences of gold tags and of predicted tags."""
        return [convert_tags(tags, self.written) for tags in examples.tags], [answer["tags"] for answer in answers]

    def judge(self, answers: Sequence[Answer], examples: Any) -> list[ScoredAnswer]:
        """Score each sentence by its share of correctly tagged words."""
        return score_tags(answers, examples, self)

    def majority_answers(self, learned: Any, judged: Any) -> tuple[str, list[Answer]]:
        """Return a description of the most frequent training tag, and an answer with this tag for every word.

        `learned` are the training sentences, and `judged` the sentences to answer.
        """
        usual = most_frequent(chain.from_iterable(learned.tags))
        return repr(usual), [{"tags": convert_tags([usual] * len(words), self.written)} for words in judged.words]

    def simple_baselines(self, learned: Any, judged: Any) -> dict[str, list[Answer]]:
        """Return the answers of a baseline: each word gets the tag that it has most often in training.

        `learned` are the training sentences, and `judged` the sentences to answer.
        """
        return {"each word's usual tag": most_frequent_tags(self, learned, judged)}

    def demonstration(self) -> TaggedSentences:
        """Return an example of the task: a sentence with two named entities."""
        words, tags = ["Alex", "is", "in", "Los", "Angeles"], ["B-PER", "O", "O", "B-LOC", "I-LOC"]
        return TaggedSentences(Path("example"), {}, [words], [tags])


def stray_tags(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the tags that fit no scheme such as BIO, with their counts, if other tags are more frequent and mark spans.

    >>> stray_tags({"O": 5, "B-LOC": 3, "(3": 1}), stray_tags({"NOUN": 5, "O": 1})
    ({'(3': 1}, {})
    """
    stray = {tag: count for tag, count in counts.items() if detect_scheme([[tag]]) == "plain"}
    marking = sum(count for tag, count in counts.items() if tag not in stray and "-" in tag)
    return stray if sum(stray.values()) < marking else {}
