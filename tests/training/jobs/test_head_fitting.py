"""Tests of heads that are fitted by regression: they predict what scikit-learn predicts on the same vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import pretune as pt
from pretune import PretuneError
from pretune.inference.embed import embed_texts
from pretune.inference.predict import Predictor
from pretune.models.loading import load_model
from pretune.nn.pooling import compare_neighbors
from pretune.objectives import parse_objective
from pretune.text.examples.labeled import LabeledRows
from pretune.text.examples.splits import assign_folds
from pretune.training.jobs.head_fitting import fit_head, layer_starts, pooled_vectors, regression_targets
from pretune.training.jobs.linear_models import cross_validate
from tests.support.one_word_task import start

CPU = torch.device("cpu")
TEXTS = [f"{'good' if i % 2 else 'bad'} {'red ' * (i % 5)}stone" for i in range(24)]


def rows(pairs: list[str] | None = None) -> LabeledRows:
    return LabeledRows(Path("x.csv"), {}, TEXTS, pairs, ["yes" if i % 2 else "no" for i in range(24)])


def with_head(objective: str, examples: LabeledRows) -> tuple[pt.Model, object]:
    task = parse_objective(objective).objectives[0].fit(examples)  # type: ignore[attr-defined]
    model = load_model(start() / "start")
    model.add_heads([task])
    return model, task.with_tokenizer(model.require_tokenizer())


def test_vectors_are_the_pooled_states_of_the_chosen_layers() -> None:
    model, task = with_head("classify(pooling=mean) on layers(1,4)", rows())
    vectors = pooled_vectors(model, task, rows(), 64, CPU)  # type: ignore[arg-type]
    each = [embed_texts(start() / "start", TEXTS, "mean", layer) for layer in (1, 4)]
    np.testing.assert_allclose(vectors, np.concatenate(each, 1), atol=1e-5)


def test_two_texts_are_encoded_separately() -> None:
    pairs = [text[::-1] for text in TEXTS]
    model, task = with_head("classify(pooling=separate) on last", rows(pairs))
    vectors = pooled_vectors(model, task, rows(pairs), 64, CPU)  # type: ignore[arg-type]
    both = np.stack([embed_texts(start() / "start", some, "mean") for some in (TEXTS, pairs)], 1).reshape(48, -1)
    np.testing.assert_allclose(vectors, compare_neighbors(torch.from_numpy(both))[::2].numpy(), atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "separate"])
def test_a_fitted_head_gives_the_averaged_logits_of_regressions(pooling: str) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    examples = rows([text[:4] for text in TEXTS] if pooling == "separate" else None)
    model, task = with_head(f"classify(pooling={pooling}) on last", examples)
    fit_head(model, task, examples, 64, CPU)  # type: ignore[arg-type]
    vectors = pooled_vectors(model, task, examples, 64, CPU)  # type: ignore[arg-type]
    targets, kind, outputs, _ = regression_targets(task, examples)
    shares = cross_validate(vectors, targets, kind, outputs, assign_folds(examples, 5)).shares
    logits = np.zeros(len(TEXTS))
    for setting, share in shares.items():
        peer = make_pipeline(StandardScaler(), LogisticRegression(C=setting.strength, max_iter=1000))
        logits += share * peer.fit(vectors, examples.labels).decision_function(vectors)
    answers = Predictor(model, task, examples, 64)()  # type: ignore[arg-type]
    own = [answer["probabilities"]["yes"] for answer in answers]
    np.testing.assert_allclose(own, 1 / (1 + np.exp(-logits)), atol=2e-2)


@pytest.mark.parametrize(
    ("layers", "pooling", "starts"),
    [
        ("layers(1,4)", "mean", (0, 128)),
        ("layers(4)", "mean", (0,)),
        ("last", "mean", (0,)),
        ("layers(1,4)", "concat", (0,)),
    ],
)
def test_the_last_layer_is_the_last_columns_of_the_vectors(layers: str, pooling: str, starts: tuple[int, ...]) -> None:
    model, task = with_head(f"classify(pooling={pooling}) on {layers}", rows())
    found = layer_starts(model, task, rows())  # type: ignore[arg-type]
    assert found == tuple(start and model.backbone.width for start in starts)
    vectors = pooled_vectors(model, task, rows(), 64, CPU)  # type: ignore[arg-type]
    last = embed_texts(start() / "start", TEXTS, "mean", 4)
    if len(found) > 1:
        np.testing.assert_allclose(vectors[:, found[1] :], last, atol=1e-5)


@pytest.mark.not_fast
@pytest.mark.parametrize(("objective", "strategy"), [("classify on last", "features"), ("classify on last", "contrastive"), ("regress(pooling=separate) on last", "features")])  # fmt: skip
def test_strategies_that_fit_the_head(tmp_path: Path, objective: str, strategy: str) -> None:
    train = tmp_path / "train.csv"
    numbers = objective.startswith("regress")
    lines = ["text,pair,label" if numbers else "text,label"]
    for i, text in enumerate(TEXTS):
        lines.append(f"{text},{text if i % 2 else 'water water water'},{i % 2}" if numbers else f"{text} {i},{i % 2}")
    train.write_text("\n".join(lines), encoding="utf-8")
    run = pt.finetune(
        start() / "start", train, dev=train, out=tmp_path / "run", objective=objective, strategy=strategy,
        budget=pt.Budget(steps=10), num_seeds=1, report=False,
    )  # fmt: skip
    assert run.results["dev/spearman" if numbers else "dev/accuracy"] > 0.8


def test_heads_with_more_than_one_layer_are_refused(tmp_path: Path) -> None:
    examples = rows()
    model, task = with_head("classify(hidden_size=8)", examples)
    with pytest.raises(PretuneError, match="not a single linear layer"):
        fit_head(model, task, examples, 64, CPU)  # type: ignore[arg-type]


def test_separate_texts_need_pairs() -> None:
    model, task = with_head("classify(pooling=separate)", rows())
    with pytest.raises(PretuneError, match="needs pairs of texts"):
        pooled_vectors(model, task, rows(), 64, CPU)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("layers", "message"),
    [("layers(9)", r"from 0 \(the embeddings\) to 4"), ("layers(,)", r"from 0 \(the embeddings\) to 4")],
)
def test_layers_that_do_not_exist(layers: str, message: str) -> None:
    with pytest.raises(PretuneError, match=message):
        with_head(f"classify on {layers}", rows())
