"""Checkpoints in ELMo's released format, against a NumPy implementation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.models.loading import load
from pretune.text.tokenizers.character_ids import encode_characters

h5py = pytest.importorskip("h5py")

OPTIONS = {
    "lstm": {"use_skip_connections": True, "projection_dim": 4, "cell_clip": 0.3, "proj_clip": 0.2, "dim": 6, "n_layers": 2},
    "char_cnn": {
        "activation": "relu", "filters": [[1, 2], [2, 3]], "n_highway": 1, "embedding": {"dim": 3},
        "n_characters": 262, "max_characters_per_token": 50,
    },
}  # fmt: skip


def write(folder: Path) -> dict[str, Any]:
    """Write random weights in the released format, and return them as arrays."""
    rng = np.random.default_rng(0)
    shapes = {
        "char_embed": (261, 3),
        "CNN/W_cnn_0": (1, 1, 3, 2), "CNN/b_cnn_0": (2,), "CNN/W_cnn_1": (1, 2, 3, 3), "CNN/b_cnn_1": (3,),
        "CNN_high_0/W_carry": (5, 5), "CNN_high_0/b_carry": (5,), "CNN_high_0/W_transform": (5, 5),
        "CNN_high_0/b_transform": (5,), "CNN_proj/W_proj": (5, 4), "CNN_proj/b_proj": (4,),
    }  # fmt: skip
    for direction in range(2):
        for layer in range(2):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            shapes |= {f"{cell}/W_0": (8, 24), f"{cell}/B": (24,), f"{cell}/W_P_0": (6, 4)}
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    folder.mkdir()
    with h5py.File(folder / "elmo_weights.hdf5", "w") as file:
        for name, array in arrays.items():
            file[name] = array
    (folder / "elmo_options.json").write_text(json.dumps(OPTIONS), encoding="utf-8")
    return arrays


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def character_cnn(a: dict[str, Any], sentence: list[np.ndarray]) -> np.ndarray:
    """Compute layer 0 as the original implementation does."""
    table = np.concatenate([np.zeros((1, 3), np.float32), a["char_embed"]])
    rows = []
    for symbols in sentence:
        letters = table[symbols]  # (50, 3)
        found = []
        for number, width in enumerate((1, 2)):
            kernel = a[f"CNN/W_cnn_{number}"][0]  # (width, 3, filters)
            windows = np.stack([letters[i : i + width] for i in range(50 - width + 1)])
            found.append((np.einsum("pwc,wcf->pf", windows, kernel) + a[f"CNN/b_cnn_{number}"]).max(0))
        x = np.maximum(np.concatenate(found), 0)
        carry = sigmoid(x @ a["CNN_high_0/W_carry"] + a["CNN_high_0/b_carry"])
        transform = np.maximum(x @ a["CNN_high_0/W_transform"] + a["CNN_high_0/b_transform"], 0)
        rows.append((carry * transform + (1 - carry) * x) @ a["CNN_proj/W_proj"] + a["CNN_proj/b_proj"])
    return np.stack(rows)


def lstm_stack(a: dict[str, Any], x: np.ndarray, direction: int) -> list[np.ndarray]:
    """Compute both clipped LSTM layers of a stack, the second with a residual connection."""
    layers = []
    for layer in range(2):
        cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
        hidden, cells, out = np.zeros(4), np.zeros(6), []
        for row in x:
            gates = np.concatenate([row, hidden]) @ a[f"{cell}/W_0"] + a[f"{cell}/B"]
            enter, candidate, forget, leave = np.split(gates, 4)
            cells = np.clip(sigmoid(forget + 1.0) * cells + sigmoid(enter) * np.tanh(candidate), -0.3, 0.3)
            hidden = np.clip((sigmoid(leave) * np.tanh(cells)) @ a[f"{cell}/W_P_0"], -0.2, 0.2)
            out.append(hidden)
        x = np.stack(out) + (x if layer else 0)
        layers.append(x)
    return layers


def test_layers_match_the_original_implementation(tmp_path: Path) -> None:
    arrays = write(tmp_path / "published")
    facts = pt.import_model(tmp_path / "published", out=tmp_path / "model").facts
    assert facts["family"] == "elmo" and facts["width"] == 8
    model = load(tmp_path / "model")
    tokenizer = model.require_tokenizer()
    from pretune.models.length_bucketing import text_batches

    (batch,) = text_batches(model, ["play it, Sam"])
    with torch.no_grad():
        layers = model.root.eval().backbone(*batch.packed, keep="all").layers
    start, end = (tokenizer.token_characters[tokenizer.role(role)] for role in ("start", "end"))
    sentence = [start, *encode_characters(["play", "it", ",", "Sam"]), end]
    x = character_cnn(arrays, sentence)
    ahead, back = lstm_stack(arrays, x, 0), lstm_stack(arrays, x[::-1], 1)
    wanted = [np.concatenate([x, x], 1), *(np.concatenate([f, b[::-1]], 1) for f, b in zip(ahead, back, strict=True))]
    for ours, theirs in zip(layers, wanted, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, atol=2e-5)


def test_listed_words_have_ids_and_other_words_are_encoded_by_characters(tmp_path: Path) -> None:
    write(tmp_path / "published")
    (tmp_path / "words.txt").write_text("play\nbank\n", encoding="utf-8")
    pt.import_model(tmp_path / "published", out=tmp_path / "model", vocab_file=tmp_path / "words.txt")
    tokenizer = load(tmp_path / "model").require_tokenizer()
    assert tokenizer.tokens(tokenizer.encode("play bank x")) == ["play", "bank", "[UNK]"]
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("They play chess.\n\nA quixotic play on words.\n\nHe sat by the river.", encoding="utf-8")
    rows = pt.neighbors(tmp_path / "model", "quixotic", "Such quixotic ideas.", corpus=corpus, top_k=3, layer=0)
    assert rows[0]["word"] == "quixotic" and "words" in rows[0]["text"]


@pytest.mark.parametrize("missing", ["weights", "options"])
def test_missing_files_are_reported(missing: str, tmp_path: Path) -> None:
    write(tmp_path / "published")
    (tmp_path / "published" / ("elmo_weights.hdf5" if missing == "weights" else "elmo_options.json")).unlink()
    with pytest.raises(pt.PretuneError, match=r"options.json"):
        pt.import_model(tmp_path / "published", out=tmp_path / "model")
