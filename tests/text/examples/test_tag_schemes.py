from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.text.examples.tag_schemes import TaggedSpan, all_tags, convert_tags, detect_scheme, parse_tags, write_tags

SCHEMES = ["BIO", "IOB1", "BIOES"]
tags_strategy = st.lists(st.sampled_from(["O", *(f"{p}-{k}" for p in "BIES" for k in ("X", "Y-Z"))]), max_size=12)


@given(tags_strategy, st.sampled_from(SCHEMES))
def test_any_tags_are_corrected_and_mark_the_same_spans_in_every_scheme(tags: list[str], scheme: str) -> None:
    written = convert_tags(tags, scheme)
    assert len(written) == len(tags)
    assert parse_tags(written) == parse_tags(tags)
    assert convert_tags(written, scheme) == written
    assert set(written) <= set(all_tags(["X", "Y-Z"], scheme))


@given(st.lists(tags_strategy, min_size=1), st.sampled_from(SCHEMES))
def test_scheme_is_detected(sentences: list[list[str]], scheme: str) -> None:
    written = [convert_tags(tags, scheme) for tags in sentences]
    if any(parse_tags(tags) for tags in sentences):
        assert detect_scheme(written) == scheme
    assert detect_scheme([*written, ["NOUN"]]) == "plain"


def test_schemes_match_worked_examples() -> None:
    entities = [TaggedSpan("PER", 0, 0), TaggedSpan("PER", 1, 2), TaggedSpan("LOC", 3, 3)]
    rows = {scheme: write_tags(entities, 5, scheme) for scheme in SCHEMES}
    assert rows == {
        "BIO": ["B-PER", "B-PER", "I-PER", "B-LOC", "O"],
        "IOB1": ["I-PER", "B-PER", "I-PER", "I-LOC", "O"],
        "BIOES": ["S-PER", "B-PER", "E-PER", "S-LOC", "O"],
    }
    assert parse_tags(["B", "I", "O", "B"]) == [TaggedSpan("", 0, 1), TaggedSpan("", 3, 3)]
    assert convert_tags(["I", "I"], "BIO") == ["B", "I"]
    assert parse_tags([]) == []
    assert detect_scheme([["O", "B", "I"]]) == "BIO"
    assert detect_scheme([["O", "I-X"], ["I-Y"], ["B-Z"]]) == "IOB1"  # as in CoNLL-2003, with one inconsistency


@pytest.mark.parametrize(
    ("broken", "corrected"),
    [
        (["O", "I-X", "I-X"], ["O", "B-X", "I-X"]),
        (["B-X", "I-Y"], ["B-X", "B-Y"]),
        (["E-X", "E-X"], ["B-X", "B-X"]),
        (["S-X", "I-X"], ["B-X", "B-X"]),
        (["B-X", "E-X", "I-X"], ["B-X", "I-X", "B-X"]),
        (["I-X", "S-X", "B-X"], ["B-X", "B-X", "B-X"]),
    ],
)
def test_invalid_tags_are_corrected_like_conlleval(broken: list[str], corrected: list[str]) -> None:
    assert convert_tags(broken, "BIO") == corrected
