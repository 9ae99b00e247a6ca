from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pretune as pt
from pretune import PretuneError
from pretune.models.loading import load
from pretune.objectives import Data, parse_objective, single_objective
from pretune.objectives.tasks.match import Match, MatchHead
from pretune.packed import pack_lists
from pretune.text.examples.labeled import LabeledRows
from pretune.text.examples.span_pairs import find_words, read_span_pairs, token_offsets
from pretune.text.packing.sequences import Packing
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import Kind
from pretune.training.data_streams import DataStream
from tests.support.objective_data import BEASTS, COLORS, KINDS, TEMPLATE, few_words, learn, stack, store, write
from tests.support.task_rows import match_rows as rows


@pytest.mark.end_to_end
def test_match_learns_from_the_marked_spans(tmp_path: Path) -> None:
    """The same sentences have either label, depending on what is marked in them."""
    train, dev = write(tmp_path / "train.jsonl", rows(160)), write(tmp_path / "dev.jsonl", rows(40, seed=1))
    run = learn("match", train, tmp_path / "run", dev, epochs=6)
    assert run.results["dev/accuracy"] > 0.9 and run.results["labels"] == ["false", "true"]
    answers = pt.predict(run, dev)
    right = [
        answer["predicted_label"] == str(row["label"]).lower()
        for answer, row in zip(answers, rows(40, seed=1), strict=True)
    ]
    assert np.mean(right) == pytest.approx(run.results["dev/accuracy"])
    assert answers[0]["sentence2"] == rows(1, seed=1)[0]["sentence2"]
    with pytest.raises(PretuneError, match=r"no column contains the position or the words of span 1.* give a file"):
        run.predict(["the cat saw the dog"])


def marked_texts(table: LabeledRows, row: int) -> list[str]:
    first, second = table.extra["spans"][row]
    other = table.texts if table.pairs is None else table.pairs
    return [table.texts[row][slice(*first)], other[row][slice(*second)]]


def test_spans_are_read_from_offsets_or_words(tmp_path: Path) -> None:
    by_word = write(
        tmp_path / "a.jsonl", [{"word": "bank", "sentence1": "Banks? A Bank!", "sentence2": "embankment", "label": 0}]
    )
    assert marked_texts(read_span_pairs(by_word), 0) == ["Bank", "bank"]
    text = "He said that he saw him , and he ran ."
    target = {"span1_text": "he", "span1_index": 3, "span2_text": "he", "span2_index": 8}
    wsc = write(tmp_path / "b.jsonl", [{"text": text, "target": target, "label": True}])
    assert read_span_pairs(wsc).extra["spans"] == [((13, 15), (30, 32))]
    named = write(tmp_path / "c.jsonl", [{"text": text, "a": "saw him", "b": "ran", "label": 1}])
    table = read_span_pairs(named, {"word1": "a", "word2": "b"}, labels=False)
    assert marked_texts(table, 0) == ["saw him", "ran"] and table.labels is None
    assert find_words("new\nyork", "in New  York now") == [(3, 12)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"start1": 4, "end1": 99, "word2": "cat"},
            r"line 1: characters 4 to 99 are outside the text of 7 characters \('start1', 'end1'\)",
        ),
        ({"start1": 3, "end1": 3, "word2": "cat"}, "line 1: characters 3 to 3 are outside the text of 7 characters"),
        (
            {"start1": "x", "end1": 3, "word2": "cat"},
            "line 1: expected a whole number of 0 or more in 'start1', but found 'x'",
        ),
        (
            {"word1": "dog", "word2": "cat"},
            r"line 1: the word 'dog' in 'word1' does not occur in its text; correct them, or leave them out with --drop-invalid",
        ),
        (
            {"word2": "cat"},
            "no column contains the position or the words of span 1; choose those with its bounds or its words with --columns.start1",
        ),
        ({"start1": 3, "end1": 4, "word2": "cat"}, "line 1: ' ' has no tokens"),
    ],
)
def test_invalid_spans_are_rejected_with_their_line(tmp_path: Path, row: dict[str, object], message: str) -> None:
    file = write(tmp_path / "a.jsonl", [{"text": "red cat", "label": 1, **row}])
    place = (
        r"a\.jsonl: "
        if "no column contains" in message
        else r"a\.jsonl, "
        if "token" in message
        else r"a\.jsonl: 1 of 1 rows have spans that are not in their texts: "
    )
    with pytest.raises(PretuneError, match=place + message):
        Match(labels=("1",)).tokenize_examples(
            Data(Tokenizer.load(few_words()), TEMPLATE, rows=read_span_pairs(file)), 32
        )


def test_rows_with_invalid_spans_can_be_dropped(tmp_path: Path) -> None:
    good = {"text": "red cat", "label": 1, "word1": "red", "word2": "cat"}
    file = write(
        tmp_path / "a.jsonl", [good, *({**good, "word1": word} for word in ("dog", "fox", "owl", "elk")), good]
    )
    with pytest.raises(
        PretuneError, match=r"4 of 6 rows .*: line 2: the word 'dog' .*, line 3: .*, line 4: .* …; correct them, or"
    ):
        Match().read(file, {})
    rows = Match(drop_invalid=True).read(file, {})
    assert rows.lines == [1, 6] and rows.extra["spans"] == [((0, 3), (4, 7))] * 2 and rows.labels == ["1", "1"]
    with pytest.raises(PretuneError, match=r"correct them$"):  # prediction keeps all rows
        Match(drop_invalid=True).read(file, {}, answered=False)


def normalize_text(text: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFKD", text).casefold() if c.isalnum())


@pytest.mark.not_fast
@settings(max_examples=40)
@given(st.sampled_from([kind for kind in KINDS if kind != "items"]), st.data())
def test_tokens_of_a_span_decode_to_it(kind: Kind, draw: st.DataObject) -> None:
    tokenizer = store(kind).tokenizer
    words = draw.draw(
        st.lists(
            st.sampled_from(["is", "The", "statement", "снег", "비가", "(an", "[MASK]", "I'll", "42,", "\t"]),
            min_size=1,
            max_size=9,
        )
    )
    at = draw.draw(st.integers(0, len(words) - 1))
    text, start = " ".join(words), len(" ".join([*words[:at], ""]))
    (offsets,) = token_offsets([text], tokenizer)
    ids = tokenizer.encode(text)
    assert len(offsets) == len(ids) and (offsets <= len(text)).all()
    end = start + len(words[at])
    inside = [token for token, (first, last) in zip(ids, offsets, strict=True) if first < end and last > start]
    if words[at].strip() and tokenizer.roles.get("unknown") not in ids:
        assert normalize_text(tokenizer.decode(inside)) == normalize_text(words[at])


@settings(max_examples=30)
@given(st.integers(10, 40), st.booleans(), st.data())
def test_truncated_texts_keep_their_spans(length: int, pair: bool, draw: st.DataObject) -> None:
    def text() -> tuple[str, int]:
        before, after = draw.draw(st.integers(0, 40)), draw.draw(st.integers(0, 40))
        return " ".join(["red"] * before + ["cat"] + ["blue"] * after), 4 * before

    first, at = text()
    second, other = text() if pair else (first, at)
    spans = [((at, at + 3), (other, other + 3))]
    table = LabeledRows(Path("x"), {}, [first], [second] if pair else None, ["a"], lines=[1], extra={"spans": spans})
    tokenizer = Tokenizer.load(few_words())
    laid = Match(("a",)).tokenize_examples(Data(tokenizer, TEMPLATE, rows=table), length)
    sequences = laid.take(np.arange(1))
    assert len(sequences.ids) <= length
    found = sequences.columns["span"]
    (cat,) = tokenizer.encode("cat")
    assert sequences.ids[found > 0].tolist() == [cat] * (1 + pair)
    assert found[found > 0].tolist() == ([1, 2] if pair else [3])
    whole = 2 + pair + sum(len(t.split()) for t in ([first, second] if pair else [first]))
    assert len(sequences.ids) == min(length, whole)


def test_spans_too_far_apart_are_rejected() -> None:
    text = "cat " + "red " * 30 + "dog"
    spans = [((0, 3), (len(text) - 3, len(text)))]
    table = LabeledRows(Path("far.csv"), {}, [text], None, ["a"], lines=[7], extra={"spans": spans})
    data = Data(Tokenizer.load(few_words()), TEMPLATE, rows=table)
    Match(("a",)).tokenize_examples(data, 40)
    with pytest.raises(
        PretuneError, match=r"far\.csv, line 7: the spans do not fit into a sequence of 20 tokens; choose"
    ):
        Match(("a",)).tokenize_examples(data, 20)
    writes = Template(single=("A", "end"), pair=("B", "end"), target=("padding", "A", "end"))
    with pytest.raises(PretuneError, match="choose an encoder"):
        Match(("a",)).tokenize_examples(Data(data.tokenizer, writes, rows=table), 40)


def test_head_matches_the_definition_with_and_without_fixed_shapes() -> None:
    torch.manual_seed(0)
    tokenizer = Tokenizer.load(few_words())
    backbone = stack(tokenizer.size).eval()
    head = MatchHead(backbone, 2, "cls", 0.0).eval()
    packed = pack_lists([[1, 2, 3], [4, 5]], columns={"span": np.array([0, 1, 3, 2, 1])})
    states = torch.randn(5, 32)
    first = torch.cat([states[0], states[1:3].mean(0), states[2]])
    second = torch.cat([states[3], states[4], states[3]])
    torch.testing.assert_close(head(states, packed), head.output(torch.stack([first, second])))

    texts = [f"the {color} {beast}" for color in COLORS for beast in BEASTS]
    spans = [((0, 3), (4, 4 + len(text.split()[1]))) for text in texts]
    labels = ["yes" if "cat" in text else "no" for text in texts]
    table = LabeledRows(Path("x"), {}, texts, None, labels, lines=list(range(len(texts))), extra={"spans": spans})
    task = Match().fit(table)
    joint = single_objective(task).joints[0]
    losses = []
    for packing in (Packing(160, 12, 20), Packing(160, 12, 40, fixed=True, rows=20)):
        batch = DataStream(joint, Data(tokenizer, TEMPLATE, rows=table), packing, seed=0).batch(0, 0, 0.0)
        torch.manual_seed(1)
        head = task.head(backbone).eval()
        losses.append(task.loss(head, backbone, batch).over(batch.counts))
    torch.testing.assert_close(losses[0], losses[1])


@pytest.mark.not_fast
def test_match_runs_can_be_loaded_and_exported(tmp_path: Path) -> None:
    run = learn("match", write(tmp_path / "a.jsonl", rows(40)), tmp_path / "run", epochs=1)
    config = json.loads((run.folder / "config.json").read_text())
    assert config["architectures"] == ["BertModel"] and config["id2label"] == {"0": "false", "1": "true"}
    assert load(run).root.heads["match"].output.weight.shape == (2, 3 * 128)
    assert pt.export(run, out=tmp_path / "out").facts["dropped_heads"] == ["match"]
    assert parse_objective("match(pooling=mean)").objectives[0].pooling == "mean"  # type: ignore[attr-defined]
