"""Asking a language model without training it: what fills the gap of a cloze, with no example, one, or a few.

A masked language model fills the gap; one that writes goes on there, and reads examples with their answers before (Brown et al.,
2020, GPT-3). Answers are ranked by how likely they are, or written. Contextual calibration (Zhao et al., 2021) divides the
probabilities by those for texts that say nothing, so that an answer which is likely anyway gains nothing by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pretune.devices import choose_device
from pretune.errors import PretuneError
from pretune.inference.generate import Decoding, Reader, Writer
from pretune.inference.predict import Answerer
from pretune.inference.writing import ids_of, in_batches
from pretune.metrics.classification import classification_metrics
from pretune.metrics.texts import exact_match
from pretune.model import find_folder, load_model, read_config
from pretune.objectives import Named, alone, parse_objective
from pretune.objectives.prompt import Prompt
from pretune.objectives.task import Answer
from pretune.randomness import permutation
from pretune.text.clozes import Cloze, name_words
from pretune.text.composed import Part, compose
from pretune.text.labeled import Labeled
from pretune.text.sequences import Arrangement

Array = np.ndarray[Any, np.dtype[Any]]
EMPTY = ("N/A", "[MASK]", "")  # texts that say nothing, as in the paper
LENGTH = 1024  # of what is read, where a model takes any
BETWEEN = "\n\n"  # examples


@dataclass(frozen=True)
class Question:
    """A cloze, the answers to choose from (none: they are written), and examples that are shown before."""

    cloze: str
    labels: Sequence[str] = ()
    words: str = ""  # what stands in the gap for each label; "": the labels
    shown: Labeled | None = None
    calibrate: bool = False
    tokens: int = 20  # of a written answer

    def __post_init__(self) -> None:
        if len(self.labels) == 1:
            raise PretuneError(
                f"only one answer, {self.labels[0]!r}, to choose from; give two or more, or none to have it written"
            )
        if self.calibrate and not self.labels:
            raise PretuneError("calibration weighs answers against one another; give the answers to choose from")
        known = {} if self.shown is None else dict.fromkeys(self.shown.labels or ())
        if self.labels and not known.keys() <= set(self.labels):
            raise PretuneError(
                f"an example's label is {next(iter(known.keys() - set(self.labels)))!r}, which is no answer given"
            )


def make_asker(reference: str | Path, question: Question, partial: bool = False) -> Callable[[Labeled], list[Answer]]:
    """A model that is ready to be asked: rows in, an answer a row out, in order."""
    if not is_masked(reference):
        return Asker(Writer.load(reference, partial=partial), question)
    if question.shown is not None or not question.labels:
        raise PretuneError(
            f"{reference}: this masked language model fills one gap with a word; give the answers to choose from, and no examples"
        )
    task: Any = Prompt(question.cloze, question.words, tuple(question.labels))
    model = load_model(reference, alone(task), partial=partial)
    if new := [name for name in model.untrained if name.startswith("heads.")]:
        raise PretuneError(f"{reference}: it has no head that fills gaps ({new[0]} is missing); pretrain it with mlm")
    device = choose_device()

    def fill(rows: Labeled) -> list[Answer]:
        answers = Answerer(model, task, rows).say_cut()(device)
        if not question.calibrate:
            return answers
        return calibrated(answers, Answerer(model, task, saying_nothing(rows))(device))

    return fill


def is_masked(reference: str | Path) -> bool:
    """Whether a model fills gaps, or writes."""
    family, content = read_config(find_folder(reference))
    objective = content.get("pretune", {}).get("objective")
    parts = parse_objective(objective).objectives if objective else []
    trained = {part.kind if isinstance(part, Named) else part.name for part in parts}
    if trained & {"lm", "generate"}:
        return False
    return bool(trained & {"mlm", "prompt"}) or frozenset({"mlm"}) in family.classes


def saying_nothing(rows: Labeled) -> Labeled:
    """Rows of texts that say nothing."""
    texts = list(EMPTY)
    return Labeled(Path("nothing"), {}, texts, None if rows.pairs is None else texts)


def calibrated(answers: Sequence[Answer], empty: Sequence[Answer]) -> list[Answer]:
    """Answers whose probabilities are divided by those of texts that say nothing.

    >>> half = {"label": "a", "probabilities": {"a": 0.6, "b": 0.4}}
    >>> calibrated([half], [half])[0]["probabilities"]
    {'a': 0.5, 'b': 0.5}
    """
    labels = list(empty[0]["probabilities"])
    shares = np.array([[answer["probabilities"][label] for label in labels] for answer in answers])
    usual = np.array([[answer["probabilities"][label] for label in labels] for answer in empty])
    shares = shares / (usual / usual.sum(-1, keepdims=True)).mean(0)
    return [as_answer(labels, row) for row in shares / shares.sum(-1, keepdims=True)]


def as_answer(labels: Sequence[str], shares: Array) -> Answer:
    """The likeliest label, and how likely each is."""
    return {
        "label": labels[int(shares.argmax())],
        "probability": float(shares.max()),
        "probabilities": dict(zip(labels, shares.tolist(), strict=True)),
    }


class Asker:
    """A model that writes, and a question."""

    def __init__(self, writer: Writer, question: Question) -> None:
        self.model, self.question = writer.model, question

    @torch.inference_mode()
    def __call__(self, rows: Labeled) -> list[Answer]:
        """An answer a row, in order."""
        if not self.question.labels:
            return self.write(rows)
        answers = [as_answer(self.question.labels, row) for row in self.rank(rows)]
        if not self.question.calibrate:
            return answers
        empty = [as_answer(self.question.labels, row) for row in self.rank(saying_nothing(rows))]
        return calibrated(answers, empty)

    def lay_out(self, rows: Labeled, spare: int) -> Arrangement:
        """What is read of each row: examples, and the cloze up to its gap; texts are cut so that `spare` tokens have room."""
        tokenizer, template = self.model.need_tokenizer(), self.model.family.template
        cloze = Cloze.parse(self.question.cloze, rows.pairs is not None)
        frame = template.single[: template.single.index("A") + 1]
        shown = tuple(tokenizer.encode(self.examples(cloze)))
        parts: list[Part] = [*([shown] if shown else []), *cloze.before().parts(rows, tokenizer)]
        if len(frame) == 1 and all(isinstance(part, list) for part in parts):  # an empty text begins as documents do
            frame = (*[role for role in template.for_documents.single if role != "A"][-1:], "A")
        laid = compose(parts, tokenizer, frame, (self.model.backbone.longest or LENGTH) - spare)
        if not laid.lengths.all():
            raise PretuneError(
                f"an empty text: {self.model.family.name} has nothing to begin with; give it a few words"
            )
        return laid

    def examples(self, cloze: Cloze) -> str:
        """The examples that are shown, one after the other."""
        shown = self.question.shown
        if shown is None:
            return ""
        assert shown.labels is not None
        words = dict(zip(self.question.labels, name_words(self.question.words, self.question.labels), strict=True))
        pairs = shown.pairs or [""] * len(shown)
        rows = zip(shown.texts, pairs, shown.labels, strict=True)
        texts = [cloze.fill(text, pair, words.get(label, label)) for text, pair, label in rows]
        return BETWEEN.join([*texts, ""])

    def rank(self, rows: Labeled) -> Array:
        """(rows, labels) how likely each answer is among all of them: the product over its tokens."""
        tokenizer, question = self.model.need_tokenizer(), self.question
        space = Cloze.parse(question.cloze, rows.pairs is not None).space
        words = [tokenizer.encode(space + word) for word in name_words(question.words, question.labels)]
        for label, word in zip(question.labels, words, strict=True):
            if not word:
                raise PretuneError(f"answer {label!r}: this tokenizer reads nothing in it; take another word")
        longest = max(map(len, words))
        scores = np.zeros((len(rows), len(words)))
        for read in in_batches(self.lay_out(rows, longest), longest, len(words)):
            chosen, prompts = read.index, ids_of(read)
            reader = Reader(self.model, len(chosen), max(map(len, prompts)) + longest)
            logits = reader.read(prompts).log_softmax(-1)
            scores[chosen] = logits[:, [word[0] for word in words]].numpy()
            self.read_on(reader, words, scores, chosen)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        return np.asarray(shares / shares.sum(-1, keepdims=True))

    def read_on(self, reader: Reader, words: list[list[int]], scores: Array, rows: Array) -> None:
        """Add what the second and further tokens of answers have to say; the reader has read what is before the first."""
        going = [(k, word) for k in range(len(rows)) for word in range(len(words)) if len(words[word]) > 1]
        before = [k for k, _ in going]
        for place in range(1, max(map(len, words))):
            reader.select(before)
            logits = reader.read([[words[word][place - 1]] for _, word in going]).log_softmax(-1)
            for (k, word), row in zip(going, logits, strict=True):
                scores[rows[k], word] += float(row[words[word][place]])
            before = [i for i, (_, word) in enumerate(going) if len(words[word]) > place + 1]
            going = [going[i] for i in before]

    def write(self, rows: Labeled) -> list[Answer]:
        """What the model itself writes, up to the end of a line."""
        tokenizer = self.model.need_tokenizer()
        line = tokenizer.encode("\n")
        end = ({tokenizer.role("end")} if tokenizer.has("end") else set()) | set(line if len(line) == 1 else ())
        laid = self.lay_out(rows, self.question.tokens)
        prompts = ids_of(laid.take(np.arange(len(laid))))
        writer = Writer(self.model, self.model.backbone.embed.tokens.device)
        texts = writer.write_ids(prompts, Decoding(self.question.tokens), end)
        return [{"answer": tokenizer.decode(text.ids).strip().partition("\n")[0].strip()} for text in texts]


def in_order(shown: Labeled, seed: int) -> Labeled:
    """Examples in an order by chance: the last ones weigh most."""
    return shown.take(permutation(len(shown), seed, "shown").tolist())


def judge(answers: Sequence[Answer], expected: Sequence[str], labels: Sequence[str]) -> dict[str, float]:
    """How good some answers are."""
    if labels:
        return classification_metrics(expected, [answer["label"] for answer in answers], labels)
    return {"exact_match": exact_match(expected, [answer["answer"] for answer in answers])}
