"""Readers of the file formats in which suites are published; each yields the place and the fields of a row.

For a row that cannot be read, a PretuneError is yielded instead; the caller decides what to do.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pretune.runtime.errors import PretuneError
from pretune.text.corpus.documents import read_csv_rows
from pretune.text.corpus.files import open_stream, read_lines

Row = dict[str, Any]
SIDE_BY_SIDE = ("lines",)  # formats of several files with parallel lines
Found = Iterator[tuple[str, Row | PretuneError]]  # place and fields


def read_layout(paths: Sequence[Path], layout: str, header: bool) -> Found:
    """Yield the rows of a file, or of several parallel files. `header`: whether the first line of a table has column names."""
    if len(paths) > 1 and layout not in SIDE_BY_SIDE:
        raise PretuneError(f"{paths[0]}: a {layout} file has no parallel files; name a single file")
    return LAYOUTS[layout](paths, header)


def layout_of(path: Path) -> str:
    """Return the format that a file name implies.

    >>> layout_of(Path("dev.tsv"))
    'tsv'
    """
    return "folders" if path.is_dir() else path.suffix.lstrip(".")


def _tsv(paths: Sequence[Path], header: bool) -> Found:
    """Read tab-separated values without quoting; columns without names are numbered from 1."""
    names: list[str] = []
    (path,) = paths
    for number, line in read_lines(path):
        cells = line.split("\t")
        if not names:
            names = [cell.strip() for cell in cells] if header else [str(i + 1) for i in range(len(cells))]
            if header:
                continue
        if len(cells) != len(names):
            yield f"line {number}", PretuneError(f"{len(cells)} fields instead of {len(names)}")
        else:
            yield f"line {number}", dict(zip(names, cells, strict=True))


def _csv(paths: Sequence[Path], header: bool) -> Found:
    (path,) = paths
    names: list[str] = []
    for number, cells in read_csv_rows(path, tabs=False):
        if not cells:
            continue
        if not names:
            names = cells if header else [str(i + 1) for i in range(len(cells))]
            if header:
                continue
        place = f"line {number}"
        if len(cells) != len(names):
            yield place, PretuneError(f"{len(cells)} fields instead of {len(names)}")
        else:
            yield place, dict(zip(names, cells, strict=True))


def _jsonl(paths: Sequence[Path], header: bool) -> Found:
    (path,) = paths
    for number, line in read_lines(path):
        if line.strip():
            yield f"line {number}", _object(line)


def _object(line: str) -> Row | PretuneError:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return PretuneError(f"not valid JSON ({error})")
    return row if isinstance(row, dict) else PretuneError(f"a JSON {type(row).__name__}, not an object")


def _multirc(paths: Sequence[Path], header: bool) -> Found:
    """Read passages with questions and their answers: one row per answer; those of a question share a `group`."""
    for place, row in _jsonl(paths, header):
        if isinstance(row, PretuneError):
            yield place, row
            continue
        try:
            passage = row["passage"]
            for question in passage["questions"]:
                for answer in question["answers"]:
                    ids = [row["idx"], question["idx"], answer["idx"]]
                    told = {"passage": passage["text"], "question": question["question"], "answer": answer["text"]}
                    label = {"label": answer["label"]} if "label" in answer else {}
                    yield place, {**told, **label, "group": f"{ids[0]}/{ids[1]}", "idx": ids}
        except (KeyError, TypeError) as error:
            yield place, PretuneError(f"not a passage with questions and answers ({error!r})")


def _record(paths: Sequence[Path], header: bool) -> Found:
    """Read passages with entities and queries: one row per query."""
    for place, row in _jsonl(paths, header):
        if isinstance(row, PretuneError):
            yield place, row
            continue
        try:
            text = row["passage"]["text"]
            # `end` is the last character of an entity.
            names = [e.get("text") or text[e["start"] : e["end"] + 1] for e in row["passage"]["entities"]]
            for number, asked in enumerate(row["qas"]):
                golds = {"answers": [answer["text"] for answer in asked["answers"]]} if asked.get("answers") else {}
                told = {"text": text, "entities": list(dict.fromkeys(names)), "query": asked["query"]}
                yield place, {**told, **golds, "idx": asked.get("idx", number)}
        except (KeyError, TypeError, AttributeError) as error:
            yield place, PretuneError(f"not a passage with entities and queries ({error!r})")


def _pairs(paths: Sequence[Path], header: bool) -> Found:
    """Read rows of which each two neighbors form a `group`."""
    for number, (place, row) in enumerate(_jsonl(paths, header)):
        yield place, row if isinstance(row, PretuneError) else {**row, "group": number // 2}


def _squad(paths: Sequence[Path], header: bool) -> Found:
    """Read SQuAD's articles, paragraphs and questions: one row per question."""
    (path,) = paths
    content = _object(_whole(path).decode("utf-8", "replace"))
    if isinstance(content, PretuneError):
        raise PretuneError(f"{path}: {content}")
    here = "at the top"
    try:
        for a, article in enumerate(content["data"]):
            for p, paragraph in enumerate(article["paragraphs"]):
                for q, row in enumerate(paragraph["qas"]):
                    here = f"data[{a}].paragraphs[{p}].qas[{q}]"
                    said = [] if row.get("is_impossible") else row["answers"]
                    answers = [{"text": answer["text"], "start": answer["answer_start"]} for answer in said]
                    told = {"question": row["question"], "passage": paragraph["context"]}
                    yield f"question {row['id']}", {**told, "answers": answers, "id": row["id"]}
    except (KeyError, TypeError, AttributeError) as error:
        raise PretuneError(f"{path}: not in SQuAD's layout ({here}: {error!r})") from error


def _conll(paths: Sequence[Path], header: bool) -> Found:
    """Read one word per line with blank lines between sentences: one row per sentence, whose columns are lists."""
    (path,) = paths
    lines: list[list[str]] = []
    start = 0
    for number, line in [*read_lines(path), (0, "")]:
        cells = re.split(r"[ \t]+", line.strip(" \t")) if line.strip(" \t") else []
        if cells and cells[0] != "-DOCSTART-":
            start = start if lines else number
            lines.append(cells)
        elif lines:
            uneven = [len(cells) for cells in lines if len(cells) != len(lines[0])]
            if uneven:
                yield f"line {start}", PretuneError(f"{uneven[0]} columns instead of {len(lines[0])}")
            else:
                columns = zip(*lines, strict=True)
                yield f"line {start}", {str(i): list(column) for i, column in enumerate(columns, 1)}
            lines = []


def _lines(paths: Sequence[Path], header: bool) -> Found:
    """Read files with parallel lines."""
    texts = [(line for _, line in read_lines(path)) for path in paths]
    for number, row in enumerate(zip_longest(*texts), 1):
        if None in row:
            short = paths[row.index(None)]
            raise PretuneError(f"{short}: has fewer lines than {paths[row.index(None) - 1]}: line {number} is missing")
        yield f"line {number}", {str(i): text for i, text in enumerate(row, 1)}


def _trec(paths: Sequence[Path], header: bool) -> Found:
    """Read TREC's lines of COARSE:fine and a question, published in Latin-1."""
    (path,) = paths
    raw = _whole(path)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    for number, line in enumerate(text.splitlines(), 1):
        fine, space, question = line.strip().partition(" ")
        if not space or ":" not in fine:
            yield f"line {number}", PretuneError(f"not a label such as NUM:dist and a question: {line[:40]!r}")
        else:
            yield f"line {number}", {"coarse": fine.split(":")[0], "fine": fine, "text": question}


def _sst(paths: Sequence[Path], header: bool) -> Found:
    """Read SST's trees with a label at each node, or lines with a label and a sentence."""
    (path,) = paths
    for number, line in read_lines(path):
        if match := re.match(r"\(?(\d)\s+(.+)", line):
            words = re.findall(r"(?<![^\s()])([^\s()]+)\)", line) if line.startswith("(") else [match[2].strip()]
            yield f"line {number}", {"label": match[1], "text": " ".join(words)}
        elif line.strip():
            yield f"line {number}", PretuneError(f"neither a tree nor a label and a sentence: {line[:40]!r}")


def _race(paths: Sequence[Path], header: bool) -> Found:
    """Read RACE's folders with one JSON file per passage: one row per question."""
    (path,) = paths
    for file in sorted(path.rglob("*.txt")):
        place = str(file.relative_to(path))
        row = _object(_whole(file).decode("utf-8", "replace"))
        if isinstance(row, PretuneError):
            yield place, row
            continue
        try:
            asked = zip(row["questions"], row["options"], row["answers"], strict=True)
            for number, (question, options, answer) in enumerate(asked):
                told = {"article": row["article"], "question": question, "options": options, "answer": answer}
                yield place, {**told, "id": f"{row['id']}/{number}"}
        except (KeyError, TypeError, ValueError) as error:
            yield place, PretuneError(f"not a passage with questions, options and answers ({error!r})")


def _folders(paths: Sequence[Path], header: bool) -> Found:
    """Read one text per file from a folder per label; the unlabeled folder (unsup) is skipped."""
    (path,) = paths
    for file in sorted(path.glob("*/*.txt")):
        if file.parent.name != "unsup":
            text = _whole(file).decode("utf-8", "replace")
            yield str(file.relative_to(path)), {"text": text, "label": file.parent.name}


def _whole(path: Path) -> bytes:
    content = io.BytesIO()
    with open_stream(path) as stream:
        while block := stream.read(1 << 20):
            content.write(block)
    return content.getvalue()


LAYOUTS: dict[str, Callable[[Sequence[Path], bool], Found]] = {
    "tsv": _tsv,
    "csv": _csv,
    "jsonl": _jsonl,
    "multirc": _multirc,
    "record": _record,
    "pairs": _pairs,
    "squad": _squad,
    "conll": _conll,
    "lines": _lines,
    "trec": _trec,
    "sst": _sst,
    "race": _race,
    "folders": _folders,
}
