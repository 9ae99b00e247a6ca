"""Clean the documents of a corpus before they are tokenized: in several processes, resumably and reproducibly.

The files are divided into numbered groups (units). Each unit becomes a file of cleaned documents, `cleaned/00000.jsonl.gz` in the folder of
the unfinished store, with their MinHash signatures, sentence hashes and a report. A unit is not cleaned again if its input is unchanged.
When all units are cleaned, duplicates are found among all documents, and `read_cleaned` leaves them out.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, load_file, save

from pretune.runtime.arrays import Array
from pretune.runtime.atomic_io import atomic_file, remove_temporaries, write_bytes
from pretune.runtime.errors import PretuneError
from pretune.runtime.parsing import file_digest, read_checksummed_json, write_checksummed_json
from pretune.runtime.progress import ProgressBar, SilentProgress
from pretune.runtime.ray_jobs import absolute_if_exists, check_visible, run_on_ray
from pretune.text.corpus.cleaning.cleaner import NEAR_DUPLICATES, Cleaner, CleaningSettings, select_segments
from pretune.text.corpus.cleaning.duplicate_spans import repeated_sentences, sentence_hashes
from pretune.text.corpus.cleaning.near_duplicates import PERMUTATIONS, duplicate_clusters, minhash_signature
from pretune.text.corpus.cleaning.report import EXAMPLES, CleaningReport, Removed, shorten
from pretune.text.corpus.cleaning.rule_sets import DUPLICATE_SPANS
from pretune.text.corpus.documents import Document, read_jsonl
from pretune.text.corpus.files import ByteMeter
from pretune.text.corpus.sentences import split_sentences
from pretune.text.store.settings import PART_BYTES, StoreSettings, group_by_size, text_size
from pretune.text.store.worker_process import WorkerPool, WorkerProcess

CLEANED = "cleaned"  # folder within that of an unfinished store
Unit = tuple[int, list[Path]]


def benchmark_file(folder: Path) -> Path:
    """Return the path of the file with the n-grams of the benchmark, in the folder of an unfinished store."""
    return folder / CLEANED / "benchmark.npz"


def _file(folder: Path, unit: int, suffix: str) -> Path:
    return folder / CLEANED / f"{unit:05d}.{suffix}"


def has_finished_units(folder: Path) -> bool:
    """Return whether any group of files has already been cleaned, in the folder of an unfinished store."""
    return any((folder / CLEANED).glob("*.json"))


def cleaned_bytes(folder: Path) -> int:
    """Return the size in bytes, on disk, of all cleaned documents in the folder of an unfinished store."""
    return sum(file.stat().st_size for file in (folder / CLEANED).glob("*.jsonl.gz"))


# -- cleaning the units ---------------------------------------------------------------------------------------------


def clean_units(units: Iterable[Unit], folder: Path, settings: StoreSettings, processes: int, bar: ProgressBar) -> None:
    """Clean the documents of numbered groups of files (`units`) in parallel, and save the results in `folder`.

    Groups whose cleaned documents have already been saved are skipped.
    """
    worker = {"settings": settings.state(), "benchmark": str(benchmark_file(folder))}
    meter = ByteMeter()
    with ExitStack() as stack:
        answers: list[Callable[[bytes], bytes]]
        if processes == 1:
            answers = [clean_frames(worker)]
        else:
            started = (WorkerProcess(__name__, "clean_frames", worker) for _ in range(processes))
            answers = [stack.enter_context(process).answer for process in started]
        pool = stack.enter_context(WorkerPool(answers))
        for number, files in units:
            done = meter.bytes + sum(file.stat().st_size for file in files)
            identity = _identity(files, settings)
            if not _is_done(folder, number, identity):
                _clean_unit(number, files, folder, settings, identity, pool, meter, bar)
            meter.bytes = done
            bar.update(meter.bytes)


def clean_on_cluster(
    units: Iterable[Unit], folder: Path, settings: StoreSettings, max_jobs: int | None, bar: ProgressBar
) -> None:
    """Clean the documents of numbered groups of files (`units`) on a Ray cluster, with one job per group.

    At most `max_jobs` jobs are queued or running at the same time.
    """
    jobs = (
        (number, [absolute_if_exists(file) for file in files], absolute_if_exists(folder), settings.state())
        for number, files in units
    )
    done = 0
    for job, _ in run_on_ray(clean_unit, jobs, max_jobs):
        done += sum(Path(file).stat().st_size for file in job[1])
        bar.update(done)


def clean_unit(number: int, files: list[str], folder: str, settings: dict[str, Any]) -> None:
    """Clean the documents of a group of files, the unit `number`; this is a job on a Ray cluster."""
    for path in (folder, *files):
        check_visible(Path(path))
    restored = StoreSettings.from_state(settings, benchmark_file(Path(folder)))
    clean_units([(number, [Path(file) for file in files])], Path(folder), restored, 1, SilentProgress())


def start_cleaning(folder: Path, settings: CleaningSettings) -> None:
    """Create the folder for cleaned documents, and save in it the n-grams of the benchmark, for the workers."""
    (folder / CLEANED).mkdir(exist_ok=True)
    remove_temporaries(folder / CLEANED)
    if settings.benchmark is not None:
        settings.benchmark.save(benchmark_file(folder))


def _identity(files: Sequence[Path], settings: StoreSettings) -> str:
    """Return a digest of the content of files and of the settings, which together determine the cleaned documents."""
    content = [settings.describe(), [[file.name, file_digest(file)] for file in files]]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _is_done(folder: Path, number: int, identity: str) -> bool:
    """Return whether the cleaned documents of a group of files, the unit `number`, are complete and intact.

    They must have been made from input with the digest `identity`.
    """
    try:
        report = read_checksummed_json(_file(folder, number, "json"), "the report on cleaned documents")
        names = {"documents": "jsonl.gz", "features": "safetensors"}
        return bool(
            report["identity"] == identity
            and all(report[name] == file_digest(_file(folder, number, suffix)) for name, suffix in names.items())
        )
    except (OSError, KeyError, PretuneError):
        return False


def _clean_unit(
    number: int,
    files: Sequence[Path],
    folder: Path,
    settings: StoreSettings,
    identity: str,
    pool: WorkerPool[bytes],
    meter: ByteMeter,
    bar: ProgressBar,
) -> None:
    """Clean the documents of a group of files, the unit `number`, with the worker processes in `pool`.

    Write the cleaned documents, their features and a report to files in `folder`. `identity` is the digest of the
    input.
    """
    report, features = CleaningReport(), list[dict[str, Array]]()
    waiting: deque[Future[bytes]] = deque()
    places = {file: place for place, file in enumerate(files)}
    with (
        atomic_file(_file(folder, number, "jsonl.gz")) as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=1, mtime=0, filename="") as rows,
    ):

        def finish_first() -> None:
            arrays = load(waiting.popleft().result())
            rows.write(arrays.pop("rows").tobytes())
            report.add(CleaningReport.from_state(json.loads(arrays.pop("report").tobytes())))
            features.append(arrays)
            bar.update(meter.bytes, f"{report.documents:,} documents")

        for part in group_by_size(settings.read_documents(files, meter), text_size, PART_BYTES):
            frame = [[document.text, places[document.file], document.spans] for document in part]
            waiting.append(pool.submit(json.dumps(frame).encode()))
            if len(waiting) > 2 * pool.size:
                finish_first()
        while waiting:
            finish_first()
    joined = {name: np.concatenate([part[name] for part in features]) for name in (features[0] if features else {})}
    write_bytes(_file(folder, number, "safetensors"), save(joined))
    digests = {"documents": _file(folder, number, "jsonl.gz"), "features": _file(folder, number, "safetensors")}
    content = {"identity": identity, **{name: file_digest(file) for name, file in digests.items()}}
    # Last, as it marks the unit as complete.
    write_checksummed_json(_file(folder, number, "json"), content | {"report": report.state()})


def clean_frames(settings: dict[str, Any]) -> Callable[[bytes], bytes]:
    """Return the function with which a worker process answers requests (frames).

    A request is a JSON list of (text, file index, spans). The answer is a serialized dictionary of arrays: the cleaned
    documents as lines of JSON (`rows`), the cleaning report (`report`), and the features of each cleaned document.
    """
    restored = StoreSettings.from_state(settings["settings"], Path(settings["benchmark"]))
    assert restored.cleaning is not None
    cleaner = Cleaner(restored.cleaning, restored.language)

    def answer(frame: bytes) -> bytes:
        rows, sizes, signatures, hashes = list[str](), list[int](), list[Array](), list[Array]()
        lengths = list[int]()  # of the sentences
        for text, file, spans in json.loads(frame):
            document = cleaner.clean(text, tuple((start, end) for start, end in spans))
            if document is None:
                continue
            rows.append(
                json.dumps({"text": document.text, "file": file, "spans": document.spans}, ensure_ascii=False) + "\n"
            )
            sizes.append(len(document.text))
            if cleaner.settings.near_duplicates is not None:
                signatures.append(minhash_signature(document.features))
            if cleaner.settings.removes_spans:
                hashes.append(sentence_hashes(document.text, cleaner.language))
                lengths += [end - start for start, end in _sentence_segments(document.text, cleaner.language)]
        report = cleaner.take_report()
        arrays: dict[str, Array] = {
            "rows": np.frombuffer("".join(rows).encode(), dtype=np.uint8),
            "report": np.frombuffer(json.dumps(report.state()).encode(), dtype=np.uint8),
            "characters": np.array(sizes, dtype=np.uint32),
            "signatures": np.array(signatures, dtype=np.uint32).reshape(-1, PERMUTATIONS),
            "sentences": np.concatenate([np.empty(0, dtype=np.uint64), *hashes]),
            "sentence_lengths": np.array(lengths, dtype=np.uint32),
            "sentence_counts": np.array([len(own) for own in hashes], dtype=np.uint32),
        }
        return save(arrays)

    return answer


def _sentence_segments(text: str, language: str) -> list[tuple[int, int]]:
    """Return the start and end of each sentence of a text, including the whitespace after the sentence."""
    starts = [start for start, _ in split_sentences(text, language)]
    return list(pairwise([*([0, *starts[1:]] if starts else []), len(text)]))


# -- duplicates among all documents ---------------------------------------------------------------------------------


def remove_duplicates(units: int, folder: Path, settings: CleaningSettings, language: str) -> dict[str, Any]:
    """Find duplicates among the cleaned documents of all groups of files, and return the report on the whole corpus.

    `units` is the number of groups. For each group, a file with masks of the documents and sentences to leave out is
    written.
    """
    report = CleaningReport()
    for unit in range(units):
        content = read_checksummed_json(_file(folder, unit, "json"), "the report on cleaned documents")
        report.add(CleaningReport.from_state(content["report"]))
    parts = [load_file(_file(folder, unit, "safetensors")) for unit in range(units)]
    bounds = np.append(0, np.cumsum([len(part.get("characters", ())) for part in parts]))

    def feature(name: str, dtype: Any) -> Array:
        found = [part.pop(name) for part in parts if name in part]  # used once, and not kept twice
        return np.concatenate(found) if found else np.empty(0, dtype=dtype)

    documents = np.zeros(bounds[-1], dtype=bool)
    if settings.near_duplicates is not None and len(documents):
        clusters = duplicate_clusters(feature("signatures", np.uint32), settings.near_duplicates)
        documents = clusters != np.arange(len(clusters))
        entry = report.of(NEAR_DUPLICATES)
        entry.documents, entry.characters = int(documents.sum()), int(feature("characters", np.uint32)[documents].sum())
    counts = feature("sentence_counts", np.uint32).astype(np.int64)
    sentences = np.zeros(int(counts.sum()), dtype=bool)
    if settings.removes_spans:
        # A span in a document that is left out is not the one to keep.
        owner = np.repeat(np.arange(len(counts)), counts)
        left = ~documents[owner]
        kept_counts = np.bincount(owner[left], minlength=len(counts))
        sentences[left] = repeated_sentences(feature("sentences", np.uint64)[left], kept_counts)
        entry = report.of(DUPLICATE_SPANS)
        entry.characters = int(feature("sentence_lengths", np.uint32)[sentences].sum())
        whole = (np.bincount(owner[sentences], minlength=len(counts)) == counts) & (counts > 0)
        entry.documents = int(whole.sum())
    firsts = np.append(0, np.cumsum(counts))
    for unit, (first, last) in enumerate(pairwise(bounds.tolist())):
        inside = slice(firsts[first], firsts[last]) if len(counts) else slice(0)
        masks: dict[str, Array] = {
            "documents": documents[first:last].astype(np.uint8),
            "sentences": sentences[inside].astype(np.uint8),
            "sentence_counts": counts[first:last],
        }
        write_bytes(_file(folder, unit, "removed"), save(masks))
    _add_examples(report, units, folder, language)
    return report.summary(settings.reported)


def _add_examples(report: CleaningReport, units: int, folder: Path, language: str) -> None:
    """Add the first near-duplicate documents and the first repeated sentences to a report, as examples."""
    wanted = [
        entry for name in (NEAR_DUPLICATES, DUPLICATE_SPANS) if (entry := report.rules.get(name)) and entry.characters
    ]

    def is_complete(entry: Removed) -> bool:
        return len(entry.examples) >= EXAMPLES

    for unit in range(units):
        if all(map(is_complete, wanted)):
            return
        for row, document_removed, segments, removed in _with_masks(folder, unit, language, ByteMeter()):
            if document_removed and not is_complete(report.of(NEAR_DUPLICATES)):
                report.of(NEAR_DUPLICATES).examples.append(shorten(row["text"]))
            elif not document_removed and removed.any() and not is_complete(report.of(DUPLICATE_SPANS)):
                text = "".join(row["text"][a:b] for (a, b), out in zip(segments, removed, strict=True) if out)
                report.of(DUPLICATE_SPANS).examples.append(shorten(text))
            if all(map(is_complete, wanted)):
                return


def _with_masks(
    folder: Path, unit: int, language: str, meter: ByteMeter
) -> Iterator[tuple[dict[str, Any], bool, list[tuple[int, int]], Array]]:
    """Yield, for each cleaned document of a group of files, which parts of it are duplicates.

    The four values are the document, whether it is a near duplicate, the (start, end) of its sentences, and a mask of
    its sentences that are repeated. The sentences are empty for documents without repeated sentences.
    """
    masks = load(_file(folder, unit, "removed").read_bytes())
    ends = np.cumsum(masks["sentence_counts"])
    for number, (_, row) in enumerate(read_jsonl(_file(folder, unit, "jsonl.gz"), meter=meter)):
        removed = masks["sentences"][0:0].astype(bool)
        if len(ends):
            removed = masks["sentences"][ends[number] - masks["sentence_counts"][number] : ends[number]].astype(bool)
        segments = _sentence_segments(row["text"], language) if removed.any() else []
        yield row, bool(masks["documents"][number]), segments, removed


def read_cleaned(folder: Path, unit: int, files: Sequence[Path], language: str, meter: ByteMeter) -> Iterator[Document]:
    """Yield the cleaned documents of the group of files with the number `unit`, without duplicates.

    `files` are the files of the group; `folder` is that of the unfinished store.
    """
    for row, document_removed, segments, removed in _with_masks(folder, unit, language, meter):
        if document_removed:
            continue
        text, spans = row["text"], tuple((start, end) for start, end in row["spans"])
        if removed.any():
            kept = [segment for segment, out in zip(segments, removed, strict=True) if not out]
            text, spans = select_segments(text, spans, kept)
        if text.strip():
            yield Document(text, files[row["file"]], 0, spans)
