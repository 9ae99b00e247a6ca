"""Tests that a vocabulary is expanded by a linear map from word vectors, as for Skip-Thought."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.inference.word_vector_models import expand_vocabulary, word_embedding_table
from pretune.models.create_model import make_model
from pretune.models.loading import load
from pretune.models.model import Model
from pretune.text.corpus.word_vector_files import WordVectors
from pretune.text.tokenizers.training import word_level_tokenizer
from tests.support.objective_data import store

WORDS = [f"word{letter}{other}" for letter in "abcdef" for other in "uvwxyz"]


def planted(known: int = 24, width: int = 6) -> tuple[Model, WordVectors, torch.Tensor]:
    """Return a model whose embedding of its words is a linear map of word vectors, these vectors, and the map."""
    torch.manual_seed(0)
    vectors = WordVectors([*WORDS, "[MASK]"], np.random.default_rng(0).normal(size=(37, width)).astype(np.float32))
    model = make_model("skip-thought-tiny", known + 5)
    model.tokenizer = word_level_tokenizer(WORDS[:known])
    table = word_embedding_table(model)
    linear_map = torch.randn(width, table.shape[1]) / width
    with torch.no_grad():
        table[-known:] = torch.from_numpy(vectors.vectors[:known]) @ linear_map
    return model, vectors, linear_map


def test_planted_map_gives_the_embeddings_of_new_words() -> None:
    model, vectors, linear_map = planted()
    before = word_embedding_table(model).detach().clone()
    expanded, report = expand_vocabulary(model, vectors, "file")
    assert report["shared_words"] == 24 and report["new_words"] == 12 and report["r2"] > 0.9999
    tokenizer = expanded.require_tokenizer()
    assert tokenizer.vocabulary == [*model.require_tokenizer().vocabulary, *WORDS[24:]]
    assert tokenizer.encode("worda wordfz wordau [MASK]")[1:3] == [tokenizer.size - 1, 5]
    table = word_embedding_table(expanded).detach()
    assert torch.equal(table[: len(before)], before) and torch.equal(word_embedding_table(model).detach(), before)
    torch.testing.assert_close(
        table[len(before) :], torch.from_numpy(vectors.vectors[24:36]) @ linear_map, atol=1e-4, rtol=0
    )
    assert expanded.config.vocab_size == len(table)


def test_files_and_models_that_do_not_fit_are_refused() -> None:
    model, vectors, _ = planted(known=5)
    with pytest.raises(pt.PretuneError, match=r"only 5 words of the file are in .* a linear map of 6 dimensions needs"):
        expand_vocabulary(model, vectors, "file")
    model.tokenizer = store("bpe").tokenizer
    with pytest.raises(pt.PretuneError, match="one vocabulary of whole words can be expanded, and this one has BPE"):
        expand_vocabulary(model, vectors, "file")


@pytest.mark.not_fast
def test_expanded_model_embeds_words_it_was_not_trained_on(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    sentences = [" ".join(draw.choice(WORDS[:24], 4)) + " ." for _ in range(90)]
    (tmp_path / "text.txt").write_text(
        "\n".join(" ".join(sentences[i : i + 5]) for i in range(0, 90, 5)), encoding="utf-8"
    )
    run = pt.pretrain(
        "skip-thought-tiny", tmp_path / "text.txt", out=tmp_path / "run", budget=pt.Budget(steps=2), split_by="line",
        tokenizer={"kind": "words", "vocab_size": 100, "least": 1}, monitor=pt.Monitoring(held_out_fraction=0.0),
        batch=pt.Batching(tokens=128, max_length=16),
    )  # fmt: skip
    assert run.recipe["objective"] == "skip_thought(pooling=last, separate_decoders=true)"
    _, vectors, _ = planted()
    lines = [f"{word} {' '.join(map(str, row))}" for word, row in zip(WORDS, vectors.vectors, strict=False)]
    (tmp_path / "vectors.txt").write_text("\n".join(lines), encoding="utf-8")
    facts = pt.import_model(tmp_path / "vectors.txt", out=tmp_path / "expanded", expand=run.folder).facts
    assert facts["shared_words"] == 24 and facts["new_words"] == 12
    texts = [f"{WORDS[0]} {WORDS[1]}", f"{WORDS[30]} {WORDS[31]}", f"{WORDS[32]} {WORDS[33]}"]
    before, after = (
        np.array([row["vector"] for row in pt.embed(folder, texts)]) for folder in (run.folder, tmp_path / "expanded")
    )
    np.testing.assert_allclose(after[0], before[0], atol=1e-5)
    assert np.allclose(before[1], before[2])  # all words unknown
    assert not np.allclose(after[1], after[2], atol=1e-4)
    parts: Any = load(run.folder).root.heads["skip_thought"]
    assert parts.next_decoder is not None
    with pytest.raises(pt.PretuneError, match="expand"):
        pt.import_model(tmp_path, out=tmp_path / "no", expand=run.folder)
