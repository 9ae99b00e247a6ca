"""Asking a language model without training it: what fills the gap of a cloze, with no example, one, or a few.

A masked language model fills the gap; one that writes goes on there, and reads examples with their answers before (Brown et al.,
2020, GPT-3); an encoder-decoder reads all that and writes the answer (Raffel et al., 2020, T5). Answers are ranked by how likely they are, or written. Contextual calibration (Zhao et al., 2021) divides the
probabilities by those for texts that say nothing, so that an answer which is likely anyway gains nothing by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pretune.inference.generation.generate import Decoding, Reader, Writer
from pretune.inference.generation.generate_answers import around, ids_of, in_batches, write_for
from pretune.inference.generation.seq2seq_generation import Rewriter, reads_and_writes
from pretune.inference.generation.stop_strings import ends_at
from pretune.inference.predict import Answerer
from pretune.metrics.classification import classification_metrics
from pretune.metrics.generated_text import exact_match
from pretune.models.model import find_folder, load_model, read_config
from pretune.objectives import alone, parse_objective
from pretune.objectives.task import Answer
from pretune.objectives.tasks.prompt import Prompt
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import say
from pretune.runtime.randomness import permutation
from pretune.text.examples.clozes import Cloze, name_words
from pretune.text.examples.labeled import Labeled
from pretune.text.packing.sequence_parts import Part, compose
from pretune.text.packing.sequences import Arrangement, Sequences, collate

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
    before: str = ""  # what is said first, before all examples

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
        return Asker(load_writer(reference, partial=partial), question)
    if question.shown is not None or not question.labels:
        raise PretuneError(
            f"{reference}: this masked language model fills one gap with a word; give the answers to choose from, and no examples"
        )
    task: Any = Prompt(question.cloze, question.words, tuple(question.labels))
    model = load_model(reference, alone(task), partial=partial)
    model.need_trained(task.name, reference, "pretrain it with mlm first")
    device = choose_device()

    def fill(rows: Labeled) -> list[Answer]:
        answers = Answerer(model, task, rows).say_cut()(device)
        if not question.calibrate:
            return answers
        return calibrated(answers, Answerer(model, task, saying_nothing(rows))(device))

    return fill


def load_writer(reference: str | Path, device: str | None = None, partial: bool = False) -> Writer | Rewriter:
    """A decoder or an encoder-decoder."""
    kind: type[Writer | Rewriter] = Rewriter if reads_and_writes(reference) else Writer
    return kind.load(reference, device, partial)


def is_masked(reference: str | Path) -> bool:
    """Whether a model fills gaps, or writes."""
    family, content = read_config(find_folder(reference))
    objective = content.get("pretune", {}).get("objective")
    parts = parse_objective(objective).objectives if objective else []
    trained = {part.kind for part in parts}
    if trained & {"lm", "generate"}:
        return False
    return bool(trained & {"mlm", "prompt"}) or frozenset({"mlm"}) in family.classes


def saying_nothing(rows: Labeled) -> Labeled:
    """Rows of texts that say nothing."""
    texts = list(EMPTY)
    more = dict.fromkeys(rows.more, texts)
    return Labeled(Path("nothing"), {}, texts, None if rows.pairs is None else texts, more=more)


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
    """A model that writes, and a question. An encoder-decoder reads everything before the gap, and writes the answer."""

    def __init__(self, writer: Writer | Rewriter, question: Question) -> None:
        self.model, self.question = writer.model, question
        self.task = writer.task if isinstance(writer, Rewriter) else None  # how an encoder-decoder lays out texts
        self.device = writer.device

    @torch.inference_mode()
    def __call__(self, rows: Labeled) -> list[Answer]:
        """An answer a row, in order."""
        if not self.question.labels:
            return [{"answer": text} for text in self.write(rows)]
        answers = self.choose(rows)
        return calibrated(answers, self.choose(saying_nothing(rows))) if self.question.calibrate else answers

    def choose(self, rows: Labeled) -> list[Answer]:
        """The likeliest label of each row."""
        labels = self.question.labels
        words = [name_words(self.question.words, labels)] * len(rows)
        return [as_answer(labels, shares_of(scores)) for scores in self.rank(rows, words)]

    # -- what is read -----------------------------------------------------------------------------------------------

    def cloze(self, rows: Labeled) -> Cloze:
        """The cloze for some rows."""
        return Cloze.parse(self.question.cloze, rows.pairs is not None, rows.more)

    def lay_out(self, rows: Labeled, spare: int) -> Arrangement:
        """What is read of each row: examples, and the cloze up to its gap; texts are cut so that `spare` tokens have room."""
        tokenizer, template = self.model.need_tokenizer(), self.model.family.template
        cloze = self.cloze(rows)
        length = (self.model.backbone.longest or LENGTH) - (0 if template.target else spare)
        frame = template.single if template.target else template.single[: template.single.index("A") + 1]
        shown = tuple(tokenizer.encode(self.shown(cloze, length // 2)))
        parts: list[Part] = [*([shown] if shown else []), *cloze.before().parts(rows, tokenizer)]
        if len(frame) == 1 and all(isinstance(part, list) for part in parts):  # an empty text begins as documents do
            frame = (*[role for role in template.for_documents.single if role != "A"][-1:], "A")
        laid = compose(parts, tokenizer, frame, length)
        if not laid.lengths.all():
            raise PretuneError(
                f"an empty text: {self.model.family.name} has nothing to begin with; give it a few words"
            )
        return laid

    def shown(self, cloze: Cloze, most: int) -> str:
        """What stands before the cloze: what is said first, and examples; the first of these are left out where all have
        more than so many tokens."""
        tokenizer, examples = self.model.need_tokenizer(), self.examples(cloze)
        for left in range(len(examples) + 1):
            text = "".join(part + BETWEEN for part in [self.question.before, *examples[left:]] if part)
            if left == len(examples) or len(tokenizer.encode(text)) <= most:
                break
        if left:
            say(f"{len(examples) - left} of {len(examples)} examples fit into half of what the model reads")
        return text

    def examples(self, cloze: Cloze) -> list[str]:
        """The examples that are shown, with their answers."""
        shown = self.question.shown
        if shown is None:
            return []
        assert shown.labels is not None
        words = dict(zip(self.question.labels, name_words(self.question.words, self.question.labels), strict=True))
        return [cloze.fill(shown, row, words.get(label, label)) for row, label in enumerate(shown.labels)]

    def prompt(self, rows: Labeled, row: int = 0) -> str:
        """What is read of a row, as text; if it is very long, its texts are cut."""
        cloze = self.cloze(rows)
        length = self.model.backbone.longest or LENGTH
        return self.shown(cloze, length // 2) + cloze.before().fill(rows, row)

    # -- answers ----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def rank(self, rows: Labeled, answers: Sequence[Sequence[str]], each_token: bool = False) -> list[Array]:
        """For each row, (answers,) the logarithms of how likely its answers are: the sums over tokens, or their means."""
        space = "" if self.task else self.cloze(rows).space
        spelled = self.spell({answer: space + answer for some in answers for answer in some})
        words = [[spelled[answer] for answer in some] for some in answers]
        longest = max(map(len, spelled.values()))
        scores = [np.zeros(len(some)) for some in words]
        for read in in_batches(self.lay_out(rows, longest), longest, max(map(len, words))):
            chosen = read.index.tolist()
            reader, prompts = self.begin(read, longest)
            logits = reader.read(prompts).log_softmax(-1).cpu()
            for row, expected in zip(chosen, logits, strict=True):
                scores[row][:] = expected[[word[0] for word in words[row]]].numpy()
            self.read_on(reader, [words[row] for row in chosen], [scores[row] for row in chosen])
        if not each_token:
            return scores
        return [found / [len(word) for word in some] for found, some in zip(scores, words, strict=True)]

    def spell(self, texts: Mapping[str, str]) -> dict[str, list[int]]:
        """The tokens of each answer."""
        tokenizer = self.model.need_tokenizer().target
        found = {answer: tokenizer.encode(text) for answer, text in texts.items()}
        for answer, ids in found.items():
            if not ids:
                raise PretuneError(f"answer {answer!r}: this tokenizer reads nothing in it; take another word")
        return found

    def begin(self, read: Sequences, more: int) -> tuple[Reader, list[list[int]]]:
        """A reader for some sequences, and what it reads first; `more` tokens are to follow."""
        if self.task is None:
            prompts = ids_of(read)
            return Reader(self.model, len(prompts), max(map(len, prompts)) + more), prompts
        begin, _ = around(self.model, self.task)
        (packed,) = collate(read).packed
        source = [packed.to(self.device)]
        reader = Reader(self.model, len(read.index), len(begin) + more, source, head=self.task.name)
        return reader, [begin] * len(read.index)

    def read_on(self, reader: Reader, words: Sequence[Sequence[list[int]]], scores: Sequence[Array]) -> None:
        """Add what the second and further tokens of answers have to say; the reader has read what is before the first."""
        going = [(k, word) for k, some in enumerate(words) for word in range(len(some)) if len(some[word]) > 1]
        before = [k for k, _ in going]
        place = 1
        while going:
            reader.select(before)
            logits = reader.read([[words[k][word][place - 1]] for k, word in going]).log_softmax(-1).cpu()
            for (k, word), row in zip(going, logits, strict=True):
                scores[k][word] += float(row[words[k][word][place]])
            place += 1
            before = [i for i, (k, word) in enumerate(going) if len(words[k][word]) > place]
            going = [going[i] for i in before]

    @torch.inference_mode()
    def write(self, rows: Labeled) -> list[str]:
        """What the model itself writes, up to the end of a line."""
        tokenizer = self.model.need_tokenizer().target
        laid, how = self.lay_out(rows, self.question.tokens), Decoding(self.question.tokens)
        if self.task is None:
            line = tokenizer.encode("\n")
            end = ({tokenizer.role("end")} if tokenizer.has("end") else set()) | set(line if len(line) == 1 else ())
            prompts = ids_of(laid.take(np.arange(len(laid))))
            texts = Writer(self.model, self.device).write_ids(prompts, how, end)
        else:
            texts = write_for(self.model, self.task, laid, how, ended=ends_at(["\n"], tokenizer))
        return [tokenizer.decode(text.ids).strip().partition("\n")[0].strip() for text in texts]


def shares_of(scores: Array) -> Array:
    """(answers,) probabilities from logarithms of how likely each is.

    >>> shares_of(np.log([0.1, 0.3])).round(3).tolist()
    [0.25, 0.75]
    """
    shares = np.exp(scores - scores.max())
    return np.asarray(shares / shares.sum())


def in_order(shown: Labeled, seed: int) -> Labeled:
    """Examples in an order by chance: the last ones weigh most."""
    return shown.take(permutation(len(shown), seed, "shown").tolist())


def judge(answers: Sequence[Answer], expected: Sequence[str], labels: Sequence[str]) -> dict[str, float]:
    """How good some answers are."""
    if labels:
        return classification_metrics(expected, [answer["label"] for answer in answers], labels)
    return {"exact_match": exact_match(expected, [answer["answer"] for answer in answers])}
