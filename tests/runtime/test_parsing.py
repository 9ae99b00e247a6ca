"""Tests of JSON and YAML from damaged and malicious files: limits, and one-line errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.runtime.errors import LONGEST_MESSAGE, PretuneError, quote
from pretune.runtime.parsing import (
    json_depth,
    parse_json,
    parse_yaml,
    read_checksummed_json,
    read_json_lines,
    read_mapping,
    read_text,
    validate_schema,
    write_checksummed_json,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@pytest.mark.not_fast
@given(VALUES)
def test_json_depth_equals_that_of_the_value(value: Any) -> None:
    text = json.dumps(value)
    assert json_depth(text) == depth(value)
    assert parse_json(text, "x") == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested more than 64"),
        ('{"a":' * 100_000, "nested more than 64"),
        ("9" * 10_000, "too many digits"),
        ('{"a": 1', "file, line 1: not valid JSON"),
        ('{\n"a": nope}', "file, line 2: not valid JSON"),
        ("", "not valid JSON"),
    ],
)
def test_invalid_json_gives_a_one_line_error(text: str, message: str) -> None:
    with pytest.raises(PretuneError, match=message):
        parse_json(text, "file")


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join(f'*{before}' for _ in range(9))}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "100,000 values"),
        ("a: &a [*a]", "contains the alias"),
        ("[" * 100_000, "nested more than 64"),
        ("\n".join(" " * i + "a:" for i in range(5000)), "nested more than 64"),
        ("a: 2001-99-99", "put the value in quotes"),
        ("a: 0b_", "put the value in quotes"),
        ("a: [", "file, line 1: not valid YAML"),
        ("a: !!python/object/apply:os.system [true]", "not valid YAML"),
        ("? [a]\n: b", "not valid YAML"),
        ("a: \x00", "not valid YAML"),
    ],
)
def test_invalid_yaml_gives_a_one_line_error(text: str, message: str) -> None:
    with pytest.raises(PretuneError, match=message):
        parse_yaml(text, "file")


def test_small_aliases_are_accepted() -> None:
    assert parse_yaml("a: &a {lr: 1e-4}\nb: *a\nc: {<<: *a, seed: 1}", "file")["c"] == {"lr": 1e-4, "seed": 1}


def test_unreadable_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match=r"none\.json: there is no such file"):
        read_text(tmp_path / "none.json")
    with pytest.raises(PretuneError, match="cannot be read"):
        read_text(tmp_path)
    (tmp_path / "a.json").write_bytes(b'{"a":\n"\xff"}')
    with pytest.raises(PretuneError, match=r"a\.json, line 2: not valid UTF-8"):
        read_text(tmp_path / "a.json")
    with pytest.raises(PretuneError, match="larger than 0 MB"):
        read_text(tmp_path / "a.json", limit=3)
    (tmp_path / "b.json").write_text("[1]")
    with pytest.raises(PretuneError, match=r"not a config; the file contains a list instead of a JSON object"):
        read_mapping(tmp_path / "b.json", "a config")


def test_truncated_last_line_is_skipped_only_if_allowed(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"a": 1}\n\n{"a": 2}\n{"a":')
    assert [row["a"] for row in read_json_lines(path, torn=True)] == [1, 2]
    with pytest.raises(PretuneError, match=r"lines\.jsonl, line 4"):
        list(read_json_lines(path))
    path.write_text('{"a": 1}\n3\n')
    with pytest.raises(PretuneError, match="line 2: expected a JSON object, not a number"):
        list(read_json_lines(path))


@pytest.mark.not_fast
@given(st.dictionaries(st.text(), VALUES, max_size=4), st.data())
def test_checksummed_json_detects_every_change(
    tmp_path_factory: pytest.TempPathFactory, value: Any, data: st.DataObject
) -> None:
    value.pop("sha256", None)
    path = tmp_path_factory.mktemp("sealed") / "state.json"
    write_checksummed_json(path, value)
    assert read_checksummed_json(path, "a state") == value
    raw = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(raw)
    try:
        found = read_checksummed_json(path, "a state")
    except PretuneError:
        return
    assert found == value  # whitespace, or another spelling of the same value


def test_values_of_the_wrong_type_are_reported() -> None:
    with pytest.raises(PretuneError, match=r"state\.json: step: input should be a valid integer, not 'three'"):
        validate_schema({"step": "three"}, dict[str, int], "state.json")
    with pytest.raises(PretuneError, match="step"):
        validate_schema({"step": True}, dict[str, int], "state.json")


def test_messages_are_short_and_on_one_line() -> None:
    error = PretuneError("a\nb\x1b[31m" + "x" * 200_000 + " end")
    assert len(str(error)) <= LONGEST_MESSAGE and str(error).startswith("a b [31m") and str(error).endswith(" end")
    assert "\n" not in str(error)
    assert len(quote("y" * 10**6)) < 100 and len(quote(10**5000)) < 100 and len(quote([[0] * 10**5])) < 100


@pytest.mark.parametrize("parse", [parse_json, parse_yaml])
def test_lone_surrogates_are_rejected(parse: Any) -> None:
    assert parse_json(r'{"model": "\ud83d\ude00"}', "config.json") == {"model": "\U0001f600"}
    for text in (r'{"model": ["\ud800"]}', r'{"\uDFFF": 1}'):
        with pytest.raises(PretuneError, match=r"config\.json: a string contains .ud"):
            parse(text, "config.json")
