"""Tests that annotated spans become one word with every tokenizer, and change nothing else."""

from __future__ import annotations

import json
import os
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import processors

import pretune as pt
from pretune import PretuneError
from pretune.objectives import Data, parse_objective
from pretune.runtime.randomness import EpochRandom
from pretune.text.corpus.annotations import inside_spans, read_spans
from pretune.text.corpus.documents import Document, read_documents
from pretune.text.packing.sequences import Packing
from pretune.text.store.builder import StoreSettings
from pretune.text.store.shards import build_part, pack_texts, sentences_with_spaces, unpack_texts
from pretune.text.store.store import Store
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.tokenizer import JOINT, Tokenizer
from pretune.text.tokenizers.training import Kind, train_on_documents
from tests.support.cli import run_command
from tests.support.texts import KOREAN, RUSSIAN, english_documents

KINDS: list[Kind] = [
    "wordpiece",
    "bpe",
    "byte-level-bpe",
    "unigram",
    "sentencepiece-bpe",
    "sentencepiece-unigram",
    "items",
]
TEXT = "Harry Potter is a series of fantasy novels written by British author J. K. Rowling. Harry Potter is read a lot."
SPANS = [[0, 12], {"start": 54, "end": 61, "label": "country"}, [69, 82]]


@cache
def tokenizer(kind: Kind) -> Tokenizer:
    texts = [*english_documents()[:8], *RUSSIAN, *KOREAN, f"{TEXT} " * 3]
    return train_on_documents([Document(text, Path("test"), 1) for text in texts], kind, 600, extra_ids=2)


odd = st.lists(
    st.sampled_from(
        ["Harry", " ", "  ", "\n", "e\u0301\u0301", "ﬁ", "İ", "😀", "👩‍👩‍👧", "東京", "река", "한국", "\u200b", "\x00"]
    )
    | st.sampled_from(["[MASK]", "<extra_id_0>", "<extra_id_0", JOINT, JOINT[:2], ". ", "! ", "1990", "½", "��"])
    | st.text(max_size=3),
    min_size=1,
    max_size=12,
).map("".join)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@example(["a", JOINT[:2] + JOINT, " <extra_id_0>e\u0301"])
@given(parts=st.lists(odd, min_size=1, max_size=3))
def test_every_id_of_the_fast_path_has_an_offset(kind: Kind, parts: list[str]) -> None:
    made = tokenizer(kind)
    ids, _ = made.encode_parts([parts])
    places = made.part_offsets(parts)
    assert places.shape == (len(ids), 2)
    assert (places[:, 0] <= places[:, 1]).all() and (np.diff(places, axis=0) >= 0).all()
    assert places.min(initial=0) >= 0 and places.max(initial=0) <= len("".join(parts))
    alone = [made.encode_parts([[part]])[0] for part in parts]
    assert np.concatenate(alone).tolist() == ids.tolist()
    many, lengths, offsets = made.encode_with_offsets(parts)
    assert many.tolist() == ids.tolist() and lengths.tolist() == [len(part) for part in alone]
    starts = np.repeat(np.cumsum([0, *map(len, parts[:-1])]), lengths)
    assert (offsets + starts[:, None] == places).all()


@pytest.mark.parametrize("kind", KINDS)
def test_offsets_match_the_words(kind: Kind) -> None:
    made = tokenizer(kind)
    parts = sentences_with_spaces(f"A <extra_id_1> here. {JOINT}{TEXT}", "en")
    text = "".join(parts)
    for word in ("here", "Potter", "Rowling", "lot"):
        start = text.index(word)
        ids, _ = made.encode_parts([parts])
        touching = [
            i for i, (a, b) in zip(ids, made.part_offsets(parts), strict=True) if a < start + len(word) and b > start
        ]
        assert word in made.decode(touching).replace(" ", "") or kind == "items"


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(data=st.data())
def test_span_is_one_word_and_nothing_else_changes(kind: Kind, data: st.DataObject) -> None:
    texts = data.draw(st.lists(odd.filter(str.strip), min_size=1, max_size=3))
    spans = []
    for number, text in enumerate(texts):
        for _ in range(data.draw(st.integers(0, 3))):
            start = data.draw(st.integers(0, len(text) - 1))
            spans.append((number, start, data.draw(st.integers(start + 1, len(text)))))
    made = tokenizer(kind)
    array = np.array(spans, dtype=np.int64).reshape(-1, 3)
    unpacked, same = unpack_texts(pack_texts(texts, array))
    assert unpacked == texts and (same == array).all()
    plain, marked = build_part(texts, made, "en"), build_part(texts, made, "en", array)
    for name in ("tokens", "sentences", "documents", "bytes"):
        assert (plain[name] == marked[name]).all()
    assert not (marked["words"] & ~plain["words"]).any()
    sentence = np.cumsum(plain["sentences"]) - plain["sentences"]
    assert marked["words"][sentence].all()
    expected, first, bounds = plain["words"].copy(), 0, np.append(0, np.cumsum(plain["documents"]))
    for number, text in enumerate(texts):  # a slow reference: span by span, token by token
        places = made.part_offsets(sentences_with_spaces(text, "en"))
        for _, start, end in (span for span in spans if span[0] == number):
            touched = [first + i for i, (a, b) in enumerate(places) if a < end and b > start]
            expected[touched[1:]] = False
        first += int(plain["sentences"][bounds[number] : bounds[number + 1]].sum())
    expected[sentence] = True
    assert (marked["words"] == expected).all()


@pytest.mark.not_fast
@settings(max_examples=60)
@given(odd.filter(lambda text: bool(text.strip()) and JOINT[0] not in text), st.data())
def test_tokenizers_that_trim_offsets_find_the_same_words(text: str, data: st.DataObject) -> None:
    """RoBERTa's offsets exclude the space before a word."""
    plain = tokenizer("byte-level-bpe")
    trimming = Tokenizer.from_state(plain.state())
    trimming.backend.post_processor = processors.ByteLevel(trim_offsets=True)
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    if text[start].isspace() or text[end - 1].isspace():  # names neither begin nor end with a space
        return
    one, other = (build_part([text], made, "en", np.array([[0, start, end]])) for made in (plain, trimming))
    assert (one["words"] == other["words"]).all()


def test_overlapping_spans_are_merged_and_adjacent_ones_are_not() -> None:
    places = np.array([[0, 2], [2, 4], [5, 6], [6, 9], [9, 9], [9, 10]])

    def later(*spans: tuple[int, int]) -> list[int]:
        return np.flatnonzero(inside_spans(places, np.array(spans))).tolist()

    assert later((0, 4)) == [1] and later((1, 3)) == [1] and later((0, 10)) == [1, 2, 3, 4, 5]
    assert later((0, 4), (5, 9)) == [1, 3]  # adjacent spans stay separate
    assert later((0, 6), (5, 9)) == [1, 2, 3] and later((0, 9), (2, 4)) == [1, 2, 3]
    assert later((4, 5)) == [] and later((6, 9)) == [] and later((3, 5)) == []


# -- reading --------------------------------------------------------------------------------------------------------


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_spans_are_read_from_jsonl_and_parquet(tmp_path: Path) -> None:
    rows = [{"text": "Ann met Bo.", "names": [[0, 3], [8, 10]]}, {"text": "No one.", "names": []}]
    jsonl = write(tmp_path / "a.jsonl", [*rows, {"text": "Null.", "names": None}])
    found = [document.spans for document in read_documents([jsonl], span_field="names")]
    assert found == [((0, 3), (8, 10)), (), ()]
    pairs, objects = tmp_path / "a.parquet", tmp_path / "b.parquet"
    other = {"id": [1, 2], "text": ["Ann met Bo.", "No one."]}
    pyarrow.parquet.write_table(pyarrow.table({**other, "names": [[[0, 3], [8, 10]], []]}), pairs)
    named = [[{"start": 0, "end": 3, "label": "x"}, {"start": 8, "end": 10, "label": "y"}], None]
    pyarrow.parquet.write_table(pyarrow.table({**other, "names": named}), objects)
    for file in (pairs, objects):
        for column in (None, "text"):
            assert [d.spans for d in read_documents([file], text_field=column, span_field="names")] == found[:2]
    assert [d.spans for d in read_documents([jsonl])] == [(), (), ()]
    with pytest.raises(
        PretuneError, match=r"b\.parquet, line 1: no field named 'name'; the fields are 'id', 'text', 'names'; did you"
    ):
        list(read_documents([objects], text_field="text", span_field="name"))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "0-3",
            r"a\.jsonl, line 2, field 'names' has type str; expected a list of spans such as \[\[0, 5\], \[9, 12\]\]",
        ),
        ({"start": 0, "end": 3}, "has type dict; expected a list"),
        (
            [[0, 3], [0, 9]],
            r"line 2, field 'names', span 2: \[0, 9\] is outside the text; write 0 ≤ start < end ≤ 8",
        ),
        ([[-1, 3]], r"\[-1, 3\] is outside the text"),
        ([[3, 3]], r"\[3, 3\] is outside"),
        ([[4, 3]], r"\[4, 3\] is outside"),
        ([[0.0, 3]], r"span 1: \[0\.0, 3\] is not a span; write two integers, start and end, as in \[9, 12\]"),
        ([[False, True]], "is not a span"),
        ([["0", "3"]], "is not a span"),
        ([[0, 3, "name"]], "is not a span"),
        ([0, 3], "span 1: 0 is not a span"),
        ([{"begin": 0, "end": 3}], r"\[None, 3\] is not a span"),
        ([None], "is not a span"),
    ],
)
def test_invalid_spans_are_reported(value: Any, message: str, tmp_path: Path) -> None:
    good = {"text": "Ann ran.", "names": [[0, 3]]}
    file = write(tmp_path / "a.jsonl", [good, {**good, "names": value}])
    with pytest.raises(PretuneError, match=message):
        list(read_documents([file], span_field="names"))
    assert read_spans([[0, 8]], 8, "") == ((0, 8),)  # the whole text


def test_invalid_use_gives_a_one_line_error_and_leaves_no_files(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [{"text": "Ann ran.", "names": [[0, 30]]}])
    (tmp_path / "a.csv").write_text("text,names\nAnn ran.,[]\n")
    tokenizer("bpe").save(tmp_path / "tokenizer")
    cases = {
        ("a.jsonl", "names"): "line 1, field 'names', span 1: [0, 30] is outside the text",
        ("a.jsonl", "name"): "no field named 'name'; the fields are 'text', 'names'; did you mean 'names'?",
        ("a.csv", "names"): "expected one of .jsonl, .parquet",
    }
    for (name, field), message in cases.items():
        words = ["prepare", str(tmp_path / name), "--tokenizer", str(tmp_path / "tokenizer"), "--span-field", field]
        refused = run_command(*words, "--out", tmp_path / "store", "--processes", 1, check=False)
        assert refused.returncode == 1
        assert message in refused.stderr and refused.stderr.count("\n") == 1
        assert not list(tmp_path.glob("store*"))
    with pytest.raises(
        PretuneError, match=r"a\.csv: annotated spans can be read only from \.jsonl and \.parquet files"
    ):
        list(read_documents([tmp_path / "a.csv"], span_field="names"))


# -- from rows to masks ---------------------------------------------------------------------------------------------


def prepared(folder: Path, kind: Kind = "wordpiece", processes: int = 1, **options: Any) -> Store:
    rows = [{"text": TEXT, "names": SPANS}, {"text": "Nobody is named here at all.", "names": []}]
    file = write(folder / "a.jsonl", rows * 2)
    return pt.prepare(file, tokenizer(kind), folder / "store", processes=processes, **options)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.not_fast
def test_spans_only_change_word_starts_for_any_number_of_processes(tmp_path: Path) -> None:
    plain = prepared(tmp_path)
    assert set(plain.manifest["settings"]) == {"language", "split_by", "text_field", "encoding_errors", "shard_bytes"}
    assert set(StoreSettings().describe()) == set(plain.manifest["settings"])
    without = plain.gather_words(np.array([0]), np.array([plain.tokens]))
    shutil.rmtree(tmp_path / "store")
    results = []
    for processes in (1, 2):
        store = prepared(tmp_path, processes=processes, span_field="names")
        assert store.manifest["settings"]["span_field"] == "names"
        words = store.gather_words(np.array([0]), np.array([store.tokens]))
        assert words.sum() < without.sum() and not (words & ~without).any()
        results.append(contents(tmp_path / "store"))
        with pytest.raises(PretuneError, match="the folder contains a store prepared from other input"):
            prepared(tmp_path)
        shutil.rmtree(tmp_path / "store")
    assert results[0] == results[1]


def test_changed_spans_change_the_shards(tmp_path: Path) -> None:
    rows = [{"text": TEXT, "names": [[0, 12]]}]
    file = write(tmp_path / "a.jsonl", rows)
    make = lambda: pt.prepare(file, tokenizer("bpe"), tmp_path / "store", span_field="names", processes=1)  # noqa: E731
    make()
    before = contents(tmp_path / "store")
    os.rename(tmp_path / "store", tmp_path / "store.partial")  # as if interrupted just before the end
    (tmp_path / "store.partial" / "manifest.json").unlink()
    write(file, [{"text": TEXT, "names": [[6, 27]]}])
    made = make()
    assert contents(tmp_path / "store") != before
    words = made.gather_words(np.array([0]), np.array([made.tokens]))
    shutil.rmtree(tmp_path / "store")
    assert (make().gather_words(np.array([0]), np.array([made.tokens])) == words).all()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "items"])
def test_annotated_names_are_masked_whole(kind: Kind, tmp_path: Path) -> None:
    store = prepared(tmp_path, kind, span_field="names")
    made = store.tokenizer
    template = Template(single=("start", "A", "separator"), pair=("B", "separator"))
    data = Data(made, template, store=store, documents=np.array([0]))
    objective = parse_objective("mlm(unit=word,mask_rate=0.5,mask_replace_prob=1,random_replace_prob=0)").joints[0]
    fates: dict[str, set[bool]] = {}
    for epoch in range(30):
        draws = EpochRandom(0, epoch)
        sequences = objective.corrupt(objective.arrange(data, Packing(512, 512), draws).pack(0), made, draws)
        hidden = (sequences.ids == made.role("mask"))[1:-1]
        places = made.part_offsets(sentences_with_spaces(TEXT, "en"))
        assert len(places) == len(hidden)
        for start, end in ((0, 12), (54, 61), (69, 82), (84, 96)):
            mine = {bool(hidden[i]) for i, (a, b) in enumerate(places) if a < end and b > start}
            if start != 84:  # this one is not annotated
                assert len(mine) == 1
            fates.setdefault(TEXT[start:end] + str(start), set()).add(len(mine) == 2)
    assert fates["Harry Potter84"] == {True, False} and fates["Harry Potter0"] == fates["J. K. Rowling69"] == {False}


def test_example_of_the_ernie_paper(tmp_path: Path) -> None:
    """The author's name is masked as one span of several tokens."""
    store = prepared(tmp_path, "items", span_field="names")
    data = Data(store.tokenizer, Template(single=("A",), pair=()), store=store, documents=np.array([0]))
    objective = parse_objective("mlm(unit=word,mask_replace_prob=1,random_replace_prob=0)").joints[0]
    seen = set()
    for epoch in range(40):
        draws = EpochRandom(0, epoch)
        sequences = objective.corrupt(objective.arrange(data, Packing(64, 64), draws).pack(0), store.tokenizer, draws)
        seen.add(" ".join(store.tokenizer.tokens(sequences.ids)))
    wanted = (
        "Harry Potter is a series of fantasy novels written by British author [MASK] [MASK] [MASK] "
        "Harry Potter is read a lot."
    )
    print("\n".join(sorted(seen)))
    assert wanted in seen
    assert not any("[MASK] K." in line or "J. [MASK]" in line or "[MASK] Rowling." in line for line in seen)
