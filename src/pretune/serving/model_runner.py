"""A model in a worker process with all the operations that it can do."""

from __future__ import annotations

import traceback
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pretune.inference.hidden_states import reading_network
from pretune.models.checkpoint_heads import stored_objectives
from pretune.models.engines import Engine, open_with_engine
from pretune.models.open_model import OpenModel
from pretune.objectives import Task
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import log_info
from pretune.serving.operations import LOADERS, TRIALS, Item, Operation, Stream, load_generate
from pretune.text.tokenizers.tokenizer import Tokenizer

# A sentence in each language of the page's examples, and the largest number of tokens per character in a language that a
# tokenizer was trained on; in another script, it needs about one token per letter, or two.
SENTENCES = {"en": "She wrote a letter to her brother yesterday.", "ru": "Вчера она написала письмо своему брату."}
MOST_TOKENS = 0.5
CAPABILITIES = ("predict", "tag", "answer", "fill", "embed", "generate", "translate", "neighbors", "attention")


def example_languages(tokenizer: Tokenizer) -> list[str]:
    """Return the languages of the page's examples that a tokenizer was trained on, judging by the tokens of a sentence."""
    unknown, found = tokenizer.roles.get("unknown"), []
    for language, sentence in SENTENCES.items():
        ids = tokenizer.encode(sentence)
        if unknown not in ids and len(ids) <= MOST_TOKENS * len(sentence):
            found.append(language)
    return found


class ModelRunner:
    """A loaded model in a worker process, with the operations that it can do, such as predict or embed."""

    def __init__(self, reference: str, name: str, engine: Engine = "torch") -> None:
        """Load a model folder, to compute with an engine, and try each of its operations once.

        `name` is the name of the model in requests.
        """
        self.opened, self.name = OpenModel(reference), name
        self.opened.warm_up()  # errors of the files are raised at once
        self.engine = open_with_engine(self.opened, engine)
        self.core = self.opened.core
        self.operations: dict[str, Operation] = {}
        self.stream: Stream | None = None
        for operation, load in LOADERS.items():
            with suppress(PretuneError):
                self.operations[operation] = load(self.opened)
        with suppress(PretuneError):
            self.operations["generate"], self.stream = load_generate(self.opened)
        self.heads: int | None = None  # per layer
        for operation, (item, options) in TRIALS.items():
            if operation in self.operations:
                self._try(operation, item, options)
        if "embed" not in self.operations or self.core.family.template.target:
            self.operations.pop("neighbors", None)
        if not self.operations:
            raise PretuneError(
                f"{reference}: the model can do nothing for the server, because it has no head and no embeddings; fine-tune it first"
            )

    def _try(self, operation: str, item: Item, options: Mapping[str, Any]) -> None:
        """Run an operation on one example; if the model cannot do it after all, remove the operation."""
        try:
            (result,) = self.operations[operation]([item], options)
        except PretuneError:
            del self.operations[operation]
        else:
            if operation == "attention":
                self.heads = len(result["attention"][0])

    def facts(self) -> dict[str, Any]:
        """Return the description of the model that the server shows its clients."""
        mixture = stored_objectives(self.opened)
        tasks = [part for part in (mixture.objectives if mixture else ()) if isinstance(part, Task)]
        network = reading_network(self.core)
        return {
            "family": self.core.family.name,
            "parameters": sum(tensor.numel() for tensor in self.core.root.tensors().values()),
            "capabilities": [name for name in CAPABILITIES if name in self.operations],
            "labels": list(tasks[0].labels) if tasks and tasks[0].labels else None,
            "task": tasks[0].kind if tasks else None,
            "max_length": self.core.longest,
            "example_languages": example_languages(self.core.require_tokenizer()),
            "layers": network.depth,
            "heads": self.heads,
            "pair": "predict" in self.operations and bool(self.core.family.template.pair),
            "mask_token": "[MASK]" if "fill" in self.operations else None,
        }

    def compute(self, operation: str, items: Sequence[Item], options: Mapping[str, Any]) -> list[Any]:
        """Return the result of an operation for each item of a batch.

        The result of an invalid item is its error, and the other items are not affected by it.
        """
        try:
            return self.operations[operation](items, options)
        except Exception as error:  # a worker must not end with a bad text
            if len(items) == 1:
                return [error]
            half = len(items) // 2
            return self.compute(operation, items[:half], options) + self.compute(operation, items[half:], options)

    def start_stream(self, item: Item, options: Mapping[str, Any]) -> Generator[str, None, dict[str, Any]]:
        """Return a generator that yields the pieces of a generated text, and returns the complete result."""
        assert self.stream is not None
        return self.stream(item, options)

    def describe_error(self, error: Exception) -> tuple[int, str]:
        """Return the HTTP status and the message for an error; the details of an unexpected error are only logged."""
        if isinstance(error, PretuneError):
            return 422, str(error).replace(str(self.opened.folder), self.name).replace(str(self.opened), self.name)
        log_info(f"{self.name}: {''.join(traceback.format_exception(error))}")
        return 500, "the server failed to compute the result; its log has the details"
