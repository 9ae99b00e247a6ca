"""Pack the data that the studies need for another machine, and make tiny copies of it for a dry run.

Corpora are thinned: of each file, every n-th document is kept, so that the small sources are kept whole and the large ones have equal sizes.
"""

from __future__ import annotations

import csv
import json
import lzma
import shutil
from collections.abc import Iterable, Iterator, Mapping
from glob import glob
from itertools import islice
from pathlib import Path
from typing import Any

from record_travel import MIB, pack

from pretune.evaluation.suites.declaration import find_suite
from pretune.studies.study_file import Study
from pretune.text.store.store import Store
from pretune.training.jobs.pretraining_settings import is_store, split_language

NAMED_MIB = 3.0  # of a corpus that a study names as the text to pretrain on
TOY_DOCUMENTS, TOY_CHARACTERS, TOY_LINES, TOY_QUESTIONS = 40, 1000, 24, 12


def pretraining_paths(study: Study) -> Iterator[str]:
    """Yield the paths and patterns of the text that the arms of a study are pretrained on or adapted to."""
    for arm in study.arms:
        for section in (arm.pretrain, arm.adapt):
            data = (section or {}).get("data", [])
            yield from (split_language(str(path))[1] for path in ([data] if isinstance(data, str) else data))


def evaluation_paths(study: Study) -> Iterator[str]:
    """Yield the files that the evaluations of a study read."""
    for evaluation in study.evaluations:
        settings = evaluation.settings
        if evaluation.kind == "suite":
            tasks = find_suite(settings["suite"]).select_tasks(list(settings.get("tasks", ()))).tasks
            for name in tasks:
                folders = [one for one in Path(settings["data"]).iterdir() if one.name.lower() == name.lower()]
                yield from (str(file) for folder in folders for file in sorted(folder.iterdir()))
            continue
        data = settings.get("data", [])
        yield from [data] if isinstance(data, str) else data
        yield from (settings[key] for key in ("train", "dev", "source", "target", "reference") if settings.get(key))
        yield from (settings.get("also") or {}).values()


def needed_files(studies: Iterable[Study]) -> tuple[set[Path], set[Path]]:
    """Return the files and token stores that studies need, and those files that a study names as text to pretrain on."""
    files, named = set[Path](), set[Path]()
    for study in studies:
        for pattern in pretraining_paths(study):
            found = [Path(pattern)] if is_store(pattern) else [Path(name) for name in sorted(glob(pattern))]
            if not found:
                raise FileNotFoundError(f"{pattern}: there is no such file; write it with perf/study_data.py.")
            files.update(found)
            named.update(path for path in found if "*" not in pattern)
        files.update(map(Path, evaluation_paths(study)))
    if missing := sorted(str(path) for path in files if not path.exists()):
        raise FileNotFoundError(f"{missing[0]}: there is no such file; write it with perf/study_data.py.")
    return files, named


def equal_limit(sizes: list[float], total: float) -> float:
    """Return the size to which the largest of `sizes` are to be cut, so that their sum is at most `total`.

    >>> equal_limit([1.0, 5.0, 9.0], 7.0)
    3.0
    """
    left, rest = total, sorted(sizes)
    for number, size in enumerate(rest):
        share = left / (len(rest) - number)
        if size > share:
            return share
        left -= size
    return max(sizes, default=0.0)


def thin(file: Path, out: Path, limit: float) -> None:
    """Write every n-th document of a .jsonl.xz file, so that the result has at most about `limit` bytes."""
    out.parent.mkdir(parents=True, exist_ok=True)
    size = file.stat().st_size
    if size <= limit:
        shutil.copyfile(file, out)
        return
    share, kept = limit / size, 0
    with lzma.open(file, "rb") as lines, lzma.open(out, "wb", preset=6) as stream:
        for number, line in enumerate(lines, 1):
            if kept < share * number:
                stream.write(line)
                kept += 1


def pack_studies(
    studies: Iterable[Study], work: Path, out: Path, corpus_mib: float, limit_mib: float
) -> dict[str, Any]:
    """Pack the data of studies into parts of at most `limit_mib`, with thinned corpora of about `corpus_mib` in all.

    The thinned corpora are written to the folder `work`.
    """
    files, named = needed_files(studies)
    corpora = {path for path in files if path.name.endswith(".jsonl.xz")}
    limits = dict.fromkeys(corpora & named, NAMED_MIB * MIB)
    others = sorted(corpora - named)
    spent = sum(min(path.stat().st_size, limits[path]) for path in limits)
    rest = equal_limit([path.stat().st_size for path in others], corpus_mib * MIB - spent)
    content: dict[str, Path] = {}
    for path in sorted(files):
        if path in corpora:
            thin(path, work / path, limits.get(path, rest))
        content[str(path)] = work / path if path in corpora else path
    return pack(content, out, int(limit_mib * MIB))


def write_toy(studies: Iterable[Study], out: Path) -> None:
    """Write tiny copies of all files that studies need into the folder `out`, under the same relative paths."""
    for path in sorted(needed_files(studies)[0]):
        target = out / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            write_toy_store(path, target)
        elif path.name.endswith(".jsonl.xz"):
            with lzma.open(path, "rt", encoding="utf-8") as lines, lzma.open(target, "wt", encoding="utf-8") as stream:
                stream.writelines(short_documents(islice(lines, TOY_DOCUMENTS)))
        elif path.suffix == ".jsonl" and path.parent.name == "studies":
            with path.open(encoding="utf-8") as lines:
                target.write_text("".join(short_documents(islice(lines, TOY_DOCUMENTS))), encoding="utf-8")
        elif path.suffix == ".json":
            content = json.loads(path.read_text(encoding="utf-8"))
            content["data"] = few_questions(content["data"])
            target.write_text(json.dumps(content), encoding="utf-8")
        else:
            with path.open(encoding="utf-8") as lines:
                target.write_text("".join(few_lines(path, lines)), encoding="utf-8")


def write_toy_store(path: Path, target: Path) -> None:
    """Write a token store of few documents, with the tokenizer of the store at `path`."""
    from pretune import prepare

    store = Store(path)
    texts = []
    for document in range(min(TOY_DOCUMENTS, len(store.document_offsets) - 1)):
        first, last = (int(store.document_offsets[document + step]) for step in (0, 1))
        ids = [token for sentence in range(first, min(last, first + 10)) for token in store.sentence(sentence).tolist()]
        texts.append(store.tokenizer.decode(ids))
    file = target.with_suffix(".toy.jsonl")
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    prepare([str(file)], tokenizer=str(path), language=store.languages[0], out=target)
    file.unlink()


def short_documents(lines: Iterable[str]) -> Iterator[str]:
    """Yield documents of a .jsonl file, cut to a few hundred words."""
    for line in lines:
        content = json.loads(line)
        yield json.dumps(content | {"text": content["text"][:TOY_CHARACTERS]}, ensure_ascii=False) + "\n"


def few_questions(articles: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the first questions of articles in the format of SQuAD."""
    left, kept = TOY_QUESTIONS, []
    for article in articles:
        paragraphs = []
        for paragraph in article["paragraphs"]:
            questions = paragraph["qas"][:left]
            left -= len(questions)
            if questions:
                paragraphs.append({**paragraph, "qas": questions})
        if paragraphs:
            kept.append({**article, "paragraphs": paragraphs})
    return kept


def few_lines(path: Path, lines: Iterable[str]) -> Iterator[str]:
    """Yield some lines of a table or of CoNLL files, from the whole file, so that every label occurs."""
    whole = list(lines)
    if path.suffix not in (".tsv", ".csv"):
        ends = [number for number, line in enumerate(whole) if not line.strip()]
        last = next((end for end in ends if end >= 10 * TOY_LINES), None)
        yield from whole[: TOY_LINES if last is None else last + 1]
        return
    if path.suffix == ".csv":
        rows = list(csv.reader(whole))
        whole = []
        for row in rows:
            cells = ['"' + cell.replace('"', '""') + '"' for cell in row]
            whole.append(",".join(cells) + "\n")
    yield whole[0]
    step = max(1, (len(whole) - 1) // TOY_LINES)
    yield from whole[1::step][:TOY_LINES]
