"""Readers of the file formats in which suites are published; they yield (place such as "line 3", fields) for each row.

For a row that cannot be read, a PretuneError is yielded instead of the fields; the caller decides whether to raise it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pretune.runtime.errors import PretuneError
from pretune.text.corpus.delimiters import CSV
from pretune.text.corpus.documents import read_csv_rows
from pretune.text.corpus.files import open_stream, read_lines

Row = dict[str, Any]
Rows = Iterator[tuple[str, Row | PretuneError]]  # place and fields


def read_table(path: Path, header: bool, tabs: bool) -> Rows:
    """Yield the rows of a .csv file or, with `tabs`, a .tsv file.

    Without a `header`, columns are named 1, 2, and so on.
    """
    names: list[str] = []
    unquoted = ((number, line.split("\t")) for number, line in read_lines(path))
    for number, cells in unquoted if tabs else read_csv_rows(path, dialect=CSV):
        if not cells:
            continue
        if not names:
            names = (
                [cell.strip() if tabs else cell for cell in cells]
                if header
                else [str(i + 1) for i in range(len(cells))]
            )
            if header:
                continue
        if len(cells) != len(names):
            yield f"line {number}", PretuneError(f"the row has {len(cells)} fields instead of {len(names)}")
        else:
            yield f"line {number}", dict(zip(names, cells, strict=True))


def read_jsonl(path: Path) -> Rows:
    """Yield ("line N", row) for each line of a file; a line that is not a JSON object yields an error as its row."""
    for number, line in read_lines(path):
        if line.strip():
            yield f"line {number}", _parse_object(line)


def _parse_object(line: str) -> Row | PretuneError:
    """Return the JSON object in a line of text, or an error that says why the line is not a JSON object."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return PretuneError(f"this is not valid JSON ({error})")
    return row if isinstance(row, dict) else PretuneError(f"expected a JSON object, found a JSON {type(row).__name__}")


def _expand_objects(objects: Rows, expand: Callable[[Row], Iterator[Row]], content: str) -> Rows:
    """Yield the rows that `expand` makes from each JSON object.

    If an object lacks a field, yield an error instead; `content` says for its message what each passage must have.
    """
    for place, row in objects:
        if isinstance(row, PretuneError):
            yield place, row
            continue
        try:
            for part in expand(row):
                yield place, part
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            kind = "its lists differ in length" if isinstance(error, ValueError) else "a value has the wrong type"
            problem = f"the field {error} is missing" if isinstance(error, KeyError) else kind
            yield place, PretuneError(f"expected a passage with {content}, but {problem}")


def _multirc(path: Path) -> Rows:
    """Yield one row per answer in a MultiRC file; the answers to one question have the same value of `group`."""

    def expand(row: Row) -> Iterator[Row]:
        for question in row["passage"]["questions"]:
            texts = {"passage": row["passage"]["text"], "question": question["question"]}
            for answer in question["answers"]:
                ids = [row["idx"], question["idx"], answer["idx"]]
                label = {"label": answer["label"]} if "label" in answer else {}
                yield {**texts, "answer": answer["text"], **label, "group": f"{ids[0]}/{ids[1]}", "idx": ids}

    return _expand_objects(read_jsonl(path), expand, "questions and answers")


def _record(path: Path) -> Rows:
    """Yield one row per query in a ReCoRD file, with its passage and the entities in it."""

    def expand(row: Row) -> Iterator[Row]:
        text = row["passage"]["text"]
        # `end` is the last character of an entity.
        names = [e.get("text") or text[e["start"] : e["end"] + 1] for e in row["passage"]["entities"]]
        for number, query in enumerate(row["qas"]):
            golds = {"answers": [answer["text"] for answer in query["answers"]]} if query.get("answers") else {}
            fields = {"text": text, "entities": list(dict.fromkeys(names)), "query": query["query"]}
            yield {**fields, **golds, "idx": query.get("idx", number)}

    return _expand_objects(read_jsonl(path), expand, "entities and queries")


def _pairs(path: Path) -> Rows:
    """Yield the rows of a .jsonl file in pairs: rows 1 and 2, rows 3 and 4, and so on, have one `group` each."""
    for number, (place, row) in enumerate(read_jsonl(path)):
        yield place, row if isinstance(row, PretuneError) else {**row, "group": number // 2}


def read_squad(path: Path) -> Rows:
    """Yield one row per question in a SQuAD file."""
    content = read_json(path)
    here = "at the top"
    try:
        for a, article in enumerate(content["data"]):
            for p, paragraph in enumerate(article["paragraphs"]):
                for q, row in enumerate(paragraph["qas"]):
                    here = f"data[{a}].paragraphs[{p}].qas[{q}]"
                    golds = [] if row.get("is_impossible") else row["answers"]
                    answers = [{"text": answer["text"], "start": answer["answer_start"]} for answer in golds]
                    fields = {"question": row["question"], "passage": paragraph["context"]}
                    yield f"question {row['id']}", {**fields, "answers": answers, "id": row["id"]}
    except (KeyError, TypeError, AttributeError) as error:
        raise PretuneError(f"{path}: this is not a valid SQuAD file ({here}: {error!r}); download it again") from error


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; text that is not JSON is an error that names the file."""
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise PretuneError(f"{path}: this is not valid JSON ({error}); download it again") from error


def _conll(path: Path) -> Rows:
    """Yield one row per sentence of a CoNLL file, with a list of words or tags per column; columns are named 1, 2, …"""
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
                yield f"line {start}", PretuneError(f"a word has {uneven[0]} columns instead of {len(lines[0])}")
            else:
                columns = zip(*lines, strict=True)
                yield f"line {start}", {str(i): list(column) for i, column in enumerate(columns, 1)}
            lines = []


def read_parallel_lines(paths: Sequence[Path]) -> Rows:
    """Yield one row per line of files with parallel lines, with one field per file; fields are named 1, 2, …."""
    texts = [(line for _, line in read_lines(path)) for path in paths]
    for number, row in enumerate(zip_longest(*texts), 1):
        if None in row:
            short = paths[row.index(None)]
            raise PretuneError(
                f"{short} has no line {number}, but {paths[row.index(None) - 1]} has; give files with the same number of lines"
            )
        yield f"line {number}", {str(i): text for i, text in enumerate(row, 1)}


def _trec(path: Path) -> Rows:
    """Yield the questions of a TREC file with coarse and fine labels.

    A file that is not valid UTF-8 is read as Latin-1.
    """
    raw = _read_bytes(path)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    for number, line in enumerate(text.splitlines(), 1):
        fine, space, question = line.strip().partition(" ")
        if not space or ":" not in fine:
            yield (
                f"line {number}",
                PretuneError(f"expected a label such as NUM:dist and a question, found {line[:40]!r}"),
            )
        else:
            yield f"line {number}", {"coarse": fine.split(":")[0], "fine": fine, "text": question}


def _sst(path: Path) -> Rows:
    """Yield the sentences and labels of an SST file.

    A line has a parse tree, such as (3 (2 It) (4 works)), or a label and a sentence.
    """
    for number, line in read_lines(path):
        if match := re.match(r"\(?(\d)\s+(.+)", line):
            words = re.findall(r"(?<![^\s()])([^\s()]+)\)", line) if line.startswith("(") else [match[2].strip()]
            yield f"line {number}", {"label": match[1], "text": " ".join(words)}
        elif line.strip():
            yield (
                f"line {number}",
                PretuneError(
                    f"expected a tree such as (3 (2 It) (4 works)), or a label, a space and a sentence, found {line[:40]!r}"
                ),
            )


def _race(path: Path) -> Rows:
    """Yield one row per question in a folder of the RACE data, which has one JSON file per passage."""

    def expand(row: Row) -> Iterator[Row]:
        questions = zip(row["questions"], row["options"], row["answers"], strict=True)
        for number, (question, options, answer) in enumerate(questions):
            fields = {"article": row["article"], "question": question, "options": options, "answer": answer}
            yield {**fields, "id": f"{row['id']}/{number}"}

    files = sorted(path.rglob("*.txt"))
    objects = ((str(file.relative_to(path)), _parse_object(read_text(file))) for file in files)
    return _expand_objects(objects, expand, "questions, options and answers")


def _folders(path: Path) -> Rows:
    """Yield one text per file from a folder with one subfolder per label.

    The subfolder unsup, whose texts have no labels, is skipped.
    """
    for file in sorted(path.glob("*/*.txt")):
        if file.parent.name != "unsup":
            yield str(file.relative_to(path)), {"text": read_text(file), "label": file.parent.name}


def read_text(path: Path) -> str:
    """Return the text of a file, decompressed if needed, with invalid UTF-8 replaced."""
    return _read_bytes(path).decode("utf-8", "replace")


def _read_bytes(path: Path) -> bytes:
    with open_stream(path) as stream:
        return b"".join(iter(lambda: stream.read(1 << 20), b""))


READERS: dict[str, Callable[[Path], Rows]] = {
    "jsonl": read_jsonl,
    "multirc": _multirc,
    "record": _record,
    "pairs": _pairs,
    "squad": read_squad,
    "conll": _conll,
    "trec": _trec,
    "sst": _sst,
    "race": _race,
    "folders": _folders,
}
