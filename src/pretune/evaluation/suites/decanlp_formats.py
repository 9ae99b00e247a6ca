"""Readers of the official files of decaNLP's ten tasks, as questions on a context (McCann et al., 2018, arXiv:1806.08730).

The rows have `question`, `context` and `answer`. If the metric of a task needs more than the answer, they also have `gold`:
all correct answers, or the query and the column names of a table. Turns of a dialogue have the same `group`.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pretune.evaluation.suites.file_formats import Row, Rows, read_json, read_jsonl, read_squad, read_text
from pretune.evaluation.suites.translation_formats import read_parallel
from pretune.runtime.errors import PretuneError
from pretune.text.corpus.delimiters import CSV
from pretune.text.corpus.documents import read_csv_rows
from pretune.text.corpus.files import read_lines

UNANSWERABLE = "Unanswerable"
AGGREGATIONS = ("", "MAX", "MIN", "COUNT", "SUM", "AVG")  # of WikiSQL, by index
CONDITIONS = ("=", ">", "<", "OP")
KEY_WORDS = (*AGGREGATIONS[1:], *CONDITIONS, "SELECT", "WHERE", "AND", "COL", "TABLE", "CAPTION", "PAGE", "SECTION", "OP", "COND", "QUESTION", "AGG", "AGGOPS", "CONDOPS")  # fmt: skip
ENDS = (".", "!", "?", "...", "'", "`", '"', "’", "”", ")")  # of a sentence of CNN/Daily Mail
HIGHLIGHT = "@highlight"
BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LAB-": "<", "-RAB-": ">", "-AMP-": "&", "%pw": " "}
CHOICE = re.compile(r"\[([^/\[\]]*)/([^\[\]]*)\]")  # the two words of a schema


def read_squad_questions(paths: Sequence[Path]) -> Rows:
    """Yield the questions of a SQuAD 1.1 file with their first answer; all answers are `gold`."""
    for place, row in read_squad(paths[0]):
        if isinstance(row, PretuneError):
            yield place, row
        elif not row["answers"]:
            yield place, PretuneError("the question has no answer; use SQuAD 1.1, whose questions all have one")
        else:
            answers = [answer["text"] for answer in row["answers"]]
            if not all(isinstance(text, str) for text in (row["question"], row["passage"], *answers)):
                yield place, PretuneError("the question, the passage and the answers must be texts")
                continue
            question = " ".join(row["question"].split())
            yield place, {"question": question, "context": row["passage"], "answer": answers[0], "gold": answers}


def read_iwslt(paths: Sequence[Path]) -> Rows:
    """Yield the pairs of English and German texts of IWSLT 2016."""
    for place, row in read_parallel(paths):
        yield place, {"question": "Translate from English to German", "context": row["1"], "answer": row["2"]}


def read_stories(paths: Sequence[Path]) -> Rows:
    """Yield the articles of CNN or Daily Mail with their highlights, joined to a summary.

    The file lists the addresses of a split; the text of each is in stories/HASH.story beside it.
    """
    for number, url in read_lines(paths[0]):
        if url.strip():
            name = hashlib.sha1(url.strip().encode("utf-8")).hexdigest()
            story = paths[0].parent / "stories" / f"{name}.story"
            missing = PretuneError(f"stories/{name}.story does not exist; download the stories again")
            yield f"line {number}", _read_story(story) if story.is_file() else missing


def _read_story(path: Path) -> Row:
    """Return the row of a story: sentences without an end get a full stop, and characters are normalized (NFKC)."""
    article: list[str] = []
    highlights: list[str] = []
    lines = article
    for line in filter(None, map(str.strip, read_text(path).splitlines())):
        if line.startswith(HIGHLIGHT):
            lines = highlights
        else:
            lines.append(line if line.endswith(ENDS) else f"{line}.")
    context, answer = (unicodedata.normalize("NFKC", " ".join(part)) for part in (article, highlights))
    return {"question": "What is the summary?", "context": context, "answer": answer}


def read_multinli(paths: Sequence[Path]) -> Rows:
    """Yield the pairs of MultiNLI: the premise is the context, and the question has the hypothesis and the labels."""
    for place, row in read_jsonl(paths[0]):
        if isinstance(row, PretuneError) or not {"sentence1", "sentence2", "gold_label"} <= row.keys():
            yield place, row if isinstance(row, PretuneError) else PretuneError("expected the fields of MultiNLI")
            continue
        question = f'Hypothesis: "{row["sentence2"]}" -- entailment, neutral, or contradiction?'
        yield place, {"question": question, "context": f'Premise: "{row["sentence1"]}"', "answer": row["gold_label"]}


def read_binary_sst(paths: Sequence[Path]) -> Rows:
    """Yield the reviews of a table of SST with two classes (label, sentence)."""
    labels = {"0": "negative", "1": "positive"}
    for number, cells in read_csv_rows(paths[0], dialect=CSV):
        if number == 1 or not cells:
            continue
        if len(cells) < 2 or cells[0] not in labels:
            yield f"line {number}", PretuneError(f"expected 0 or 1 and a sentence, found {cells[0][:40]!r}")
        else:
            question = "Is this review negative or positive?"
            yield f"line {number}", {"question": question, "context": cells[-1], "answer": labels[cells[0]]}


def read_qa_srl(paths: Sequence[Path]) -> Rows:
    """Yield the questions on predicates of QA-SRL; all answers are `gold`.

    A block has the number of the sentence, the sentence, and for each predicate a line of its own and its questions, whose
    slots are separated by spaces or tabs: who _ led _ something _ _ ? the army ### an army.
    """
    context = ""
    for number, line in read_lines(paths[0]):
        words = line.split()
        if not words:
            context = ""
        elif re.fullmatch(r"\w+_\d+", words[0]) or (len(words) == 3 and words[0].isdigit() and words[2].isdigit()):
            continue
        elif not context:
            context = detokenize(" ".join(words))
        elif "?" not in words:
            yield f"line {number}", PretuneError(f"expected a question and its answers, found {line[:40]!r}")
        else:
            end = words.index("?")
            question = detokenize(" ".join(word for word in words[:end] if word != "_") + "?")
            answers = [_as_in(context, detokenize(part)) for part in " ".join(words[end + 1 :]).split("###")]
            yield f"line {number}", {"question": question, "context": context, "answer": answers[0], "gold": answers}


def detokenize(text: str) -> str:
    """Return a text in the style of the Penn Treebank as ordinary text, without quotation marks.

    >>> detokenize("It did n't work -LRB- he said -RRB- .")
    "It didn't work (he said)."
    """
    for symbol, sign in BRACKETS.items():
        text = text.replace(symbol, sign)
    text = re.sub(r"``|''|[`“”]", "", text)
    text = re.sub(r"\s+([.,;!?:)%]|n't\b|'(?:ll|t|s|m|d|re|ve)\b)", r"\1", text)
    return " ".join(re.sub(r"([($])\s+", r"\1", text).replace(" - ", "-").split())


def _as_in(context: str, answer: str) -> str:
    """Return an answer with the capital letters that it has in its context, if it occurs there."""
    cases = (answer, answer[:1].lower() + answer[1:], answer[:1].upper() + answer[1:], answer.lower())
    return next((case for case in cases if case in context), answer)


def read_qa_zre(paths: Sequence[Path]) -> Rows:
    """Yield the questions on relations of QA-ZRE (relation, question about XXX, subject, context, answers)."""
    for number, line in read_lines(paths[0]):
        cells = line.rstrip("\r").split("\t")
        if len(cells) < 4:
            if line.strip():
                yield f"line {number}", PretuneError(f"the row has {len(cells)} fields instead of 4 or more")
            continue
        answer = ", ".join(filter(None, cells[4:])) or UNANSWERABLE
        yield f"line {number}", {"question": cells[1].replace("XXX", cells[2]), "context": cells[3], "answer": answer}


def read_woz(paths: Sequence[Path]) -> Rows:
    """Yield the turns of the dialogues in a WOZ file; the answer is the change of the dialogue state.

    The context is what the system did and what the user said. A change is written as `slot: value, slot: value;
    requested slot, requested slot`. Turns of a dialogue have one `group`.
    """
    dialogues = read_json(paths[0])
    try:
        for number, dialogue in enumerate(dialogues):
            before: list[list[str]] = []
            for turn_number, turn in enumerate(dialogue["dialogue"]):
                acts = ", ".join(": ".join(act) if isinstance(act, list) else act for act in turn["system_acts"])
                slots = [(item["act"], slot) for item in turn["belief_state"] for slot in item.get("slots", ())]
                state = [slot for act, slot in slots if act == "inform"]
                informed = ", ".join(f"{slot[0]}: {slot[1]}" for slot in state if slot not in before)
                requested = ", ".join(slot[1] for act, slot in slots if act != "inform")
                answer = f"{informed}; {requested}".rstrip() if informed or requested else "None"
                context = " ".join(f"{acts} -- {turn['transcript']}".split() if acts else turn["transcript"].split())
                row = {
                    "question": "What is the change in state?",
                    "context": context,
                    "answer": answer,
                    "group": number,
                }
                yield f"dialogue {number + 1}, turn {turn_number + 1}", row
                before = state
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise PretuneError(f"{paths[0]}: this is not a valid WOZ file ({error!r}); download it again") from error


def read_wikisql(paths: Sequence[Path]) -> Rows:
    """Yield the questions of WikiSQL with their queries; NAME.tables.jsonl beside the file has the tables.

    The query and the column names are `gold`, to compare logical forms.
    """
    path = paths[0]
    tables_path = path.with_name(f"{path.name.partition('.')[0]}.tables.{path.name.partition('.')[2]}")
    if not tables_path.is_file():
        raise PretuneError(f"{path}: the tables {tables_path.name} are missing; put them in the same folder")
    headers = {
        str(table["id"]): table["header"]
        for _, table in read_jsonl(tables_path)
        if not isinstance(table, PretuneError) and {"id", "header"} <= table.keys()
    }
    for place, row in read_jsonl(path):
        if isinstance(row, PretuneError):
            yield place, row
            continue
        try:
            header, query = headers[str(row["table_id"])], row["sql"]
            asked = (
                f"The table has columns {', '.join(header)} and key words {', '.join(KEY_WORDS)} -- {row['question']}"
            )
            fields = {"question": "What is the translation from English to SQL?", "context": asked}
            yield place, {**fields, "answer": spell_query(query, header), "gold": {"sql": query, "header": header}}
        except (KeyError, TypeError, IndexError, ValueError) as error:
            yield place, PretuneError(f"expected a question with a query on a table of {tables_path.name} ({error!r})")


def spell_query(query: dict[str, Any], header: Sequence[str]) -> str:
    """Return a query of WikiSQL as text, given the column names of its table.

    >>> spell_query({"sel": 1, "agg": 3, "conds": [[0, 0, "Ann"]]}, ["Name", "Score"])
    'SELECT COUNT Score FROM table WHERE Name = Ann'
    """
    text = f"SELECT {AGGREGATIONS[query['agg']]} {header[query['sel']]} FROM table"
    parts = [f"{header[column]} {CONDITIONS[sign]} {value}" for column, sign, value in query["conds"]]
    return " ".join((text + (" WHERE " if parts else "") + " AND ".join(parts)).split())


def read_winograd_schemas(paths: Sequence[Path]) -> Rows:
    """Yield the two questions of each Winograd schema; a schema has three lines: context, question, and answers a/b.

    The words in which the two differ are in brackets: It [broke/held] because it was [weak/strong].
    """
    for place, lines in _blocks(paths[0]):
        answers = lines[-1].split("/")
        if len(lines) != 3 or len(answers) != 2:
            yield place, PretuneError("expected a context, a question, and two answers separated by /")
            continue
        for number in range(2):
            context, question = (CHOICE.sub(rf"\{number + 1}", line) for line in lines[:2])
            asked = f"{question} {answers[0]} or {answers[1]}?"
            yield place, {"question": asked, "context": context, "answer": answers[number]}


def _blocks(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield (place, lines) for each block of lines that blank lines separate."""
    block: list[str] = []
    start = 0
    for number, line in [*read_lines(path), (0, "")]:
        if line.strip():
            start = start if block else number
            block.append(line.strip())
        elif block:
            yield f"line {start}", block
            block = []


DECANLP: dict[str, Callable[[Sequence[Path]], Rows]] = {
    "decanlp-squad": read_squad_questions,
    "decanlp-iwslt": read_iwslt,
    "decanlp-stories": read_stories,
    "decanlp-multinli": read_multinli,
    "decanlp-sst": read_binary_sst,
    "decanlp-qa-srl": read_qa_srl,
    "decanlp-qa-zre": read_qa_zre,
    "decanlp-woz": read_woz,
    "decanlp-wikisql": read_wikisql,
    "decanlp-mwsc": read_winograd_schemas,
}
