"""Tests that word vectors are read from every file format, as models and as initial embeddings."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.inference.word_vector_models import copy_word_vectors, make_word_vector_model
from pretune.models.create_model import make_model
from pretune.models.loading import load
from pretune.text.corpus.word_vector_files import WordVectors, ngram_rows, read_word_vectors
from pretune.text.tokenizers.training import word_level_tokenizer

WORDS = ["the", "кот", "cat", "new york", "."]
ROWS = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


def text(path: Path, header: bool) -> None:
    lines = [f"{word} {' '.join(map(str, row))}" for word, row in zip(WORDS, ROWS, strict=True)]
    path.write_text("\n".join([*(["5 4"] if header else []), *lines]) + "\n", encoding="utf-8")


def binary(path: Path, ending: bytes) -> None:
    rows = [w.replace(" ", "_").encode() + b" " + r.tobytes() + ending for w, r in zip(WORDS, ROWS, strict=True)]
    path.write_bytes(b"5 4\n" + b"".join(rows))


def fasttext(path: Path, bucket: int = 50, shortest: int = 2, longest: int = 3) -> np.ndarray:
    """Write a model in fastText's binary format and return the rows of its matrix."""
    matrix = np.random.default_rng(1).normal(size=(5 + bucket, 4)).astype(np.float32)
    content = struct.pack("<ii", 793712314, 12)
    content += struct.pack("<12id", 4, 5, 5, 1, 5, 1, 2, 1, bucket, shortest, longest, 100, 1e-4)
    content += struct.pack("<iiiqq", 6, 5, 1, 100, -1)
    for word in WORDS:
        content += word.encode() + b"\0" + struct.pack("<qb", 7, 0)
    content += b"__label__x\0" + struct.pack("<qb", 7, 1)
    content += struct.pack("<?qq", False, *matrix.shape) + matrix.tobytes()
    path.write_bytes(content)
    return matrix


@pytest.mark.parametrize("layout", ["glove", "word2vec", "gz"])
def test_text_formats_are_read(layout: str, tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    text(path, header=layout != "glove")
    if layout == "gz":
        import gzip

        (tmp_path / "v.txt.gz").write_bytes(gzip.compress(path.read_bytes()))
        path = tmp_path / "v.txt.gz"
    found = read_word_vectors(path)
    assert found.words == WORDS
    np.testing.assert_allclose(found.vectors, ROWS, rtol=1e-6)
    assert len(read_word_vectors(path, max_words=2)) == 2


@pytest.mark.parametrize("ending", [b"", b"\n"])
def test_word2vec_binary_format_is_read(ending: bytes, tmp_path: Path) -> None:
    binary(tmp_path / "v.bin", ending)
    found = read_word_vectors(tmp_path / "v.bin")
    assert found.words == [word.replace(" ", "_") for word in WORDS]
    np.testing.assert_array_equal(found.vectors, ROWS)


def test_fasttext_binary_format_is_read(tmp_path: Path) -> None:
    matrix = fasttext(tmp_path / "v.bin")
    found = read_word_vectors(tmp_path / "v.bin")
    assert found.words == WORDS
    cat = [5 + h for h in ngram_rows("cat", 2, 3, 50)]
    assert len(cat) == 7  # <c ca at t> <ca cat at>
    np.testing.assert_allclose(found.vectors[2], matrix[[2, *cat]].mean(0), rtol=1e-6)


def test_words_that_are_not_in_a_fasttext_model_get_a_vector_from_their_ngrams(tmp_path: Path) -> None:
    matrix = fasttext(tmp_path / "v.bin")
    found = read_word_vectors(tmp_path / "v.bin", max_words=3)
    # Hashes of fastText, reduced to 50 buckets: FNV-1a over signed bytes of the n-grams of <ca> with 2 and 3 characters.
    assert found.vector("ca") is not None and found.row["cat"] == 2
    rows = [int(np.int64(fnv1a(gram.encode())) % 50) for gram in ("<c", "ca", "a>", "<ca", "ca>")]
    np.testing.assert_allclose(found.vector("ca"), matrix[[5 + row for row in rows]].mean(0), rtol=1e-5)
    russian = [int(np.int64(fnv1a(gram.encode())) % 50) for gram in ("<я", "я>", "<я>")]
    np.testing.assert_allclose(found.vector("я"), matrix[[5 + row for row in russian]].mean(0), rtol=1e-5)
    np.testing.assert_array_equal(found.vector("cat"), found.vectors[2])
    extended = found.with_words(["ca", "cat", "я", "ca"])
    assert extended.words == [*WORDS[:3], "ca", "я"] and extended.vectors.shape == (5, 4)
    assert WordVectors(["a"], np.ones((1, 2), dtype=np.float32)).vector("b") is None
    fasttext(tmp_path / "long.bin", shortest=9, longest=9)
    assert (
        read_word_vectors(tmp_path / "long.bin").with_words(["ca"]).words == WORDS
    )  # it has no n-gram of 9 characters


def fnv1a(content: bytes) -> int:
    """Return fastText's hash, written as its source does: with signed bytes and 32-bit arithmetic."""
    with np.errstate(over="ignore"):
        h = np.uint32(2166136261)
        for byte in np.frombuffer(content, dtype=np.int8):
            h = np.uint32(h ^ np.uint32(int(byte) & 0xFFFFFFFF))
            h = np.uint32(h * np.uint32(16777619))
    return int(h)


def test_models_get_vectors_of_further_words_from_ngrams(tmp_path: Path) -> None:
    fasttext(tmp_path / "v.bin")
    vectors = read_word_vectors(tmp_path / "v.bin")
    (tmp_path / "words.txt").write_text("kitten\ncat\n\n", encoding="utf-8")
    pt.import_model(tmp_path / "v.bin", out=tmp_path / "model", vocab_file=tmp_path / "words.txt")
    model = load(tmp_path / "model")
    tokens, vocabulary = model.backbone.embed.tokens.detach().numpy(), model.require_tokenizer().vocabulary
    np.testing.assert_allclose(tokens[vocabulary.index("kitten")], vectors.vector("kitten"), rtol=1e-6)
    assert vocabulary.count("cat") == 1
    text(tmp_path / "plain.bin", header=True)
    with pytest.raises(pt.PretuneError, match=r"the file has no vectors of n-grams, so words of .* cannot be added"):
        pt.import_model(tmp_path / "plain.bin", out=tmp_path / "no", vocab_file=tmp_path / "words.txt")
    # The initial embedding of a model with a vocabulary of words, too.
    other = make_word_vector_model(WordVectors(["kitten", "the", "x"], np.zeros((3, 4), dtype=np.float32)))
    assert copy_word_vectors(other, vectors, "file") == 3
    place = other.require_tokenizer().vocabulary.index("kitten")
    np.testing.assert_allclose(other.backbone.embed.tokens[place].detach(), vectors.vector("kitten"), rtol=1e-6)


def test_invalid_files_are_reported_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a 1 2\nb 1 x\n", encoding="utf-8")
    with pytest.raises(pt.PretuneError, match=r"a\.txt, line 2: expected a word and 2 numbers"):
        read_word_vectors(tmp_path / "a.txt")
    (tmp_path / "b.txt").write_text("a 1 2\nb 1\n", encoding="utf-8")
    with pytest.raises(pt.PretuneError, match="line 2: expected 2 numbers, but found 1"):
        read_word_vectors(tmp_path / "b.txt")
    (tmp_path / "c.txt").write_text("\n", encoding="utf-8")
    with pytest.raises(pt.PretuneError, match="the file contains no word vectors"):
        read_word_vectors(tmp_path / "c.txt")
    binary(tmp_path / "d.bin", b"")
    (tmp_path / "d.bin").write_bytes((tmp_path / "d.bin").read_bytes()[:-9])
    with pytest.raises(pt.PretuneError, match="the file ends after 4 of 5 words"):
        read_word_vectors(tmp_path / "d.bin")


def made() -> WordVectors:
    return WordVectors(["good", "bad", "film", "good"], np.array([[1, 0], [-1, 0], [0, 1], [9, 9]], dtype=np.float32))


def test_word_vector_model_is_saved_and_embeds(tmp_path: Path) -> None:
    make_word_vector_model(made()).save(tmp_path / "model")
    vectors = np.array([row["vector"] for row in pt.embed(tmp_path / "model", ["Good film", "bad", "", "unheard"])])
    np.testing.assert_allclose(vectors[:3], [[0.5, 0.5], [-1, 0], [0, 0]])
    np.testing.assert_allclose(vectors[3], made().vectors.mean(0))


@pytest.mark.not_fast
def test_word_vectors_are_a_baseline_for_tasks(tmp_path: Path) -> None:
    make_word_vector_model(made()).save(tmp_path / "model")
    lines = ["text,label", *(f"{'good' if i % 2 else 'bad'} film,{i % 2}" for i in range(60))]
    (tmp_path / "train.csv").write_text("\n".join(lines), encoding="utf-8")
    task = pt.finetune(
        tmp_path / "model", tmp_path / "train.csv", dev=tmp_path / "train.csv", out=tmp_path / "task", strategy="frozen",
        objective="classify(pooling=mean)", optimizer=pt.Optimizer(lr=0.3), num_seeds=1, report=False,
    )  # fmt: skip
    assert task.results["dev/accuracy"] == 1.0
    before, after = (load(folder).backbone.embed.tokens for folder in (tmp_path / "model", task.folder))
    assert torch.equal(before, after)
    with pytest.raises(pt.PretuneError, match="cannot predict tokens"):
        pt.pretrain(
            tmp_path / "model",
            objective="lm",
            budget=pt.Budget(steps=1),
            out=tmp_path / "no",
            tokenizer=tmp_path / "model",
            data=tmp_path / "train.csv",
        )


def test_known_words_start_from_word_vectors(tmp_path: Path) -> None:
    model = make_model("lstm-lm-tiny", 64)
    model.tokenizer = word_level_tokenizer(["film", "is", "good"])
    wide = WordVectors(made().words, np.random.default_rng(0).normal(size=(4, 128)).astype(np.float32))
    before = model.backbone.embed.tokens.detach().clone()
    assert copy_word_vectors(model, wide, "file") == 2
    after: Any = model.backbone.embed.tokens
    place = model.tokenizer.vocabulary.index("good")
    assert np.array_equal(after[place].detach(), wide.vectors[0])  # the first of two entries of the same word
    assert torch.equal(after[model.tokenizer.vocabulary.index("is")], before[model.tokenizer.vocabulary.index("is")])
    with pytest.raises(pt.PretuneError, match="the vectors have 2 dimensions, but this model's embedding has 128"):
        copy_word_vectors(model, made(), "file")


@pytest.mark.not_fast
def test_pretraining_starts_from_a_word_vector_file(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("good film . bad film .\n\nthe good .", encoding="utf-8")
    rows = "\n".join(f"{w} {' '.join(['0.25'] * 128)}" for w in ("good", "film"))
    (tmp_path / "v.txt").write_text(rows, encoding="utf-8")
    run = pt.pretrain(
        "lstm-lm-tiny", tmp_path / "text.txt", out=tmp_path / "run", word_vectors=tmp_path / "v.txt", budget=pt.Budget(steps=1),
        optimizer=pt.Optimizer(lr=1e-9), monitor=pt.Monitoring(held_out_fraction=0.0),
    )  # fmt: skip
    model = load(run.folder)
    place = model.require_tokenizer().vocabulary.index("film")
    torch.testing.assert_close(model.backbone.embed.tokens[place].detach(), torch.full((128,), 0.25))


def test_skip_gram_vectors_are_trained(tmp_path: Path) -> None:
    pytest.importorskip("gensim")
    lines = [f"the {'red' if i % 2 else 'blue'} {'apple' if i % 2 else 'sea'} ." for i in range(200)]
    (tmp_path / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    facts = pt.train_vectors(tmp_path / "text.txt", out=tmp_path / "model", vector_size=8, language="lines").facts
    assert facts["words"] == 6 and load(tmp_path / "model").backbone.width == 8
    again = pt.train_vectors(tmp_path / "text.txt", out=tmp_path / "again", vector_size=8, language="lines")
    assert again.facts["words"] == 6
    assert torch.equal(load(tmp_path / "model").backbone.embed.tokens, load(tmp_path / "again").backbone.embed.tokens)
