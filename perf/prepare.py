"""Measure the throughput of `prepare` relative to `tokenizers.encode_batch`.

    python perf/prepare.py [FILES] [--megabytes 100] [--kind wordpiece] [--json]

Both use all cores and the same text: up to that many megabytes of the given files, or of sentences from Python's manual in random order.
`prepare` also reads, splits sentences, finds word starts, writes and checksums.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

from common import generate_text, machine

from pretune.text.corpus.documents import read_documents
from pretune.text.store.builder import StoreSettings, build_store
from pretune.text.tokenizers.training import train_on_documents


def write_texts(files: list[Path], out: Path, size: int) -> None:
    """Write the documents of some files, one per line, with at most `size` bytes in all and equally many of each file."""
    with out.open("w", encoding="utf-8") as stream:
        for number, file in enumerate(files, 1):
            for document in read_documents([file]):
                stream.write(" ".join(document.text.split()) + "\n")
                if stream.tell() > size * number / len(files):
                    break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--kind", default="wordpiece")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.environ["PRETUNE_PROGRESS"] = "none"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.files:
            write_texts(options.files, folder / "text.txt", options.megabytes << 20)
        else:
            generate_text(folder / "text.txt", options.megabytes << 20)
        documents = [document.text for document in read_documents([folder / "text.txt"])]
        tokenizer = train_on_documents(read_documents([folder / "text.txt"]), options.kind, 30_000)

        started = time.perf_counter()
        tokens = sum(len(e) for e in tokenizer.backend.encode_batch(documents, add_special_tokens=False))
        bare = tokens / (time.perf_counter() - started)
        del documents

        started = time.perf_counter()
        store = build_store([folder / "text.txt"], tokenizer, folder / "store", StoreSettings())
        ours = store.tokens / (time.perf_counter() - started)
    result = {
        "prepare_tokens_per_s": round(ours),
        "encode_batch_tokens_per_s": round(bare),
        "ratio": round(ours / bare, 3),
        **machine(),
    }
    print(json.dumps(result) if options.json else f"prepare / encode_batch = {result['ratio']}\n{result}")


if __name__ == "__main__":
    main()
