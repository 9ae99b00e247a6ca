"""Damaged files of word vectors, and ELMo's published files."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretune import PretuneError
from pretune.text.corpus.word_vector_files import FASTTEXT, read_word_vectors
from tests.support.fuzz_harness import FEW, MANY, Kind, attack

WORDS = ["the", "cat", "sat", "naïve", "中文"]
WIDTH = 4
MATRIX = np.arange(len(WORDS) * WIDTH, dtype="<f4").reshape(len(WORDS), WIDTH) / 7


def as_text(folder: Path, header: bool = True) -> None:
    lines = [f"{len(WORDS)} {WIDTH}"] if header else []
    lines += [f"{word} {' '.join(map(str, row))}" for word, row in zip(WORDS, MATRIX, strict=True)]
    (folder / "vectors.vec").write_text("\n".join(lines) + "\n")


def as_binary(folder: Path) -> None:
    content = f"{len(WORDS)} {WIDTH}\n".encode()
    content += b"".join(word.encode() + b" " + row.tobytes() + b"\n" for word, row in zip(WORDS, MATRIX, strict=True))
    (folder / "vectors.bin").write_bytes(content)


def as_compressed(folder: Path) -> None:
    as_text(folder)
    (folder / "vectors.vec.gz").write_bytes(gzip.compress((folder / "vectors.vec").read_bytes()))


def as_fasttext(folder: Path) -> None:
    bucket = 6
    content = struct.pack("<ii", FASTTEXT, 12)
    content += struct.pack("<12id", WIDTH, 5, 5, 1, 5, 1, 1, 2, bucket, 3, 4, 100, 1e-4)
    content += struct.pack("<iiiqq", len(WORDS), len(WORDS), 0, 100, -1)
    content += b"".join(word.encode() + b"\0" + struct.pack("<qb", 3, 0) for word in WORDS)
    content += struct.pack("<?qq", False, len(WORDS) + bucket, WIDTH)
    content += np.ones((len(WORDS) + bucket, WIDTH), "<f4").tobytes()
    (folder / "vectors.bin").write_bytes(content)


OPTIONS: dict[str, Any] = {
    "lstm": {"dim": 4, "projection_dim": 2, "n_layers": 1, "use_skip_connections": True, "cell_clip": 3, "proj_clip": 3},
    "char_cnn": {
        "embedding": {"dim": 3}, "max_characters_per_token": 6, "filters": [[1, 2], [2, 2]], "n_highway": 1,
        "activation": "relu",
    },
}  # fmt: skip


def elmo(folder: Path) -> None:
    h5py = pytest.importorskip("h5py")
    (folder / "options.json").write_text(json.dumps(OPTIONS))
    shapes = {
        "char_embed": (261, 3), "CNN/W_cnn_0": (1, 1, 3, 2), "CNN/b_cnn_0": (2,), "CNN/W_cnn_1": (1, 2, 3, 2),
        "CNN/b_cnn_1": (2,), "CNN_high_0/W_carry": (4, 4), "CNN_high_0/b_carry": (4,), "CNN_high_0/W_transform": (4, 4),
        "CNN_high_0/b_transform": (4,), "CNN_proj/W_proj": (4, 2), "CNN_proj/b_proj": (2,),
    }  # fmt: skip
    for way in (0, 1):
        cell = f"RNN_{way}/RNN/MultiRNNCell/Cell0/LSTMCell"
        shapes |= {f"{cell}/W_0": (4, 16), f"{cell}/B": (16,), f"{cell}/W_P_0": (4, 2)}
    with h5py.File(folder / "weights.hdf5", "w") as file:
        for name, shape in shapes.items():
            file[name] = np.full(shape, 0.1, dtype=np.float32)


def read_elmo(folder: Path) -> Any:
    from pretune.families.recurrent.elmo import build
    from pretune.families.recurrent.elmo_checkpoint import read_published

    config, tensors = read_published(folder, vocabulary=10)
    build(config).load_state_dict(tensors, strict=False)
    return config


def reader(name: str) -> Any:
    return lambda folder: read_word_vectors(folder / name)


KINDS = [
    Kind("word2vec text", as_text, ["vectors.vec"], reader("vectors.vec")),
    Kind("GloVe text", lambda folder: as_text(folder, header=False), ["vectors.vec"], reader("vectors.vec")),
    Kind("compressed vectors", as_compressed, ["vectors.vec.gz"], reader("vectors.vec.gz")),
    Kind("word2vec binary", as_binary, ["vectors.bin"], reader("vectors.bin")),
    Kind("fastText binary", as_fasttext, ["vectors.bin"], reader("vectors.bin")),
    Kind("ELMo's options.json", elmo, ["options.json"], read_elmo),
    Kind("ELMo's hdf5", elmo, ["weights.hdf5"], read_elmo),
]


@pytest.mark.end_to_end
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_damaged_vectors(kind: Kind, tmp_path: Path) -> None:
    report = attack(kind, tmp_path, FEW)
    assert not report.bad, str(report)
    assert report.counts["refused"] > FEW // 10


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_damaged_vectors_at_length(kind: Kind, tmp_path: Path) -> None:
    report = attack(kind, tmp_path, MANY, seed=1)
    print(report)
    assert not report.bad, str(report)


@pytest.mark.parametrize("header", ["99999999999 300", "5 99999999999", "9" * 400 + " 3", "0 0", "3 0"])
def test_a_huge_header_does_not_allocate_memory(header: str, tmp_path: Path) -> None:
    (tmp_path / "vectors.bin").write_bytes(f"{header}\n".encode() + b"the " + bytes([255, 1, 2, 3] * 5))
    with pytest.raises(PretuneError, match=r"vectors\.bin"):
        read_word_vectors(tmp_path / "vectors.bin")
