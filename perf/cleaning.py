"""Measure the throughput of each filter of `prepare --clean` and its other cleaning options.

    python perf/cleaning.py FILES [--megabytes 10] [--language en] [--json]

Each filter runs alone, in one process; the time is CPU time, so that other work on the machine counts little. FILES are those of a
corpus, of which the first megabytes are read.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from itertools import takewhile

from common import machine

from pretune.text.corpus.cleaning.cleaner import Cleaner, CleaningSettings
from pretune.text.corpus.cleaning.document_features import DocumentFeatures
from pretune.text.corpus.cleaning.duplicate_spans import sentence_hashes
from pretune.text.corpus.cleaning.near_duplicates import minhash_signature
from pretune.text.corpus.cleaning.rule_sets import DUPLICATE_SPANS, RULE_SETS
from pretune.text.corpus.documents import read_documents
from pretune.text.corpus.files import find_files
from pretune.text.corpus.ngram_hashes import NgramHasher, NgramSet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--megabytes", type=float, default=10)
    parser.add_argument("--language", default="en")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    left = options.megabytes * 1e6

    def fits(text: str) -> bool:
        nonlocal left
        left -= len(text.encode())
        return left > 0

    texts = list(takewhile(fits, (document.text for document in read_documents(find_files(options.files)))))
    size = sum(len(text.encode()) for text in texts) / 1e6
    hasher = NgramHasher()
    filters: dict[str, Callable[[str], object]] = {
        name: Cleaner(CleaningSettings((name,)), options.language).clean
        for name in RULE_SETS
        if name != DUPLICATE_SPANS
    }
    filters[DUPLICATE_SPANS] = lambda text: sentence_hashes(text, options.language)
    filters["near-duplicates"] = lambda text: minhash_signature(DocumentFeatures(text, options.language, hasher))
    benchmark = NgramSet.of_texts(texts[:: max(1, len(texts) // 1000)])  # every n-gram length is there to be searched
    filters["benchmark"] = Cleaner(CleaningSettings(benchmark=benchmark), options.language).clean
    filters["language"] = Cleaner(CleaningSettings(keep_languages=(options.language,)), options.language).clean
    rates = {}
    for name, run in filters.items():
        started = time.process_time()
        for text in texts:
            run(text)
        rates[name] = round(size / (time.process_time() - started), 1)
    result = {"megabytes": round(size, 1), "documents": len(texts), "megabytes_per_s": rates, **machine()}
    print(
        json.dumps(result) if options.json else "\n".join(f"{name:20} {rate:6.1f} MB/s" for name, rate in rates.items())
    )


if __name__ == "__main__":
    main()
