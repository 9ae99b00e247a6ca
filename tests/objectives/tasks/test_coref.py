"""Tests of coreference resolution: the grid of spans, the loss, decoding, cut documents, and that labels are what it learns."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pretune as pt
from pretune import PretuneError
from pretune.inference.predict import Predictor
from pretune.models.create_model import make_model
from pretune.models.model import Model
from pretune.objectives import Data, parse_objective
from pretune.objectives.tasks.coref import Coref, CoreferenceHead, Links, best_spans
from pretune.packed import pack, pack_targets
from pretune.runtime.randomness import EpochRandom
from pretune.text.examples.conll_annotations import Cluster
from pretune.text.examples.coreference import CoreferenceDocuments
from pretune.text.tokenizers.tokenizer import Tokenizer
from tests.support.objective_data import TEMPLATE, few_words, write
from tests.support.task_rows import coref_rows as rows

SENTENCES = [["the", "cat", "saw"], ["it", "saw", "the", "dog"]]
CLUSTERS: list[Cluster] = [[(0, 1), (3, 3)], [(5, 6)]]


@pytest.fixture(autouse=True)
def show_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)


def documents(*sentences: list[list[str]], clusters: list[list[Cluster]] | None = None) -> CoreferenceDocuments:
    return CoreferenceDocuments(
        Path("documents"), {}, [*sentences], clusters, [""] * len(sentences), [None] * len(sentences)
    )


def model_for(task: Coref) -> Model:
    model = make_model("bert-tiny", 200)
    model.tokenizer = Tokenizer.load(few_words())
    torch.manual_seed(0)
    model.root.heads["coref"] = task.head(model.backbone)
    return model


def test_targets_are_words_and_the_grid_of_their_spans() -> None:
    examples = documents(SENTENCES, [["a", "fox"]], clusters=[CLUSTERS, []])
    tokenizer, task = Tokenizer.load(few_words()), Coref(max_span_width=2)
    arrangement = task.tokenize_examples(Data(tokenizer, TEMPLATE, rows=examples), 32)
    sequences = task.corrupt(arrangement.take(np.arange(2)), tokenizer, EpochRandom(0))
    at, grid = sequences.targets["coref"]
    tokens = tokenizer.tokens(sequences.ids)
    assert [tokens[first] for first, _ in at] == ["the", "cat", "saw", "it", "saw", "the", "dog", "a", "fox"]
    assert (at[:, 0] == at[:, 1]).all()  # every word has one token
    # Spans of two words end at the end of a sentence; the mention of two words (5, 6) is in cluster 2.
    assert grid.tolist() == [[0, 1], [0, 0], [0, -1], [1, 0], [0, 0], [0, 2], [0, -1], [0, 0], [0, -1]]
    target = task.describe_target(at, grid, sequences.ids, lambda ids: " ".join(tokenizer.tokens(ids)))
    assert target == "the cat = it; the dog"


def test_words_of_several_tokens_have_their_first_and_last() -> None:
    examples = documents([["the", "catdog", "saw"]])
    tokenizer, task = Tokenizer.load(few_words()), Coref(max_span_width=3)
    arrangement = task.tokenize_examples(Data(tokenizer, TEMPLATE, rows=examples), 32)
    at, _ = task.corrupt(arrangement.take(np.arange(1)), tokenizer, EpochRandom(0)).targets["coref"]
    sizes = at[:, 1] - at[:, 0] + 1
    assert len(at) == 3 and sizes[1] > 1 and sizes.sum() == arrangement.spans[0, 0]
    assert at[0, 0] == 1 and (at[1:, 0] == at[:-1, 1] + 1).all()


def test_long_documents_are_cut_at_the_end_of_a_sentence() -> None:
    examples = documents(SENTENCES, [["the", "cat", "saw", "it"]], clusters=[CLUSTERS, []])
    task = Coref(max_span_width=3)
    model = model_for(task)
    for length, kept in ((9, [7, 4]), (8, [3, 4]), (5, [3, 3])):  # with [CLS] and [SEP]
        predictor = Predictor(model, task, examples, length)
        assert predictor.arrangement.spans[:, 0].tolist() == kept
        assert predictor.arrangement.truncated == (kept[0] < 7) + (kept[1] < 4)
        for answer, words in zip(predictor(), kept, strict=True):
            assert all(last < words for cluster in answer["clusters"] for _, last in cluster)
    # Mentions in the part that is cut off count as missing.
    lost = [{"clusters": []}, {"clusters": []}]
    assert task.metrics(lost, examples)["b_cubed_recall"] == 0


def test_documents_without_words_have_no_clusters() -> None:
    task = Coref()
    assert next(iter(Predictor(model_for(task), task, documents([], SENTENCES))()))["clusters"] == []
    assert [a["clusters"] for a in Predictor(model_for(task), task, documents([[]]))()] == [[]]


def test_best_spans_of_each_document_are_kept_in_order() -> None:
    scores = torch.tensor([1.0, 5, 3, 4, 9, 2, 8])
    exists = torch.tensor([True, True, True, True, False, True, True])
    owners = torch.tensor([0, 0, 0, 0, 1, 1, 1])
    spans, kept = best_spans(scores, exists, owners, torch.tensor([2.0, 3.0]), 6)
    assert spans[kept].tolist() == [1, 3, 5, 6] and kept.tolist() == [True] * 4 + [False] * 2


def test_span_vectors_attend_only_to_the_words_of_the_span() -> None:
    torch.manual_seed(0)
    head = CoreferenceHead(8, 4, 3, 5, 0.4, 0.0).eval()
    states, words = torch.randn(6, 8), torch.arange(6)[:, None].expand(6, 2)
    before = head.span_vectors(states, words)
    states[3] += 1
    changed = (head.span_vectors(states, words) != before).any(-1)
    assert changed[:, 0].tolist() == [False, False, False, True, False, False]
    assert changed[1].tolist() == [False, False, True] and changed[2].tolist() == [False, True, True]


def test_loss_sums_over_gold_antecedents(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Coref(max_span_width=1)
    grid = np.array([[1], [0], [1], [1]])
    scores = torch.tensor([[-torch.inf] * 3, [0.5, *[-torch.inf] * 2], [1.0, 2.0, -torch.inf], [0.3, 0.2, 0.1]])
    antecedents = (torch.arange(4)[:, None] - torch.arange(1, 4)).clamp(min=0)
    links = Links(torch.arange(4), torch.ones(4, dtype=torch.bool), antecedents, scores)
    model = model_for(task)
    batch = pt.Batch((pack(np.array([2, 5, 6, 3]), np.array([4])),), {"coref": pack_targets(np.zeros((4, 2)), grid)})
    monkeypatch.setattr(CoreferenceHead, "forward", lambda *_: links)
    loss = task.loss(model.root.heads["coref"], model.backbone, batch)
    e = np.exp
    # No antecedent for the first two; the second candidate (word 0) of the third; words 2 and 0 for the fourth.
    none = [0.0, -np.log(1 / (1 + e(0.5)))]
    third = -np.log(e(2.0) / (1 + e(1.0) + e(2.0)))
    fourth = -np.log((e(0.3) + e(0.1)) / (1 + e(0.3) + e(0.2) + e(0.1)))
    assert float(loss.sums["coref"]) == pytest.approx(sum(none) + third + fourth, rel=1e-5)
    assert float(loss.logs["coref/accuracy"]) == 3 and float(loss.logs["coref/accuracy/of"]) == 4


def test_answers_join_links_to_clusters() -> None:
    examples, task = documents(SENTENCES), Coref(max_span_width=2)
    tokenizer = Tokenizer.load(few_words())
    arrangement = task.tokenize_examples(Data(tokenizer, TEMPLATE, rows=examples), 32)
    rows = np.full((9, 2), -1.0)
    rows[1 + 3, 0] = 1  # it → (0, 1), the cat
    rows[1 + 5, 1] = 3 * 2  # the dog → (3, 0), it
    rows[1 + 6, 0] = 2 * 2  # dog → saw
    (answer,) = task.answers([rows], arrangement, examples)
    assert answer["clusters"] == [[[0, 1], [3, 3], [5, 6]], [[2, 2], [6, 6]]]
    assert answer["mentions"][0][0] == {"text": "the cat", "first": 0, "last": 1}
    text = "the cat saw. it saw"
    bounds = [(0, 3), (4, 7), (8, 11), (11, 12), (13, 15), (16, 19)]
    split = CoreferenceDocuments(
        Path("x"), {}, [[["the", "cat", "saw", "."], ["it", "saw"]]], None, [""], [(text, bounds)]
    )
    arrangement = task.tokenize_examples(Data(tokenizer, TEMPLATE, rows=split), 32)
    rows = np.full((8, 2), -1.0)
    rows[1 + 4, 0] = 1
    (answer,) = task.answers([rows], arrangement, split)
    assert answer["mentions"][0][1] == {"text": "it", "first": 4, "last": 4, "start": 13, "end": 15}


def test_ensembles_link_mentions_that_most_models_link() -> None:
    clusters = [[[[0, 1], [3, 3]]], [[[0, 1], [3, 3], [5, 6]]], [[[2, 2], [4, 4]], [[3, 3], [5, 6]]]]
    combined = Coref().combine([{"clusters": one} for one in clusters], documents(SENTENCES), 0)
    assert combined["clusters"] == [[[0, 1], [3, 3], [5, 6]]]
    assert combined["mentions"][0][2]["text"] == "the dog"
    assert (
        Coref().combine([{"clusters": one} for one in clusters[:2]], documents(SENTENCES), 0)["clusters"] == clusters[0]
    )


def test_baselines_and_judged_answers() -> None:
    learned = documents([["the", "cat", "saw", "it"], ["it", "saw", "the", "cat"]], clusters=[[[(0, 1), (6, 7)]]])
    judged = documents([["the", "Cat"], ["a", "dog", "saw", "the", "cat"]], clusters=[[[(0, 1), (5, 6)]]])
    name, usual = Coref().majority_answers(learned, judged)
    assert name == "no coreference" and usual == [{"clusters": []}]
    (equal,) = Coref().simple_baselines(learned, judged).values()
    assert equal == [{"clusters": [[[0, 1], [5, 6]]]}]
    (scored,) = Coref().judge(equal, judged)
    assert (scored.expected, scored.answer, scored.score) == ("the Cat = the cat", "the Cat = the cat", 1)
    assert Coref().judge(usual, judged)[0].score == 0


def test_documents_without_anything_to_learn_and_bad_options_are_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PretuneError, match="documents: no document has coreferent mentions"):
        Coref().fit(documents(SENTENCES, clusters=[[]]))
    Coref(max_span_width=1).fit(documents(SENTENCES, clusters=[CLUSTERS]))
    assert "2 of 3 mentions have more than max_span_width=1 words" in capsys.readouterr().err
    with pytest.raises(PretuneError, match="max_span_width=0"):
        parse_objective("coref(max_span_width=0)")
    with pytest.raises(PretuneError, match="mention_ratio=2"):
        parse_objective("coref(mention_ratio=2)")


def shuffled(made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return documents whose mentions are assigned to clusters of the same sizes at random."""
    rng = random.Random(5)
    found = []
    for row in made:
        words = [i + 1 for i, word in enumerate(w for s in row["sentences"] for w in s) if word == "the"]
        places = [[i - 1, i] for i in words]
        rng.shuffle(places)
        sizes = [len(cluster) for cluster in row["clusters"]]
        starts = np.cumsum([0, *sizes])
        clusters = [sorted(places[a : a + size]) for a, size in zip(starts, sizes, strict=False)]
        found.append({**row, "clusters": clusters})
    return found


@pytest.mark.end_to_end
def test_learns_clusters_and_nothing_from_shuffled_ones(tmp_path: Path) -> None:
    dev = rows(40, seed=1)
    train = [row for row in rows(200) if row["sentences"] not in [other["sentences"] for other in dev]]
    assert len(train) > 150
    scores = {}
    for name, made in (("gold", train), ("shuffled", shuffled(train))):
        file = write(tmp_path / f"{name}.jsonl", made)
        run = pt.finetune(
            "bert-tiny",
            file,
            dev=write(tmp_path / "dev.jsonl", dev),
            objective="coref(max_span_width=3,dropout=0)",
            tokenizer=few_words(),
            strategy="full",
            epochs=8,
            num_seeds=1,
            optimizer=pt.Optimizer(lr=2e-3),
            batch=pt.Batching(size=32, max_length=32),
            report=False,
            out=tmp_path / name,
        )
        scores[name] = {key: run.results[f"dev/{key}"] for key in ("conll_f1", "muc_f1", "mention_f1")}
        answers = pt.predict(run, tmp_path / "dev.jsonl")
        assert all({"clusters", "mentions"} <= answer.keys() for answer in answers)
    joined = [{"clusters": [sorted(m for c in row["clusters"] for m in c)]} for row in dev]
    examples = Coref().read(tmp_path / "dev.jsonl", {})
    chance = Coref().metrics(joined, examples)["conll_f1"]  # all mentions in one cluster
    assert scores["gold"]["conll_f1"] > 0.9, scores
    assert scores["shuffled"]["conll_f1"] < max(chance, 0.8), (scores, chance)


def test_saved_options_and_rows_of_conll_files(tmp_path: Path) -> None:
    (task,) = parse_objective("coref(max_span_width=4,mention_ratio=0.5)").objectives
    assert isinstance(task, Coref) and (task.max_span_width, task.mention_ratio) == (4, 0.5)
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"text": SENTENCES, "label": CLUSTERS}) + "\n", encoding="utf-8")
    examples = task.read(file, {"text": "text", "label": "label"})
    assert examples.clusters == [CLUSTERS] and examples.sentences == [SENTENCES]
