"""Reading bracketed trees: several per file, traces, escapes, and errors with the line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.text.examples.bracketed_trees import ConstituencyTree, Constituent, read_bracketed

TREES = """( (S
    (NP-SBJ-1 (NNP Mr.) (NNP Vinken) )
    (VP (VBZ is)
      (S (NP-SBJ (-NONE- *-1)) (VP (-NONE- *T*)))
      (NP-PRD (-LRB- -LRB-) (NN 1\\/2) (-RRB- -RRB-) (`` ``) (NN end) ('' '')))
    (. .) ))

(ROOT (NP=2 (NN rain)))(NP (NN sun))
"""


def read(folder: Path, content: str | bytes) -> list[ConstituencyTree]:
    file = folder / "trees.mrg"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(read_bracketed(file))


def test_trees_are_read_without_traces(tmp_path: Path) -> None:
    first, second, third = read(tmp_path, TREES)
    assert first.words == ("Mr.", "Vinken", "is", "(", "1/2", ")", '"', "end", '"', ".")
    assert [child.label for child in first.root.children] == ["NP-SBJ-1", "VP", "."]
    assert [child.label for child in first.root.children[1].children] == ["VBZ", "NP-PRD"]  # the clause is only traces
    subject = first.root.children[0]
    assert (subject.category, subject.functions, subject.begin, subject.end) == ("NP", ["SBJ"], 0, 2)
    assert [tag.category for tag in first.tags][3:6] == ["-LRB-", "NN", "-RRB-"]
    assert first.text[slice(*first.span(1, 3))] == "Vinken is"
    assert (second.root.label, second.root.category, second.line) == ("NP=2", "NP", 8)
    assert third.words == ("sun",)


def test_marks_and_line_ends_do_not_matter(tmp_path: Path) -> None:
    expected = [(tree.words, tree.root) for tree in read(tmp_path, TREES)]
    changed = b"\xef\xbb\xbf" + TREES.replace("\n", "\r\n\r\n").encode()
    assert [(tree.words, tree.root) for tree in read(tmp_path, changed)] == expected


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        ("(NP (NN a))\n(NP (NN a)", 2, "the tree that begins here is not closed"),
        ("(NP (NN a)))", 1, "a closing bracket without an opening one"),
        ("(NP (NN a))\nrain", 2, "'rain' is outside of brackets"),
        ("(NP (NN a) rain)", 1, "the word 'rain' has no tag of its own"),
        ("(NP the board)", 1, "the word 'board' has no tag of its own"),
        ("(NP (NN a (NN b)))", 1, "the word 'a' is followed by a bracket"),
        ("(NP\n())", 2, "the brackets are empty; correct the tree"),
        ("(NP (NN))", 1, "the brackets contain only the label 'NN' and no word"),
        ("(" * 500, 1, "nested more than 400 levels"),
    ],
)
def test_broken_trees_are_refused_with_their_line(content: str, line: int, problem: str, tmp_path: Path) -> None:
    with pytest.raises(PretuneError) as error:
        read(tmp_path, content)
    assert f"trees.mrg, line {line}: " in str(error.value)
    assert problem in str(error.value)


@pytest.mark.parametrize("content", ["", "\n", "(S (NP (-NONE- *)))"])
def test_files_without_trees_are_refused(content: str, tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match="contains no trees"):
        read(tmp_path, content)


WORD = st.text("abcé,.", min_size=1, max_size=3)
TAGGED = st.tuples(st.sampled_from(["NN", "VBZ", ","]), WORD)
NESTED = st.recursive(
    TAGGED, lambda below: st.tuples(st.sampled_from(["NP", "VP-1"]), st.lists(below, min_size=1, max_size=3))
)


def write(node: tuple[str, object]) -> str:
    inside = node[1] if isinstance(node[1], str) else " ".join(map(write, node[1]))  # type: ignore[call-overload]
    return f"({node[0]} {inside})"


def shape(node: Constituent, words: tuple[str, ...]) -> tuple[str, object]:
    return node.label, [shape(child, words) for child in node.children] if node.children else words[node.begin]


@given(trees=st.lists(NESTED, min_size=1, max_size=3))
def test_what_is_written_is_read(trees: list[tuple[str, object]], tmp_path_factory: pytest.TempPathFactory) -> None:
    found = read(tmp_path_factory.mktemp("trees"), "\n".join(map(write, trees)))
    assert [shape(tree.root, tree.words) for tree in found] == trees
