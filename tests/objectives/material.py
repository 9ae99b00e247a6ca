"""What the objectives' tests share: small stores of real text under every kind of tokenizer."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from conftest import KOREAN, RUSSIAN, english_documents
from pretune.objectives import Data
from pretune.text.documents import Document
from pretune.text.preparing import Settings, make_store
from pretune.text.sequences import Template
from pretune.text.store import Store
from pretune.text.tokenizer_training import Kind, train

KINDS: list[Kind] = ["wordpiece", "bpe", "byte-bpe", "unigram", "raw-bpe", "raw-unigram", "items"]
TEMPLATE = Template(single=("start", "A", "separator"), pair=("B", "separator"))


@cache
def store(kind: Kind = "wordpiece") -> Store:
    folder = Path(tempfile.mkdtemp())
    texts = [" ".join(t.split()) for t in english_documents()[:12]] + RUSSIAN + KOREAN
    (folder / "a.txt").write_text("\n".join(texts), encoding="utf-8")
    tokenizer = train([Document(t, folder, 1) for t in texts * 2], kind, 900)
    return make_store([folder / "a.txt"], tokenizer, folder / "store", Settings(layout="line", shard_bytes=9000), 1)


def data(kind: Kind = "wordpiece") -> Data:
    return Data(store(kind).tokenizer, TEMPLATE, store=store(kind), documents=np.arange(store(kind).documents))
