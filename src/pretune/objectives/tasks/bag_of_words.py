"""A bag of words beside a network: TF-IDF of words and character n-grams, whose predictions are averaged with the network's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor

from pretune.objectives.task import Answer, Task
from pretune.objectives.word_baselines import join_texts, overlap_features, pair_words
from pretune.objectives.wrappers import WrappedTask
from pretune.runtime.arrays import Array, softmax
from pretune.runtime.checksummed_safetensors import read_tensors, write_tensors
from pretune.runtime.errors import PretuneError
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.sequences import Arrangement

BAG_FILE = "bag_of_words.safetensors"
Analyzer = Literal["words", "characters", "pair_words"]
KINDS = ("classes", "labels", "number")
# Punctuation counts as words, because question marks and the like are informative.
VECTORIZERS: dict[str, dict[str, Any]] = {
    "words": {"ngram_range": (1, 2), "token_pattern": r"\w+|[^\w\s]", "sublinear_tf": True},
    "characters": {"analyzer": "char_wb", "ngram_range": (2, 4), "sublinear_tf": True},
    "pair_words": {"token_pattern": r"\S+", "sublinear_tf": True, "lowercase": False},
}
OVERLAPS = 5  # features of word overlap, which pairs of texts have


@dataclass(frozen=True, eq=False)
class BagOfWords:
    """A linear model on TF-IDF features of texts and, for pairs, on the overlap of their words.

    Its predictions are averaged with those of a network. `share` is their weight in the average; with 1, the network is
    ignored. `vocabularies` and `idf` belong to the TF-IDF features of each analyzer, `weight` (features, outputs) and
    `bias` (outputs,) to the linear model; `kind` says whether the outputs are classes, labels, or a number.
    """

    vocabularies: Mapping[Analyzer, Sequence[str]]  # the n-grams of each analyzer
    idf: Mapping[Analyzer, Array]
    weight: Array  # (features, outputs)
    bias: Array  # (outputs,)
    kind: str  # of outputs: classes, labels, or number (see pretune.training.jobs.linear_models)
    share: float = 1.0

    @cached_property
    def features(self) -> Callable[[Sequence[str], Sequence[str] | None], Any]:
        """Return a function that maps texts, and the second texts of pairs, to a sparse matrix of features."""
        vectorizers = {}
        for analyzer, vocabulary in self.vocabularies.items():
            vectorizer = make_vectorizer(analyzer, vocabulary)
            vectorizer.idf_ = self.idf[analyzer]
            vectorizers[analyzer] = vectorizer
        return lambda texts, pairs: stack_features(vectorizers, texts, pairs)

    def predict(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Array:
        """Return the probabilities of all classes or labels, (texts, outputs), or the predicted numbers, (texts,)."""
        outputs = np.asarray(self.features(texts, pairs) @ self.weight) + self.bias
        if self.kind == "classes":
            return softmax(outputs)
        return 1 / (1 + np.exp(-outputs)) if self.kind == "labels" else outputs[:, 0]

    def save(self, folder: Path) -> None:
        """Write the bag of words to files in a model folder."""
        tensors = {f"{self.kind}.weight": _tensor(self.weight), f"{self.kind}.bias": _tensor(self.bias)}
        tensors["share"] = torch.tensor([self.share])
        for analyzer, vocabulary in self.vocabularies.items():
            # No n-gram contains a line break, because the analyzers split texts at white space.
            letters = np.frombuffer("\n".join(vocabulary).encode(), dtype=np.uint8)
            tensors[f"{analyzer}.vocabulary"] = torch.from_numpy(letters.copy())
            tensors[f"{analyzer}.idf"] = _tensor(self.idf[analyzer])
        write_tensors(folder / BAG_FILE, tensors)

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """Read the bag of words from a model folder; return None if the folder has none."""
        path = folder / BAG_FILE
        if not path.is_file():
            return None
        tensors = read_tensors(path)
        try:
            kind = next(kind for kind in KINDS if f"{kind}.weight" in tensors)
            known: dict[Any, Sequence[str]] = {}
            for name in get_args(Analyzer):
                if f"{name}.vocabulary" in tensors:
                    known[name] = tensors[f"{name}.vocabulary"].numpy().tobytes().decode().split("\n")
            idf = {name: tensors[f"{name}.idf"].numpy().astype(np.float64) for name in known}
            weight, bias = (tensors[f"{kind}.{part}"].numpy().astype(np.float64) for part in ("weight", "bias"))
            share = float(tensors["share"][0])
        except (StopIteration, KeyError, IndexError, UnicodeDecodeError) as error:
            raise PretuneError(
                f"{path}: this is not a bag-of-words file written by pretune; restore the original file, or train the model again"
            ) from error
        sizes = [len(known[name]) for name in known]
        fits = sizes == [len(idf[name]) for name in known] and weight.ndim == 2 and weight.shape[1] == len(bias)
        if not known or not fits or weight.shape[0] - sum(sizes) not in (0, OVERLAPS) or not 0 <= share <= 1:
            raise PretuneError(
                f"{path}: the tables in this bag-of-words file differ in size; restore the original file, or train the model again"
            )
        return cls(known, idf, weight, bias, kind, share)


def _tensor(values: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))


def make_vectorizer(analyzer: Analyzer, vocabulary: Sequence[str] | None = None, most: int | None = None) -> Any:
    """Return an unfitted scikit-learn TF-IDF vectorizer, with a fixed vocabulary or up to `most` n-grams.

    `analyzer` says what its n-grams are made of, such as words or characters.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(**VECTORIZERS[analyzer], vocabulary=vocabulary, max_features=most)


def stack_features(vectorizers: Mapping[Any, Any], texts: Sequence[str], pairs: Sequence[str] | None) -> Any:
    """Return the sparse TF-IDF features of texts, with the word overlap of pairs, (texts, features).

    `vectorizers` maps analyzers, such as words, to fitted vectorizers.
    """
    from scipy.sparse import csr_matrix, hstack

    parts = [v.transform(analyzed_texts(analyzer, texts, pairs)) for analyzer, v in vectorizers.items()]
    if pairs is not None:
        parts.append(csr_matrix(overlap_features(texts, pairs)))
    return hstack(parts).tocsr()


def analyzed_texts(analyzer: Analyzer, texts: Sequence[str], pairs: Sequence[str] | None) -> list[str]:
    """Return the text of each row as an analyzer reads it: a pair's texts are joined, or their words marked.

    >>> analyzed_texts("words", ["a man"], ["a dog"]), analyzed_texts("pair_words", ["a man"], ["a dog"])
    (['a man ¶ a dog'], ['=a +dog -man'])
    """
    if analyzer == "pair_words" and pairs is not None:
        return list(map(pair_words, texts, pairs))
    return join_texts(texts, pairs)


@dataclass(frozen=True)
class WithBagOfWords(WrappedTask):
    """A task whose predictions are averaged with those of the bag of words `bag`, which have the weight `bag.share`."""

    task: Task
    bag: BagOfWords

    def answers(self, outputs: Sequence[Array], arrangement: Arrangement, examples: LabeledRows) -> list[Answer]:
        """Return one answer per example, averaged over the predictions of the network and of the bag of words.

        `outputs` are the outputs of the network.
        """
        given = self.task.answers(outputs, arrangement, examples)
        return blend_answers(self.task, given, self.bag.predict(examples.texts, examples.pairs), self.bag.share)


def blend_answers(task: Any, answers: Sequence[Answer], predicted: Array, share: float) -> list[Answer]:
    """Return answers averaged with the predictions of a bag of words, which have the weight `share`.

    `answers` are those of the network; `predicted` has probabilities (answers, classes) or numbers (answers,).
    """
    if not task.labels:
        return [
            {**answer, "value": (1 - share) * answer["value"] + share * float(value)}
            for answer, value in zip(answers, predicted, strict=True)
        ]
    own = np.array([[answer["probabilities"][label] for label in task.labels] for answer in answers])
    return [task.unwrapped.answer_from(row) for row in (1 - share) * own + share * predicted]
