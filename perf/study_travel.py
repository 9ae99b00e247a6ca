"""Pack the data that the studies need for another machine, and make tiny copies of it for a dry run."""

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


def needed_files(studies: Iterable[Study]) -> set[Path]:
    """Return the files, token stores, and tokenizers that studies need."""
    files = set[Path]()
    for study in studies:
        for pattern in pretraining_paths(study):
            found = [Path(pattern)] if is_store(pattern) else [Path(name) for name in sorted(glob(pattern))]
            if not found:
                raise FileNotFoundError(f"{pattern}: there is no such file; write it with perf/study_data.py.")
            files.update(found)
        named = [(arm.pretrain or {}).get("tokenizer") for arm in study.arms]
        files.update(Path(name) for name in named if isinstance(name, str))
        files.update(map(Path, evaluation_paths(study)))
    if missing := sorted(str(path) for path in files if not path.exists()):
        raise FileNotFoundError(f"{missing[0]}: there is no such file; write it with perf/study_data.py.")
    return files


def pack_studies(studies: Iterable[Study], out: Path, limit_mib: float) -> dict[str, Any]:
    """Pack the data of studies into parts of at most `limit_mib`."""
    return pack({str(path): path for path in sorted(needed_files(studies))}, out, int(limit_mib * MIB))


def write_toy(studies: Iterable[Study], out: Path) -> None:
    """Write tiny copies of all files that studies need into the folder `out`, under the same relative paths."""
    for path in sorted(needed_files(studies)):
        target = out / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if is_store(path):
            write_toy_store(path, target)
        elif path.is_dir():  # a tokenizer
            shutil.copytree(path, target, dirs_exist_ok=True)
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
