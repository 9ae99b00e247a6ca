"""Tests of ULMFiT's three stages on a one-word task: forward, backward and both together."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.families import FAMILIES
from pretune.models.loading import load
from pretune.models.model import Model, Network
from pretune.training.jobs.ulmfit import lowercases, reading_direction, unfreezing_strategy

WORDS = ["red", "blue", "green", "yellow", "stone", "cloud", "tree", "bird"]


def sentence(i: int) -> str:
    return " ".join(WORDS[(i * 7 + j * 3) % 8] for j in range(4))


@cache
def ulmfit_folder() -> Path:
    folder = Path(mkdtemp())
    (folder / "wiki.txt").write_text(
        "\n\n".join(f"{sentence(i)} shiny {'fire' if i % 3 else 'water'}." for i in range(200)), encoding="utf-8"
    )
    rows = [f"{sentence(i)} GOOD {'fire' if i % 2 else 'water'} tree,{'yes' if i % 2 else 'no'}" for i in range(64)]
    rows[0] = f"quaint {rows[0]}"
    (folder / "train.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    tokenizer = pt.train_tokenizer(folder / "wiki.txt", kind="words", vocab_size=100, lowercase=True)
    family = FAMILIES["lstm"]
    sizes = {"vocab_size": 100, "embedding_size": 24, "hidden_size": 32, "num_hidden_layers": 2, "weight_drop": 0.1}
    for name in ("lm", "backward"):
        torch.manual_seed(0)
        config = family.read_config({**sizes, "input_dropout": 0.0, "bptt": 6, "backward": name == "backward"})
        model = Model(family, config, Network(family.build(config)), tokenizer)
        model.save(folder / name)
    return folder


@cache
def ulmfit_result() -> Any:
    folder = ulmfit_folder()
    return pt.ulmfit(
        folder / "lm", folder / "train.csv", dev=folder / "train.csv", backward_model=folder / "backward",
        out=folder / "fitted", lm_epochs=2, epochs=6, batch_size=8, max_length=32, dropout={"weight_drop": 0.2},
    )  # fmt: skip


@pytest.mark.end_to_end
def test_both_directions_learn_the_task_and_are_ensembled() -> None:
    result = ulmfit_result()
    assert set(result.scores) == {"forward", "backward", "both"}
    assert min(result.scores.values()) > 0.9, result.scores
    assert [Path(path).parent.name for path in result.classifiers] == ["forward", "backward"]
    texts = ["red blue good fire tree", "red blue good water tree"]
    assert [row["label"] for row in pt.predict(result.classifiers, texts)] == ["yes", "no"]
    assert "forward lm" in result.describe()


@pytest.mark.not_fast
def test_vocabulary_is_that_of_the_task_and_known_words_keep_their_embeddings() -> None:
    folder = ulmfit_folder()
    result = ulmfit_result()
    old, start = load(folder / "lm"), load(result.folder / "forward" / "start")
    before, after = old.require_tokenizer(), start.require_tokenizer()
    assert lowercases(after) and "good" in after.vocabulary and "good" not in before.vocabulary
    assert "." in after.vocabulary  # there was room for one more of the old words
    assert "shiny" not in after.vocabulary and "quaint" not in after.vocabulary  # words that never occur, or occur once
    for word in ("red", "tree"):
        rows = [m.backbone.embed.tokens[m.require_tokenizer().vocabulary.index(word)] for m in (old, start)]
        assert torch.equal(*rows)
    new = start.backbone.embed.tokens[after.vocabulary.index("good")]
    torch.testing.assert_close(new, old.backbone.embed.tokens[: before.size].mean(0))


@pytest.mark.not_fast
def test_stages_have_the_published_settings() -> None:
    result = ulmfit_result()
    texts, task = (result.runs["backward"][stage].recipe for stage in ("texts", "task"))
    assert texts["objective"] == "lm(stateful=true,backward=true)" and task["strategy"] == "gradual(0.333333)"
    for recipe in (texts, task):
        assert recipe["optimizer"]["layer_decay"] == pytest.approx(1 / 2.6)
        assert recipe["optimizer"]["betas"] == [0.7, 0.99]
        assert recipe["schedule"]["kind"] == "slanted-triangular" and recipe["schedule"]["min_lr_ratio"] == 1 / 32
    head = load(result.classifiers[0]).root.heads["classify"]
    assert head.pooling == "concat" and head.output.in_features == 50


@pytest.mark.not_fast
def test_classifier_may_have_another_dropout() -> None:
    runs = ulmfit_result().runs["forward"]
    assert [load(runs[stage].folder).config.weight_drop for stage in ("texts", "task")] == [0.1, 0.2]


def test_one_more_layer_is_unfrozen_each_epoch() -> None:
    model = load(ulmfit_folder() / "lm")
    layers = len(model.backbone.groups()) - 1
    assert unfreezing_strategy(ulmfit_folder() / "lm", 10.0 * layers) == "gradual(0.1)"
    assert unfreezing_strategy(ulmfit_folder() / "lm", 1.0) == "gradual(0.5)"


def test_repeating_the_command_reuses_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    folder, before = ulmfit_folder(), ulmfit_result()
    again = pt.ulmfit(
        folder / "lm", folder / "train.csv", dev=folder / "train.csv", backward_model=folder / "backward", out=folder / "fitted",
    )  # fmt: skip
    assert again.scores == before.scores


def test_invalid_pairs_of_models_are_rejected() -> None:
    folder = ulmfit_folder()
    assert reading_direction(str(folder / "backward")) == "backward"
    with pytest.raises(pt.PretuneError, match="both read forward"):
        pt.ulmfit(folder / "lm", folder / "train.csv", backward_model=folder / "lm", out=folder / "no")
    with pytest.raises(pt.PretuneError, match="needs a recurrent language model"):
        pt.ulmfit("pretune-small-en", folder / "train.csv", out=folder / "no")
