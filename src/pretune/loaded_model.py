"""The loaded model, which `pretune.load` returns: a model in memory with methods to use, fine-tune, and export it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol, overload, runtime_checkable

import numpy as np

from pretune.backbones.onnx_runtime import OnnxBackbone
from pretune.inference.hidden_states import States, compute_states
from pretune.models.hf_config import DEFAULT_MAX_LENGTH
from pretune.models.length_bucketing import arrange_texts
from pretune.models.open_model import ModelHandle, OpenModel
from pretune.runtime.errors import PretuneError, quote
from pretune.runtime.notebook import as_html
from pretune.text.examples.labeled import FORMATS as TABLE_FORMATS
from pretune.text.examples.text_files import FORMATS as TEXT_FORMATS
from pretune.training.run_folder import Run
from pretune.verbs.inference.ask import ask
from pretune.verbs.inference.embed import embed
from pretune.verbs.inference.fill import fill
from pretune.verbs.inference.generate import generate
from pretune.verbs.inference.predict import predict
from pretune.verbs.inference.search import search
from pretune.verbs.models.export import export
from pretune.verbs.results import ResultSummary, ResultTable
from pretune.verbs.shared_inputs import split_files
from pretune.verbs.training.adapt import adapt
from pretune.verbs.training.finetune import finetune

if TYPE_CHECKING:
    from pretune.models.model import Model
    from pretune.runtime.arrays import Array
    from pretune.text.tokenizers.tokenizer import Tokenizer
    from pretune.training.jobs.adapting import AdaptationResult

MAX_LABELS = 8  # labels that `repr` lists


@dataclass(frozen=True)
class TokenizedText:
    """A text as a model reads it: its token ids, special tokens included, and the tokens as strings."""

    text: str
    ids: list[int]
    tokens: list[str]

    def __len__(self) -> int:
        return len(self.ids)


def load(model: str | Path | ModelHandle, *, ignore_mismatched: bool = False) -> LoadedModel:
    """Load a model into memory: a run, a bundled model, or a folder in the Hugging Face layout.

    Weights are model.safetensors or pytorch_model.bin, in one file or in shards; a pickle is read only if it holds
    nothing but tensors. Unknown keys of config.json and unknown tensors are an error, since they may change the output.

    Parameters
    ----------
    model
        Run folder, model folder, or name of a bundled model; or a run.
    ignore_mismatched
        Skip unknown keys and tensors, and initialize missing and misshapen tensors randomly, instead of an error.

    Examples
    --------
    >>> model = load("pretune-small-en")
    >>> model.fill("Paris is the [MASK] of France.")["filled"]
    'paris is the capital of france .'
    >>> model.embed(["one text", "another one"]).shape
    (2, 256)
    """
    if isinstance(model, ModelHandle):
        opened = model.open_model
        opened.ignore_mismatched = opened.ignore_mismatched or ignore_mismatched
    elif isinstance(model, str | os.PathLike):
        opened = OpenModel(model, ignore_mismatched=ignore_mismatched)
    else:
        raise PretuneError(
            f"a model is loaded from a folder, a name, or a run, but {quote(model)} is of type {type(model).__name__}; "
            "give the path or the name of a model"
        )
    return LoadedModel(opened)


class LoadedModel(ModelHandle):
    """A model in memory, with methods to use, fine-tune, and export it; `pretune.load` returns one.

    All commands accept it in place of a model's path. Methods take a list of texts, or a single text, for which they
    return a single result.

    >>> import pretune as pt
    >>> model = pt.load("pretune-small-en")
    >>> model.family, model.num_parameters
    ('modernbert', 11818496)
    >>> model.tokenize("It rains.").tokens
    ['[CLS]', 'it', 'rain', '##s', '.', '[SEP]']
    """

    def __init__(self, opened: OpenModel) -> None:
        """Create a loaded model from an opened model folder, and read its weights at once."""
        self._opened = opened
        self.core  # noqa: B018  (errors of the files are raised at once)

    @property
    def open_model(self) -> OpenModel:
        """The `OpenModel` behind this object, which functions of `pretune.inference` accept in place of a path."""
        return self._opened

    @property
    def reference(self) -> str:
        """The path of the model, or its name if it is a bundled model."""
        return self._opened.reference

    @property
    def folder(self) -> Path:
        """The folder of the model's files."""
        return self._opened.folder

    def __fspath__(self) -> str:
        return os.fspath(self._opened)

    @property
    def core(self) -> Model:
        """The low-level model: the PyTorch network (`core.root`) with its configuration and tokenizer."""
        return self._opened.core

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""
        return self.core.require_tokenizer()

    @property
    def config(self) -> Any:
        """The configuration of the architecture, with the names of config.json."""
        return self.core.config

    @property
    def family(self) -> str:
        """The name of the model family, such as bert or gpt2."""
        return self.core.family.name

    @property
    def objective(self) -> str:
        """The objectives or tasks for which the model has trained heads, such as mlm or classify, joined with +."""
        return "+".join(self.core.root.heads)

    @property
    def labels(self) -> list[str]:
        """The class names of a classifier, in the order of its outputs; empty for other models."""
        return list(self.core.labels)

    @property
    def num_parameters(self) -> int:
        """The number of parameters, including those of the heads and quantized ones."""
        backbone = self.core.backbone
        in_graph = backbone.plan[0].parameters() if isinstance(backbone, OnnxBackbone) else ()
        return sum(tensor.numel() for tensor in (*self.core.root.tensors().values(), *in_graph))

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}={value}" for name, value in self._facts().items())
        return f"LoadedModel({self.reference!r}, {facts})"

    def _repr_html_(self) -> str:
        """Return the name and the main properties of the model as HTML, for notebooks."""
        return as_html([{"": name, "value": text} for name, text in self._facts().items()], self.reference)

    def _facts(self) -> dict[str, str]:
        """Return the main properties of the model as texts by name."""
        facts = {"family": self.family, "parameters": f"{self.num_parameters:,}", "heads": self.objective or "none"}
        if labels := self.labels:
            facts["labels"] = ", ".join(labels[:MAX_LABELS]) + (", …" if len(labels) > MAX_LABELS else "")
        return facts

    # -- inference --------------------------------------------------------------------------------------------------

    @overload
    def fill(self, texts: str, top_k: int = 5) -> dict[str, Any]: ...  # type: ignore[overload-overlap]

    @overload
    def fill(self, texts: Sequence[str], top_k: int = 5) -> ResultTable: ...

    def fill(self, texts: str | Sequence[str], top_k: int = 5) -> dict[str, Any] | ResultTable:
        """Predict the words at [MASK] tokens with a masked language model.

        A list of texts gives the table of `pretune.fill`, with one row per [MASK]. A single text gives a dictionary:
        `filled` is the text with all masks filled, and `gaps` has the candidates of each mask.

        Parameters
        ----------
        texts
            Texts with one or more [MASK] tokens, or a single text.
        top_k
            Number of most likely candidates for each [MASK].

        Examples
        --------
        >>> load("pretune-small-en").fill("Paris is the [MASK] of France.")["gaps"][0][0]["token"]
        'capital'
        """
        given = check_texts(texts)
        if not given:
            return ResultTable("fills", [])
        rows = fill(self, given, top_k=top_k, ignore_mismatched=self._opened.ignore_mismatched)
        if not isinstance(texts, str):
            return rows
        return {"text": texts, "gaps": [row["candidates"] for row in rows], "filled": rows[0]["filled"]}

    def embed(
        self,
        texts: Any,
        *,
        text: str | None = None,
        pooling: str | None = None,
        layer: int = -1,
        prompt: str | None = None,
        prompt_name: str | None = None,
        language: str | None = None,
    ) -> Array:
        """Compute an embedding for each text, as an array (n, width) in order; of a single text, (width,).

        Parameters
        ----------
        texts
            Texts to embed, a single text, or files of texts.
        text
            Column with the text in files.
        pooling
            Pooling to use instead of the model's own, such as mean, cls, max, or last.
        layer
            Layer to pool: 0 for the token embeddings, -1 for the top layer.
        prompt
            Prompt to prepend to each text, instead of the model's default prompt.
        prompt_name
            Name of the model's prompt to prepend to each text, such as query.
        language
            Language of the texts, for a model with language embeddings (XLM).

        Examples
        --------
        >>> load("pretune-small-en").embed(["one text", "another one"]).shape
        (2, 256)
        """
        from pretune.inference.embed import embed_texts

        lenient = self._opened.ignore_mismatched
        if is_empty(texts):
            one = self.embed(
                ["a"], pooling=pooling, layer=layer, prompt=prompt, prompt_name=prompt_name, language=language
            )
            return one[:0]
        if names_data(texts, TEXT_FORMATS):
            rows = embed(
                self, texts, text=text, pooling=pooling, layer=layer, prompt=prompt, prompt_name=prompt_name,
                language=language, ignore_mismatched=lenient,
            )  # fmt: skip
            return np.array([row["vector"] for row in rows], dtype=np.float32)
        if text is not None:
            raise PretuneError(
                "text= names the column of a file or table, but the inputs are texts; call this method without text="
            )
        vectors = embed_texts(self._opened, check_texts(texts), pooling, layer, lenient, prompt, prompt_name, language)
        return vectors[0] if isinstance(texts, str) else vectors

    def search(
        self,
        query: str | Sequence[str],
        texts: Any,
        top_k: int = 5,
        *,
        text: str | None = None,
        pooling: str | None = None,
    ) -> ResultTable:
        """Find the texts whose embeddings are most similar to the embedding of a query, best first.

        Each row has the rank, the similarity, the text, and its line in the file (for texts in memory, its position
        from 1).

        Parameters
        ----------
        query
            Text to search for, or several.
        texts
            Texts to search, a table of them, or files: .txt (one text per line), .csv, .tsv, .jsonl, or .parquet.
        top_k
            Number of texts to return for each query.
        text
            Column with the text in tables.
        pooling
            Pooling to use instead of the model's own, such as mean, cls, max, or last.

        Examples
        --------
        >>> texts = ["Where is my parcel?", "I want a refund."]
        >>> load("pretune-small-en").search("I want my money back.", texts, top_k=1)[0]["text"]
        'I want a refund.'
        """
        if is_empty(texts):
            return ResultTable("matches", [])
        return search(
            self, texts, check_texts(query), top_k=top_k, text=text, pooling=pooling,
            ignore_mismatched=self._opened.ignore_mismatched,
        )  # fmt: skip

    def predict(self, inputs: Any, **options: Any) -> dict[str, Any] | ResultTable:
        """Predict with a fine-tuned model, one prediction per text or row, in order.

        Texts, rows, and files give the table of `pretune.predict`; a single text gives one row as a dictionary.

        Parameters
        ----------
        inputs
            Texts, a single text, or rows or files in the format that the model was fine-tuned on.
        options
            Options of `pretune.predict`, such as probabilities, task, or out.

        Examples
        --------
        >>> load("runs/task").predict("a delightful film")["label"]  # doctest: +SKIP
        'positive'
        """
        if is_empty(inputs):
            from pretune.inference.predict import find_task

            find_task(self._opened, options.get("task"))  # a model without a task is an error here, too
            return ResultTable("predictions", [])
        return self._apply(predict, inputs, options)

    def generate(self, prompts: str | Sequence[str], **options: Any) -> dict[str, Any] | ResultTable:
        """Generate text from prompts with greedy decoding, sampling, or beam search.

        Parameters
        ----------
        prompts
            Texts to continue, or a single one; of an encoder-decoder, the source texts.
        options
            Options of `pretune.generate`, such as max_new_tokens, temperature, top_p, num_beams, or stop.

        Examples
        --------
        >>> load("runs/mine").generate("Once upon a time", temperature=0.8)["text"]  # doctest: +SKIP
        """
        given = check_texts(prompts)
        if not given:
            return ResultTable("texts", [])
        rows = generate(self, given, **{"ignore_mismatched": self._opened.ignore_mismatched, **options})
        return rows[0] if isinstance(prompts, str) else rows

    def ask(self, inputs: Any, **options: Any) -> dict[str, Any] | ResultTable:
        """Classify or complete texts without training, by prompting a language model with a cloze template.

        Parameters
        ----------
        inputs
            Texts, a single text, or files of texts.
        options
            Options of `pretune.ask`, such as template, answers, or examples.

        Examples
        --------
        >>> model = load("pretune-small-en")
        >>> model.ask("I loved it.", template="{text} It was [MASK].", answers=["great", "awful"])["label"]
        'great'
        """
        if is_empty(inputs):
            return ResultTable("answers", [])
        return self._apply(ask, inputs, options)

    def _apply(
        self, verb: Callable[..., ResultTable], inputs: Any, options: dict[str, Any]
    ) -> dict[str, Any] | ResultTable:
        """Run `verb` on the model and the inputs, and return its table; for a single text, return a dictionary."""
        are_data = names_data(inputs)
        if not are_data:
            check_texts(inputs)
        rows = verb(self, as_list(inputs), **{"ignore_mismatched": self._opened.ignore_mismatched, **options})
        return rows[0] if isinstance(inputs, str) and not are_data and "out" not in options else rows

    @overload
    def tokenize(self, texts: str) -> TokenizedText: ...  # type: ignore[overload-overlap]

    @overload
    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]: ...

    def tokenize(self, texts: str | Sequence[str]) -> TokenizedText | list[TokenizedText]:
        """Return the ids and tokens of each text as the model reads it: with special tokens, and truncated if too long.

        Examples
        --------
        >>> load("pretune-small-en").tokenize("It rains.").tokens
        ['[CLS]', 'it', 'rain', '##s', '.', '[SEP]']
        """
        given = check_texts(texts)
        if not given:
            return []
        sequences = arrange_texts(self.core, given, None, self.core.longest or DEFAULT_MAX_LENGTH)
        taken = sequences.take(np.arange(len(given)))
        rows = [ids.tolist() for ids in np.split(taken.ids, taken.offsets[1:-1])]
        found = [TokenizedText(text, ids, self.tokenizer.tokens(ids)) for text, ids in zip(given, rows, strict=True)]
        return found[0] if isinstance(texts, str) else found

    def __call__(self, inputs: Any, *, hidden_states: bool = False, attentions: bool = False) -> States:
        """Run the network on texts or token ids, and return its hidden states as padded tensors.

        Parameters
        ----------
        inputs
            Texts, a single text, or lists of token ids, to which no special tokens are added.
        hidden_states
            Also return the hidden states of all layers.
        attentions
            Also return the attention weights of all layers.

        Examples
        --------
        >>> states = load("pretune-small-en")(["It rains.", "Yes."], attentions=True)
        >>> states.last_hidden_state.shape, states.attentions[0].shape
        (torch.Size([2, 6, 256]), torch.Size([2, 4, 6, 6]))
        """
        given = as_list(inputs)
        if isinstance(given, str) or (isinstance(given, list) and given and isinstance(given[0], str)):
            given = check_texts(given)
        return compute_states(self.core, given, hidden_states, attentions)

    # -- training and files -----------------------------------------------------------------------------------------

    def finetune(self, train: Any, dev: Any = None, out: str | Path | None = None, **options: Any) -> Run:
        """Fine-tune a copy of the model on labeled examples, and return the run; the model itself is not changed.

        Parameters
        ----------
        train
            Labeled training examples, as `pretune.finetune` takes them.
        dev
            Labeled examples to evaluate on; by default a fifth of the training examples is held out, if there are at
            least 50.
        out
            Folder for the run; by default a temporary folder, which is deleted when the run, and models loaded from
            it, are no longer used.
        options
            Options of `pretune.finetune`, such as objective, epochs, strategy, or label.

        Examples
        --------
        >>> run = load("pretune-small-en").finetune("train.csv", dev="dev.csv", epochs=2)  # doctest: +SKIP
        >>> run.predict(["a delightful film"])[0]["label"]  # doctest: +SKIP
        'positive'
        """
        given = {"ignore_mismatched": self._opened.ignore_mismatched, **options}
        if out is not None:
            return finetune(self, train, dev=dev, out=out, **given)
        temporary = TemporaryDirectory(prefix="pretune-", ignore_cleanup_errors=True)
        run = finetune(self, train, dev=dev, out=Path(temporary.name) / "run", **given)
        return Run(run.folder, keep_alive=temporary)

    def adapt(self, data: Any, out: str | Path | None = None, **options: Any) -> AdaptationResult:
        """Continue pretraining a copy of the model on your own text; the model itself is not changed.

        The result compares both models on held-out text; its method `load` gives the adapted model.

        Parameters
        ----------
        data
            Files, folders, and glob patterns of text, or a store prepared with the model's tokenizer.
        out
            Folder for the run; by default a temporary folder, which is deleted when the result, and models loaded from
            it, are no longer used.
        options
            Options of `pretune.adapt`, such as objective, budget, or language.

        Examples
        --------
        >>> adapted = load("pretune-small-en").adapt("notes/*.txt", budget=Budget(seconds=60))  # doctest: +SKIP
        >>> run = adapted.load().finetune("train.csv")  # doctest: +SKIP
        """
        given = {"ignore_mismatched": self._opened.ignore_mismatched, **options}
        if out is not None:
            return adapt(self, data, out=out, **given)
        temporary = TemporaryDirectory(prefix="pretune-", ignore_cleanup_errors=True)
        adapted = adapt(self, data, out=Path(temporary.name) / "run", **given)
        return replace(adapted, run=Run(adapted.run.folder, keep_alive=temporary))

    def save(self, folder: str | Path) -> None:
        """Write the model to a folder, which `pretune.load` and all commands read.

        Examples
        --------
        >>> load("pretune-small-en").save("models/mine")  # doctest: +SKIP
        """
        self.core.save(folder)

    def export(self, out: str | Path, **options: Any) -> ResultSummary:
        """Write the model for other libraries: `transformers`, sentence-transformers, or ONNX Runtime.

        Parameters
        ----------
        out
            Folder to write.
        options
            Options of `pretune.export`, such as format, head, or dtype.

        Examples
        --------
        >>> load("runs/mine").export("for-others", format="onnx")  # doctest: +SKIP
        """
        return export(self, out=out, **{"ignore_mismatched": self._opened.ignore_mismatched, **options})


# -- inputs ---------------------------------------------------------------------------------------------------------


@runtime_checkable
class ArrayLike(Protocol):
    """An array, tensor, or pandas series."""

    def tolist(self) -> Any:
        """Return the elements as a list."""


def as_list(inputs: Any) -> Any:
    """Return an array, a tensor, a pandas series, or a tuple as a list, and anything else as it is."""
    if isinstance(inputs, tuple):
        return list(inputs)
    return inputs.tolist() if isinstance(inputs, ArrayLike) else inputs


def is_empty(inputs: Any) -> bool:
    """Return whether the inputs are a list, an array, or a tuple without elements."""
    return isinstance(given := as_list(inputs), list) and not given


def names_data(inputs: Any, formats: Sequence[str] = TABLE_FORMATS) -> bool:
    """Return whether the inputs are data (rows, a table, or files in one of the `formats`) rather than texts."""
    given = as_list(inputs)
    if isinstance(given, list) and not all(isinstance(item, str) for item in given):
        return all(isinstance(item, str | os.PathLike | Mapping) for item in given)
    if isinstance(given, str | list):
        return bool(split_files(given, formats)[0])
    return isinstance(given, os.PathLike | Iterable) and not isinstance(given, bytes)


def check_texts(texts: Any) -> list[str]:
    """Return texts, or a single text, as a list of texts; raise an error if one is not a string.

    >>> check_texts("one")
    ['one']
    """
    given = as_list(texts)
    if isinstance(given, str):
        return [given]
    if not isinstance(given, Sequence) or isinstance(given, bytes):
        raise PretuneError(
            f"{quote(texts)} is not a text but of type {type(texts).__name__}; give a string or a list of strings"
        )
    for place, text in enumerate(given):
        if not isinstance(text, str):
            raise PretuneError(
                f"{quote(text)}, at index {place} of the texts, is of type {type(text).__name__}, not a string; give a list of strings"
            )
    return list(given)
