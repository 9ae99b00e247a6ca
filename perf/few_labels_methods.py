"""Train the methods of the few-labels benchmark: pretune with default options beside the usual ways to use few labels.

A method takes a `Trial` and returns a function from unlabeled rows to predictions: labels, numbers, or lists of tags.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from few_labels_data import Row

Predict = Callable[[list[Row]], list[Any]]
MAX_LENGTH = 512  # tokens, the positions of both models
SEPARATOR = " [SEP] "  # joins pairs for SetFit, which reads single texts; both tokenizers have this token


@dataclass(frozen=True)
class Trial:
    """One training run: the labeled rows, the kind of task, the model, and an empty folder."""

    kind: str
    rows: list[Row]
    model: str
    seed: int
    device: str
    folder: Path
    setfit_max_steps: int = -1

    @property
    def labels(self) -> list[str]:
        """Return the classes or tags of the rows, sorted."""
        if self.kind == "tag":
            return sorted({tag for row in self.rows for tag in row["tags"]})
        return sorted({row["label"] for row in self.rows})

    @property
    def hf_folder(self) -> str:
        """Return the folder of the model's weights in the Hugging Face layout."""
        import pretune.models.bundled

        bundled = Path(pretune.models.bundled.__file__).parent / self.model
        return str(bundled if bundled.is_dir() else self.model)


def without_labels(rows: list[Row]) -> list[Row]:
    """Return the rows as they are at prediction time."""
    return [{key: value for key, value in row.items() if key not in ("label", "tags")} for row in rows]


def targets(trial: Trial) -> list[Any]:
    """Return the labels of the rows, as numbers for regression."""
    return [float(row["label"]) if trial.kind == "regress" else row["label"] for row in trial.rows]


def majority(trial: Trial) -> Predict:
    """Always predict the most frequent class, the mean, or no entity."""
    if trial.kind == "tag":
        return lambda rows: [["O"] * len(row["words"]) for row in rows]
    given = targets(trial)
    constant = float(np.mean(given)) if trial.kind == "regress" else Counter(given).most_common(1)[0][0]
    return lambda rows: [constant] * len(rows)


def ours(trial: Trial, **options: Any) -> Predict:
    """Fine-tune with pretune; nothing is set but the task, and that only where it is not classification."""
    import pretune as pt

    task = {} if trial.kind == "classify" else {"objective": trial.kind}
    train = write_rows(trial.folder / "train.jsonl", trial.rows)
    run = pt.finetune(trial.model, train, out=trial.folder / "run", **task, **options)
    column = {"classify": "label", "regress": "value", "tag": "tags"}[trial.kind]

    def predict(rows: list[Row]) -> list[Any]:
        test = write_rows(trial.folder / "test.jsonl", rows)
        return [row[column] for row in pt.predict(run.folder, test)]

    return predict


def write_rows(file: Path, rows: list[Row]) -> str:
    """Write rows as JSON lines and return the file's name."""
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(file)


def embed_lr(trial: Trial) -> Predict:
    """Train a logistic regression (ridge regression for numbers) on frozen embeddings of pretune."""
    if trial.kind == "tag":
        return fit_tag_classifier(trial, WordStates(trial))
    import pretune as pt

    model = pt.load(trial.model)

    def features(rows: list[Row]) -> Any:
        first = np.asarray(model.embed([row["text"] for row in rows]))
        if "pair" not in rows[0]:
            return first
        second = np.asarray(model.embed([row["pair"] for row in rows]))
        a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (first, second))
        return np.concatenate([a, b, abs(a - b), a * b, (a * b).sum(1, keepdims=True)], 1)

    return fit_linear(trial, features)


def tfidf_lr(trial: Trial) -> Predict:
    """Train a logistic regression (ridge regression for numbers) on TF-IDF of words and pairs of words."""
    if trial.kind == "tag":
        from sklearn.feature_extraction import DictVectorizer

        vectorizer = DictVectorizer()
        vectorizer.fit([spelling for row in trial.rows for spelling in spellings(row)])
        return fit_tag_classifier(
            trial, lambda rows: vectorizer.transform([found for row in rows for found in spellings(row)])
        )
    from scipy.sparse import csr_matrix, hstack
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    words.fit([row[role] for row in trial.rows for role in ("text", "pair") if role in row])

    def features(rows: list[Row]) -> Any:
        a = words.transform([row["text"] for row in rows])
        if "pair" not in rows[0]:
            return a
        b = words.transform([row["pair"] for row in rows])
        common = a.multiply(b)
        return hstack([a, b, abs(a - b), common, csr_matrix(common.sum(1))]).tocsr()

    return fit_linear(trial, features)


def spellings(row: Row) -> list[dict[str, Any]]:
    """Return the features of each word: itself, its ending, its capitals and digits, and its neighbors."""
    words = ["", *row["words"], ""]
    return [
        {
            "word": word.lower(),
            "ending": word[-3:].lower(),
            "title": word.istitle(),
            "upper": word.isupper(),
            "digit": any(letter.isdigit() for letter in word),
            "before": words[at - 1].lower(),
            "after": words[at + 1].lower(),
            "after title": words[at - 1].istitle(),
            "first": at == 1,
        }
        for at, word in enumerate(words[1:-1], start=1)
    ]


def fit_linear(trial: Trial, features: Callable[[list[Row]], Any]) -> Predict:
    """Fit the linear model of the task, with its regularization chosen by cross-validation."""
    from sklearn.linear_model import RidgeCV

    inputs, given = features(trial.rows), targets(trial)
    if trial.kind == "regress":
        model = RidgeCV(np.logspace(-3, 3, 13)).fit(inputs, given)
    else:
        model = fit_logistic_regression(inputs, given)
    return lambda rows: model.predict(features(rows)).tolist()


def fit_logistic_regression(inputs: Any, labels: Sequence[str]) -> Any:
    """Return a logistic regression with C chosen by cross-validation, or 1 where a class has a single row to learn from."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold

    counts = sorted(Counter(labels).values())
    if len(counts) == 1:
        from sklearn.dummy import DummyClassifier

        return DummyClassifier().fit(inputs, labels)
    plain = LogisticRegression(max_iter=2000)
    if counts[-2] < 2:  # a fold would be left with one class
        return plain.fit(inputs, labels)
    folds = StratifiedKFold(max(2, min(5, counts[-2])), shuffle=True, random_state=0)
    # The first of equally good values is taken: with few rows there are many, and the strongest would predict one class.
    search = GridSearchCV(plain, {"C": [10, 1, 100, 0.1, 1000, 0.01, 10000]}, cv=folds)
    return search.fit(inputs, labels).best_estimator_


def fit_tag_classifier(trial: Trial, features: Callable[[list[Row]], Any]) -> Predict:
    """Fit a logistic regression that predicts the tag of each word by itself."""
    model = fit_logistic_regression(features(trial.rows), [tag for row in trial.rows for tag in row["tags"]])

    def predict(rows: list[Row]) -> list[Any]:
        found = iter(model.predict(features(rows)).tolist())
        return [[next(found) for _ in row["words"]] for row in rows]

    return predict


class WordStates:
    """Frozen hidden states of words: the mean over the tokens of a word, in the last layer."""

    def __init__(self, trial: Trial) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer

        self.device = trial.device
        self.tokenizer: Any = AutoTokenizer.from_pretrained(trial.hf_folder)
        self.model = AutoModel.from_pretrained(trial.hf_folder, dtype=torch.float32).to(self.device).eval()

    def __call__(self, rows: list[Row]) -> Any:
        """Return the states of all words of the rows, (words, width); words beyond the maximum length are zero."""
        import torch

        parts = []
        for at in range(0, len(rows), 32):
            chosen = rows[at : at + 32]
            batch = self.tokenizer(
                [row["words"] for row in chosen], is_split_into_words=True, truncation=True, max_length=MAX_LENGTH,
                padding=True, return_tensors="pt",
            )  # fmt: skip
            with torch.no_grad():
                states = self.model(**batch.to(self.device)).last_hidden_state.cpu()
            for number, row in enumerate(chosen):
                owners = batch.word_ids(number)
                inside = torch.tensor([owner is not None for owner in owners])
                owner = torch.tensor([owner for owner in owners if owner is not None])
                sums = torch.zeros(len(row["words"]), states.shape[2]).index_add_(0, owner, states[number][inside])
                counts = torch.bincount(owner, minlength=len(row["words"])).clamp(min=1)
                parts.append((sums / counts[:, None]).numpy())
        return np.concatenate(parts)


def setfit(trial: Trial) -> Predict:
    """Train SetFit with its defaults: contrastive tuning of the encoder, then a logistic regression; pairs are joined."""
    import torch
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from setfit import SetFitModel, Trainer, TrainingArguments
    from sklearn.linear_model import LogisticRegression

    encoder = Transformer(trial.hf_folder, max_seq_length=MAX_LENGTH, model_kwargs={"dtype": torch.float32})
    modules: list[Any] = [encoder, Pooling(encoder.get_embedding_dimension(), "mean")]
    if encoder.auto_model.config.model_type == "bert":
        modules.append(Normalize())  # as MiniLM's sentence encoder is published
    torch.manual_seed(trial.seed)
    body = SentenceTransformer(modules=modules, device=trial.device)
    model = SetFitModel(model_body=body, model_head=LogisticRegression(), labels=trial.labels)
    limited = 0 < trial.setfit_max_steps < setfit_steps(targets(trial))
    settings = TrainingArguments(
        output_dir=str(trial.folder), seed=trial.seed, max_steps=trial.setfit_max_steps if limited else -1, report_to="none",
        save_strategy="no", show_progress_bar=False,
    )  # fmt: skip
    data = Dataset.from_dict({"text": joined(trial.rows), "label": [trial.labels.index(y) for y in targets(trial)]})
    trainer = Trainer(model, args=settings, train_dataset=data)
    trainer.train()
    return lambda rows: [str(label) for label in model.predict(joined(rows), show_progress_bar=False)]


def setfit_steps(labels: Sequence[str]) -> int:
    """Return the number of steps of SetFit's defaults: an epoch of all pairs of one class and as many of two, 16 per batch.

    >>> setfit_steps(["a"] * 10 + ["b"] * 15)
    22
    """
    same = sum(count * (count + 1) // 2 for count in Counter(labels).values())
    other = len(labels) * (len(labels) + 1) // 2 - same
    return -(-2 * max(same, other) // 16)


def joined(rows: list[Row]) -> list[str]:
    """Return one text per row; pairs are joined with the separator token."""
    return [row["text"] + (SEPARATOR + row["pair"] if "pair" in row else "") for row in rows]


def transformers_trainer(trial: Trial) -> Predict:
    """Fine-tune with the Trainer of `transformers` and its defaults: 3 epochs, batches of 8, learning rate 5e-5."""
    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
        AutoTokenizer,
        DataCollatorForTokenClassification,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
        set_seed,
    )

    tokenizer: Any = AutoTokenizer.from_pretrained(trial.hf_folder)
    tagging, labels = trial.kind == "tag", [] if trial.kind == "regress" else trial.labels

    def encode(rows: list[Row], labeled: bool) -> list[dict[str, Any]]:
        texts = [row["words"] if tagging else row["text"] for row in rows]
        pairs = [row["pair"] for row in rows] if "pair" in rows[0] else None
        batch = tokenizer(texts, pairs, truncation=True, max_length=MAX_LENGTH, is_split_into_words=tagging)
        encoded = [{key: value[i] for key, value in batch.items()} for i in range(len(rows))]
        if not labeled:
            return encoded
        for number, (row, one) in enumerate(zip(rows, encoded, strict=True)):
            if tagging:
                one["labels"] = word_starts(batch.word_ids(number), [labels.index(tag) for tag in row["tags"]])
            else:
                one["labels"] = float(row["label"]) if trial.kind == "regress" else labels.index(row["label"])
        return encoded

    set_seed(trial.seed)
    maker: Any = AutoModelForTokenClassification if tagging else AutoModelForSequenceClassification
    model = maker.from_pretrained(trial.hf_folder, num_labels=max(1, len(labels)), dtype=torch.float32)
    settings = TrainingArguments(
        output_dir=str(trial.folder), seed=trial.seed, use_cpu=trial.device == "cpu", report_to="none",
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    collator: Any = (DataCollatorForTokenClassification if tagging else DataCollatorWithPadding)(tokenizer)
    trainer = Trainer(model, settings, collator, train_dataset=encode(trial.rows, labeled=True))
    trainer.train()

    def predict(rows: list[Row]) -> list[Any]:
        model.eval()
        found: list[Any] = []
        for at in range(0, len(rows), 32):
            chosen = rows[at : at + 32]
            batch = tokenizer.pad(encode(chosen, labeled=False), return_tensors="pt").to(model.device)
            with torch.no_grad():
                logits = model(**batch).logits.float().cpu()
            if trial.kind == "regress":
                found += logits[:, 0].tolist()
            elif tagging:
                owners = tokenizer(
                    [row["words"] for row in chosen], truncation=True, max_length=MAX_LENGTH, is_split_into_words=True
                )
                for number, row in enumerate(chosen):
                    tags = ["O"] * len(row["words"])
                    marked = word_starts(owners.word_ids(number), list(range(len(tags))))
                    for place, word in enumerate(marked):
                        if word >= 0:
                            tags[word] = labels[int(logits[number, place].argmax())]
                    found.append(tags)
            else:
                found += [labels[i] for i in logits.argmax(-1).tolist()]
        return found

    return predict


def word_starts(owners: Sequence[int | None], values: Sequence[int]) -> list[int]:
    """Return the value of the word at each token that starts a word, and -100 at all other tokens."""
    before = [None, *owners]
    return [
        -100 if owner is None or owner == last else values[owner] for owner, last in zip(owners, before, strict=False)
    ]


METHODS: dict[str, Callable[[Trial], Predict]] = {
    "ours": ours,
    "ours, quick": partial(ours, effort="quick"),
    "embed+LR": embed_lr,
    "TF-IDF+LR": tfidf_lr,
    "SetFit": setfit,
    "Trainer": transformers_trainer,
    "majority": majority,
}
LIBRARIES = {  # what a method imports; a run is not charged for that
    "ours": ["pretune.cli", "pretune.verbs.training.finetune"],
    "ours, quick": ["pretune.cli", "pretune.verbs.training.finetune"],
    "embed+LR": [
        "pretune.verbs.inference.embed",
        "pretune.loaded_model",
        "sklearn.linear_model",
        "sklearn.model_selection",
        "transformers",
    ],
    "TF-IDF+LR": ["sklearn.feature_extraction.text", "sklearn.linear_model", "sklearn.model_selection"],
    "SetFit": ["datasets", "sentence_transformers", "setfit", "sklearn.linear_model"],
    "Trainer": ["transformers", "accelerate"],
    "majority": [],
}
WITHOUT_MODEL = ("TF-IDF+LR", "majority")


def applies(method: str, kind: str) -> bool:
    """Return whether a method handles a kind of task; pretune compares strategies for all but tagging."""
    return kind == "classify" or (method != "SetFit" and (kind, method) != ("tag", "ours, quick"))


def score(kind: str, predictions: list[Any], rows: list[Row]) -> dict[str, float]:
    """Return the scores of predictions; the first one counts: accuracy, Spearman's correlation, or entity F1."""
    if kind == "tag":
        from pretune.text.examples.tag_schemes import parse_tags

        both = hits = 0
        for predicted, row in zip(predictions, rows, strict=True):
            found, gold = set(parse_tags(predicted)), set(parse_tags(row["tags"]))
            both, hits = both + len(found) + len(gold), hits + len(found & gold)
        return {"f1": 2 * hits / max(1, both)}
    if kind == "regress":
        from scipy.stats import spearmanr

        if len(set(predictions)) == 1:
            return {"spearman": 0.0}
        return {"spearman": float(spearmanr(predictions, [float(row["label"]) for row in rows]).statistic)}
    from sklearn.metrics import accuracy_score, matthews_corrcoef

    gold, found = [row["label"] for row in rows], [str(label) for label in predictions]
    return {"accuracy": float(accuracy_score(gold, found)), "matthews": float(matthews_corrcoef(gold, found))}
