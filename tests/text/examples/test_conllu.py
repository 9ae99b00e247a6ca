"""Reading dependency treebanks: columns, multiword tokens, places in the text, and errors with the line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.text.examples.conllu import ROOT, DependencyTree, read_conllu

FRENCH = """# sent_id = f-1
# text = Il parle du chat, (oui) lui.
1\tIl\til\tPRON\t_\tPerson=3|Number=Sing\t2\tnsubj\t_\t_
2\tparle\tparler\tVERB\tV\tTense=Pres\t0\troot\t_\t_
3-4\tdu\t_\t_\t_\t_\t_\t_\t_\t_
3\tde\tde\tADP\t_\t_\t5\tcase\t_\t_
4\tle\tle\tDET\t_\t_\t5\tdet\t_\t_
5\tchat\tchat\tNOUN\t_\tNumber=Sing\t2\tobl:arg\t_\tSpaceAfter=No
6\t,\t,\tPUNCT\t_\t_\t5\tpunct\t_\t_
6.1\tparle\tparler\tVERB\t_\t_\t_\t_\t2:conj\t_
7\t(\t(\tPUNCT\t_\t_\t8\tpunct\t_\tSpaceAfter=No
8\toui\toui\tINTJ\t_\t_\t2\tdiscourse\t_\tSpaceAfter=No
9\t)\t)\tPUNCT\t_\t_\t8\tpunct\t_\t_
10\tlui\tlui\tPRON\t_\t_\t2\tobl\t_\tSpaceAfter=No
11\t.\t.\tPUNCT\t_\t_\t2\tpunct\t_\t_
"""
WORDS = (
    "# text = a b\n1\ta\ta\tDET\t_\t_\t2\tdet\t_\t_\n2\tb\tb\tNOUN\t_\t_\t0\troot\t_\t_\n\n"  # lines 1 to 4
    "1\tc\tc\tNOUN\t_\t_\t0\troot\t_\t_\n2\td\td\tADJ\t_\tCase=Nom\t1\tamod\t_\t_\n3\te\te\tADJ\t_\t_\t2\tamod\t_\t_\n"
)


def read(folder: Path, content: str | bytes, **options: bool) -> list[DependencyTree]:
    file = folder / "words.conllu"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(read_conllu(file, **options))


def test_words_have_annotations_and_places_in_the_text(tmp_path: Path) -> None:
    [tree] = read(tmp_path, FRENCH)
    assert (tree.sent_id, tree.line, tree.text) == ("f-1", 3, "Il parle du chat, (oui) lui.")
    assert [word.form for word in tree.words] == ["Il", "parle", "de", "le", "chat", ",", "(", "oui", ")", "lui", "."]
    assert [tree.text[word.begin : word.end] for word in tree.words][2:6] == ["du", "du", "chat", ","]
    assert tree.words[0].feats == {"Person": "3", "Number": "Sing"}
    assert (tree.words[4].head, tree.words[4].deprel, tree.words[4].relation) == (1, "obl:arg", "obl")
    assert tree.words[1].head == ROOT == -1
    assert tree.root == 1
    assert max(tree.depths) == 3
    assert tree.subtree(4) == {2, 3, 4, 5}
    assert [token.form for token in tree.tokens][2:5] == ["du", "chat", ","]
    assert [token.space_after for token in tree.tokens][2:5] == [True, False, True]


def test_parts_of_a_multiword_token_that_make_up_its_form_have_their_own_places(tmp_path: Path) -> None:
    rows = [
        "1-2\tdon't\t_\t_\t_\t_\t_\t_\t_\t_",
        "1\tdo\tdo\tAUX\t_\t_\t0\troot\t_\t_",
        "2\tn't\tnot\tPART\t_\t_\t1\tadvmod\t_\t_",
    ]
    [tree] = read(tmp_path, "\n".join(rows))
    assert [(word.begin, word.end) for word in tree.words] == [(0, 2), (2, 5)]
    assert tree.text == "don't"


@pytest.mark.parametrize("comment", ["", "# text = something else\n"])
def test_text_is_joined_from_words_if_the_comment_does_not_have_them(comment: str, tmp_path: Path) -> None:
    [tree] = read(tmp_path, comment + "".join(FRENCH.splitlines(keepends=True)[2:]))
    assert tree.text == "Il parle du chat, (oui) lui."


def test_marks_line_ends_and_blank_lines_do_not_matter(tmp_path: Path) -> None:
    expected = read(tmp_path, WORDS)
    assert len(expected) == 2
    changed = b"\xef\xbb\xbf\n \n" + WORDS.replace("\n", "\r\n").encode() + b"\r\n\r\n"
    assert [tree.words for tree in read(tmp_path, changed)] == [tree.words for tree in expected]


@pytest.mark.parametrize(
    ("old", "new", "line", "problem"),
    [
        ("2\td\td\tADJ\t_", "2\td\td\tADJ", 6, "expected 10 columns separated by tabs, but found 9"),
        ("2\td\td\tADJ", "2 d d ADJ", 6, "expected 10 columns"),
        ("2\td\td", "2\t\td", 6, r"column 2 \(FORM\) is empty"),
        ("2\td\td", "4\td\td", 6, "the ID is '4', but must be 2"),
        ("2\td\td", "²\td\td", 6, "the ID is '²', but must be 2"),
        ("Case=Nom\t1", "Case=Nom\t7", 6, "the head '7' is not a word of the sentence; expected a number from 0 to 3"),
        ("Case=Nom\t1", "Case=Nom\t-1", 6, "the head '-1' is not a word"),
        ("Case=Nom\t1", "Case=Nom\t_", 6, "the word 'd' has no head in column 7"),
        ("Case=Nom\t1", "Case=Nom\t0", 6, "a second root (the first is on line 5)"),
        ("Case=Nom\t1", "Case=Nom\t3", 6, "the heads of 'd' form a cycle"),
        ("Case=Nom\t1", "Case=Nom\t2", 6, "the heads of 'd' form a cycle"),
        ("\t0\troot\t_\t_\n2\td", "\t2\tdep\t_\t_\n2\td", 5, "the heads of 'c' form a cycle"),
        ("Case=Nom", "Case", 6, "the feature 'Case' is not a single Name=Value"),
        ("Case=Nom", "Case=Nom|Case=Acc", 6, "the feature 'Case=Acc' is not a single Name=Value"),
        ("2\td\td", "2-9\tde\t_\t_\t_\t_\t_\t_\t_\t_\n2\td\td", 6, "the multiword token 2-9 does not range over"),
        ("2\td\td", "2-2\tde\t_\t_\t_\t_\t_\t_\t_\t_\n2\td\td", 6, "the multiword token 2-2 does not range over"),
    ],
)  # fmt: skip
def test_broken_lines_are_refused_with_their_number(
    old: str, new: str, line: int, problem: str, tmp_path: Path
) -> None:
    assert WORDS.count(old) == 1
    with pytest.raises(PretuneError) as error:
        read(tmp_path, WORDS.replace(old, new))
    assert f"words.conllu, line {line}: " in str(error.value)
    assert problem.replace("\\", "") in str(error.value)


def test_files_without_sentences_are_refused(tmp_path: Path) -> None:
    for content in ("", "\n\n", "# text = a\n"):
        with pytest.raises(PretuneError, match="contains no sentences"):
            read(tmp_path, content)


def test_heads_are_not_needed_for_tags(tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match="no head"):
        read(tmp_path, "1\ta\ta\tDET\t_\t_\t_\t_\t_\t_\n")
    [tree] = read(tmp_path, "1\ta\ta\tDET\t_\t_\t_\t_\t_\t_\n", heads=False)
    assert tree.words[0].upos == "DET"


FORMS = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=5)
HEADS = st.integers(1, 7).flatmap(lambda n: st.lists(st.integers(0, n), min_size=n, max_size=n))


def is_tree(heads: list[int]) -> bool:
    """Return whether all words reach the only root, by following heads for as many steps as there are words."""

    def top(index: int) -> int:
        for _ in heads:
            index = heads[index - 1] if index else 0
        return index

    return heads.count(0) == 1 and all(top(index) == 0 for index in range(1, len(heads) + 1))


@given(heads=HEADS, data=st.data())
def test_a_sentence_is_read_if_and_only_if_its_heads_are_a_tree(
    heads: list[int], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    forms = data.draw(st.lists(FORMS, min_size=len(heads), max_size=len(heads)))
    close = data.draw(st.lists(st.booleans(), min_size=len(heads), max_size=len(heads)))
    rows = [
        f"{i}\t{form}\t_\tX\t_\t_\t{head}\tdep\t_\t{'SpaceAfter=No' if tight else '_'}\n"
        for i, (form, head, tight) in enumerate(zip(forms, heads, close, strict=True), 1)
    ]
    folder = tmp_path_factory.mktemp("trees")
    if not is_tree(heads):
        with pytest.raises(PretuneError, match=r"line [1-7]: "):
            read(folder, "".join(rows))
        return
    [tree] = read(folder, "".join(rows))
    assert [word.head + 1 for word in tree.words] == heads
    assert [tree.text[word.begin : word.end] for word in tree.words] == forms
    assert [token.space_after for token in tree.tokens[:-1]] == [not tight for tight in close[:-1]]
