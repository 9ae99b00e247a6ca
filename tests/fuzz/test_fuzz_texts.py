"""Damaged text files: labeled rows, corpora, tagged words, questions, dialogues and others, plain and compressed."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import lzma
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from pretune import PretuneError
from pretune.evaluation.suites.layouts import LAYOUTS, read_layout
from pretune.probing.suites.edges import read_edge_targets
from pretune.probing.suites.senteval import read_senteval
from pretune.probing.suites.words_in_context import read_wic
from pretune.text.corpus.dialogues import read_dialogues
from pretune.text.corpus.documents import read_documents
from pretune.text.corpus.table_writer import format_csv_line
from pretune.text.corpus.user_histories import read_titles, write_histories
from pretune.text.examples.bracketed_trees import read_bracketed
from pretune.text.examples.cloze_entities import read_entity_clozes
from pretune.text.examples.conllu import read_conllu
from pretune.text.examples.coreference import read_coreference
from pretune.text.examples.labeled import read_labeled
from pretune.text.examples.multiple_choice import read_choices
from pretune.text.examples.parallel import read_parallel
from pretune.text.examples.question_answering import read_questions
from pretune.text.examples.span_pairs import read_span_pairs
from pretune.text.examples.tagged import read_tagged
from pretune.text.examples.text_to_text import read_text_to_text
from pretune.text.tokenizers.phrase_matching import check_phrase_file
from tests.support.decanlp_files import QA_SRL, QA_ZRE, QUESTION, SCHEMA, SEGMENTS, TABLE, WOZ_TURNS
from tests.support.fuzz_harness import FEW, MANY, Kind, attack

Rows = list[dict[str, Any]]
LABELED: Rows = [{"text": f"a good text {i}, naïve “quoted”", "label": "yes" if i % 2 else "no"} for i in range(6)]
PAIRS: Rows = [{"en": f"a text {i}", "fr": f"un texte {i}"} for i in range(4)]
CHOICES: Rows = [{"text": "a cat", "question": "what?", "choices": ["dog", "cat"], "label": i % 2} for i in range(4)]
QUESTIONS: Rows = [
    {"question": "where?", "context": "it is at home today", "answers": [{"text": "at home", "answer_start": 6}]}
] * 3
TAGGED: Rows = [{"words": ["a", "cat", "sat"], "tags": ["O", "B-X", "I-X"]} for _ in range(3)]
TURNS: Rows = [{"turns": ["hello", "hi"]}, {"turns": ["how?", "so", "aha"]}]
ROLES: Rows = [{"turns": [{"role": "Q", "text": "hello"}, {"role": "R", "text": "hi"}]}] * 2
MARKED: Rows = [
    {"text": "the bank is old", "pair": "a bank loan", "word": "bank", "start1": 4, "end1": 8, "start2": 2, "end2": 6, "label": "no"}
] * 3  # fmt: skip
ENTITIES: Rows = [{"text": "Ann met Bob", "query": "@placeholder came", "entities": ["Ann", {"start": 8, "end": 10}], "answers": ["Bob"]}]  # fmt: skip
NESTED: Rows = [
    {"text": "Ann met Bob", "entities": [{"start": 0, "end": 2}], "qas": [{"query": "@placeholder", "answers": [{"text": "Ann"}]}]}
]  # fmt: skip
HISTORIES: Rows = [{"user": f"u{i % 2}", "item": f"i{i}", "time": i} for i in range(8)]
RATINGS = "".join(f"{i % 2}::{i}::5::{i}\n" for i in range(8))
SPANNED: Rows = [{"text": "Ann met Bob", "spans": [[0, 3], {"start": 8, "end": 11}]}] * 2
SQUAD = {"data": [{"paragraphs": [{"context": "it is at home", "qas": [{"id": "1", "question": "where?", "answers": [{"text": "home", "answer_start": 9}]}]}]}]}  # fmt: skip
MULTIRC: Rows = [{"idx": 0, "passage": {"text": "a", "questions": [{"idx": 0, "question": "b", "answers": [{"idx": 0, "text": "c", "label": 1}]}]}}]  # fmt: skip
RECORD: Rows = [{"idx": 0, "passage": {"text": "Ann", "entities": [{"start": 0, "end": 2}]}, "qas": [{"idx": 0, "query": "@placeholder", "answers": [{"text": "Ann"}]}]}]  # fmt: skip
OFFSETS: Rows = [{"text": "Ann met Bob, naïve", "entities": [[0, 3, "PER"], [8, 11, "PER"]]}] * 3
PARTS: Rows = [{"text": "Ann met Bob", "spans": [{"start": 0, "end": 3, "label": "PER"}]}] * 3
BRAT = "T1\tPER 0 3\tAnn\nT2\tPER 8 11;12 17\tBob naïve\nR1\tmet Arg1:T1 Arg2:T2\n"
CONLL = "the DT O\ncat NN B-X\n\na DT O\ndog NN B-X\n"
SEMICOLONS = "text;label\n" + "".join(f'"a good; text {i}, naïve";{"yes" if i % 2 else "no"}\n' for i in range(6))
CONLLU = "# text = the cat\n1\tthe\tthe\tDET\t_\t_\t2\tdet\t_\t_\n2\tcat\tcat\tNOUN\t_\t_\t0\troot\t_\t_\n\n"
TREES = "( (S (NP-SBJ (DT the) (NN cat)) (VP (VBZ sits) (NP (-NONE- *))) (. .)) )\n(NP (NN naïveté))\n"
TARGETS: Rows = [{"text": "the cat sat", "targets": [{"span1": [0, 2], "span2": [2, 3], "label": "agent"}]}] * 2
SENTEVAL = "tr\tPAST\tthe cat sat .\nva\tPRES\tthe cat sits .\nte\tPAST\tit was naïve .\n"
WIC = "bank\tN\t1-0\tthe bank\tbank of a river\nplay\tV\t0-1\tplay it\tto play\n"
MULTINLI: Rows = [{"sentence1": "a cat", "sentence2": "no cat", "gold_label": "contradiction"}] * 2
WMT = (
    '<doc id="d"><src lang="en"><seg id="1">a cat</seg></src><ref lang="de"><seg id="1">eine Katze</seg></ref></doc>\n'
)
CORPUS = "A first text. It has sentences.\nMore of it.\n\nA second document, naïve.\n" * 3
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda content: pyarrow.compress(content, "zstd", asbytes=True),
}


def serialize(name: str, content: str | Rows | dict[str, Any]) -> bytes:
    """Return the contents of a file in the format of its name."""
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, dict):
        return json.dumps(content).encode()
    if ".parquet" in name:
        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(content), sink)
        return bytes(sink.getvalue())
    if ".csv" in name or ".tsv" in name:
        table = [list(content[0]), *([str(cell) for cell in row.values()] for row in content)]
        return "".join(format_csv_line(row) if ".csv" in name else "\t".join(row) + "\n" for row in table).encode()
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in content).encode()


def write(folder: Path, name: str, content: str | Rows | dict[str, Any]) -> None:
    packed = Path(name).suffix if Path(name).suffix in PACKED else ""
    (folder / name).write_bytes(PACKED[packed](serialize(name, content)))


ONTONOTES = "".join(
    f"#begin document (bn/{n}); part 000\n"
    + "".join(f"bn/{n} 0 {i} {word} NN * - - - - * {cell}\n" for i, (word, cell) in enumerate(cells))
    + "\n#end document\n"
    for n, cells in enumerate([[("Ann", "(1)"), ("saw", "-"), ("her", "(2|(1)"), ("dog", "2)")]] * 3)
)
ROLES_2005 = "The DT - (A0*\nrain NN - *)\nfell VBD fall (V*)\nagain RB - (AM-TMP*)\n\n" * 2
ROLES_2012 = "".join(
    f"#begin document (bn/{n}); part 000\n"
    + "".join(f"bn/{n} 0 {i} {word} NN * {lemma} 01 - - * {role} -\n" for i, (word, lemma, role) in enumerate(words))
    + "\n#end document\n"
    for n, words in enumerate([[("Ann", "-", "(A0*)"), ("fell", "fall", "(V*)"), ("again", "-", "(AM-TMP*)")]] * 3)
)
LINKED: Rows = [{"sentences": [["Ann", "saw"], ["her", "dog"]], "clusters": [[[0, 0], [2, 2]]]}] * 3


def kind(what: str, name: str, content: str | Rows | dict[str, Any], read: Callable[[Path], Any]) -> Kind:
    return Kind(
        f"{what} {name}", partial(write, name=name, content=content), [name], lambda folder: read(folder / name)
    )


def read_corpus(path: Path, **options: Any) -> list[Any]:
    return list(read_documents([path], **options))


def read_brat(path: Path) -> Any:
    """Read a damaged file of a brat document beside an intact one."""
    for suffix, content in ((".txt", "Ann met Bob naïve\n"), (".ann", BRAT)):
        if suffix != path.suffix:
            path.with_suffix(suffix).write_text(content, encoding="utf-8")
    return read_tagged(path)


def read_wic_with_labels(path: Path) -> Any:
    """Read a damaged file of WiC beside intact labels, or the other way around."""
    for name, content in (("a.data.txt", WIC), ("a.gold.txt", "T\nF\n")):
        if name != path.name:
            path.with_name(name).write_text(content, encoding="utf-8")
    return list(read_wic(path.with_name("a.data.txt")))


def histories(path: Path) -> Any:
    return write_histories([path], path.parent / "out.txt")


def layout(path: Path, name: str) -> Sequence[Any]:
    return [str(row) for _, row in read_layout([path], name, header=True)]


def parallel_layout(path: Path, name: str) -> Sequence[Any]:
    """Read a damaged side of parallel texts beside itself."""
    return [str(row) for _, row in read_layout([path, path], name, header=True)]


def wikisql_layout(path: Path) -> Sequence[Any]:
    """Read a damaged file of WikiSQL beside an intact table, or the other way around."""
    for name, row in (("dev.jsonl", QUESTION), ("dev.tables.jsonl", TABLE)):
        if name != path.name:
            path.with_name(name).write_text(json.dumps(row) + "\n", encoding="utf-8")
    return layout(path.with_name("dev.jsonl"), "decanlp-wikisql")


def story_layout(path: Path) -> Sequence[Any]:
    """Read a damaged list of addresses beside an intact story, or the other way around."""
    if path.name == "urls.txt":
        return layout(path, "decanlp-stories")
    stories = path.parent / "stories"
    stories.mkdir(exist_ok=True)
    (stories / f"{hashlib.sha1(b'u').hexdigest()}.story").write_bytes(path.read_bytes())
    path.with_name("urls.txt").write_text("u\n")
    return layout(path.with_name("urls.txt"), "decanlp-stories")


KINDS = [
    *(kind("labeled", f"rows{end}", LABELED, read_labeled) for end in (".csv", ".tsv", ".jsonl", ".parquet")),
    *(kind("labeled", f"rows.csv{packed}", LABELED, read_labeled) for packed in PACKED if packed),
    *(kind("corpus", f"text.txt{packed}", CORPUS, read_corpus) for packed in PACKED),
    *(kind("corpus", f"text{end}", LABELED, partial(read_corpus, text_field="text")) for end in (".jsonl", ".parquet", ".jsonl.zst")),
    *(kind("annotated", f"text{end}", SPANNED, partial(read_corpus, text_field="text", span_field="spans")) for end in (".jsonl",)),
    kind("tagged", "words.conll", CONLL, read_tagged),
    kind("tagged", "words.conllu", CONLLU, read_tagged),
    *(kind("tagged", f"words{end}", TAGGED, read_tagged) for end in (".jsonl", ".parquet")),
    kind("tagged offsets", "rows.jsonl", OFFSETS, read_tagged),
    kind("tagged offsets", "rows.parquet", PARTS, read_tagged),
    kind("brat annotations", "a.ann", BRAT, read_brat),
    kind("brat text", "a.txt", "Ann met Bob naïve\n", read_brat),
    kind("coreference", "words.v4_gold_conll", ONTONOTES, read_coreference),
    *(kind("coreference", f"rows{end}", LINKED, read_coreference) for end in (".jsonl", ".parquet")),
    kind("dependency trees", "words.conllu", CONLLU, lambda path: list(read_conllu(path))),
    kind("constituency trees", "trees.mrg", TREES, lambda path: list(read_bracketed(path))),
    kind("edge targets", "rows.jsonl", TARGETS, lambda path: list(read_edge_targets(path))),
    kind("SentEval", "past_present.txt", SENTEVAL, lambda path: list(read_senteval(path))),
    *(kind("WiC", name, content, read_wic_with_labels) for name, content in (("a.data.txt", WIC), ("a.gold.txt", "T\nF\n"))),
    kind("labeled, with semicolons", "rows.csv", SEMICOLONS, read_labeled),
    kind("questions", "squad.json", SQUAD, read_questions),
    *(kind("questions", f"rows{end}", QUESTIONS, read_questions) for end in (".jsonl", ".parquet")),
    *(kind("choices", f"rows{end}", CHOICES, read_choices) for end in (".jsonl", ".parquet")),
    kind("dialogues", "turns.jsonl", TURNS, read_dialogues),
    *(kind("dialogues with roles", f"turns{end}", ROLES, read_dialogues) for end in (".jsonl", ".parquet")),
    *(kind("marked", f"rows{end}", MARKED, read_span_pairs) for end in (".jsonl", ".csv", ".parquet")),
    kind("entities", "rows.jsonl", ENTITIES, read_entity_clozes),
    kind("nested entities", "rows.jsonl", NESTED, read_entity_clozes),
    *(kind("ratings", f"rows{end}", RATINGS.replace("::", mark), histories) for end, mark in ((".dat", "::"), (".data", "\t"))),
    kind("titles", "movies.dat", "1::Heat (1995)::Crime\n2::Amélie (2001)::Comedy\n", read_titles),
    *(kind("histories", f"rows{end}", HISTORIES, histories) for end in (".jsonl", ".csv", ".parquet")),
    *(kind("pairs", f"rows{end}", PAIRS, read_parallel) for end in (".jsonl", ".tsv")),
    kind("text to text", "rows.jsonl", [{"source": "a b", "target": "c"}] * 3, partial(read_text_to_text, columns={})),
    kind("phrases", "phrases.txt", "machine learning\nnew york\n", lambda path: check_phrase_file(path) or True),
    *(
        kind(f"suite layout {name}", f"rows{end}", content, partial(layout, name=name))
        for name, end, content in (
            ("tsv", ".tsv", LABELED), ("csv", ".csv", LABELED), ("jsonl", ".jsonl", LABELED), ("squad", ".json", SQUAD),
            ("multirc", ".jsonl", MULTIRC), ("record", ".jsonl", RECORD), ("pairs", ".jsonl", LABELED), ("conll", ".txt", CONLL),
            ("lines", ".txt", CORPUS), ("trec", ".label", "NUM:dist How far is it?\nLOC:city Where is it?\n"),
            ("sst", ".txt", "(3 (2 A) (3 (4 fine) (2 film)))\n1 A bad one\n"), ("parallel", ".xml", WMT),
            ("decanlp-squad", ".json", SQUAD), ("decanlp-multinli", ".jsonl", MULTINLI), ("decanlp-qa-srl", ".qa", QA_SRL),
            ("decanlp-sst", ".csv", "label,sentence\n1,fine\n0,bad\n"), ("decanlp-qa-zre", ".tsv", QA_ZRE),
            ("decanlp-woz", ".json", json.dumps([{"dialogue": WOZ_TURNS}])), ("decanlp-mwsc", ".txt", f"{SCHEMA}\n{SCHEMA}"),
            ("conll-2005", ".txt", ROLES_2005), ("conll-2012", ".v4_gold_conll", ROLES_2012),
            ("conll-2012-coreference", ".v4_gold_conll", ONTONOTES),
        )
    ),
    *(
        kind(f"suite layout {name}", "texts.sgm", SEGMENTS.format("a", "b"), partial(parallel_layout, name=name))
        for name in ("parallel", "decanlp-iwslt")
    ),
    *(kind("suite layout decanlp-wikisql", name, [row], wikisql_layout) for name, row in (("dev.jsonl", QUESTION), ("dev.tables.jsonl", TABLE))),
    *(kind("suite layout decanlp-stories", name, content, story_layout) for name, content in (("urls.txt", "u\nv\n"), ("a.story", "Rain fell\n\n@highlight\n\nRain\n"))),
]  # fmt: skip


def test_every_layout_of_suites_is_damaged() -> None:
    damaged = {kind.name.split()[2] for kind in KINDS if kind.name.startswith("suite layout")}
    assert damaged == set(LAYOUTS) - {"race", "folders"}  # folders of files


@pytest.mark.parametrize("packed", [packed for packed in PACKED if packed])
@pytest.mark.parametrize(
    ("name", "read"), [("rows.csv", read_labeled), ("rows.jsonl", read_labeled), ("text.txt", read_corpus)]
)
def test_a_compressed_file_cut_in_half_is_refused(name: str, read: Any, packed: str, tmp_path: Path) -> None:
    write(tmp_path, name + packed, CORPUS if name == "text.txt" else LABELED)
    path = tmp_path / (name + packed)
    assert read(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(PretuneError, match=f"{name}{packed}: the compressed file is damaged or truncated"):
        read(path)


@pytest.mark.end_to_end
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_damaged_texts(kind: Kind, tmp_path: Path) -> None:
    report = attack(kind, tmp_path, FEW)
    assert not report.bad, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_damaged_texts_at_length(kind: Kind, tmp_path: Path) -> None:
    report = attack(kind, tmp_path, MANY, seed=1)
    print(report)
    assert not report.bad, str(report)
