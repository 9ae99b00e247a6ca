"""Build token stores from documents, in several processes, resumably and reproducibly.

The content of each shard depends on the input alone. A store is built in `NAME.partial`; each finished shard there is
complete and records a digest of its input, so that a second run continues where the first one stopped. When all shards
are finished, the folder gets its final name.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.atomic_io import remove_temporaries, sync_folder, write_bytes
from pretune.runtime.errors import PretuneError, if_option
from pretune.runtime.parsing import file_digest, write_checksummed_json
from pretune.runtime.progress import ProgressBar, SilentProgress, log_info, progress
from pretune.runtime.ray_jobs import Executor, absolute_if_exists, check_visible, run_on_ray
from pretune.text.corpus.documents import Document, SplitBy, read_documents
from pretune.text.corpus.files import ByteMeter, Errors
from pretune.text.store.shards import (
    ShardWorker,
    build_packed_part,
    content_digest,
    join_parts,
    pack_texts,
    serialize_shard,
)
from pretune.text.store.store import FORMAT, MANIFEST, VERSION, Store, map_shard, partial_folder, read_header
from pretune.text.tokenizers.tokenizer import Tokenizer

SHARD_BYTES = 32 << 20  # text per shard
PART_BYTES = 1 << 20  # text passed to a worker at once
UNIT_BYTES = 8 << 20  # size on disk of a unit of files; shards do not cross units
Item = TypeVar("Item")
_tokenizer = cache(Tokenizer.from_state)  # of a worker on a cluster
PartBuilder = Callable[[bytes], dict[str, Array]]  # builds a part of a shard from packed texts


@dataclass(frozen=True)
class StoreSettings:
    """The settings that, together with the files and the tokenizer, determine the content of a token store."""

    language: str = "en"  # of the sentence splitter; "lines": one sentence per line
    split_by: SplitBy = "auto"
    text_field: str | None = None
    encoding_errors: Errors = "strict"
    shard_bytes: int = SHARD_BYTES
    span_field: str | None = None  # a field with annotated spans, each of which counts as one word

    def describe(self) -> dict[str, Any]:
        """Return the settings that produced a token store as a dictionary, for the manifest of the store."""
        return {key: value for key, value in asdict(self).items() if key != "span_field" or value}


def build_store(
    files: Sequence[Path],
    tokenizer: Tokenizer,
    out: Path,
    settings: StoreSettings,
    processes: int | None = None,
    executor: Executor = "local",
) -> Store:
    """Tokenize files into a store at `out`; return the existing store if it was built from the same input.

    `executor` is "local", with `processes` worker processes, or "ray", with at most `processes` cluster jobs at a time.
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
    try:
        with progress("tokenizing", sum(file.stat().st_size for file in files)) as bar:
            if executor == "ray":
                shards = _build_on_cluster(files, tokenizer, folder, settings, processes, bar)
            else:
                processes = processes or (len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count())
                shards = _build_all(enumerate(_units(files)), tokenizer, folder, settings, processes or 1, bar)
        empty = sum(entry.pop("empty_documents") for entry in shards)
        totals = {key: sum(entry[key] for entry in shards) for key in ("documents", "sentences", "tokens", "bytes")}
        if not totals["tokens"]:
            raise PretuneError(f"{', '.join(map(str, files[:3]))}: the files contain no text to prepare")
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
        log_info(f"interrupted; finished shards are kept in {folder}; run the same command again to continue")
        raise
    except BaseException:
        if resumed or any(folder.glob("*.safetensors")):
            advice = "run the same command again to continue, or delete the folder"
            log_info(f"finished shards are kept in {folder}; {advice}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if out.is_dir():
        out.rmdir()
    os.rename(folder, out)
    sync_folder(out.parent)
    return Store(out, verify=False)


def _build_on_cluster(
    files: Sequence[Path],
    tokenizer: Tokenizer,
    folder: Path,
    settings: StoreSettings,
    max_jobs: int | None,
    bar: ProgressBar,
) -> list[dict[str, Any]]:
    """Build all shards on a Ray cluster, with one job per group of files; return their manifest entries in order."""
    state, entries, done = tokenizer.state(), list[dict[str, Any]](), 0
    jobs = (
        (number, [absolute_if_exists(file) for file in unit], state, absolute_if_exists(folder), asdict(settings))
        for number, unit in enumerate(_units(files))
    )
    for job, shards in run_on_ray(build_unit, jobs, max_jobs):
        entries += shards
        done += sum(Path(file).stat().st_size for file in job[1])
        bar.update(done, f"{sum(entry['tokens'] for entry in entries):,} tokens")
    return entries


def build_unit(number: int, files: list[str], tokenizer: str, folder: str, settings: dict[str, Any]) -> Any:
    """Build the missing shards of a numbered group of files; return the manifest entries of all of its shards."""
    for path in (folder, *files):
        check_visible(Path(path))
    unit = number, [Path(file) for file in files]
    return _build_all([unit], _tokenizer(tokenizer), Path(folder), StoreSettings(**settings), 1, SilentProgress())


def _build_all(
    units: Iterable[tuple[int, list[Path]]],
    tokenizer: Tokenizer,
    folder: Path,
    settings: StoreSettings,
    processes: int,
    bar: ProgressBar,
) -> list[dict[str, Any]]:
    """Build the missing shards of groups of files (units) in parallel; return the manifest entries of all shards."""
    build_digest = hashlib.sha256(json.dumps([tokenizer.digest, settings.describe()]).encode()).digest()
    meter = ByteMeter()
    entries: list[dict[str, Any]] = []
    waiting: deque[tuple[str, str, Array, list[Future[dict[str, Array]]]]] = deque()
    tokens = 0

    with ExitStack() as stack:
        idle: queue.SimpleQueue[PartBuilder] = queue.SimpleQueue()
        if processes == 1:
            idle.put(partial(build_packed_part, tokenizer=tokenizer, language=settings.language))
        else:
            for _ in range(processes):
                idle.put(stack.enter_context(ShardWorker(tokenizer, settings.language)).build)
        pool = stack.enter_context(ThreadPoolExecutor(processes))

        def build(packed: bytes) -> dict[str, Array]:
            builder = idle.get()
            try:
                return builder(packed)
            finally:
                idle.put(builder)

        def finish_first() -> None:
            nonlocal tokens
            name, source, files, parts = waiting.popleft()
            if parts:
                arrays = join_parts([part.result() for part in parts]) | {"files": files}
                write_bytes(folder / name, serialize_shard(arrays, source))
            entries.append(_entry(folder / name))
            tokens += entries[-1]["tokens"]
            bar.update(meter.bytes, f"{tokens:,} tokens")

        try:
            for name, packed, files in _cut(units, settings, meter):
                digest = hashlib.sha256(build_digest)
                for part in (*packed, files.tobytes()):
                    digest.update(part)
                source = digest.hexdigest()
                done = _is_done(folder / name, source)
                waiting.append((name, source, files, [] if done else [pool.submit(build, part) for part in packed]))
                if len(waiting) > 2:  # one shard in progress, one queued
                    finish_first()
                bar.update(meter.bytes, f"{tokens:,} tokens")
            while waiting:
                finish_first()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return entries


def _cut(
    units: Iterable[tuple[int, list[Path]]], settings: StoreSettings, meter: ByteMeter
) -> Iterator[tuple[str, list[bytes], Array]]:
    """Yield the shards of file groups (`units`): name, serialized texts, and a mask of documents that begin a file."""
    for unit, group in units:
        last: Path | None = None
        documents = read_documents(
            group,
            split_by=settings.split_by,
            text_field=settings.text_field,
            span_field=settings.span_field,
            encoding_errors=settings.encoding_errors,
            meter=meter,
        )
        for number, shard in enumerate(_group(documents, _text_size, settings.shard_bytes)):
            files = [document.file for document in shard]
            begins = [one != other for one, other in pairwise([last, *files])]
            last = files[-1]
            name = f"{unit:05d}-{number:04d}.safetensors"
            yield (
                name,
                [_pack(part) for part in _group(shard, _text_size, PART_BYTES)],
                np.array(begins, dtype=np.uint8),
            )


def _pack(documents: Sequence[Document]) -> bytes:
    spans = [(number, *span) for number, document in enumerate(documents) for span in document.spans]
    return pack_texts([document.text for document in documents], np.array(spans, dtype=np.int64).reshape(-1, 3))


def _units(files: Iterable[Path]) -> Iterator[list[Path]]:
    return _group(files, lambda file: file.stat().st_size, UNIT_BYTES)


def _text_size(document: Document) -> int:
    return len(document.text.encode())


def _group(items: Iterable[Item], size: Callable[[Item], int], least: int) -> Iterator[list[Item]]:
    """Yield consecutive items in groups whose sizes, by the function `size`, add up to at least `least`."""
    group: list[Item] = []
    total = 0
    for item in items:
        group.append(item)
        total += size(item)
        if total >= least:
            yield group
            group, total = [], 0
    if group:
        yield group


def _is_done(path: Path, source: str) -> bool:
    """Return whether a shard exists, is intact, and was built from the input with the digest `source`."""
    if not path.is_file():
        return False
    try:
        header, _ = read_header(path)
        recorded = json.loads(header["__metadata__"]["pretune"])
        return bool(recorded["source"] == source and recorded["content"] == content_digest(map_shard(path)))
    except (ValueError, KeyError, OSError, PretuneError):
        return False


def _entry(path: Path) -> dict[str, Any]:
    """Return the entry that describes a shard file in the manifest of a token store."""
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
