"""Answers to questions: the span of a passage that answers, or that none does (Rajpurkar et al., 2018)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from pretune.nn.attention.packed_layout import side_of
from pretune.nn.attention.patterns import Pattern
from pretune.nn.output_heads import TokenHead
from pretune.objectives.objective import Data, Loss
from pretune.objectives.task import Answer
from pretune.packed import Batch, Packed
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import Draws
from pretune.text.examples.labeled import Excerpt, Row
from pretune.text.examples.questions import NO_TOKENS, Questions, question_rows, read_questions
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, Sequences, plan_epoch
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone

Array = np.ndarray[Any, np.dtype[Any]]
Candidate = tuple[float, int, int]  # score, and the characters of the passage
NBEST = 20  # spans among which probabilities are shared out
NOTHING = 1e4  # by how much no answer is better where there is nothing to answer with


@dataclass(frozen=True)
class Answers:
    """`threshold`: by how much no answer must score higher than the best span to be given; None: it never is.

    Passages are read in windows that are `stride` tokens apart, after the first `asked` tokens of the question. Answers have at
    most `longest` tokens. `best`: how many candidates are listed. `drop_bad`: answers that do not stand in their passage are
    left out, not refused.
    """

    threshold: float | None = None
    stride: int = 128
    asked: int = 64
    longest: int = 30
    best: int = 5
    drop_bad: bool = False
    dropout: float = 0.0

    name: ClassVar[str] = "answer"
    pattern: ClassVar[Pattern | None] = None
    insists: ClassVar[bool] = True
    stateful: ClassVar[bool] = False
    each: ClassVar[Literal["sequence", "token"]] = "token"
    decides: ClassVar[str] = "f1"

    def __post_init__(self) -> None:
        for name in ("stride", "asked", "longest", "best"):
            if getattr(self, name) < 1:
                raise PretuneError(f"answer({name}={getattr(self, name)}): give 1 or more")

    def rows(self, file: Path) -> Iterator[tuple[int, Row]]:
        """Questions."""
        return question_rows(file)

    def read(self, file: str | Path | Excerpt, columns: Mapping[str, str], *, answered: bool = True) -> Questions:
        """Questions with their passages."""
        return read_questions(file, columns, answers=answered, drop_bad=self.drop_bad)

    def fit(self, examples: Questions) -> Self:
        """Where some questions have no answer, saying so is an option, with a threshold that is best chosen later."""
        assert examples.answers is not None
        if not any(examples.answers):
            raise PretuneError(f"{examples.file}: no question has an answer; there is nothing to learn")
        if self.threshold is None and not all(examples.answers):
            return replace(self, threshold=0.0)
        return self

    def lay_out(self, data: Data, length: int) -> Arrangement:
        """A window of a passage to a sequence, after its question."""
        if not isinstance(data.rows, Questions):
            raise PretuneError(
                "answer learns from questions; give it SQuAD's .json, or .jsonl with questions and passages"
            )
        tokens, template = data.tokens, data.template
        room = length - template.overhead(pair=True)
        asked = tokens.rows.lengths[:, 0].clip(max=min(self.asked, room // 2))
        rooms = room - asked
        if room < 2:
            raise PretuneError(f"sequences of {length} tokens leave no room for text; ask for longer ones")
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
            passage, none = landmarks(spans, template)
            inside = (first >= skipped) & (last < skipped + spans[:, 1])
            unseen = np.where(first == NO_TOKENS, -1, none)  # a window without the answer says that there is none
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

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """Windows in any order."""
        return plan_epoch(self.lay_out(data, packing.length), packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """The first and the last token of the answer are the target of a window, or twice the token that means none."""
        sequences.columns["global"] = asking(sequences)
        if "first" in sequences.labels:
            which = np.flatnonzero(sequences.labels["first"] >= 0)
            both = np.stack([sequences.labels["first"], sequences.labels["last"]], 1)[which]
            sequences.targets[self.name] = (both + sequences.offsets[which, None], which)
        return sequences

    def room(self, packing: Packing) -> dict[str, int]:
        """One target a sequence."""
        return {self.name: min(packing.sequences, packing.tokens)}

    def head(self, backbone: Backbone) -> nn.Module:
        """Two logits a token."""
        return TokenHead(backbone.width, 2, backbone.answerer(), self.dropout)

    def outputs(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Tensor:
        """(n, 2) logits of beginning and ending an answer."""
        out: Tensor = head(backbone(*batch.packed).last)
        return out

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy of the first and of the last token among all of a window, half of each."""
        targets = batch.targets[self.name]
        logits = self.outputs(head, backbone, batch).float()
        highest, total = over_sequences(logits, batch.packed[-1])
        wanted = torch.stack([logits[targets.at[:, side], side] for side in (0, 1)], 1)
        losses = (total[targets.target] - wanted).mean(1)
        right = (wanted >= highest[targets.target]).all(1).float()
        logs = {f"{self.name}/accuracy": (right * targets.weight).sum().detach()}
        return Loss(sums={self.name: (losses * targets.weight).sum()}, logs=logs)

    def answers(self, outputs: Sequence[Array], laid: Arrangement, examples: Questions) -> list[Answer]:
        """The best span over all windows of a passage, and how likely it is; an empty one for no answer."""
        passage, none = landmarks(laid.spans, laid.template)
        bounds = np.searchsorted(laid.labels["example"], np.arange(len(examples) + 1))
        found = []
        for example, (begin, end) in enumerate(pairwise(bounds)):
            candidates: dict[tuple[int, int], float] = {}
            lowest = np.inf
            for i in range(begin, end):
                logits = outputs[i].astype(np.float64)
                lowest = min(lowest, float(logits[none[i]].sum()) if len(logits) else 0.0)
                start, span = laid.starts[i, 1], laid.spans[i, 1]
                places = laid.tokens["begin"][start : start + span], laid.tokens["end"][start : start + span]
                window = logits[passage[i] : passage[i] + span]
                for score, first, last in best_spans(window, places, examples.passages[example], self.longest):
                    candidates[first, last] = max(score, candidates.get((first, last), -np.inf))
            ranked = sorted(((score, *place) for place, score in candidates.items()), key=lambda c: (-c[0], c[1:]))
            found.append(self._answer(ranked[:NBEST], lowest, examples.passages[example]))
        return found

    def combine(self, answers: Sequence[Answer], examples: Questions, row: int) -> Answer:
        """The answer of several models to one question: the mean of what is listed; none, where most say so."""
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
        return {**chosen, "no_answer": margin, "candidates": listed[: self.best]}

    def _answer(self, ranked: list[Candidate], none: float, passage: str) -> Answer:
        margin = none - ranked[0][0] if ranked else NOTHING
        scores = np.array([score for score, _, _ in ranked] + ([] if self.threshold is None and ranked else [none]))
        shares = np.exp(scores - scores.max())
        shares /= shares.sum()
        listed = [
            {"answer": passage[first:last], "start": first, "end": last, "score": score, "probability": float(share)}
            for (score, first, last), share in zip(ranked, shares, strict=False)
        ]
        silent = not ranked or (self.threshold is not None and margin > self.threshold)
        nothing = {"answer": "", "start": None, "end": None, "score": none, "probability": float(shares[-1])}
        return {**(nothing if silent else listed[0]), "no_answer": margin, "candidates": listed[: self.best]}


def asking(sequences: Sequences) -> Array:
    """(n,) whether a token stands before the first separator: those of questions see all and are seen by all (Longformer)."""
    separators = np.concatenate([[0], np.cumsum(sequences.columns["special"] & (sequences.place > 0))])
    return np.asarray(separators[1:] == np.repeat(separators[sequences.offsets[:-1]], sequences.lengths))


def landmarks(spans: Array, template: Template) -> tuple[Array, Array]:
    """(m,) where the passage begins in sequences of texts of so many tokens, (m, 2), and the token that means no answer.

    That is the start token, or where a family has none the last one that is not of a text.
    """
    items = [item for item, _, _ in template.items(2)]
    ends = np.cumsum(template.sizes(spans), axis=1)
    last = max((number for number, item in enumerate(items) if item not in "AB"), default=0)
    none = ends[:, items.index("start") if "start" in items else last]
    return ends[:, items.index("B")] - spans[:, 1], none - 1


def best_spans(logits: Array, places: tuple[Array, Array], passage: str, longest: int) -> list[Candidate]:
    """The best spans of a window (tokens, 2), at most `longest` tokens each, that are not white space alone."""
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


def over_sequences(logits: Tensor, packed: Packed) -> tuple[Tensor, Tensor]:
    """(n, k) → (sequences, k) each: the highest logit of a sequence, and the logarithm of the sum of all exponentials."""
    owner = side_of(packed).sequence.long()
    shape = packed.offsets.shape[0] - 1, logits.shape[1]
    lowest = torch.finfo(logits.dtype).min
    index = owner[:, None].expand_as(logits)
    highest = logits.new_full(shape, lowest).scatter_reduce(0, index, logits.detach(), "amax")
    total = logits.new_zeros(shape).index_add(0, owner, (logits - highest[owner]).exp())
    return highest, highest + total.clamp(min=torch.finfo(logits.dtype).tiny).log()
