"""The contract of a task: an objective that learns from labeled examples and answers for new ones.

    read(file, columns)              → examples      rows of a file, with or without the right answers
    fit(examples)                    → task          with what it learns from the examples before training: its labels
    tokenize_examples(data, length)  → arrangement   one or more sequences per example
    outputs(head, backbone, batch)   → tensor        one row per sequence, or one row per token
    answers(outputs, arrangement, examples) → answers       one per example, in order

To add a task, write a frozen dataclass that derives from `Task` and implements these methods beside the five of an
objective, its metrics (`metric_sums` or `metrics`), and `judge`, which scores its answers one by one. Fields that `fit` sets
are declared with `fitted`; all others are options. Register it with `@register_task`, or from another package with an entry
point of the group `pretune.tasks`. Everything else has a default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self

from torch import Tensor, nn

from pretune.backbones.backbone import Backbone
from pretune.metrics.additive import AdditiveMetrics
from pretune.metrics.per_example import ScoredAnswer
from pretune.objectives.in_context_prompt import InContextPrompt
from pretune.objectives.objective import Data, Objective
from pretune.packed import Batch
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.examples.labeled import Row, TableChunk, table_rows
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, plan_epoch
from pretune.text.tokenizers.tokenizer import Tokenizer

Answer = dict[str, Any]
LANGUAGE_MODEL_HEADS = ("lm", "mlm")  # heads over the vocabulary, which tasks share with language models


def fitted(default: Any) -> Any:
    """Declare a dataclass field of a task that `fit` sets from the training examples, with an initial `default`."""
    return field(default=default, metadata={"fitted": True})


class Examples(Protocol):
    """The examples of a task that were read from a file, in the order of the file."""

    file: Path

    def __len__(self) -> int: ...

    def take(self, rows: Iterable[int]) -> Self: ...

    def asked(self, row: int) -> str:
        """Return the input of example number `row` as one text, by which duplicate examples are found."""

    def place(self, row: int) -> str:
        """Return the file and line of example number `row`, for error messages."""

    def show(self, row: int) -> dict[str, Any]:
        """Return the fields of example number `row` that reports show beside the model's answer."""


class Task(Objective):
    """Base class of supervised tasks: objectives that learn from labeled examples and predict answers for new ones.

    `output_per` is the unit for which the model has one row of outputs: a sequence or a token; it is "text" if answers
    are generated. `settings` are fine-tuning settings whose defaults differ for the task, and `in_context_template` is
    its default prompt ("" if it cannot be prompted).
    """

    owns_arrangement: ClassVar[bool] = True
    output_per: ClassVar[Literal["sequence", "token", "text"]] = (
        "sequence"  # has one row of outputs; a text is generated
    )
    combinable: ClassVar[bool] = False  # whether `combine` is implemented
    settings: ClassVar[Mapping[str, Any]] = {}  # sections of the fine-tuning settings whose defaults differ
    distillable: ClassVar[bool] = (
        False  # whether its predictions for texts alone can be training targets of another model
    )
    reads_spans: ClassVar[bool] = False  # whether its head reads marked spans, for which an ONNX graph has no input
    # For in-context learning: the roles of a row in braces, and [MASK] for the answer; "": the task cannot be prompted.
    in_context_template: ClassVar[str] = ""

    @property
    def primary_metric(self) -> str:
        """Return the name of the metric by which models for this task are compared."""
        raise NotImplementedError

    @property
    def labels(self) -> Sequence[str]:
        """Return the names of the classes in order; () for a task without classes."""
        return ()

    @property
    def multi_label(self) -> bool:
        """Return whether an example can have any number of labels (multi-label classification)."""
        return False

    @property
    def constrained(self) -> bool:
        """Return whether generated answers are restricted to the task's labels."""
        return False

    @property
    def single_label(self) -> bool:
        """Return whether the answer to an example is exactly one of several classes."""
        return False

    @property
    def classifies_texts(self) -> bool:
        """Return whether the task assigns one of several classes to a text or a pair of texts, without other inputs."""
        return False

    @property
    def reads_several_layers(self) -> bool:
        """Return whether the head reads other layers than the last one."""
        return False

    @property
    def reads_word_vectors(self) -> bool:
        """Return whether the head reads word vectors beside hidden states, which an ONNX graph does not output."""
        return False

    @property
    def uses_language_model_head(self) -> bool:
        """Return whether the task uses the output layer of a language model instead of a head of its own."""
        return self.shared_head in LANGUAGE_MODEL_HEADS

    @property
    def unwrapped(self) -> Any:
        """Return the innermost task, without wrappers (a wrapper can rename a task, for example)."""
        return self

    def has_option(self, name: str) -> bool:
        """Return whether the task has a user option called `name`."""
        options: Any = fields(self.unwrapped)
        return any(option.name == name and not option.metadata.get("fitted") for option in options)

    # -- examples ---------------------------------------------------------------------------------------------------

    def rows(self, file: Path) -> Iterator[tuple[int, Row]]:
        """Yield the rows of a file with their line numbers; by default, the file is a table."""
        return table_rows(file)

    def read(self, file: str | Path | TableChunk, columns: Mapping[str, str], *, answered: bool = True) -> Any:
        """Read examples from a file; with `answered`, every example must have its gold answer.

        `columns` maps roles, such as text or label, to the names of columns.
        """
        raise NotImplementedError

    def fit(self, examples: Any) -> Self:
        """Return a copy of the task with its fitted fields, such as labels, set from the training examples."""
        return self

    def with_tokenizer(self, tokenizer: Tokenizer) -> Self:
        """Return a copy of the task, with the fields set that depend on the model's tokenizer."""
        return self

    def check_labels(self, examples: Any) -> None:
        """Raise an error if examples have labels that the task was not trained on; by default, nothing is checked."""

    # -- training and prediction ------------------------------------------------------------------------------------

    def tokenize_examples(self, data: Data, length: int) -> Arrangement:
        """Return the examples as token sequences of at most `length` tokens.

        The label `example` of a sequence is the number of its example; sequences with the same label `group` share a
        batch.
        """
        raise NotImplementedError

    def arrange(self, data: Data, packing: Packing, draws: EpochRandom) -> Epoch:
        """Return the sequences of all examples, shuffled into packed batches."""
        return plan_epoch(self.tokenize_examples(data, packing.length), packing, draws)

    def max_targets(self, packing: Packing) -> dict[str, int]:
        """Return the maximum number of targets per batch, by loss term: the number of sequences in a batch."""
        return {self.name: min(packing.sequences, packing.tokens)}

    def begin(self, head: nn.Module) -> None:
        """Undo `finish` before training continues: take the statistics of the labels out of the head's weights."""

    def finish(self, head: nn.Module) -> Self:
        """Fold statistics of the labels, such as their mean, into the weights of a trained head.

        The head then predicts on the original scale. Return the task without these statistics.
        """
        return self

    def outputs(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Tensor:
        """Run the backbone on a batch and return the head's outputs, one row per sequence or per token."""
        states = backbone(*batch.packed).last
        out: Tensor = head(states, batch.packed[-1]) if self.output_per == "sequence" else head(states)
        return out

    def answers(self, outputs: Sequence[Array], arrangement: Arrangement, examples: Any) -> list[Answer]:
        """Return one answer per example, given the head's outputs for `arrangement`, the tokenized examples."""
        raise NotImplementedError

    def combine(self, answers: Sequence[Answer], examples: Any, row: int) -> Answer:
        """Return the answer of an ensemble to example number `row`, given the answers of the ensemble's models."""
        raise PretuneError(f"the task {self.name}: the answers of several models cannot be averaged; give one model")

    # -- evaluation -------------------------------------------------------------------------------------------------

    def metric_sums(self, answers: Sequence[Answer], examples: Any) -> AdditiveMetrics | None:
        """Return the metrics as sums over examples, which makes bootstrapping fast; None if they are not additive."""
        return None

    def metrics(self, answers: Sequence[Answer], examples: Any) -> dict[str, float]:
        """Return the metrics of answers, by name, given the examples with their gold answers."""
        sums = self.metric_sums(answers, examples)
        if sums is None:
            raise NotImplementedError
        return sums.compute()

    def judge(self, answers: Sequence[Answer], examples: Any) -> list[ScoredAnswer]:
        """Return each answer with its gold answer and score; tasks that rank candidates return one entry per query."""
        raise NotImplementedError

    def gold_and_predicted(self, answers: Sequence[Answer], examples: Any) -> tuple[list[Any], list[Any]]:
        """Return two lists for custom metrics, the gold answers and the predicted answers; by default as texts."""
        judged = self.judge(answers, examples)
        return [one.expected for one in judged], [one.answer for one in judged]

    def best_options(self, answers: Sequence[Answer], examples: Any) -> dict[str, float]:
        """Return the options, such as a decision threshold, with which `answers` to held-out examples score best."""
        return {}

    def majority_answers(self, learned: Any, judged: Any) -> tuple[str, list[Answer]] | None:
        """Return a description of the majority-class baseline and its answers to the examples `judged`.

        Every answer is the most frequent gold answer among the training examples, `learned`. Return None if the task
        has no such baseline.
        """
        return None

    def simple_baselines(self, learned: Any, judged: Any) -> dict[str, list[Answer]]:
        """Return the answers of simple baselines to the examples `judged`, by the name of the baseline.

        The baselines are fitted to the examples `learned`.
        """
        return {}

    def in_context_prompt(self, rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> InContextPrompt:
        """Return the prompt format for in-context learning, given labeled examples `rows` and prompt `settings`."""
        raise NotImplementedError

    # -- demonstration ----------------------------------------------------------------------------------------------

    def demonstration(self) -> Any:
        """Return a few examples of the task, which `pretune show` displays."""
        raise NotImplementedError

    def describe_target(self, at: Array, target: Array, ids: Array, spell: Callable[[Array], str]) -> str | None:
        """Return the labels of targets, separated by commas, for `pretune show objectives`; None if there are none."""
        if not self.labels:
            return None
        numbers = target.nonzero()[1] if target.ndim > 1 else target
        return ", ".join(self.labels[int(number)] for number in numbers)
