"""Estimators for scikit-learn: a text classifier, a text regressor, and a transformer of texts to embeddings.

They work in pipelines, cross-validation, and grid search. A fitted estimator holds the files of its model folder
(safetensors and JSON) as bytes, so that pickle and joblib store no code of the model; `save` and `load` do without
pickle.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

from pretune.models.name_resolution import find_folder
from pretune.models.open_model import OpenModel
from pretune.runtime.arrays import Array, softmax
from pretune.runtime.atomic_io import write_bytes, write_json
from pretune.runtime.errors import PretuneError
from pretune.runtime.output_paths import check_new_folder
from pretune.runtime.parsing import read_mapping
from pretune.runtime.progress import PROGRESS

DEFAULT_MODEL = "pretune-small-en"
ESTIMATOR = "estimator.json"  # parameters and fitted attributes of a saved estimator
IN_MEMORY = "X"  # stands for the training file


class FittedModel:
    """The files of a fine-tuned model, as bytes by file name, and the model itself, which is loaded at first use."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files

    @classmethod
    def read(cls, folder: Path) -> FittedModel:
        """Read a fine-tuned model from a folder: the content of its files, and the loaded model."""
        from pretune.inference.predict import load_task_model

        model, task = load_task_model(folder)
        with TemporaryDirectory() as clean:  # without the records of the training run
            model.save(clean)
            fitted = cls({path.name: path.read_bytes() for path in sorted(Path(clean).iterdir())})
        fitted.loaded = (model, task)
        return fitted

    @cached_property
    def loaded(self) -> tuple[Any, Any]:
        """The model and the task it was trained for."""
        from pretune.inference.predict import load_task_model

        with TemporaryDirectory() as folder:
            self.write(Path(folder))
            return load_task_model(folder)

    def write(self, folder: Path) -> None:
        """Write the files of the fine-tuned model to a folder."""
        for name, content in self.files.items():
            write_bytes(folder / name, content)

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self.files}


class TextEstimator(BaseEstimator):  # type: ignore[misc]
    """The base class of estimators that fine-tune a model on texts and targets."""

    objective: ClassVar[str]  # the task, as in `pretune finetune --objective`

    def __init__(
        self,
        model: str | os.PathLike[str] = DEFAULT_MODEL,
        *,
        epochs: float | None = None,
        max_steps: int | None = None,
        learning_rate: float | None = None,
        batch_size: int | None = None,
        max_length: int | None = None,
        strategy: str = "full",
        pooling: str | None = None,
        seed: int = 0,
        device: str | None = None,
        verbose: bool = False,
    ) -> None:
        self.model = model
        self.epochs = epochs
        self.max_steps = max_steps
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_length = max_length
        self.strategy = strategy
        self.pooling = pooling
        self.seed = seed
        self.device = device
        self.verbose = verbose

    def _finetune(self, texts: list[str], pairs: list[str] | None, labels: Sequence[Any]) -> None:
        """Fine-tune the model on all texts (or pairs of texts, with `pairs`) and labels, without held-out examples.

        scikit-learn's own tools, such as `cross_val_score`, hold examples out.
        """
        from pretune.text.examples.labeled import LabeledRows
        from pretune.training.jobs.finetuning import (
            TaskData,
            find_task,
            finetune,
            requested_objectives,
            resolve_finetuning,
            with_model_pooling,
        )
        from pretune.training.recipe_sections import Batching, Budget, Optimizer

        columns = {"text": "text", "label": "y", **({} if pairs is None else {"pair": "pair"})}
        rows = LabeledRows(Path(IN_MEMORY), columns, texts, pairs, list(labels))
        with TemporaryDirectory() as folder, progress_output(self.verbose):
            plan = resolve_finetuning(
                os.fspath(self.model),
                {
                    "train": IN_MEMORY,
                    "out": Path(folder) / "run",
                    "objective": describe_task(self.objective, self._task_options()),
                    "strategy": self.strategy,
                    "epochs": self.epochs,
                    "budget": None if self.max_steps is None else Budget(steps=self.max_steps),
                    "optimizer": Optimizer(lr=self.learning_rate),
                    "batch": Batching(size=self.batch_size, max_length=self.max_length),
                    "seed": self.seed,
                    "device": self.device,
                },
            )
            mixture = requested_objectives(plan, plan.objective)
            unfitted = find_task(mixture)
            task = with_model_pooling(plan, plan.objective, unfitted).fit(rows)
            run = finetune(plan, TaskData(mixture.with_part(task), unfitted, task, rows, None, []))
            self._fitted = FittedModel.read(run.folder)

    def _texts(self, X: Any, *, reset: bool) -> tuple[list[str], list[str] | None]:  # noqa: N803
        """Return the texts in X and, for pairs of texts, the second texts (otherwise None).

        With `reset`, in `fit`, the number of columns is recorded; otherwise it must be the recorded one.
        """
        texts, pairs = split_columns(X)
        columns = 1 if pairs is None else 2
        if reset:
            self.n_features_in_ = columns
        elif columns != self.n_features_in_:
            raise ValueError(
                f"X has {columns} features, but {type(self).__name__} is expecting {self.n_features_in_} features as input"
                "; give as many columns as in fit"
            )
        return texts, pairs

    def _task_options(self) -> dict[str, str | None]:
        """Return the task options that this estimator's parameters set, by name; None means the default."""
        return {"pooling": self.pooling}

    def _outputs(self, X: Any) -> Array:  # noqa: N803
        """Return the outputs of the model's head for the n texts or pairs of texts in X, (n, …)."""
        from pretune.inference.predict import Predictor, read_excerpt, texts_as_excerpt
        from pretune.runtime.devices import choose_device

        check_is_fitted(self)
        texts, pairs = self._texts(X, reset=False)
        model, task = self._fitted.loaded
        part = texts_as_excerpt(texts, pairs)
        with progress_output(self.verbose):
            examples = read_excerpt(task, part, {name: name for name in part.first})
            length = None if self.max_length is None else min(self.max_length, model.longest or self.max_length)
            predictor = Predictor(model, task, examples, length).report_truncated()
            return np.stack(predictor.outputs(choose_device(self.device)))

    def _attributes(self) -> dict[str, Any]:
        """Return the attributes that `fit` set, such as n_features_in_, as JSON values by name."""
        return {"n_features_in_": self.n_features_in_}

    def _restore(self, attributes: dict[str, Any]) -> None:
        """Set the attributes of a fitted estimator, such as n_features_in_, from JSON values by name."""
        self.n_features_in_ = int(attributes["n_features_in_"])

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to a new folder, without pickle; it is also a model folder for `pretune predict`.

        >>> PretuneClassifier().fit(texts, labels).save("my-model")  # doctest: +SKIP
        """
        check_is_fitted(self)
        path = Path(folder)
        check_new_folder(path, None)
        content = {
            "estimator": type(self).__name__,
            "parameters": {**self.get_params(deep=False), "model": os.fspath(self.model)},
            "attributes": self._attributes(),
        }
        self._fitted.write(path)
        write_json(path / ESTIMATOR, content)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Return the fitted estimator that `save` has written to a folder.

        >>> PretuneClassifier.load("my-model").predict(["a delightful film"])  # doctest: +SKIP
        """
        path = Path(folder)
        if not (path / ESTIMATOR).is_file():
            raise PretuneError(f"{path}: this folder has no saved estimator ({ESTIMATOR}); write it with save(folder)")
        content = read_mapping(path / ESTIMATOR, "a saved estimator")
        if content.get("estimator") != cls.__name__:
            kind = content.get("estimator")
            raise PretuneError(f"{path}: this folder has a {kind}, not a {cls.__name__}; load it with {kind}.load")
        try:
            estimator = cls(**content["parameters"])
            estimator._restore(content["attributes"])
        except (KeyError, TypeError, ValueError) as error:
            raise PretuneError(
                f"{path / ESTIMATOR}: the file is damaged ({error}); save the estimator again"
            ) from error
        files = (file for file in sorted(path.iterdir()) if file.is_file() and file.name != ESTIMATOR)
        estimator._fitted = FittedModel({file.name: file.read_bytes() for file in files})
        return estimator

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_fitted")

    def __sklearn_tags__(self) -> Any:
        return text_tags(super().__sklearn_tags__())


class PretuneClassifier(ClassifierMixin, TextEstimator):  # type: ignore[misc]
    """A text classifier for scikit-learn that fine-tunes a pretrained model.

    X is a list, array, or Series of texts, or has two columns for pairs of texts; y has one label per text. All
    examples are used for training. The estimator pickles as the bytes of its model files; `save` and `load` do without
    pickle.

    Parameters
    ----------
    model
        Run folder, model folder, or name of a bundled model to fine-tune.
    epochs
        Passes over the training data; by default 3, or more for few examples, for at least 200 steps.
    max_steps
        Number of training steps instead of `epochs`.
    learning_rate
        Peak learning rate; by default that of the model's own recipe, or else one that suits its size.
    batch_size
        Number of texts per training step; by default 16 for fewer than 2,000 texts, otherwise 32.
    max_length
        Maximum number of tokens of a text; longer texts are truncated. 128 by default.
    strategy
        Which parameters are trained: full, frozen, top(4), gradual, or lora(8).
    pooling
        How the hidden states of a text become one vector: cls, mean, …; by default as usual for the model.
    class_weight
        "balanced" gives all classes the same total weight in the loss; None weights all examples equally.
    seed
        Random seed.
    device
        Device to run on, cpu or cuda; a GPU is used by default if there is one.
    verbose
        Whether to show progress and notes on stderr.

    Attributes
    ----------
    classes_
        The labels, sorted, in the order of the columns of `predict_proba`.
    n_features_in_
        The number of columns of text: 1, or 2 for pairs.

    Examples
    --------
    >>> from sklearn.model_selection import cross_val_score
    >>> cross_val_score(PretuneClassifier(learning_rate=3e-4, pooling="mean"), texts, labels, cv=3)  # doctest: +SKIP
    """

    objective: ClassVar[str] = "classify"

    def __init__(
        self,
        model: str | os.PathLike[str] = DEFAULT_MODEL,
        *,
        epochs: float | None = None,
        max_steps: int | None = None,
        learning_rate: float | None = None,
        batch_size: int | None = None,
        max_length: int | None = None,
        strategy: str = "full",
        pooling: str | None = None,
        class_weight: str | None = None,
        seed: int = 0,
        device: str | None = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            model,
            epochs=epochs,
            max_steps=max_steps,
            learning_rate=learning_rate,
            batch_size=batch_size,
            max_length=max_length,
            strategy=strategy,
            pooling=pooling,
            seed=seed,
            device=device,
            verbose=verbose,
        )
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Fine-tune the model on texts X, or pairs of texts, with labels y.

        >>> PretuneClassifier(max_steps=1).fit(["good", "bad"], [1, 0]).classes_
        array([0, 1])
        """
        texts, pairs = self._texts(X, reset=True)
        labels = check_targets(texts, y, self)
        self.classes_, found = distinct_labels(labels)
        if len(self.classes_) < 2:
            raise ValueError(f"y has only one class, {self.classes_[0]!r}; a classifier needs examples of two classes")
        names = label_names(self.classes_)
        self._finetune(texts, pairs, [names[index] for index in found])
        return self

    def _task_options(self) -> dict[str, str | None]:
        if self.class_weight not in (None, "balanced"):
            raise ValueError(f"class_weight={self.class_weight!r} is not supported; choose 'balanced' or None")
        return {**super()._task_options(), "class_weight": self.class_weight}

    def _logits(self, X: Any) -> Array:  # noqa: N803
        """Return the logits of the n texts in X, (n, classes), with columns in the order of `classes_`."""
        outputs = self._outputs(X).astype(np.float64)
        order = {name: column for column, name in enumerate(self._fitted.loaded[1].labels)}
        return outputs[:, [order[name] for name in label_names(self.classes_)]]

    def decision_function(self, X: Any) -> Array:  # noqa: N803
        """Return the logits of n texts, (n, classes), or, for two classes, the second minus the first, (n,).

        This is the convention of scikit-learn.
        """
        logits = self._logits(X)
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """Return the probability of each class of `classes_`, (n, classes)."""
        return softmax(self._logits(X))

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return the most probable label of each text, (n,)."""
        best = self._logits(X).argmax(1)
        return self.classes_[best]

    def _attributes(self) -> dict[str, Any]:
        labels = self.classes_.tolist()
        if not all(isinstance(label, str | int | float | bool) for label in labels):
            raise PretuneError(
                "labels other than texts and numbers cannot be written to a folder; convert y to texts, or use joblib.dump"
            )
        return {**super()._attributes(), "classes_": labels, "dtype": self.classes_.dtype.str}

    def _restore(self, attributes: dict[str, Any]) -> None:
        super()._restore(attributes)
        self.classes_ = np.array(attributes["classes_"], dtype=np.dtype(attributes["dtype"]))


class PretuneRegressor(RegressorMixin, TextEstimator):  # type: ignore[misc]
    """A regressor for scikit-learn that fine-tunes a pretrained model to predict numbers from texts.

    X is a list, array, or Series of texts, or has two columns for pairs of texts; y has one number per text. The
    parameters are those of `PretuneClassifier`, except `class_weight`.

    Examples
    --------
    >>> PretuneRegressor(epochs=10).fit(texts, scores).predict(other_texts)  # doctest: +SKIP
    """

    objective: ClassVar[str] = "regress"

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Fine-tune the model on texts X, or pairs of texts, with numbers y.

        >>> PretuneRegressor(max_steps=1).fit(["good", "bad"], [1.0, 0.0]).n_features_in_
        1
        """
        texts, pairs = self._texts(X, reset=True)
        numbers = np.asarray(check_targets(texts, y, self), dtype=np.float64)
        if not np.isfinite(numbers).all():
            raise ValueError("Input y contains NaN or infinity; remove the examples whose y is not a finite number")
        if np.ptp(numbers) == 0:
            raise ValueError(
                f"all numbers in y are {numbers[0]:g} (n_samples={len(numbers)}), so there is nothing to learn; give "
                "examples with different numbers"
            )
        self._finetune(texts, pairs, numbers.tolist())
        return self

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return the predicted number of each text, (n,)."""
        return self._outputs(X).astype(np.float64)


class PretuneEmbedder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A transformer for scikit-learn that turns each text into its embedding by a pretrained model.

    X is a list, array, or Series of texts. Nothing is trained: `fit` only checks the model, and the state of the
    estimator is its parameters, so that the model must exist where the estimator is used.

    Parameters
    ----------
    model
        Run folder, model folder, or name of a bundled model.
    pooling
        Pooling to use instead of the model's own, which is mean unless it was trained with another: mean, max, cls, last, …
    layer
        Layer to pool: 0 for the token embeddings, -1 for the top layer.
    prompt
        Prompt to prepend to each text, instead of the model's default prompt.
    prompt_name
        Name of the model's prompt to prepend to each text, such as query.
    verbose
        Whether to show notes on stderr.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> pipeline = make_pipeline(PretuneEmbedder(), LogisticRegression())
    >>> pipeline.fit(["good film", "bad film"], [1, 0]).predict(["good film"])
    array([1])
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = DEFAULT_MODEL,
        *,
        pooling: str | None = None,
        layer: int = -1,
        prompt: str | None = None,
        prompt_name: str | None = None,
        verbose: bool = False,
    ) -> None:
        self.model = model
        self.pooling = pooling
        self.layer = layer
        self.prompt = prompt
        self.prompt_name = prompt_name
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: N803
        """Check that the model can embed the texts X, and find the width of its embeddings; y is not used.

        >>> len(PretuneEmbedder().fit(["good film"]).get_feature_names_out())
        256
        """
        self._n_features_out = self._embed(self._texts(X, reset=True)[:1]).shape[1]
        return self

    def transform(self, X: Any) -> Array:  # noqa: N803
        """Return the embedding of each text, (n, width).

        >>> PretuneEmbedder().transform(["good film", "bad film"]).shape
        (2, 256)
        """
        return self._embed(self._texts(X, reset=False))

    def _texts(self, X: Any, *, reset: bool) -> list[str]:  # noqa: N803
        """Return the texts in X; with `reset`, in `fit`, record that there is one column of input."""
        texts, pairs = split_columns(X)
        if pairs is not None:
            raise ValueError("X has 2 features, but embeddings are of single texts; give one column of texts")
        if reset:
            self.n_features_in_ = 1
        return texts

    def _embed(self, texts: list[str]) -> Array:
        from pretune.inference.embed import embed_texts

        with progress_output(self.verbose):
            return embed_texts(
                keep_open(os.fspath(self.model)),
                texts,
                self.pooling,
                self.layer,
                prompt=self.prompt,
                prompt_name=self.prompt_name,
            )

    def __sklearn_tags__(self) -> Any:
        tags = text_tags(super().__sklearn_tags__())
        tags.requires_fit = False
        tags.transformer_tags.preserves_dtype = []  # always float32
        return tags


def keep_open(model: str) -> OpenModel:
    """Open the model of a path or name, and cache it until another one is requested or its files change."""
    return _open(model, max(file.stat().st_mtime_ns for file in find_folder(model).iterdir()))


@lru_cache(maxsize=1)
def _open(model: str, changed: int) -> OpenModel:
    return OpenModel(model)


def describe_task(name: str, options: Mapping[str, str | None]) -> str:
    """Return a task and its options that are not None as text for `pretune finetune --objective`.

    >>> describe_task("classify", {"pooling": "mean", "class_weight": None})
    'classify(pooling=mean)'
    """
    given = ",".join(f"{option}={value}" for option, value in options.items() if value is not None)
    return f"{name}({given})" if given else name


def text_tags(tags: Any) -> Any:
    """Return scikit-learn's tags of an estimator, changed to say that its input is text and not a matrix of numbers."""
    tags.input_tags.string = True
    tags.input_tags.one_d_array = True
    tags.input_tags.two_d_array = False
    return tags


def split_columns(X: Any) -> tuple[list[str], list[str] | None]:  # noqa: N803
    """Return the texts in X and, if it has two columns, the second texts; raise an error if X is anything else.

    >>> split_columns(["a", "b"])
    (['a', 'b'], None)
    >>> split_columns([("a", "b")])
    (['a'], ['b'])
    """
    if isinstance(X, str):
        raise ValueError("X is a single text; give a list with this text: [text]")
    cells = np.asarray(X, dtype=object)
    if cells.ndim == 0:
        raise TypeError(f"X is a {type(X).__name__}; give a list, array, or Series of texts")
    if cells.ndim > 2 or (cells.ndim == 2 and cells.shape[1] not in (1, 2)):
        raise ValueError(f"X has the shape {cells.shape}; give one column of texts, or two for pairs of texts")
    if not len(cells):
        raise ValueError("Found array with 0 sample(s) in X, while a minimum of 1 is required; give at least one text")
    columns = cells.reshape(len(cells), -1)
    for row, texts in enumerate(columns):
        for text in texts:
            if not isinstance(text, str):
                raise ValueError(
                    f"row {row} of X has a {type(text).__name__}, not a text; convert it to a text, and replace missing texts with ''"
                )
    first, *second = ([str(text) for text in column] for column in columns.T)
    return first, second[0] if second else None


def check_targets(texts: list[str], y: Any, estimator: Any) -> Array:
    """Return the targets as an array, (n,); raise an error if there is not one per text."""
    if y is None:
        raise ValueError(f"{type(estimator).__name__} requires y to be passed, but the target y is None; give targets")
    targets: Array = column_or_1d(y, warn=True)
    check_consistent_length(texts, targets)
    return targets


def distinct_labels(labels: Array) -> tuple[Array, Array]:
    """Return the distinct labels, sorted if possible, and for each label its index among them, (n,)."""
    if labels.dtype != object or all(isinstance(label, str) for label in labels):
        check_classification_targets(labels)
        return np.unique(labels, return_inverse=True)
    known = {label: index for index, label in enumerate(dict.fromkeys(labels.tolist()))}
    classes = np.empty(len(known), dtype=object)
    classes[:] = list(known)
    return classes, np.array([known[label] for label in labels.tolist()])


def label_names(classes: Array) -> list[str]:
    """Return a distinct text for each class: its label or, if labels give equal or empty texts, its index.

    >>> label_names(np.array(["no", "yes"])), label_names(np.array([1, "1"], dtype=object))
    (['no', 'yes'], ['0', '1'])
    """
    names = [str(label) for label in classes.tolist()]
    valid = len({name.strip() for name in names}) == len(names) and all(name.strip() for name in names)
    return names if valid else list(map(str, range(len(names))))


@contextmanager
def progress_output(wanted: bool) -> Iterator[None]:
    """Turn off progress output inside the `with` block, unless `wanted` is true."""
    before = os.environ.get(PROGRESS)
    if not wanted:
        os.environ[PROGRESS] = "none"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(PROGRESS, None)
        else:
            os.environ[PROGRESS] = before
