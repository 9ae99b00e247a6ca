"""Build token stores from documents, in several processes, resumably and reproducibly.

The content of each shard depends on the input alone. A store is built in `NAME.partial`; each finished shard there is
complete and records a digest of its input, so that a second run continues where the first one stopped. When all shards
are finished, the folder gets its final name.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.atomic_io import remove_temporaries, sync_folder, write_bytes
from pretune.runtime.errors import PretuneError, if_option, quote
from pretune.runtime.parsing import file_digest, write_checksummed_json
from pretune.runtime.progress import ProgressBar, SilentProgress, log_info, progress
from pretune.runtime.ray_jobs import Executor, absolute_if_exists, check_visible, run_on_ray
from pretune.text.corpus.documents import Document
from pretune.text.corpus.files import ByteMeter
from pretune.text.store.cleaning_pass import (
    CLEANED,
    benchmark_file,
    clean_on_cluster,
    clean_units,
    cleaned_bytes,
    has_finished_units,
    read_cleaned,
    remove_duplicates,
    start_cleaning,
)
from pretune.text.store.settings import PART_BYTES, group_by_size, text_size
from pretune.text.store.settings import StoreSettings as StoreSettings
from pretune.text.store.shards import (
    ShardWorker,
    build_packed_part,
    content_digest,
    join_parts,
    pack_texts,
    serialize_shard,
)
from pretune.text.store.store import (
    CLEANING_REPORT,
    FORMAT,
    MANIFEST,
    VERSION,
    Store,
    map_shard,
    partial_folder,
    read_header,
)
from pretune.text.store.worker_process import WorkerPool
from pretune.text.tokenizers.tokenizer import Tokenizer

UNIT_BYTES = 8 << 20  # size on disk of a unit of files; shards do not cross units
_tokenizer = cache(Tokenizer.from_state)  # of a worker on a cluster
PartBuilder = Callable[[bytes], dict[str, Array]]  # builds a part of a shard from packed texts


def build_store(
    files: Sequence[Path],
    tokenizer: Tokenizer,
    out: Path,
    settings: StoreSettings,
    processes: int | None = None,
    executor: Executor = "local",
) -> Store:
    """Tokenize files into a store in the folder `out`; return the existing store if it was built from the same input.

    With the `executor` "local", `processes` is the number of worker processes; with "ray", it is the maximum number of
    jobs on the cluster at a time.
    """
    identity = {
        "tokenizer": tokenizer.digest,
        "settings": settings.describe(),
        "sources": [{"file": str(file), "size": file.stat().st_size} for file in files],
    }
    if (out / MANIFEST).is_file():
        store = Store(out)
        if all(store.manifest[key] == value for key, value in identity.items()):
            return store
        advice = if_option("out", ", or choose another --out")
        raise PretuneError(f"{out}: the folder contains a store prepared from other input; delete the folder{advice}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        advice = if_option("out", "; choose another --out")
        raise PretuneError(f"{out}: the path exists and is not an empty folder{advice}")
    folder = partial_folder(out)
    resumed = folder.is_dir()
    folder.mkdir(parents=True, exist_ok=True)
    remove_temporaries(folder)
    units = list(enumerate(_units(files)))
    size = sum(file.stat().st_size for file in files)
    if executor == "local" and processes is None:
        processes = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    report: dict[str, Any] | None = None
    try:
        if settings.cleaning is not None:
            start_cleaning(folder, settings.cleaning)
            with progress("cleaning", size) as bar:
                if executor == "ray":
                    clean_on_cluster(units, folder, settings, processes, bar)
                else:
                    clean_units(units, folder, settings, processes or 1, bar)
            report = remove_duplicates(len(units), folder, settings.cleaning, settings.language)
            size = cleaned_bytes(folder)
        with progress("tokenizing", size) as bar:
            if executor == "ray":
                shards = _build_on_cluster(units, tokenizer, folder, settings, processes, bar)
            else:
                shards = _build_all(units, tokenizer, folder, settings, processes or 1, bar)
        empty = sum(entry.pop("empty_documents") for entry in shards)
        totals = {key: sum(entry[key] for entry in shards) for key in ("documents", "sentences", "tokens", "bytes")}
        if report is not None:
            shutil.rmtree(folder / CLEANED)
            write_checksummed_json(folder / CLEANING_REPORT, report)
        if report is not None and report["removed_characters"] and not totals["tokens"]:
            most = max(report["rules"], key=lambda row: row["characters"])
            raise PretuneError(
                f"{', '.join(map(str, files[:3]))}: cleaning removed all of the text, {most['share']:.0%} of it by the rule "
                f"{most['rule']}, for example {quote(most['examples'][0])}; choose other rules"
            )
        if not totals["tokens"]:
            raise PretuneError(
                f"{', '.join(map(str, files[:3]))}: the files contain no text to prepare; pass files with text"
            )
        tokenizer.save(folder)
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            **identity,
            "vocabulary": tokenizer.size,
            "dtype": tokenizer.dtype.name,
            **totals,
            "empty_documents": empty,
            "shards": shards,
        }
        remove_temporaries(folder)  # of workers that were killed
        for path in {*folder.glob("*.safetensors")} - {folder / entry["file"] for entry in shards}:
            path.unlink()  # a shard of an earlier run with other input
        write_checksummed_json(folder / MANIFEST, manifest)
    except KeyboardInterrupt:
        log_info(f"interrupted; finished work is kept in {folder}; run the same command again to continue")
        raise
    except BaseException:
        if resumed or any(folder.glob("*.safetensors")) or has_finished_units(folder):
            advice = "run the same command again to continue, or delete the folder"
            log_info(f"finished work is kept in {folder}; {advice}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if out.is_dir():
        out.rmdir()
    os.rename(folder, out)
    sync_folder(out.parent)
    return Store(out, verify=False)


def _build_on_cluster(
    units: Iterable[tuple[int, list[Path]]],
    tokenizer: Tokenizer,
    folder: Path,
    settings: StoreSettings,
    max_jobs: int | None,
    bar: ProgressBar,
) -> list[dict[str, Any]]:
    """Build all shards on a Ray cluster, with one job per numbered group of files (`units`).

    Return the manifest entries of the shards, in order.
    """
    state, entries, done = tokenizer.state(), list[dict[str, Any]](), 0
    jobs = (
        (number, [absolute_if_exists(file) for file in unit], state, absolute_if_exists(folder), settings.state())
        for number, unit in units
    )
    for job, shards in run_on_ray(build_unit, jobs, max_jobs):
        entries += shards
        done += sum(Path(file).stat().st_size for file in job[1])
        bar.update(done, f"{sum(entry['tokens'] for entry in entries):,} tokens")
    return entries


def build_unit(number: int, files: list[str], tokenizer: str, folder: str, settings: dict[str, Any]) -> Any:
    """Build those shards of a group of files, the unit `number`, that do not exist yet.

    Return the manifest entries of all of its shards. `tokenizer` and `settings` are serialized; `folder` is that of the
    unfinished store.
    """
    for path in (folder, *files):
        check_visible(Path(path))
    unit = number, [Path(file) for file in files]
    restored = StoreSettings.from_state(settings, benchmark_file(Path(folder)))
    return _build_all([unit], _tokenizer(tokenizer), Path(folder), restored, 1, SilentProgress())


def _build_all(
    units: Iterable[tuple[int, list[Path]]],
    tokenizer: Tokenizer,
    folder: Path,
    settings: StoreSettings,
    processes: int,
    bar: ProgressBar,
) -> list[dict[str, Any]]:
    """Build the missing shards of numbered groups of files (`units`) in parallel worker processes.

    Return the manifest entries of all shards, in order.
    """
    build_digest = hashlib.sha256(json.dumps([tokenizer.digest, settings.describe()]).encode()).digest()
    meter = ByteMeter()
    entries: list[dict[str, Any]] = []
    waiting: deque[tuple[str, str, Array, list[Future[dict[str, Array]]]]] = deque()
    tokens = 0

    with ExitStack() as stack:
        builders: list[PartBuilder] = [partial(build_packed_part, tokenizer=tokenizer, language=settings.language)]
        if processes > 1:
            workers = (ShardWorker(tokenizer, settings.language) for _ in range(processes))
            builders = [stack.enter_context(worker).build for worker in workers]
        pool = stack.enter_context(WorkerPool(builders))

        def finish_first() -> None:
            nonlocal tokens
            name, source, files, parts = waiting.popleft()
            if parts:
                arrays = join_parts([part.result() for part in parts]) | {"files": files}
                write_bytes(folder / name, serialize_shard(arrays, source))
            entries.append(_entry(folder / name))
            tokens += entries[-1]["tokens"]
            bar.update(meter.bytes, f"{tokens:,} tokens")

        for name, packed, files in _cut(units, folder, settings, meter):
            digest = hashlib.sha256(build_digest)
            for part in (*packed, files.tobytes()):
                digest.update(part)
            source = digest.hexdigest()
            done = _is_done(folder / name, source)
            waiting.append((name, source, files, [] if done else [pool.submit(part) for part in packed]))
            if len(waiting) > 2:  # one shard in progress, one queued
                finish_first()
            bar.update(meter.bytes, f"{tokens:,} tokens")
        while waiting:
            finish_first()
    return entries


def _cut(
    units: Iterable[tuple[int, list[Path]]], folder: Path, settings: StoreSettings, meter: ByteMeter
) -> Iterator[tuple[str, list[bytes], Array]]:
    """Divide the documents of numbered groups of files (`units`) into shards.

    Yield, for each shard, its file name, its texts as serialized parts, and a mask of the documents that are the first
    of their file.
    """
    for unit, group in units:
        last: Path | None = None
        if settings.cleaning is None:
            documents = settings.read_documents(group, meter)
        else:
            documents = read_cleaned(folder, unit, group, settings.language, meter)
        for number, shard in enumerate(group_by_size(documents, text_size, settings.shard_bytes)):
            files = [document.file for document in shard]
            begins = [one != other for one, other in pairwise([last, *files])]
            last = files[-1]
            name = f"{unit:05d}-{number:04d}.safetensors"
            yield (
                name,
                [_pack(part) for part in group_by_size(shard, text_size, PART_BYTES)],
                np.array(begins, dtype=np.uint8),
            )


def _pack(documents: Sequence[Document]) -> bytes:
    spans = [(number, *span) for number, document in enumerate(documents) for span in document.spans]
    return pack_texts([document.text for document in documents], np.array(spans, dtype=np.int64).reshape(-1, 3))


def _units(files: Iterable[Path]) -> Iterator[list[Path]]:
    return group_by_size(files, lambda file: file.stat().st_size, UNIT_BYTES)


def _is_done(path: Path, source: str) -> bool:
    """Return whether the shard at `path` exists, is intact, and was built from the input with the digest `source`."""
    if not path.is_file():
        return False
    try:
        header, _ = read_header(path)
        recorded = json.loads(header["__metadata__"]["pretune"])
        return bool(recorded["source"] == source and recorded["content"] == content_digest(map_shard(path)))
    except (ValueError, KeyError, OSError, PretuneError):
        return False


def _entry(path: Path) -> dict[str, Any]:
    """Return the manifest entry of a shard file: its name, sizes and checksum."""
    arrays = map_shard(path)
    return {
        "file": path.name,
        "documents": len(arrays["documents"]) - 1,
        "empty_documents": int((arrays["documents"][1:] == arrays["documents"][:-1]).sum()),
        "sentences": len(arrays["sentences"]) - 1,
        "tokens": len(arrays["tokens"]),
        "bytes": int(arrays["bytes"].sum()),
        "size": path.stat().st_size,
        "sha256": file_digest(path),
    }
