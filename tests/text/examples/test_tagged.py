"""Tests that tagged words are read from every file format, get the ids of running text, and are covered by windows."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.text.examples.tagged import TaggedSentences, TokenWords, read_tagged
from pretune.text.tokenizers.training import Kind
from tests.support.objective_data import KINDS, store

CONLL = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
# # I-NP O

# sent_id = 2
Peter\tNNP  I-NP I-PER
"""
CONLLU = """# newdoc
# text = vámonos al mar
1-2\tvámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tvamos\tir\tVERB\tV\t_\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\tP\t_\t1\tobj\t_\t_
2.1\tx\t_\t_\t_\t_\t_\t_\t_\t_
3\tal mar\tmar\tNOUN\tN\t_\t1\tobl\t_\t_

"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


# -- files ----------------------------------------------------------------------------------------------------------


def test_conll_columns_are_read(tmp_path: Path) -> None:
    path = write(tmp_path, "eng.train", CONLL)
    found = read_tagged(path)
    assert found.words == [["EU", "rejects", "#"], ["Peter"]]
    assert found.tags == [["I-ORG", "O", "O"], ["I-PER"]]
    assert [found.location(row) for row in (0, 1)] == [f"{path}, line 3", f"{path}, line 8"]
    assert found.texts == ["EU rejects #", "Peter"]
    assert read_tagged(path, {"label": "2"}).tags == [["NNP", "VBZ", "#"], ["NNP"]]
    assert read_tagged(path, tags=False).tags is None
    assert found.take([1]).words == [["Peter"]]
    packed = tmp_path / "a.conll.gz"
    packed.write_bytes(gzip.compress(CONLL.encode()))
    assert read_tagged(packed).words == found.words


def test_conllu_uses_upos_by_default(tmp_path: Path) -> None:
    path = write(tmp_path, "a.conllu", CONLLU)
    found = read_tagged(path)
    assert found.words == [["vamos", "nos", "al mar"]]
    assert found.tags == [["VERB", "PRON", "NOUN"]]
    for label in ("deprel", "8"):
        assert read_tagged(path, {"label": label}).tags == [["root", "obj", "obl"]]
    assert read_tagged(path, {"text": "lemma"}, tags=False).words == [["ir", "nosotros", "mar"]]


def test_rows_with_lists_of_words_are_read(tmp_path: Path) -> None:
    rows = [{"tokens": ["a", "b"], "ner_tags": [0, 3], "verb": 1}, {"tokens": [], "ner_tags": [], "verb": 0}]
    path = write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows)))
    found = read_tagged(path)
    assert (found.words, found.tags) == ([["a", "b"], []], [["0", "3"], []])
    with pytest.raises(PretuneError, match=r"line 2: 'verb' is 0, but must be the index of a word"):
        read_tagged(path, predicate="verb")
    write(tmp_path, "b.jsonl", json.dumps(rows[0]) + "\n" + json.dumps({"tokens": "c d e", "verb": 2}))
    found = read_tagged(tmp_path / "b.jsonl", tags=False, predicate="verb")
    assert (found.words, found.predicates) == ([["a", "b"], ["c", "d", "e"]], [1, 2])


def test_predicate_column_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, "roles.conll", "He - B-A0\ngave Y B-V\nit - B-A1\n\nHe - O\n")
    with pytest.raises(PretuneError, match=r"line 5: 0 predicates are marked in column 2"):
        read_tagged(path, predicate="2")
    found = read_tagged(write(tmp_path, "roles.conll", "He - B-A0\ngave Y B-V\nit - B-A1\n"), predicate="2")
    assert found.predicates == [1]
    assert found.take([0]).predicates == [1]


@pytest.mark.parametrize(
    ("name", "text", "columns", "message"),
    [
        ("a.conll", "a O\nb\nc O\n", {}, r"a\.conll, line 2: expected 2 columns, but found 1"),
        ("a.conll", "a\nb\n", {}, "a single column"),
        ("a.conll", "\n \n", {}, "the file contains no sentences"),
        ("a.conll", "a O\n", {"label": "3"}, "no column '3' for the label; choose 1 to 2"),
        ("a.conll", "a O\n", {"pair": "2"}, "only the columns 'text' and 'label'; remove the option that sets 'pair'"),
        ("a.conllu", "1\ta\tO\n", {}, r"a\.conllu, line 1: expected 10 columns, but found 3"),
        ("a.conllu", "# nothing\n", {}, "the file contains no sentences"),
        ("a.conllu", CONLLU, {"label": "pos"}, "no column 'pos' for the label; choose id, form, lemma, upos"),
        (
            "a.jsonl",
            '{"words": ["a", "b"], "tags": ["O"]}',
            {},
            r"a\.jsonl, line 1: 2 words in 'words', but 1 tags in 'tags'",
        ),
        ("a.jsonl", '{"words": ["a"], "tags": [""]}', {}, "the tag of word 1 in 'tags' is empty"),
        ("a.jsonl", '{"words": ["a"]}', {}, "no field 'tags'; the fields are 'words'"),
        ("a.jsonl", '{"words": [["a"]], "tags": ["O"]}', {}, "expected a list of words in 'words'"),
        (
            "a.jsonl",
            '{"words": ["\\ud83d"], "tags": ["O"]}',
            {},
            r"a\.jsonl, line 1: 'words' contains a lone surrogate",
        ),
        ("a.jsonl", "{", {}, r"a\.jsonl, line 1: not valid JSON"),
        ("a.jsonl", "\n", {}, "the file contains no sentences"),
    ],
)
def test_invalid_files_are_rejected_in_one_line(
    name: str, text: str, columns: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(PretuneError, match=message):
        read_tagged(write(tmp_path, name, text), columns)


@pytest.mark.parametrize("junk", ["(2 rows)\n", "\x1a", "\n\n\x1a\n\n", "half", "a b c d e"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_last_line_of_another_width_is_named_and_skipped(
    junk: str, line_end: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)
    text = ("a x O\nb x B-X\n" + junk).replace("\n", line_end)
    (tmp_path / "a.conll").write_bytes(text.encode())
    found = read_tagged(tmp_path / "a.conll")
    assert (found.words, found.tags) == ([["a", "b"]], [["O", "B-X"]])
    line = 3 + len(junk) - len(junk.lstrip("\n"))
    assert f"a.conll, line {line}: expected 3 columns, but found" in (said := capsys.readouterr().err)
    assert "this last line is skipped" in said
    path = write(tmp_path, "b.conll", "a x O\n" + junk.strip() + "\n\nc x O\n")
    with pytest.raises(PretuneError, match=r"b\.conll, line 2: expected 3 columns"):
        read_tagged(path)


def test_byte_order_marks_within_files_are_named_and_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)
    found = read_tagged(
        write(tmp_path, "a.conll", "\ufeff\ufeff-DOCSTART- O\n\na O\n\n\ufeffb B-X\n\ufeff\nc O\n\ufeff")
    )
    assert (found.words, found.tags) == ([["a"], ["b"], ["c"]], [["O"], ["B-X"], ["O"]])
    assert "byte order marks within the file are skipped: line 1, line 5, line 6 …" in capsys.readouterr().err
    with pytest.raises(PretuneError, match="the file contains no sentences"):
        read_tagged(write(tmp_path, "b.conll", "\ufeff"))
    found = read_tagged(write(tmp_path, "c.conllu", CONLLU + "\ufeff" + CONLLU))
    assert len(found) == 2


def test_missing_files_and_folders_raise_errors(tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match="no such file"):
        read_tagged(tmp_path / "nowhere.conll")
    with pytest.raises(PretuneError, match=r"the folder contains no \.ann files of brat"):
        read_tagged(tmp_path)


# -- words as tokens ------------------------------------------------------------------------------------------------

CHARACTERS = "aethxAé0½ﬁß你好ж한,.'-$#\u0001\u00a0"
words_strategy = st.lists(
    st.one_of(
        st.sampled_from(["the", "name", "function", "Поезд", "don't", "[MASK]", "<s>", "\u0001", "10,000"]),
        st.text(CHARACTERS, min_size=1, max_size=9),
    ),
    min_size=0,
    max_size=7,
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(sentences=st.lists(words_strategy, min_size=1, max_size=3))
@example(sentences=[[], ["\u0001"], ["the", "\u0001", "name"]])
def test_words_have_the_ids_of_running_text(kind: Kind, sentences: list[list[str]]) -> None:
    tokenizer = store(kind).tokenizer
    tokens = TaggedSentences(Path("x"), {}, sentences).tokenize(tokenizer)
    assert len(tokens.units) == sum(map(len, sentences)) + 1
    number = 0
    for row, words in enumerate(sentences):
        ids = [
            tokens.rows.ids[tokens.units[number + i] : tokens.units[number + i + 1]].tolist() for i in range(len(words))
        ]
        assert [i for word in ids for i in word] == tokenizer.encode(" ".join(words))
        for place, word in enumerate(words):
            before = tokens.units[number + place]
            starts = np.flatnonzero(tokens.word == number + place)
            assert starts.tolist() == ([before] if ids[place] else [])
            if word.isascii() and word.isprintable():  # others may be merged with their neighbors
                alone = (
                    tokenizer.encode(f"the {word}")[len(tokenizer.encode("the")) :] if place else tokenizer.encode(word)
                )
                neighbors = words[max(0, place - 1) : place + 2]
                if all(w.isascii() and w.isprintable() for w in neighbors):
                    assert ids[place] == alone
        number += len(words)
        assert tokens.bounds[row + 1] == number


@pytest.mark.parametrize("kind", KINDS)
def test_predicate_is_surrounded_by_separators(kind: Kind) -> None:
    tokenizer = store(kind).tokenizer
    separator = tokenizer.role("separator")
    sentences = [["the", "function", "is", "the", "function"], ["name"]]
    plain = TaggedSentences(Path("x"), {}, sentences).tokenize(tokenizer)
    tokens = TaggedSentences(Path("x"), {}, sentences, predicates=[4, 0]).tokenize(tokenizer)
    assert (tokens.rows.ids == separator).sum() == 4
    assert tokens.rows.ids[tokens.rows.ids != separator].tolist() == plain.rows.ids.tolist()
    assert tokens.predicates is not None
    for (first, size), word in zip(tokens.predicates, (4, 5), strict=True):
        assert tokens.rows.ids[[first - 1, first + size]].tolist() == [separator, separator]
        assert tokens.word[first] == word
        assert tokens.units[word] == first - 1 and tokens.units[word + 1] == first + size + 1
    assert (np.sort(tokens.word[tokens.word >= 0]) == np.arange(6)).all()


# -- windows --------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=30), min_size=1, max_size=4), st.integers(1, 12), st.integers(0, 12)
)
def test_windows_contain_every_word_whole_and_move_forward(sizes: list[list[int]], room: int, overlap: int) -> None:
    flat = np.array([size for words in sizes for size in words], dtype=np.int64)
    units = np.concatenate([[0], np.cumsum(flat)])
    bounds = np.concatenate([[0], np.cumsum([len(words) for words in sizes])])
    begins = units[bounds]
    rows = type("Rows", (), {"starts": begins[:-1, None], "lengths": np.diff(begins)[:, None]})()
    tokens = TokenWords(rows, np.empty(0), units, bounds)  # type: ignore[arg-type]
    sentence, starts, spans, cut = tokens.windows(np.full(len(sizes), room), overlap)
    assert (np.diff(sentence) >= 0).all()
    assert (spans <= room).all() and (spans > 0).all()
    assert cut == sum(max(words, default=0) > room for words in sizes)
    for row in range(len(sizes)):
        own = sentence == row
        assert (np.diff((starts + spans)[own]) > 0).all()
        for begin, end in zip(
            units[bounds[row] : bounds[row + 1]], units[bounds[row] + 1 : bounds[row + 1] + 1], strict=True
        ):
            if begin < end:
                whole = (starts[own] <= begin) & (starts[own] + spans[own] >= min(end, begin + room))
                assert whole.any()
                assert np.isin(starts[own], units).all()
