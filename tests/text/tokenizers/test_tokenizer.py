from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.text.corpus.documents import Document
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import Kind, first_merges, train_on_documents
from tests.support.paths import ROOT
from tests.support.texts import KOREAN, RUSSIAN, english_documents

KINDS: list[Kind] = ["wordpiece", "bpe", "byte-level-bpe", "unigram", "sentencepiece-bpe", "sentencepiece-unigram"]


def documents(*texts: str) -> list[Document]:
    return [Document(text, Path("test"), 1) for text in texts]


@cache
def trained(kind: Kind, size: int = 1200) -> Tokenizer:
    texts = [*english_documents()[:30], *RUSSIAN * 20, *KOREAN * 20]
    return train_on_documents(documents(*texts), kind, size, extra_ids=3, languages=["en", "ru"])


# -- example of the lecture -----------------------------------------------------------------------------------------


def test_bpe_learns_the_merges_of_the_lecture() -> None:
    words = ["hug"] * 10 + ["pug"] * 5 + ["pun"] * 12 + ["bun"] * 4 + ["hugs"] * 5
    # five special tokens, seven letters at the start or inside of words, some of them in both places, and three merges
    tokenizer = train_on_documents(documents(" ".join(words)), "bpe", 19)
    assert [piece.removeprefix("##") for piece in first_merges(tokenizer)] == ["ug", "un", "hug"]
    surface = lambda word: [t.removeprefix("##") for t in tokenizer.tokens(tokenizer.encode(word))]  # noqa: E731
    assert surface("bug") == ["b", "ug"]
    assert surface("mug") == ["[UNK]", "ug"]
    assert surface("hugs") == ["hug", "s"]


# -- round trips ----------------------------------------------------------------------------------------------------


@given(st.text())
def test_byte_level_tokenizer_restores_any_text(text: str) -> None:
    tokenizer = trained("byte-level-bpe")
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_restores_known_words(kind: Kind, mixed_texts: list[str]) -> None:
    tokenizer = trained(kind)
    squeeze = lambda text: "".join(text.split())  # noqa: E731
    for text in (*RUSSIAN, *KOREAN, mixed_texts[3]):
        assert squeeze(tokenizer.decode(tokenizer.encode(text))) == squeeze(text)


@pytest.mark.parametrize("kind", ["unigram", "sentencepiece-bpe", "sentencepiece-unigram"])
def test_tokenizers_with_space_marks_keep_spaces(kind: Kind) -> None:
    tokenizer = trained(kind)
    for text in RUSSIAN:
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(alphabet=st.characters(codec="utf-8"), max_size=60))
def test_decoding_and_encoding_again_changes_nothing(kind: Kind, text: str) -> None:
    tokenizer = trained(kind)
    unknown = tokenizer.roles.get("unknown")
    first = [i for i in tokenizer.encode(text) if i != unknown]
    once = tokenizer.decode(first)
    again = tokenizer.decode(tokenizer.encode(once))
    assert "".join(again.split()) == "".join(once.split())


# -- roles ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_are_never_produced_from_text(kind: Kind) -> None:
    tokenizer = trained(kind)
    for role in ("padding", "start", "separator", "mask", "sentinel 2", "language ru"):
        assert tokenizer.specials[tokenizer.role(role)]
    assert tokenizer.role("end") == tokenizer.role("separator")
    spelled = "a [MASK] and [SEP] and <extra_id_0>"
    unknown = tokenizer.roles.get("unknown")
    assert not any(tokenizer.specials[i] and i != unknown for i in tokenizer.encode(spelled))
    marked = tokenizer.encode(spelled, allow_special=True)
    assert {tokenizer.role("mask"), tokenizer.role("separator"), tokenizer.role("sentinel 0")} <= set(marked)


def test_missing_role_is_rejected_by_name() -> None:
    with pytest.raises(PretuneError, match="no 'sentinel 7' token"):
        trained("bpe").role("sentinel 7")


# -- words ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_word_starts_equal_those_of_the_pre_tokenizer(kind: Kind, mixed_texts: list[str]) -> None:
    tokenizer = trained(kind)
    for text in mixed_texts:
        encoding = tokenizer.backend.encode(text, add_special_tokens=False)
        if kind == "bpe" and tokenizer.role("unknown") in encoding.ids:
            continue  # its unknown characters are inside words, which the id does not show
        words = np.array(encoding.word_ids)
        expected = np.concatenate([[True], words[1:] != words[:-1]])
        assert (tokenizer.word_starts(np.array(encoding.ids)) == expected).all()


@pytest.mark.parametrize("kind", ["byte-level-bpe", "unigram", "sentencepiece-bpe", "sentencepiece-unigram"])
def test_words_start_after_spaces_and_never_inside_letters(kind: Kind, mixed_texts: list[str]) -> None:
    tokenizer = trained(kind)
    for text in mixed_texts:
        text = " ".join(text.split())
        encoding = tokenizer.backend.encode(text, add_special_tokens=False)
        starts = tokenizer.word_starts(np.array(encoding.ids))
        checked = 0
        for (start, end), identity, is_start in zip(encoding.offsets, encoding.ids, starts, strict=True):
            if not start or identity == tokenizer.roles.get("unknown"):
                continue
            if text[start] == " " or (tokenizer.vocabulary[identity][0] in "▁Ġ"):
                assert is_start
            elif text[start].isalpha() and text[start - 1].isalpha() and not tokenizer.specials[identity]:
                assert not is_start or not text[start - 1 : end].isalpha(), text[start - 9 : end]
            checked += 1
        assert checked


def test_chinese_characters_are_separate_words() -> None:
    tokenizer = train_on_documents(documents(*["你好 世界 你好世界"] * 9), "sentencepiece-bpe", 40)
    ids = np.array(tokenizer.encode("你好世界"))
    assert tokenizer.word_starts(ids).sum() >= len(ids) - 1  # a lone space mark belongs to the first character


# -- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_saved_tokenizers_load_here_and_in_transformers(kind: Kind, tmp_path: Path, mixed_texts: list[str]) -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer = trained(kind)
    tokenizer.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    reference = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert again.roles == tokenizer.roles
    assert again.digest == tokenizer.digest
    for text in mixed_texts[-8:]:
        ids = tokenizer.encode(text)
        assert again.encode(text) == ids
        assert reference(text, add_special_tokens=False)["input_ids"] == ids
    assert reference.mask_token_id == tokenizer.role("mask")
    assert reference("a", "b")["input_ids"][0] == tokenizer.role("start")
    assert reference("a", "b")["input_ids"][-1] == tokenizer.role("separator")


@pytest.mark.parametrize("kind", ["wordpiece", "byte-level-bpe", "sentencepiece-unigram"])
def test_template_is_saved_and_does_not_change_the_ids_of_texts(kind: Kind, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = trained(kind)
    start, separator = tokenizer.role("start"), tokenizer.role("separator")
    roberta = Template(("start", "A", "separator"), ("separator", "B", "separator"), segments=False)
    for template in (Template(("start", "A", "separator"), ("B", "separator")), roberta):
        tokenizer.save(tmp_path, template)
        made = AutoTokenizer.from_pretrained(tmp_path)("a", "b")
        a, b = tokenizer.encode("a"), tokenizer.encode("b")
        between = [separator] * (1 + (template is roberta))
        assert made["input_ids"] == [start, *a, *between, *b, separator]
        if template.segments:
            assert made["token_type_ids"] == [0] * (2 + len(a)) + [1] * (len(b) + 1)
        else:
            assert "token_type_ids" not in made
        again = Tokenizer.load(tmp_path)
        assert again.digest == tokenizer.digest
        written = (tmp_path / "tokenizer.json").read_bytes()
        again.save(tmp_path, template)
        assert (tmp_path / "tokenizer.json").read_bytes() == written


def test_template_with_missing_roles_is_not_saved(tmp_path: Path) -> None:
    tokenizer = trained("wordpiece")
    tokenizer.save(tmp_path, Template(("language ru", "A"), ("B",)))
    assert Tokenizer.load(tmp_path).backend.encode("a").ids == [tokenizer.role("language ru"), *tokenizer.encode("a")]
    tokenizer.save(tmp_path, Template(("language tlh", "A"), ("B",)))
    assert json.loads((tmp_path / "tokenizer.json").read_text()) == json.loads(tokenizer.backend.to_str())


@pytest.mark.not_fast
def test_vocab_txt_agrees_with_transformers_bert(tmp_path: Path, mixed_texts: list[str]) -> None:
    from transformers import BertTokenizer

    for lowercase in (False, True):
        source = train_on_documents(documents(*mixed_texts * 3), "wordpiece", 900, lowercase=lowercase)
        (tmp_path / "vocab.txt").write_text("\n".join(source.vocabulary) + "\n", encoding="utf-8")
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lowercase}), encoding="utf-8")
        tokenizer = Tokenizer.load(tmp_path / "vocab.txt")
        reference = BertTokenizer.from_pretrained(tmp_path)
        for text in (*mixed_texts[-5:], "Naïve Ünïcode, don't!"):
            assert tokenizer.encode(text) == reference(text, add_special_tokens=False)["input_ids"]


def test_vocab_json_and_merges_restore_the_byte_level_tokenizer(tmp_path: Path, mixed_texts: list[str]) -> None:
    source = trained("byte-level-bpe")
    model = json.loads(source.backend.to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
    merges = "\n".join(" ".join(pair) for pair in model["merges"])
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + merges + "\n", encoding="utf-8")
    for path in (tmp_path, tmp_path / "merges.txt"):
        loaded = Tokenizer.load(path)
        assert all(loaded.encode(text) == source.encode(text) for text in mixed_texts[-8:])
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(PretuneError, match=r"merges\.txt: the file is missing"):
        Tokenizer.load(tmp_path)


@pytest.mark.not_fast
@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
@pytest.mark.parametrize("extra", [{}, {"byte_fallback": True}, {"user_defined_symbols": ["(", "<x>"]}])
def test_sentencepiece_models_give_the_pieces_of_the_library(
    algorithm: str, extra: dict[str, object], tmp_path: Path, mixed_texts: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    import sentencepiece

    if algorithm == "bpe" and "user_defined_symbols" in extra:
        extra = {"user_defined_symbols": ["<x>"]}  # inside words the two libraries place the space mark differently
    lines = [line for text in mixed_texts for line in text.splitlines() if line.strip()]
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=written, vocab_size=800, model_type=algorithm,
        character_coverage=0.995, minloglevel=2, **extra,
    )  # fmt: skip
    path = tmp_path / "spiece.model"
    path.write_bytes(written.getvalue())
    reference = sentencepiece.SentencePieceProcessor(model_file=str(path))
    tokenizer = Tokenizer.load(path)
    assert tokenizer.size == reference.get_piece_size()
    for line in [*lines[::3], "  two  spaces ", "Ünïcode ½ ﬁ"]:
        ids, expected = tokenizer.encode(line), reference.encode(line)
        if ids != expected:  # two equally likely segmentations: the libraries choose different ones
            assert algorithm == "unigram"
            scores = [sum(map(reference.get_score, row)) for row in (ids, expected)]
            assert scores[0] == pytest.approx(scores[1], abs=1e-3)
            assert reference.decode(ids) == reference.decode(expected)
    path.write_bytes(written.getvalue()[:-700])
    with pytest.raises(PretuneError, match="damaged, or not a SentencePiece model"):
        Tokenizer.load(path)


def test_gpt_style_word_ends_are_recognized(tmp_path: Path) -> None:
    vocabulary = {token: i for i, token in enumerate(["<unk>", "l", "o", "w</w>", "w", "lo", "low</w>", "e", "r</w>"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\nl o\nlo w</w>\n", encoding="utf-8")
    tokenizer = Tokenizer.load(tmp_path)
    ids = tokenizer.encode("Low lower")
    assert tokenizer.tokens(ids) == ["low</w>", "lo", "w", "e", "r</w>"]
    assert tokenizer.word_starts(np.array(ids)).tolist() == [True, True, False, False, False]


@pytest.mark.parametrize("named", [False, True])
def test_special_tokens_of_xlm(named: bool, tmp_path: Path) -> None:
    """Texts start with <s>, although the classification token is </s>."""
    tokens = ["<s>", "</s>", "<pad>", "<unk>", "<special0>", "<special1>", "e", "é", "É", "e</w>", "é</w>", "É</w>"]
    (tmp_path / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("", encoding="utf-8")
    config = {"do_lowercase_and_remove_accent": False}
    if named:
        config |= {"bos_token": "<s>", "cls_token": "</s>", "sep_token": "</s>", "pad_token": "<pad>"}  # type: ignore[dict-item]
        config |= {"unk_token": "<unk>", "mask_token": "<special1>"}  # type: ignore[dict-item]
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer = Tokenizer.load(tmp_path)
    names = {"start": "<s>", "separator": "</s>", "padding": "<pad>", "unknown": "<unk>", "mask": "<special1>"}
    assert {role: tokenizer.role_tokens[role] for role in names} == names
    assert tokenizer.tokens(tokenizer.encode("É")) == ["É</w>" if named else "e</w>"]


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda folder: None, "no tokenizer found"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "not a tokenizer file"),
        (lambda folder: (folder / "tokenizer_config.json").write_text("{"), "not valid JSON"),
    ],
)
def test_missing_tokenizers_raise_errors(tmp_path: Path, prepare: Callable[[Path], object], message: str) -> None:
    prepare(tmp_path)
    with pytest.raises(PretuneError, match=message):
        Tokenizer.load(tmp_path)
    with pytest.raises(PretuneError, match="no such tokenizer"):
        Tokenizer.load(tmp_path / "nowhere")


# -- training -------------------------------------------------------------------------------------------------------


def test_report_describes_the_training_text() -> None:
    report = trained("wordpiece").report
    assert report["vocab_size"] == 1200
    assert 1 < report["held_out"]["fertility"] < 5
    assert report["held_out"]["coverage"] > 0.95
    assert report["held_out"]["unknown_rate"] < 0.05
    assert report["pruned_words"] == 0


def test_training_is_deterministic() -> None:
    texts = documents(*english_documents()[:5])
    for kind in (
        "wordpiece",
        "bpe",
        "byte-level-bpe",
        "sentencepiece-bpe",
    ):  # the Unigram trainer of the library sums in random order
        assert (
            train_on_documents(texts, kind, 600).backend.to_str()
            == train_on_documents(texts, kind, 600).backend.to_str()
        )


def test_word_pruning_is_reported_and_keeps_frequent_words() -> None:
    lines = ["the cat sat " + " ".join(f"w{line}x{i}" for i in range(50)) for line in range(100)]
    tokenizer = train_on_documents(documents(*lines), "bpe", 400, max_distinct_words=500)
    assert tokenizer.report["pruned_words"] > 4000
    assert tokenizer.report["pruned_share"] > 0.5
    assert {"the", "cat", "sat"} <= set(tokenizer.vocabulary)


def test_sampling_is_reported() -> None:
    tokenizer = train_on_documents(documents(*english_documents()[:3]), "bpe", 300, max_occurrences=1000)
    assert 0 < tokenizer.report["sampled_share"] < 1


@pytest.mark.parametrize("kind", KINDS)
def test_vocabulary_too_small_for_the_text_is_rejected(kind: Kind) -> None:
    with pytest.raises(PretuneError, match=r"too small|failed"):
        train_on_documents(documents("".join(map(chr, range(0x4E00, 0x4F00)))), kind, 20)


def test_empty_corpus_is_rejected() -> None:
    with pytest.raises(PretuneError, match="corpus contains no words"):
        train_on_documents(documents(" \n "), "bpe", 100)


def test_unknown_kinds_raise_errors() -> None:
    with pytest.raises(PretuneError, match="unknown kind of tokenizer 'byte-bpe'; did you mean 'byte-level-bpe'"):
        train_on_documents([], "byte-bpe", 1000)  # type: ignore[arg-type]


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    import subprocess

    script = ROOT / "perf" / "tokenizer_memory.py"
    answer = subprocess.run([sys.executable, script, "--json"], capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout)["ratio"] <= 1.2


@pytest.mark.parametrize("kind", ["bpe", "byte-level-bpe", "sentencepiece-bpe"])
def test_token_used_in_merges_may_become_special(kind: Kind) -> None:
    tokenizer = Tokenizer.from_state(trained(kind).state())
    merged = tokenizer.vocabulary.index(first_merges(tokenizer)[0])
    tokenizer.roles["end"] = merged
    assert merged not in tokenizer.encode(" ".join(tokenizer.decode([i]) for i in range(tokenizer.size)))
    assert tokenizer.encode("the statement")


# -- damaged files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"vocab.txt": b"the\ncat\n"}, "vocab.txt: the tokenizer fails on some texts.*unknown token"),
        ({"vocab.txt": b"[UNK]\nth\xff\n"}, "vocab.txt, line 2: not valid UTF-8"),
        ({"vocab.json": b'{"a": 0, "b": 0}', "merges.txt": b""}, "vocab.json: the tokens 'a' and 'b' both have id 0"),
        ({"vocab.json": b'{"a": 2147483648}', "merges.txt": b""}, "vocab.json: token 'a' has id 2147483648; ids must be"),
        ({"vocab.json": b'{"a": -1}', "merges.txt": b""}, "vocab.json: token 'a' has id -1; ids must be at least 0 and"),
        ({"vocab.json": b'{"a": "0"}', "merges.txt": b""}, "vocab.json: a: input should be a valid integer, not '0'"),
        ({"vocab.json": b'{"a": 0}', "merges.txt": b"a b\n"}, "merges.txt: the merges do not match vocab.json .*copy both"),
        ({"vocab.txt": b"[UNK]\n", "added_tokens.json": b'{"x": []}'}, "added_tokens.json: x: input should be"),
        ({"vocab.txt": b"[UNK]\n", "tokenizer_config.json": b'{"strip_accents": {}}'}, "strip_accents.*not {}"),
        ({"spiece.model": b"\x0a\x05\x0a\x03abc\x0a"}, "spiece.model: damaged, or not a SentencePiece model"),
    ],
)  # fmt: skip
def test_damaged_files_give_a_one_line_error(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(PretuneError, match=message):
        Tokenizer.load(tmp_path)


def test_panics_of_the_library_give_a_one_line_error(tmp_path: Path) -> None:
    vocabulary = {"t": 0, "h": 1, "th": 2, "tééé": 3}
    model = {"type": "BPE", "vocab": vocabulary, "merges": [["t", "h"]], "continuing_subword_prefix": "##"}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    with pytest.raises(PretuneError, match=r"tokenizer\.json: the tokenizer file is not usable"):
        Tokenizer.load(tmp_path)
