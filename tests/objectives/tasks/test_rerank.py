"""Tests of re-ranking: its targets, its metrics, and that it learns what depends on the other candidates."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pretune as pt
from pretune import PretuneError
from pretune.inference.predict import Predictor
from pretune.metrics.ranking import list_metrics
from pretune.models.model import Model
from pretune.objectives import Data, parse_objective
from pretune.objectives.tasks.rerank import Rerank, rank_candidates
from pretune.runtime.randomness import EpochRandom
from pretune.text.corpus.documents import Document
from pretune.text.examples.candidate_lists import CandidateLists
from pretune.text.packing.sequences import collate
from pretune.text.tokenizers.training import train_on_documents
from tests.support.objective_data import write
from tests.support.user_histories import item_model

ITEMS = [f"i{number}" for number in range(20)]


def odd_ones(requests: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return requests in which the candidate of another color than all others was clicked.

    Either color is clicked equally often, and items, prices and places say nothing: only the other candidates do.
    """
    rng = random.Random(seed)
    made = []
    for number in range(requests):
        size, common = rng.randint(4, 7), rng.choice((-1, 1))
        odd = rng.randrange(size)
        colors = [-common if place == odd else common for place in range(size)]
        prices = [round(rng.random(), 3) for _ in range(size)]
        clicks = [int(place == odd) for place in range(size)]
        made.append(
            {
                "request": f"r{number}",
                "item": rng.sample(ITEMS, size),
                "color": colors,
                "price": prices,
                "label": clicks,
            }
        )
    return made


def lists(*items: list[str], relevances: list[list[float]] | None = None) -> CandidateLists:
    shown = relevances or [[1.0] + [0.0] * (len(some) - 1) for some in items]
    return CandidateLists(
        Path("lists"), {}, [str(i) for i in range(len(items))], [*items], [np.arange(len(some))[::-1] for some in items],
        [np.arange(len(some), dtype=float)[:, None] for some in items], [np.array(row) for row in shown], ("price",),
    )  # fmt: skip


def model_for(examples: CandidateLists) -> tuple[Model, Rerank]:
    model, task = item_model(" ".join(ITEMS)), Rerank().fit(examples)
    model.root.heads["rerank"] = task.head(model.backbone)
    torch.manual_seed(0)
    for parameter in model.root.heads["rerank"].parameters():
        torch.nn.init.normal_(parameter, 0, 0.5)
    return model, task


def test_targets_are_the_clicked_candidates_in_the_initial_order() -> None:
    examples = lists(["i1", "i2", "i3"], ["i4", "i5"], relevances=[[0, 2, 0], [1, 1]])
    model, task = model_for(examples)
    tokenizer = model.require_tokenizer()
    arrangement = task.tokenize_examples(Data(tokenizer, model.family.template, rows=examples), 16)
    sequences = task.corrupt(arrangement.take(np.arange(2)), tokenizer, EpochRandom(0))
    assert tokenizer.tokens(sequences.ids) == ["[CLS]", "i3", "i2", "i1", "[SEP]", "[CLS]", "i5", "i4", "[SEP]"]
    assert sequences.columns["features"][:, 0].tolist() == [0, 2, 1, 0, 0, 0, 1, 0, 0]
    at, share = sequences.targets["rerank"]
    assert at.tolist() == [[1, 2, 3], [6, 7, -1]] and share.tolist() == [[0, 1, 0], [0.5, 0.5, 0]]
    batch = collate(sequences)
    scores = task.outputs(model.root.heads["rerank"], model.backbone, batch)
    loss = task.loss(model.root.heads["rerank"], model.backbone, batch).sums["rerank"]
    first, second = scores[1:4].log_softmax(0), scores[6:8].log_softmax(0)
    torch.testing.assert_close(loss, -(first[1] + second.mean()))


def test_scores_depend_on_features_and_on_the_other_candidates_only_of_the_same_list() -> None:
    examples = lists(["i1", "i2", "i3"], ["i4", "i5", "i6"])
    model, task = model_for(examples)
    before = Predictor(model, task, examples)()
    examples.features[0][0] += 3
    after = Predictor(model, task, examples)()
    assert all(abs(a - b) > 1e-4 for a, b in zip(before[0]["scores"], after[0]["scores"], strict=True))
    assert after[1]["scores"] == pytest.approx(before[1]["scores"], abs=1e-5)
    assert sorted(after[0]["ranking"]) == ["i1", "i2", "i3"]


def test_candidates_beyond_the_maximum_length_stay_at_the_end() -> None:
    examples = lists(["i1", "i2", "i3", "i4", "i5"])  # the initial order is the opposite one
    model, task = model_for(examples)
    predictor = Predictor(model, task, examples, length=5)
    (answer,) = predictor()
    assert predictor.arrangement.truncated == 1
    assert answer["ranking"][3:] == ["i2", "i1"] and set(answer["ranking"][:3]) == {"i5", "i4", "i3"}


def test_metrics_agree_with_scikit_learn_and_worked_examples() -> None:
    from sklearn.metrics import average_precision_score, ndcg_score

    chance = np.random.default_rng(0)
    for _ in range(20):
        relevances, scores = chance.integers(0, 3, 9), chance.permutation(9)
        relevances[0] = 1
        found = list_metrics([relevances[rank_candidates(scores, np.arange(9))]], (5, 10)).compute()
        assert found["ndcg@10"] == pytest.approx(ndcg_score([relevances], [scores], k=10))
        assert found["map@10"] == pytest.approx(average_precision_score(relevances > 0, scores))
    found = list_metrics([np.array([1, 0, 1, 0, 0, 0, 1]), np.array([0, 0])]).compute()
    assert found["precision@5"] == 0.4 and found["map@5"] == pytest.approx((1 + 2 / 3) / 3)


def test_baselines_and_ensembles() -> None:
    examples = lists(["i1", "i2", "i3"], ["i4", "i5"])
    name, kept = Rerank().majority_answers(examples, examples)
    assert name == "the initial order" and [answer["ranking"] for answer in kept] == [["i3", "i2", "i1"], ["i5", "i4"]]
    (answers,) = Rerank().simple_baselines(examples, examples).values()
    assert [answer["ranking"][0] for answer in answers] == ["i1", "i4"]  # the clicked items have the lowest price
    both = [{"scores": [0.0, 2.0, 1.0]}, {"scores": [3.0, 0.0, 0.0]}]
    assert Rerank().combine(both, examples, 0) == {"ranking": ["i1", "i2", "i3"], "scores": [1.5, 1.0, 0.5]}
    assert [one.score for one in Rerank().judge(answers, examples)] == [1, 1]


def test_lists_without_anything_to_learn_are_rejected() -> None:
    with pytest.raises(PretuneError, match="lists: no candidate is relevant, so there is nothing to learn"):
        Rerank().fit(lists(["i1", "i2"], relevances=[[0, 0]]))
    with pytest.raises(PretuneError, match="every request has only one candidate, so there is nothing to rank"):
        Rerank().fit(lists(["i1"], ["i2"]))
    model = item_model("a b")
    split = lists(["i1", "i2"])
    data = Data(train_on_documents([Document("i 1 2", Path("x"), 1)], "bpe", 300), model.family.template, rows=split)
    with pytest.raises(
        PretuneError, match=r"row 1: the model's tokenizer splits the 2 items into .* a tokenizer of the kind `items`"
    ):
        Rerank().tokenize_examples(data, 16)


def test_features_are_an_option_that_is_saved() -> None:
    task = Rerank().fit(lists(["i1", "i2"]))
    assert (task.features, task.max_candidates, task.means, task.deviations) == ("price", 2, (0.5,), (0.5,))
    (parsed,) = parse_objective('rerank(features="price, age")').objectives
    assert isinstance(parsed, Rerank) and parsed.feature_names == ("price", "age")


@pytest.mark.end_to_end
def test_the_odd_one_out_is_found_by_the_list_but_not_by_points(tmp_path: Path) -> None:
    train, dev = (
        write(tmp_path / name, odd_ones(count, seed))
        for name, count, seed in (("a.jsonl", 500, 0), ("b.jsonl", 100, 1))
    )
    train_on_documents([Document(" ".join(ITEMS), tmp_path, 1)], "items", 100).save(tmp_path / "items")
    run = pt.finetune(
        "bert-tiny",
        train,
        dev=dev,
        objective="rerank",
        tokenizer=tmp_path / "items",
        strategy="full",
        epochs=8,
        num_seeds=1,
        optimizer=pt.Optimizer(lr=1e-3),
        batch=pt.Batching(size=32, max_length=16),
        out=tmp_path / "run",
    )
    baselines = run.results["baselines"]
    assert all(score < 0.8 for score in baselines.values()), baselines
    assert run.results["dev/ndcg@10"] > 0.9
    answers = pt.predict(run, dev)
    clicked = [row["item"][row["label"].index(1)] for row in odd_ones(100, 1)]
    assert np.mean([answer["ranking"][0] == item for answer, item in zip(answers, clicked, strict=True)]) > 0.85
