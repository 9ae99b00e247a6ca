from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pretune.packed import pack
from pretune.text.corpus.documents import Document
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.sequences import collate
from pretune.text.packing.token_rows import TokenRows, arrange_rows
from pretune.text.tokenizers.character_ids import FILLER, SYMBOLS, WORD_BEGINS, WORD_ENDS, encode_characters
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import train_on_documents

TEXTS = ["The cat sat on the mat, the end.", "Der Käse. 한국어 Кот!"]
TEMPLATE = Template(single=("start", "A", "end"), pair=("B", "end"), segments=False)


def trained(kind: str, size: int = 30, **options: int) -> Tokenizer:
    return train_on_documents([Document(text, Path("a"), 1) for text in TEXTS], kind, size, **options)  # type: ignore[arg-type]


def test_words_are_encoded_with_the_published_symbols() -> None:
    """As in the released model: bytes start at 1, 259 and 260 surround a word, 261 pads it."""
    assert encode_characters(["a"]).tolist() == [[259, ord("a") + 1, 260, *[261] * 47]]
    rows = encode_characters(["x" * 100, "", "한"])
    assert rows.shape == (3, 50) and rows.max() < SYMBOLS
    assert rows[0].tolist() == [WORD_BEGINS, *[ord("x") + 1] * 48, WORD_ENDS]
    assert rows[1].tolist() == [WORD_BEGINS, WORD_ENDS, *[FILLER] * 48]
    assert rows[2, 1:4].tolist() == [byte + 1 for byte in "한".encode()]


@pytest.mark.parametrize("kind", ["words", "characters"])
def test_words_are_split_from_punctuation(kind: str) -> None:
    tokenizer = trained(kind)
    ids = tokenizer.encode("the mat, the cat.")
    assert tokenizer.tokens(ids) == ["the", "mat", ",", "the", "cat", "."]
    assert tokenizer.word_starts(np.array(ids)).all()
    assert tokenizer.tokens(tokenizer.encode("a dog")) == ["[UNK]", "[UNK]"]
    assert tokenizer.report["unknown_rate"] == 0.0 and tokenizer.report["kind"] == kind
    small = trained(kind, 8)
    assert small.size == 8 and small.tokens(small.encode("the the .")) == ["the", "the", "."]
    assert trained(kind, lowercase=True).tokens(trained(kind, lowercase=True).encode("THE")) == ["the"]


def test_rare_words_are_unknown() -> None:
    tokenizer = trained("words", lowercase=True, least=2)
    assert tokenizer.tokens(tokenizer.encode("the cat sat.")) == ["the", "[UNK]", "[UNK]", "."]
    assert tokenizer.report["unknown_rate"] == pytest.approx(11 / 16)


def test_character_tokenizer_is_saved_and_loaded(tmp_path: Path) -> None:
    tokenizer = trained("characters")
    tokenizer.save(tmp_path)
    for again in (Tokenizer.load(tmp_path), Tokenizer.from_state(tokenizer.state())):
        assert again.characters == 50 and (again.token_characters == tokenizer.token_characters).all()
    table = tokenizer.token_characters
    assert table[tokenizer.role("start")][:4].tolist() == [259, 257, 260, 261]
    assert table[tokenizer.role("end")][:4].tolist() == [259, 258, 260, 261]
    assert not table[tokenizer.role("padding")].any()
    assert trained("words").characters == 0


def test_unknown_words_have_character_ids() -> None:
    tokenizer = trained("characters")
    texts = ["", "a cat", "the dog, the mouse", "", "mat"]
    rows = TokenRows.make(LabeledRows(Path("x"), {}, texts), tokenizer)
    laid = arrange_rows(rows, tokenizer, TEMPLATE, 4, {})
    batch = collate(laid.take(np.array([4, 2, 1, 0])))
    spelled = batch.packed[0].columns["characters"].numpy()
    words = [["mat"], ["the", "dog"], ["a", "cat"], []]
    start, end = tokenizer.token_characters[tokenizer.role("start")], tokenizer.token_characters[tokenizer.role("end")]
    wanted = np.concatenate([np.stack([start, *encode_characters(sentence), end]) for sentence in words])
    assert (spelled == wanted).all()


def test_padding_has_no_characters() -> None:
    from pretune.packed import Capacity

    packed = pack(
        np.array([3, 4]),
        np.array([2]),
        columns={"characters": encode_characters(["a", "b"])},
        capacity=Capacity(4, 3, 2),
    )
    assert not packed.columns["characters"][2:].any()


def test_target_texts_may_have_another_vocabulary(tmp_path: Path) -> None:
    from pretune import PretuneError

    first, second = (train_on_documents([Document(text, Path("a"), 1)], "words", 30) for text in TEXTS)
    both = first.set_target(second)
    both.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.target.vocabulary == second.vocabulary != again.vocabulary and again.digest == both.digest
    assert again.digest != trained("words").digest
    rows = TokenRows.make(LabeledRows(Path("x"), {}, ["the cat"], ["Der Кот"]), again)
    mine, theirs = (rows.gather(rows.starts[:, side], rows.lengths[:, side]) for side in (0, 1))
    assert again.tokens(mine) == ["the", "cat"] and again.target.tokens(theirs) == ["Der", "Кот"]
    other = train_on_documents([Document(TEXTS[0], Path("a"), 1)], "byte-level-bpe", 300)
    with pytest.raises(PretuneError, match="have different special token ids"):
        first.set_target(other)
