"""Token stores that are damaged or malicious."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

import pretune as pt
from pretune import PretuneError
from pretune.runtime.parsing import CHECKSUM_KEY, file_digest, json_checksum
from pretune.text.store.store import CLEANING_REPORT, MANIFEST, Store
from tests.support.fuzz_harness import FEW, MANY, Kind, attack

TEXTS = ["News of the day. More rain is expected!", "Nothing else happened. Small words stand here now.", "One more."]
SHARD = "00000-0000.safetensors"


@cache
def prepared() -> dict[str, bytes]:
    """Return the files of a small store."""
    folder = Path(mkdtemp())
    (folder / "a.txt").write_text("\n\n".join(TEXTS), encoding="utf-8")
    tokenizer = pt.train_tokenizer(str(folder / "a.txt"), kind="byte-level-bpe", vocab_size=300)
    pt.prepare(str(folder / "a.txt"), tokenizer, out=folder / "store")
    return {path.name: path.read_bytes() for path in (folder / "store").iterdir() if path.is_file()}


@cache
def prepared_clean() -> dict[str, bytes]:
    """Return the files of a small store of a cleaned corpus."""
    folder = Path(mkdtemp())
    (folder / "a.txt").write_text("\n\n".join([*TEXTS, "No end"]), encoding="utf-8")
    tokenizer = pt.train_tokenizer(str(folder / "a.txt"), kind="byte-level-bpe", vocab_size=300)
    rules = ["c4/end-punctuation", "c4/javascript"]
    pt.prepare(str(folder / "a.txt"), tokenizer, out=folder / "store", clean=rules, processes=1)
    return {path.name: path.read_bytes() for path in (folder / "store").iterdir() if path.is_file()}


def make_clean(folder: Path) -> None:
    for name, content in prepared_clean().items():
        (folder / name).write_bytes(content)


def read_report(folder: Path) -> str:
    return json.dumps(Store(folder).describe()["cleaning"]["rules"])


def make(folder: Path) -> None:
    for name, content in prepared().items():
        (folder / name).write_bytes(content)


def read_all(folder: Path) -> str:
    """Return a digest of the tokens, words, bytes and files of all documents."""
    store = Store(folder)
    found = hashlib.sha256(str(store.describe()["documents"]).encode())
    for number in range(store.documents):
        found.update(store.document(number).tobytes())
    for column in (store.document_bytes, store.document_files, store.sentence_offsets, store.document_languages):
        found.update(column.tobytes())
    return found.hexdigest()


def read_tokenizer(folder: Path) -> str:
    return Store(folder).tokenizer.digest


def read_forged(folder: Path) -> str:
    """Read a store after recomputing the checksums of its changed files: contents are checked nevertheless."""
    path = folder / MANIFEST
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        for shard in content["shards"] if isinstance(content, dict) else ():
            if shard["file"] == SHARD:
                shard |= {"size": (folder / SHARD).stat().st_size, "sha256": file_digest(folder / SHARD)}
        if isinstance(content, dict):
            content.pop(CHECKSUM_KEY, None)
            path.write_text(json.dumps(content | {CHECKSUM_KEY: json_checksum(content)}))
    except (ValueError, KeyError, TypeError, RecursionError):
        pass  # too damaged for new checksums
    return read_all(folder)


KINDS = [
    Kind("manifest.json", make, [MANIFEST], read_all, str),
    Kind("shard of a store", make, [SHARD], read_all, str),
    Kind("tokenizer.json of a store", make, ["tokenizer.json"], read_tokenizer, str),
    Kind("cleaning.json of a store", make_clean, [CLEANING_REPORT], read_report, str),
    Kind("manifest.json, forged", make, [MANIFEST], read_forged),
    Kind("shard of a store, forged", make, [SHARD], read_forged),
]


@pytest.mark.end_to_end
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_damaged_stores(kind: Kind, tmp_path: Path) -> None:
    report = attack(kind, tmp_path, FEW)
    assert not report.bad, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_damaged_stores_at_length(kind: Kind, tmp_path: Path) -> None:
    report = attack(kind, tmp_path, MANY, seed=1)
    print(report)
    assert not report.bad, str(report)


@pytest.mark.not_fast
@pytest.mark.parametrize(
    "place",
    ["../secret.safetensors", "/etc/passwd", "a/../../x", "", ".", "..", "é" * 300, "a\0b", "sub/00000.safetensors"],
)
def test_shards_stay_inside_the_store(place: str, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    make(tmp_path / "store")
    (tmp_path / "secret.safetensors").write_bytes(prepared()[SHARD])
    path = tmp_path / "store" / MANIFEST
    content = json.loads(path.read_text())
    del content[CHECKSUM_KEY]
    content["shards"][0]["file"] = place
    path.write_text(json.dumps(content | {CHECKSUM_KEY: json_checksum(content)}))
    with pytest.raises(PretuneError, match=r"manifest\.json"):
        Store(tmp_path / "store")
