"""Small files in the official formats of decaNLP's ten tasks."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

SEGMENTS = '<doc docid=\'1\'>\n<seg id="1"> {0} </seg>\n<seg id="2"> {1} </seg>\n</doc>\n'
QA_SRL = """WIKI1_0\t1
The army -LRB- led by Ann -RRB- won .
2\tled\t2
who\t_\tled\t_\tsomething\t_\t_\t?\tann ### Ann
what\twas\tled\t_\t_\t_\t_\t?\tThe army

WIKI1_1\t1
It did n't rain .
3\train\t1
what\tdid\train\t_\t_\t_\t_\t?\tit
"""
QA_ZRE = "born in\tWhere was XXX born?\tAnn\tAnn was born in Rome.\tRome\nborn in\tWhere was XXX born?\tBo\tBo sings.\n"
SCHEMA = "The cup does not fit in the bag because it is too [big/small].\nWhat is too [big/small]?\nThe cup/The bag\n"
WOZ_TURNS: list[dict[str, Any]] = [
    {
        "transcript": "Thai  food please",
        "system_acts": [],
        "belief_state": [{"act": "inform", "slots": [["food", "thai"]]}],
    },
    {
        "transcript": "In the north, and the phone number",
        "system_acts": [["area", "west"], "price"],
        "belief_state": [
            {"act": "inform", "slots": [["food", "thai"]]},
            {"act": "inform", "slots": [["area", "north"]]},
            {"act": "request", "slots": [["slot", "phone"]]},
        ],
    },
    {
        "transcript": "Thank you",
        "system_acts": [],
        "belief_state": [
            {"act": "inform", "slots": [["food", "thai"]]},
            {"act": "inform", "slots": [["area", "north"]]},
        ],
    },
]
TABLE = {"id": "1-1", "header": ["Player", "No. of wins"]}
QUESTION = {"table_id": "1-1", "question": "Who won 3 times?", "sql": {"sel": 0, "agg": 0, "conds": [[1, 0, 3]]}}


def write(path: Path, content: Any) -> None:
    """Write text, a JSON value, or rows of JSON (a list) to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, list):
        content = "".join(json.dumps(row) + "\n" for row in content)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def write_decanlp(folder: Path) -> None:
    """Write training and dev files of all ten tasks to a folder."""
    paragraph = {
        "context": "Ann came to Rome.",
        "qas": [{"id": "q", "question": "Who  came?", "answers": [{"text": t, "answer_start": 0} for t in ("Ann", "Ann came")]}],
    }  # fmt: skip
    pair = {"sentence1": "A cat sat.", "sentence2": "No cat sat.", "gold_label": "contradiction"}
    texts = {"en": ("Hello.", "Fish &amp; chips."), "de": ("Hallo.", "Fisch &amp; Pommes.")}
    for split, other in (("train", "training"), ("dev", "validation")):
        write(folder / f"squad/{split}-v1.1.json", {"data": [{"paragraphs": [paragraph]}]})
        write(folder / f"sst/{split}_binary_sent.csv", 'label,sentence\n1,"A ""fine"" film"\n0,bad\n')
        write(folder / f"srl/wiki1.{split}.qa", QA_SRL)
        write(folder / f"zre/relation_splits/{split}.0", QA_ZRE)
        write(folder / f"wikisql/data/{split}.jsonl", [QUESTION])
        write(folder / f"wikisql/data/{split}.tables.jsonl", [TABLE])
        dialogues = json.dumps([{"dialogue": WOZ_TURNS}, {"dialogue": WOZ_TURNS[:1]}])
        write(folder / f"woz/woz_{'train' if split == 'train' else 'validate'}_en.json", dialogues)
        for site in ("cnn", "dailymail"):
            url = f"http://{site}/{split}"
            write(folder / f"{site}/{site}_wayback_{other}_urls.txt", url + "\n")
            name = hashlib.sha1(url.encode()).hexdigest()
            write(
                folder / f"{site}/stories/{name}.story",
                f"Rain fell on {site}\n\nIt stopped.\n\n@highlight\n\nRain\n\n@highlight\n\nIt stops\n",
            )
    write(folder / "schema/schema.txt", f"{SCHEMA}\n" * 41 + f"{SCHEMA}\n" * 50)
    write(
        folder / "multinli_1.0/multinli_1.0_train.jsonl",
        [pair, {**pair, "gold_label": "-"}, {**pair, "sentence2": "Cats eat.", "gold_label": "neutral"}],
    )
    for name in ("matched", "mismatched"):
        write(folder / f"multinli_1.0/multinli_1.0_dev_{name}.jsonl", [pair])
    for language, (first, second) in texts.items():
        write(folder / f"iwslt/en-de/train.tags.en-de.{language}", f"<title>T</title>\n{first}\n")
        write(folder / f"iwslt/en-de/IWSLT16.TED.tst2013.en-de.{language}.xml", SEGMENTS.format(first, second))
