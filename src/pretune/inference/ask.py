"""Ask a model without training it: zero-shot, one-shot, and few-shot classification and generation with clozes.

A masked language model fills the gap of the cloze. A decoder continues the text at the gap, after examples with their
answers (in-context learning; Brown et al., 2020, GPT-3). An encoder-decoder reads the examples and the text, and its
decoder predicts the answer (Raffel et al., 2020, T5). Answers are ranked by their likelihood, or generated. Contextual
calibration (Zhao et al., 2021) divides the probabilities by those for texts without content, so that an answer that is
likely for any text has no advantage.
Other encoders choose among answers by entailment or by embeddings (inference/zero_shot.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pretune.inference.contextual_calibration import calibrate_answers, content_free_rows
from pretune.inference.generation.causal_generation import TextGenerator
from pretune.inference.generation.decoding_loops import GenerationConfig
from pretune.inference.generation.decoding_session import DecodingSession
from pretune.inference.generation.seq2seq_generation import Seq2SeqGenerator, is_encoder_decoder
from pretune.inference.generation.stop_strings import stop_condition
from pretune.inference.generation.text_to_text_answers import (
    generate_for_sequences,
    generation_batches,
    sequence_ids,
    target_frame,
)
from pretune.inference.predict import Predictor
from pretune.inference.zero_shot import EmbeddingPredictor, EntailmentPredictor, entailment_task
from pretune.metrics.classification import classification_metrics
from pretune.metrics.generated_text import exact_match
from pretune.models.checkpoint_heads import stored_objectives
from pretune.models.hf_config import read_config
from pretune.models.loading import load_model
from pretune.models.name_resolution import ModelReference, find_folder
from pretune.objectives import parse_objective, single_objective
from pretune.objectives.task import Answer
from pretune.objectives.tasks.classify import class_answer
from pretune.objectives.tasks.prompt import Prompt
from pretune.runtime.arrays import Array, softmax
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import log_info
from pretune.runtime.randomness import permutation
from pretune.text.examples.cloze_templates import Cloze, single_token, verbalizer_words
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.sequence_parts import Part, compose_sequences
from pretune.text.packing.sequences import Arrangement, Sequences, collate

LENGTH = 1024  # tokens of input, for models without a maximal length
EXAMPLE_SEPARATOR = "\n\n"  # between examples
TEMPLATE = "{text} [MASK]"  # of language models by default


@dataclass(frozen=True)
class ClozeQuestion:
    """A question to a model: a cloze template, few-shot examples, and the labels to choose from.

    Without labels, the answer is generated.
    """

    template: str = ""  # "": the default for the kind of model
    labels: Sequence[str] = ()
    verbalizer: str = ""  # what fills the gap for each label (the verbalizer); "": the labels themselves
    shown: LabeledRows | None = None
    calibrate: bool = False
    max_new_tokens: int = 20  # the most tokens of a generated answer
    before: str = ""  # an instruction before all examples

    def __post_init__(self) -> None:
        if len(self.labels) == 1:
            raise PretuneError(
                f"there is only one answer to choose from, {self.labels[0]!r}; give two or more answers, or none to generate an "
                "answer"
            )
        if self.calibrate and not self.labels:
            raise PretuneError("calibration needs answers to choose from; give the answers, or turn calibration off")
        known = {} if self.shown is None else dict.fromkeys(self.shown.labels or ())
        if self.labels and not known.keys() <= set(self.labels):
            raise PretuneError(
                f"an example has the label {next(iter(known.keys() - set(self.labels)))!r}, which is not among the answers to "
                f"choose from; they are {', '.join(self.labels)}"
            )


def load_cloze_predictor(
    reference: ModelReference, question: ClozeQuestion, ignore_mismatched: bool = False
) -> Callable[[LabeledRows], list[Answer]]:
    """Load a model; return a function that answers a cloze question, such as "{text} It was [MASK].", for each row.

    An entailment classifier reads the template, with each answer in the gap, as its hypothesis. If the question has
    answers to choose from but no template, an encoder chooses the answer with the most similar embedding, provided that
    it has no language-model head or that the question has few-shot examples.
    """
    words = verbalizer_words(question.verbalizer, question.labels)
    predict: Callable[[LabeledRows], list[Answer]]
    if question.labels and (task := entailment_task(reference)) is not None:
        if question.shown is not None:
            raise PretuneError(f"{reference}: an entailment classifier uses no examples; ask without examples")
        mixture = stored_objectives(reference)
        model = load_model(reference, mixture, ignore_mismatched=ignore_mismatched)
        model.require_trained(task.name, reference, "fine-tune it first")
        predict = EntailmentPredictor(model, task, question.template, question.labels, words)
    elif question.labels and not question.template and compares_embeddings(reference, question.shown is not None):
        log_info(f"{reference}: answers are chosen by the similarity of embeddings")
        predict = EmbeddingPredictor(reference, question.labels, words, question.shown, ignore_mismatched)
    elif is_masked_language_model(reference):
        predict = load_masked_predictor(reference, question, ignore_mismatched)
    else:
        question = replace(question, template=question.template or TEMPLATE)
        return ClozePredictor(load_text_generator(reference, ignore_mismatched=ignore_mismatched), question)
    if not question.calibrate:
        return predict
    return lambda rows: calibrate_answers(predict(rows), predict(content_free_rows(rows)))


def load_masked_predictor(
    reference: ModelReference, question: ClozeQuestion, ignore_mismatched: bool = False
) -> Callable[[LabeledRows], list[Answer]]:
    """Load a masked language model; return a function that chooses the label whose word fits best at [MASK]."""
    if question.shown is not None or not question.labels:
        raise PretuneError(
            f"{reference}: a masked language model can only choose among single words for [MASK]; give the answers "
            "to choose from and, if there are examples, no template (examples are used without a template)"
        )
    task: Any = Prompt(question.template or TEMPLATE, question.verbalizer, tuple(question.labels))
    model = load_model(reference, single_objective(task), ignore_mismatched=ignore_mismatched)
    model.require_trained(task.name, reference, "pretrain it with mlm first")
    device = choose_device()
    return lambda rows: Predictor(model, task, rows).report_truncated()(device)


def load_zero_shot_predictor(
    reference: ModelReference, labels: Sequence[str], usual: Sequence[str]
) -> Callable[[Sequence[str]], list[Answer]]:
    """Load a model; return a function that guesses the labels of texts from the names of the labels alone.

    Probabilities are divided by their means over `usual`, a sample of texts, so that all labels are about equally
    frequent in this sample (batch calibration; Zhou et al., 2024, arXiv:2309.17249). Models without a language-model or
    entailment head choose by the similarity of embeddings, as do masked language models whose tokenizer splits the name
    of a label into several tokens.

    >>> texts = ["She played the piano and sang two songs.", "We had soup and bread for dinner."]
    >>> [answer["label"] for answer in load_zero_shot_predictor("pretune-small-en", ["music", "food"], texts)(texts)]
    ['music', 'food']
    """
    predict: Callable[[LabeledRows], list[Answer]]
    trained = trained_kinds(reference)
    fills = bool(trained & {"mlm", "prompt"}) and all_single_tokens(reference, labels)
    if fills or trained & {"lm", "generate"} or entailment_task(reference) is not None:
        predict = load_cloze_predictor(reference, ClozeQuestion(labels=labels))
    else:
        predict = EmbeddingPredictor(reference, labels, labels)

    def answer(texts: Sequence[str]) -> list[Answer]:
        return predict(LabeledRows(Path("texts"), {}, list(texts)))

    background = answer(usual)
    return lambda texts: calibrate_answers(answer(texts), background)


def all_single_tokens(reference: ModelReference, words: Sequence[str]) -> bool:
    """Return whether each word is one known token of a model's tokenizer, so that it can be predicted at [MASK]."""
    tokenizer = load_model(reference).require_tokenizer()
    try:
        return len({single_token(word, tokenizer) for word in words}) == len(words)
    except PretuneError:
        return False


def compares_embeddings(reference: ModelReference, examples: bool) -> bool:
    """Return whether a model chooses answers by the similarity of embeddings when there is no template.

    This holds for encoders without a language-model head and, if there are few-shot `examples`, for all encoders.
    """
    return is_masked_language_model(reference) and (examples or not trained_kinds(reference) & {"mlm", "prompt"})


def trained_kinds(reference: ModelReference) -> set[str]:
    """Return the kinds of objectives, such as mlm or classify, for which a model has trained heads."""
    stored = stored_objectives(reference)
    return {part.kind for part in (stored.objectives if stored else ())}


def load_text_generator(
    reference: ModelReference, device: str | None = None, ignore_mismatched: bool = False
) -> TextGenerator | Seq2SeqGenerator:
    """Load a decoder or an encoder-decoder for text generation."""
    kind: type[TextGenerator | Seq2SeqGenerator] = Seq2SeqGenerator if is_encoder_decoder(reference) else TextGenerator
    return kind.load(reference, device, ignore_mismatched)


def is_masked_language_model(reference: ModelReference) -> bool:
    """Return whether a model is a masked language model rather than a generative one."""
    family, content = read_config(find_folder(reference))
    objective = content.get("pretune", {}).get("objective")
    parts = parse_objective(objective).objectives if objective else []
    trained = {part.kind for part in parts}
    if trained & {"lm", "generate"}:
        return False
    return bool(trained & {"mlm", "prompt"}) or frozenset({"mlm"}) in family.classes


class ClozePredictor:
    """A generative model that answers a cloze question about texts: it ranks given answers, or generates one."""

    def __init__(self, writer: TextGenerator | Seq2SeqGenerator, question: ClozeQuestion) -> None:
        self.model, self.question = writer.model, question
        # The task defines the templates of an encoder-decoder.
        self.task = writer.task if isinstance(writer, Seq2SeqGenerator) else None
        self.device = writer.device

    @torch.inference_mode()
    def __call__(self, rows: LabeledRows) -> list[Answer]:
        """Answer a cloze question for each row of texts, and return the answers in order."""
        if not self.question.labels:
            return [{"answer": text} for text in self.generate(rows)]
        answers = self.choose(rows)
        return calibrate_answers(answers, self.choose(content_free_rows(rows))) if self.question.calibrate else answers

    def choose(self, rows: LabeledRows) -> list[Answer]:
        """Return one answer per row: the most likely label, and the probabilities of all labels."""
        labels = self.question.labels
        words = [verbalizer_words(self.question.verbalizer, labels)] * len(rows)
        return [class_answer(softmax(scores), labels) for scores in self.rank(rows, words)]

    # -- input ------------------------------------------------------------------------------------------------------

    def cloze(self, rows: LabeledRows) -> Cloze:
        """Return the parsed cloze template of the question, whose placeholders (as in {text}) are columns of `rows`."""
        return Cloze.parse(self.question.template, rows.pairs is not None, rows.extra)

    def tokenize_examples(self, rows: LabeledRows, spare: int) -> Arrangement:
        """Return the tokenized input of each row: few-shot examples, then the prompt, truncated if it is too long.

        For a decoder, inputs leave room for `spare` more tokens.
        """
        tokenizer, template = self.model.require_tokenizer(), self.model.family.template
        cloze = self.cloze(rows)
        length = (self.model.backbone.max_positions or LENGTH) - (0 if template.target else spare)
        frame = template.single if template.target else template.single[: template.single.index("A") + 1]
        shown = tuple(tokenizer.encode(self.shown(cloze, length // 2)))
        parts: list[Part] = [*([shown] if shown else []), *cloze.before().parts(rows, tokenizer)]
        if len(frame) == 1 and all(isinstance(part, list) for part in parts):  # an empty text starts as documents do
            frame = (*[role for role in template.document_template.single if role != "A"][-1:], "A")
        arrangement = compose_sequences(parts, tokenizer, frame, length)
        if not arrangement.lengths.all():
            raise PretuneError(
                f"the text is empty, and {self.model.family.name} has no start token to begin with; give a few words"
            )
        return arrangement

    def shown(self, cloze: Cloze, most: int) -> str:
        """Return the text at the beginning of each prompt: the instruction and the few-shot examples.

        `cloze` is the template of the examples. Examples are left out if the text would have more than `most` tokens.
        """
        tokenizer, examples = self.model.require_tokenizer(), self.examples(cloze)
        for dropped in range(len(examples) + 1):
            text = "".join(part + EXAMPLE_SEPARATOR for part in [self.question.before, *examples[dropped:]] if part)
            if dropped == len(examples) or len(tokenizer.encode(text)) <= most:
                break
        if dropped:
            log_info(f"the prompt has only {len(examples) - dropped} of {len(examples)} examples; more do not fit")
        return text

    def examples(self, cloze: Cloze) -> list[str]:
        """Return each few-shot example as text: the template `cloze`, filled with the example and its answer."""
        shown = self.question.shown
        if shown is None:
            return []
        assert shown.labels is not None
        words = dict(
            zip(self.question.labels, verbalizer_words(self.question.verbalizer, self.question.labels), strict=True)
        )
        return [cloze.fill(shown, row, words.get(label, label)) for row, label in enumerate(shown.labels)]

    def prompt(self, rows: LabeledRows, row: int = 0) -> str:
        """Return the whole prompt for the row with the index `row` as text, with instruction and few-shot examples."""
        cloze = self.cloze(rows)
        length = self.model.backbone.max_positions or LENGTH
        return self.shown(cloze, length // 2) + cloze.before().fill(rows, row)

    # -- answers ----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def rank(self, rows: LabeledRows, answers: Sequence[Sequence[str]], each_token: bool = False) -> list[Array]:
        """Return the log-likelihood of each candidate answer of each row, one array (answers,) per row.

        A log-likelihood is a sum over the tokens of an answer or, with `each_token`, a mean.
        """
        space = "" if self.task else self.cloze(rows).space
        spelled = self.spell({answer: space + answer for some in answers for answer in some})
        words = [[spelled[answer] for answer in some] for some in answers]
        longest = max(map(len, spelled.values()))
        scores = [np.zeros(len(some)) for some in words]
        for read in generation_batches(self.tokenize_examples(rows, longest), longest, max(map(len, words))):
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
        """Tokenize the text of each answer; return token ids by answer, or raise an error if an answer has none."""
        tokenizer = self.model.require_tokenizer().target
        found = {answer: tokenizer.encode(text) for answer, text in texts.items()}
        for answer, ids in found.items():
            if not ids:
                raise PretuneError(f"answer {answer!r}: the model's tokenizer has no token for it; choose another word")
        return found

    def begin(self, read: Sequences, more: int) -> tuple[DecodingSession, list[list[int]]]:
        """Return a decoding session for tokenized inputs, and the token ids that each of its sequences reads first.

        These ids are the inputs themselves for a decoder, and the start tokens of the target for an encoder-decoder.
        The session has room for `more` tokens per sequence.
        """
        if self.task is None:
            prompts = sequence_ids(read)
            return DecodingSession(self.model, len(prompts), max(map(len, prompts)) + more), prompts
        begin, _ = target_frame(self.model, self.task)
        (packed,) = collate(read).packed
        source = [packed.to(self.device)]
        reader = DecodingSession(self.model, len(read.index), len(begin) + more, source, head=self.task.name)
        return reader, [begin] * len(read.index)

    def read_on(self, reader: DecodingSession, words: Sequence[Sequence[list[int]]], scores: Sequence[Array]) -> None:
        """Add the log-likelihoods of all tokens but the first of each answer to `scores`, in place.

        The decoding session `reader` has already read the prompts. `words` has the token ids of each answer of each
        row, and `scores` one array (answers,) per row.
        """
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
    def generate(self, rows: LabeledRows) -> list[str]:
        """Generate an answer to a cloze question for each row of texts; an answer ends where its first line ends."""
        tokenizer = self.model.require_tokenizer().target
        arrangement = self.tokenize_examples(rows, self.question.max_new_tokens)
        decoding = GenerationConfig(self.question.max_new_tokens)
        if self.task is None:
            line = tokenizer.encode("\n")
            end = ({tokenizer.role("end")} if tokenizer.has_role("end") else set()) | set(
                line if len(line) == 1 else ()
            )
            prompts = sequence_ids(arrangement.take(np.arange(len(arrangement))))
            texts = TextGenerator(self.model, self.device).generate_ids(prompts, decoding, end)
        else:
            texts = generate_for_sequences(
                self.model, self.task, arrangement, decoding, ended=stop_condition(["\n"], tokenizer)
            )
        return [tokenizer.decode(text.ids).strip().partition("\n")[0].strip() for text in texts]


def shuffle_examples(shown: LabeledRows, seed: int) -> LabeledRows:
    """Return few-shot examples in random order, because the last ones in a prompt influence a model most."""
    return shown.take(permutation(len(shown), seed, "shown").tolist())


def score_answers(answers: Sequence[Answer], expected: Sequence[str], labels: Sequence[str]) -> dict[str, float]:
    """Score answers against expected ones: by classification metrics if there are `labels`, else by exact match."""
    if labels:
        return classification_metrics(expected, [answer["label"] for answer in answers], labels)
    return exact_match(expected, [answer["answer"] for answer in answers]).compute()
