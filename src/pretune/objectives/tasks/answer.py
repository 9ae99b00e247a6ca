"""Extractive question answering: find the span of a passage that answers a question (Rajpurkar et al., 2018)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from pretune.backbones.backbone import Backbone
from pretune.metrics.additive import AdditiveMetrics
from pretune.metrics.per_example import ScoredAnswer, score_extracted
from pretune.metrics.question_answering import choose_threshold, question_metrics
from pretune.nn.attention.query_key_layout import token_layout
from pretune.nn.output_heads import TokenHead
from pretune.objectives.objective import Data, Loss
from pretune.objectives.registry import register_task
from pretune.objectives.task import Answer, Task
from pretune.objectives.tasks.generate import TextPrompt
from pretune.objectives.word_baselines import closest_sentence, name_or_number
from pretune.packed import Batch, Packed
from pretune.runtime.arrays import Array, softmax
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.examples.labeled import Row, TableChunk
from pretune.text.examples.question_answering import NO_TOKENS, AnswerSpan, Questions, question_rows, read_questions
from pretune.text.packing.sequences import Arrangement, Sequences
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.tokenizer import Tokenizer

Candidate = tuple[float, int, int]  # score, and first and last character of the span in the passage
UNANSWERABLE = "unanswerable"  # the default answer to unanswerable questions in prompts
NBEST = 20  # spans over which probabilities are normalized
NO_ANSWER_MARGIN = 1e4  # the margin of no answer if there is no span at all


@register_task
@dataclass(frozen=True)
class AnswerTask(Task):
    """Extractive question answering: the answer is a span of a passage, or "no answer".

    A passage is read in windows that start `stride` tokens apart; each window follows the question, of which the first
    `max_question_length` tokens are used. Answers have at most `max_answer_length` tokens, and the best `n_best` are
    returned. "No answer" is chosen if it scores higher than the best span by more than `threshold` (None: never).
    """

    threshold: float | None = None
    stride: int = 128
    max_question_length: int = 64
    max_answer_length: int = 30
    n_best: int = 5
    drop_invalid: bool = False  # whether to leave out answers that are not in their passage
    dropout: float = 0.0

    name: ClassVar[str] = "answer"
    output_per: ClassVar[Literal["sequence", "token", "text"]] = "token"
    primary_metric: ClassVar[str] = "f1"
    purpose: ClassVar[tuple[str, str]] = ("It answers questions with spans of a passage", "question-answering")
    in_context_template: ClassVar[str] = "{pair}\n\nQ: {text}\n\nA: [MASK]"
    combinable: ClassVar[bool] = True
    # Passages are read in windows of 384 tokens (Devlin et al., 2019).
    settings: ClassVar[Mapping[str, Any]] = {"batch": {"max_length": 384}}

    def __post_init__(self) -> None:
        for name, value in {
            "stride": self.stride,
            "max_question_length": self.max_question_length,
            "max_answer_length": self.max_answer_length,
            "n_best": self.n_best,
        }.items():
            if value < 1:
                raise PretuneError(f"answer({name}={value}): the value is too small; give 1 or more")

    def rows(self, file: Path) -> Iterator[tuple[int, Row]]:
        """Yield the questions of a file with their line numbers."""
        return question_rows(file)

    def read(self, file: str | Path | TableChunk, columns: Mapping[str, str], *, answered: bool = True) -> Questions:
        """Read questions, passages and, if `answered`, answers; `columns` maps roles such as question to columns."""
        return read_questions(file, columns, answers=answered, drop_invalid=self.drop_invalid)

    def fit(self, examples: Questions) -> Self:
        """Return the task; if some training questions have no answer, an unset "no answer" threshold becomes 0."""
        assert examples.answers is not None
        if not any(examples.answers):
            raise PretuneError(
                f"{examples.file}: no question has an answer, so there is nothing to learn; check the column of answers"
            )
        if self.threshold is None and not all(examples.answers):
            return replace(self, threshold=0.0)
        return self

    def tokenize_examples(self, data: Data, length: int) -> Arrangement:
        """Return one sequence of at most `length` tokens per window of a passage: the question, then the window."""
        if not isinstance(data.rows, Questions):
            raise PretuneError(
                "the task 'answer' needs questions with passages; give a .json file in SQuAD's format, or a .jsonl file"
            )
        tokens, template = data.tokens, data.template
        room = length - template.num_special_tokens(pair=True)
        asked = tokens.rows.lengths[:, 0].clip(max=min(self.max_question_length, room // 2))
        rooms = room - asked
        if room < 2:
            raise PretuneError(f"sequences of {length} tokens leave no room for text; increase the maximum length")
        passages = tokens.rows.lengths[:, 1]
        strides = rooms.clip(max=self.stride)
        counts = 1 + -(-(passages - rooms).clip(min=0) // strides)
        example = np.repeat(np.arange(len(counts)), counts)
        number = np.arange(len(example)) - np.repeat(np.cumsum(counts) - counts, counts)
        skipped = number * strides[example]  # tokens of the passage before the window
        starts = tokens.rows.starts[example] + np.stack([np.zeros_like(skipped), skipped], 1)
        spans = np.stack([asked[example], np.minimum(rooms[example], passages[example] - skipped)], 1)
        labels = {"example": example}
        if data.rows.answers is not None:
            first, last = tokens.spans(data.rows.answers)[example].T
            passage, none = passage_and_no_answer_positions(spans, template)
            inside = (first >= skipped) & (last < skipped + spans[:, 1])
            unseen = np.where(first == NO_TOKENS, -1, none)  # the target of a window without the answer is no answer
            labels |= {"first": np.where(inside, passage + first - skipped, unseen)}
            labels |= {"last": np.where(inside, passage + last - skipped, unseen)}
        return Arrangement(
            tokens.rows,
            data.tokenizer,
            template,
            starts,
            spans,
            labels,
            truncated=int((asked < tokens.rows.lengths[:, 0]).sum()),
            tokens={"begin": tokens.begins, "end": tokens.ends},
        )

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Set the targets of each window: first and last token of the answer, or the "no answer" token for both."""
        sequences.columns["global"] = before_first_separator(sequences)
        if "first" in sequences.labels:
            which = np.flatnonzero(sequences.labels["first"] >= 0)
            both = np.stack([sequences.labels["first"], sequences.labels["last"]], 1)[which]
            sequences.targets[self.name] = (both + sequences.offsets[which, None], which)
        return sequences

    def head(self, backbone: Backbone) -> nn.Module:
        """Build a head with two logits per token: one for the first and one for the last token of an answer."""
        return TokenHead(backbone.width, 2, backbone.answerer(), self.dropout)

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the mean cross-entropy of the answer's first and last token; the classes are the window's tokens."""
        targets = batch.targets[self.name]
        logits = self.outputs(head, backbone, batch).float()
        highest, total = segment_logsumexp(logits, batch.packed[-1])
        wanted = torch.stack([logits[targets.at[:, side], side] for side in (0, 1)], 1)
        losses = (total[targets.target] - wanted).mean(1)
        right = (wanted >= highest[targets.target]).all(1).float()
        logs = {f"{self.name}/accuracy": (right * targets.weight).sum().detach()}
        return Loss(sums={self.name: (losses * targets.weight).sum()}, logs=logs)

    def answers(self, outputs: Sequence[Array], arrangement: Arrangement, examples: Questions) -> list[Answer]:
        """Return the most probable span of each question over all windows of its passage; "" means no answer."""
        passage, none = passage_and_no_answer_positions(arrangement.spans, arrangement.template)
        bounds = np.searchsorted(arrangement.labels["example"], np.arange(len(examples) + 1))
        found = []
        for example, (begin, end) in enumerate(pairwise(bounds)):
            candidates: dict[tuple[int, int], float] = {}
            lowest = np.inf
            for i in range(begin, end):
                logits = outputs[i].astype(np.float64)
                lowest = min(lowest, float(logits[none[i]].sum()) if len(logits) else 0.0)
                start, span = arrangement.starts[i, 1], arrangement.spans[i, 1]
                places = (
                    arrangement.tokens["begin"][start : start + span],
                    arrangement.tokens["end"][start : start + span],
                )
                window = logits[passage[i] : passage[i] + span]
                for score, first, last in best_spans(
                    window, places, examples.passages[example], self.max_answer_length
                ):
                    candidates[first, last] = max(score, candidates.get((first, last), -np.inf))
            ranked = sorted(((score, *place) for place, score in candidates.items()), key=lambda c: (-c[0], c[1:]))
            found.append(self._answer(ranked[:NBEST], lowest, examples.passages[example]))
        return found

    def combine(self, answers: Sequence[Answer], examples: Questions, row: int) -> Answer:
        """Return an ensemble's answer: the span with the highest mean probability, or "" if most models give none.

        `answers` are the answers of the models to question number `row`.
        """
        known: dict[tuple[int, int], Answer] = {}
        for answer in answers:
            for one in answer["candidates"]:
                place = one["start"], one["end"]
                old = known.get(place, {**one, "score": 0.0, "probability": 0.0})
                sums = {name: old[name] + one[name] / len(answers) for name in ("score", "probability")}
                known[place] = {**old, **sums}
        listed = sorted(known.values(), key=lambda one: -one["probability"])
        silent = [answer for answer in answers if not answer["answer"]]
        margin = float(np.mean([answer["no_answer"] for answer in answers]))
        if not listed or 2 * len(silent) > len(answers):
            means = {n: float(np.mean([a[n] for a in silent])) for n in ("score", "probability")}
            chosen = {"answer": "", "start": None, "end": None, **means}
        else:
            chosen = listed[0]
        return {**chosen, "no_answer": margin, "candidates": listed[: self.n_best]}

    def _answer(self, ranked: list[Candidate], none: float, passage: str) -> Answer:
        """Return the answer to a question: the best span or, if "no answer" scores clearly higher, "".

        `ranked` are the candidate spans, best first, and `none` is the score of "no answer", which must exceed that of
        the best span by more than the task's threshold.
        """
        margin = none - ranked[0][0] if ranked else NO_ANSWER_MARGIN
        scores = np.array([score for score, _, _ in ranked] + ([] if self.threshold is None and ranked else [none]))
        shares = softmax(scores)
        listed = [
            {"answer": passage[first:last], "start": first, "end": last, "score": score, "probability": float(share)}
            for (score, first, last), share in zip(ranked, shares, strict=False)
        ]
        silent = not ranked or (self.threshold is not None and margin > self.threshold)
        nothing = {"answer": "", "start": None, "end": None, "score": none, "probability": float(shares[-1])}
        return {**(nothing if silent else listed[0]), "no_answer": margin, "candidates": listed[: self.n_best]}

    def metric_sums(self, answers: Sequence[Answer], examples: Any) -> AdditiveMetrics:
        """Return exact match and word F1 of the predicted answers as sums over examples (AdditiveMetrics)."""
        return question_metrics(answers, examples, self)

    def judge(self, answers: Sequence[Answer], examples: Any) -> list[ScoredAnswer]:
        """Score each predicted answer by its word F1 with the gold answers."""
        return score_extracted(answers, examples, self)

    def best_options(self, answers: Sequence[Answer], examples: Any) -> dict[str, float]:
        """Return {"threshold": x}, the "no answer" threshold with the best F1; {} if all questions are answerable."""
        return choose_threshold(answers, examples, self)

    def majority_answers(self, learned: Any, judged: Any) -> tuple[str, list[Answer]] | None:
        """Return a description of the baseline "no answer", and this answer to each of the questions `judged`.

        Return None if all training questions, `learned`, have an answer.
        """
        return None if all(learned.answers) else ("no answer", [{"answer": ""}] * len(judged))

    def simple_baselines(self, learned: Any, judged: Any) -> dict[str, list[Answer]]:
        """Return the answers of two baselines to the questions `judged`, by baseline.

        One answers with the sentence closest to the question, the other with a name or number in that sentence.
        """
        closest = list(map(closest_sentence, judged.questions, judged.passages))
        named = map(name_or_number, judged.questions, closest)
        return {
            "the closest sentence": [{"answer": text} for text in closest],
            "a name or number of the closest sentence": [{"answer": text} for text in named],
        }

    def in_context_prompt(self, rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> TextPrompt:
        """Return a prompt for in-context learning whose answer is generated text.

        settings["no_answer"] is the text that the model is to give for questions without an answer.
        """
        return TextPrompt(no_answer=settings.get("no_answer", UNANSWERABLE))

    def demonstration(self) -> Questions:
        """Return an example of the task: a question about a sentence, with its answer."""
        question, passage, answer = (
            "Where is the party?",
            "I am happy that the party is at your house today.",
            "at your house",
        )
        return Questions(Path("example"), {}, [question], [passage], [[AnswerSpan(answer, passage.find(answer))]])

    def describe_target(self, at: Array, target: Array, ids: Array, spell: Callable[[Array], str]) -> str | None:
        """Return the texts of the target answers, separated by semicolons, for `pretune show objectives`.

        Each row of `at` (n, 2) has the indices in `ids` of the first and the last token of an answer.
        """
        return "; ".join(spell(ids[first : last + 1]) for first, last in at)


def before_first_separator(sequences: Sequences) -> Array:
    """Return a mask (tokens,) of the question, up to the first separator, for Longformer's global attention."""
    separators = np.concatenate([[0], np.cumsum(sequences.columns["special"] & (sequences.index_in_sequence > 0))])
    return np.asarray(separators[1:] == np.repeat(separators[sequences.offsets[:-1]], sequences.lengths))


def passage_and_no_answer_positions(spans: Array, template: Template) -> tuple[Array, Array]:
    """Return, for each sequence, the positions of the passage's first token and of the token for "no answer".

    Both are (sequences,) and count from the start of the sequence. `spans` (sequences, 2) are the lengths of question
    and passage. "No answer" is the start token or, in a template without one, the last special token.
    """
    items = [item for item, _, _ in template.items(2)]
    ends = np.cumsum(template.sizes(spans), axis=1)
    last = max((number for number, item in enumerate(items) if item not in "AB"), default=0)
    none = ends[:, items.index("start") if "start" in items else last]
    return ends[:, items.index("B")] - spans[:, 1], none - 1


def best_spans(logits: Array, places: tuple[Array, Array], passage: str, longest: int) -> list[Candidate]:
    """Return the best answer spans of a window as (score, begin, end), with begin and end as characters of `passage`.

    `logits` (tokens, 2) are for the first and the last token of an answer, and `places` has the characters at which
    each token begins and ends. Spans have at most `longest` tokens and are not blank.
    """
    count = len(logits)
    width = min(longest, count)
    if not count:
        return []
    ends = np.concatenate([logits[:, 1], np.full(width - 1, -np.inf)])
    scores = (logits[:, :1] + np.lib.stride_tricks.sliding_window_view(ends, width)).ravel()  # (tokens, width)
    found = []
    for place in np.argpartition(-scores, min(NBEST, len(scores) - 1))[:NBEST]:
        first, more = divmod(int(place), width)
        if first + more < count:
            begin, end = int(places[0][first]), int(places[1][first + more])
            text = passage[begin:end]
            begin, end = begin + len(text) - len(text.lstrip()), end - len(text) + len(text.rstrip())
            if begin < end:
                found.append((float(scores[place]), begin, end))
    return found


def segment_logsumexp(logits: Tensor, packed: Packed) -> tuple[Tensor, Tensor]:
    """Return the maximum and the log-sum-exp of `logits` (tokens, k) over each packed sequence, (sequences, k) each."""
    owner = token_layout(packed).sequence.long()
    shape = packed.offsets.shape[0] - 1, logits.shape[1]
    lowest = torch.finfo(logits.dtype).min
    index = owner[:, None].expand_as(logits)
    highest = logits.new_full(shape, lowest).scatter_reduce(0, index, logits.detach(), "amax")
    total = logits.new_zeros(shape).index_add(0, owner, (logits - highest[owner]).exp())
    return highest, highest + total.clamp(min=torch.finfo(logits.dtype).tiny).log()
