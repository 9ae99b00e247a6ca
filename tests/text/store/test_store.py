from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError, prepare
from pretune.text.corpus.documents import Document
from pretune.text.corpus.sentences import split_sentences
from pretune.text.spans import span_indices
from pretune.text.store.builder import StoreSettings, build_store
from pretune.text.store.shards import ShardWorker, build_part, pack_texts, unpack_texts
from pretune.text.store.store import Store, join_stores
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import Kind, train_on_documents
from tests.support.cli import run_process
from tests.support.texts import english_documents


@cache
def tokenizer(kind: Kind = "byte-level-bpe") -> Tokenizer:
    return train_on_documents([Document(text, Path("test"), 1) for text in english_documents()[:20]], kind, 600)


def write_jsonl(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def make(folder: Path, texts: list[str], kind: Kind = "byte-level-bpe", **options: object) -> Store:
    file = write_jsonl(folder / "a.jsonl", texts)
    processes = options.pop("processes", 1)
    return build_store([file], tokenizer(kind), folder / "store", StoreSettings(**options), processes)  # type: ignore[arg-type]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


# -- sources --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [1, 1 << 20])
def test_documents_keep_the_number_of_their_file_for_any_sharding(
    unit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pretune.text.store.builder.UNIT_BYTES", unit)  # every file alone, or all read together
    counts = [3, 1, 0, 5]
    files = [write_jsonl(tmp_path / f"{n}.jsonl", [f"Text {n} {i}." for i in range(c)]) for n, c in enumerate(counts)]
    made = build_store(files, tokenizer(), tmp_path / "store", StoreSettings(shard_bytes=15), 1)
    assert len(made.shards) > 4 and made.document_files.tolist() == [0, 0, 0, 1, 2, 2, 2, 2, 2]
    assert join_stores([made, made]).document_files.tolist()[9:] == [3, 3, 3, 4, 5, 5, 5, 5, 5]


def test_stores_of_another_version_are_rejected(tmp_path: Path) -> None:
    made = make(tmp_path, ["A text."])
    manifest = json.loads((made.folder / "manifest.json").read_text())
    (made.folder / "manifest.json").write_text(json.dumps(manifest | {"version": 1}))
    with pytest.raises(
        PretuneError, match="format version 1, but this version of pretune reads 2; prepare the store again"
    ):
        Store(made.folder)


# -- addressing ----------------------------------------------------------------------------------------------------

real_text = st.text(min_size=1).filter(lambda text: bool(text.strip()))


@pytest.mark.not_fast
@settings(max_examples=40)
@given(st.lists(real_text, min_size=1, max_size=8), st.integers(1, 200))
def test_documents_and_sentences_address_exactly_the_original_text(texts: list[str], shard_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = make(Path(folder), texts, shard_bytes=shard_bytes)
        decode = store.tokenizer.decode
        assert store.documents == len(texts)
        sentence = 0
        for index, text in enumerate(texts):
            spans = split_sentences(text)
            assert decode(store.document(index)) == text[: spans[-1][1]]  # all but the trailing whitespace
            assert store.document_bytes[index] == len(text.encode())
            before = 0
            for _, end in spans:
                assert decode(store.sentence(sentence)) == text[before:end]
                before, sentence = end, sentence + 1
        assert store.sentences == sentence


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram", "sentencepiece-bpe", "sentencepiece-unigram"])
def test_document_consists_of_the_ids_of_its_sentences(tmp_path: Path, kind: Kind, english: list[str]) -> None:
    texts = english[:6]
    store = make(tmp_path, texts, kind, shard_bytes=20_000)
    for index, text in enumerate(texts):
        pieces = [text[start:end] for start, end in split_sentences(text)]
        expected = [i for piece in pieces for i in tokenizer(kind).encode(" " + piece)]
        assert store.document(index).tolist() == expected


def test_word_starts_are_stored(tmp_path: Path, english: list[str]) -> None:
    store = make(tmp_path, english[:5], "wordpiece", shard_bytes=5_000)
    assert len(store.shards) > 1
    everything = np.array([0]), np.array([store.tokens])
    ids, words = store.gather(*everything), store.gather_words(*everything)
    expected = tokenizer("wordpiece").word_starts(ids)
    expected[store.sentence_offsets[:-1]] = True
    assert (words == expected).all()


@given(st.data())
def test_gather_equals_slicing(data: st.DataObject) -> None:
    store = shared_store()
    whole = store.read(0, store.tokens)
    count = data.draw(st.integers(0, 10))
    starts = np.array([data.draw(st.integers(0, store.tokens)) for _ in range(count)], dtype=np.int64)
    lengths = np.array([data.draw(st.integers(0, min(5000, store.tokens - int(s)))) for s in starts], dtype=np.int64)
    expected = np.concatenate([whole[:0], *(whole[s : s + n] for s, n in zip(starts, lengths, strict=True))])
    assert (store.gather(starts, lengths) == expected).all()


@cache
def shared_store() -> Store:
    folder = Path(tempfile.mkdtemp())
    return make(folder, english_documents()[:12], shard_bytes=15_000)


def test_reading_out_of_range_raises_an_error() -> None:
    store = shared_store()
    with pytest.raises(IndexError):
        store.read(store.tokens, store.tokens + 1)
    assert span_indices(np.array([], dtype=int), np.array([], dtype=int)).tolist() == []


@pytest.mark.not_fast
def test_ids_are_stored_in_two_bytes_if_they_fit(tmp_path: Path) -> None:
    assert make(tmp_path, ["Hello."]).read(0, 1).dtype == np.uint16
    big = Tokenizer.from_state(tokenizer().state())
    big.backend.add_tokens([f"<{i}>" for i in range(70_000)])
    arrays = build_part(["Hello."], big, "en")
    assert arrays["tokens"].dtype == np.uint32


# -- reproducible bytes ---------------------------------------------------------------------------------------------


@pytest.mark.not_fast
def test_bytes_do_not_depend_on_the_number_of_processes(tmp_path: Path, english: list[str]) -> None:
    results = []
    for processes in (1, 2, 3):
        make(tmp_path, english[:20], shard_bytes=10_000, processes=processes)
        results.append(contents(tmp_path / "store"))
        shutil.rmtree(tmp_path / "store")
    assert len(results[0]) > 5
    assert results[0] == results[1] == results[2]


def test_many_small_files_share_shards(tmp_path: Path, english: list[str]) -> None:
    (tmp_path / "in").mkdir()
    for i, text in enumerate(english[:30]):
        (tmp_path / "in" / f"{i:02}.txt").write_text(text, encoding="utf-8")
    store = prepare(tmp_path / "in", tokenizer(), tmp_path / "store", split_by="file", processes=1)
    assert store.documents == 30
    assert len(store.shards) == 1


KILLED = """
import sys
from pathlib import Path
from pretune.text.store.builder import StoreSettings, build_store
from pretune.text.tokenizers.tokenizer import Tokenizer
folder = Path(sys.argv[1])
build_store([folder / "a.jsonl"], Tokenizer.load(folder), folder / "store", StoreSettings(shard_bytes=60_000), 2)
"""


@pytest.mark.end_to_end
def test_store_killed_five_times_and_resumed_has_the_same_bytes(tmp_path: Path, english: list[str]) -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    print("seed", seed)  # pytest shows it when the test fails
    chance = random.Random(seed)
    texts = english * 3
    tokenizer().save(tmp_path)
    write_jsonl(tmp_path / "a.jsonl", texts)
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    started = time.monotonic()
    subprocess.run(command, check=True)
    whole = time.monotonic() - started
    expected = contents(tmp_path / "store")
    shutil.rmtree(tmp_path / "store")
    kills = 0
    while kills < 5:
        process = subprocess.Popen(command, start_new_session=True)
        try:
            process.wait(timeout=chance.uniform(0.1, 0.9 * whole))
        except subprocess.TimeoutExpired:
            kills += 1
            process.send_signal(signal.SIGKILL)
            process.wait()
        if (tmp_path / "store").exists():  # it finished before the kill: start again
            assert contents(tmp_path / "store") == expected
            shutil.rmtree(tmp_path / "store")
    subprocess.run(command, check=True)
    assert contents(tmp_path / "store") == expected
    assert not (tmp_path / "store.partial").exists()


def test_damaged_shard_of_an_unfinished_store_is_rebuilt(tmp_path: Path, english: list[str]) -> None:
    make(tmp_path, english[:10], shard_bytes=8_000)
    expected = contents(tmp_path / "store")
    os.rename(tmp_path / "store", tmp_path / "store.partial")
    (tmp_path / "store.partial" / "manifest.json").unlink()
    shards = sorted((tmp_path / "store.partial").glob("*.safetensors"))
    shards[0].write_bytes(shards[0].read_bytes()[:-9])
    data = bytearray(shards[1].read_bytes())
    data[-5] ^= 1
    shards[1].write_bytes(data)
    (tmp_path / "store.partial" / ".tmp-1-x").write_bytes(b"left over")
    (tmp_path / "store.partial" / "99999-0000.safetensors").write_bytes(b"of another corpus")
    with pytest.raises(PretuneError, match="the store is incomplete; run the same `pretune prepare` command again"):
        Store(tmp_path / "store")
    make(tmp_path, english[:10], shard_bytes=8_000)
    assert contents(tmp_path / "store") == expected


def test_preparing_again_changes_nothing_and_other_input_is_rejected(tmp_path: Path) -> None:
    make(tmp_path, ["One.", "Two."])
    before = contents(tmp_path / "store")
    make(tmp_path, ["One.", "Two."])
    assert contents(tmp_path / "store") == before
    with pytest.raises(PretuneError, match="the folder contains a store prepared from other input"):
        make(tmp_path, ["Other, longer text."])
    (tmp_path / "busy").mkdir()
    (tmp_path / "busy" / "x").touch()
    with pytest.raises(PretuneError, match="exists and is not a store"):
        prepare(tmp_path / "a.jsonl", tokenizer(), tmp_path / "busy")


# -- errors ---------------------------------------------------------------------------------------------------------


def test_truncated_altered_or_missing_shard_raises_an_error(tmp_path: Path, english: list[str]) -> None:
    store = make(tmp_path, english[:3])
    shard = store.folder / store.shards[0]["file"]
    good = shard.read_bytes()
    shard.write_bytes(good[:-1])
    with pytest.raises(
        PretuneError, match=r"0000\.safetensors: the shard has \d+ bytes, but \d+ in the manifest; restore it"
    ):
        Store(store.folder)
    shard.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(PretuneError, match="does not match its checksum"):
        Store(store.folder)
    shard.unlink()
    with pytest.raises(PretuneError, match="the shard is missing"):
        Store(store.folder)
    (store.folder / "manifest.json").write_text("{}")
    with pytest.raises(PretuneError, match="not the manifest of a token store"):
        Store(store.folder)


def test_other_tokenizer_is_detected(tmp_path: Path) -> None:
    store = make(tmp_path, ["Hello."])
    tokenizer("bpe").save(store.folder)
    with pytest.raises(PretuneError, match="the file has changed since this store was prepared with it"):
        _ = Store(store.folder).tokenizer


@pytest.mark.not_fast
def test_invalid_input_leaves_no_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"good line\nbad \xff line\n")
    with pytest.raises(PretuneError, match=r"a\.txt, line 2"):
        prepare(tmp_path / "a.txt", tokenizer(), tmp_path / "store")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    store = prepare(tmp_path / "a.txt", tokenizer(), tmp_path / "store", encoding_errors="replace")
    assert store.tokenizer.decode(store.document(1)) == "bad � line"


def test_empty_corpus_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(" \n\n")
    with pytest.raises(PretuneError, match="the files contain no text to prepare"):
        prepare(tmp_path / "a.txt", tokenizer(), tmp_path / "store")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def run_prepare(folder: Path, out: Path, **options: object) -> subprocess.CompletedProcess[str]:
    command = ["prepare", folder / "a.jsonl", "--tokenizer", folder, "--out", out, "--processes", 2]
    return run_process(*command, check=False, **options)


@pytest.mark.not_fast
def test_full_disk_gives_a_one_line_error_and_leaves_no_files(tmp_path: Path, english: list[str]) -> None:
    write_jsonl(tmp_path / "a.jsonl", english)
    tokenizer().save(tmp_path)
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", small], capture_output=True)
    if mounted.returncode == 0:
        try:
            answer = run_prepare(tmp_path, small / "store")
            left = list(small.iterdir())
        finally:
            subprocess.run(["umount", small], check=True)
    else:  # mounting is not permitted: a limit on file sizes fails at the same place

        def limit() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

        answer = run_prepare(tmp_path, small / "store", preexec_fn=limit)
        left = list(small.iterdir())
    assert answer.returncode == 1
    assert answer.stdout == ""
    assert "cannot be written" in answer.stderr
    assert len([line for line in answer.stderr.splitlines() if line.startswith("error:")]) == 1
    assert "Traceback" not in answer.stderr
    assert left == []


@pytest.mark.not_fast
def test_file_size_limit_gives_a_one_line_error(tmp_path: Path, english: list[str]) -> None:
    write_jsonl(tmp_path / "a.jsonl", english)
    tokenizer().save(tmp_path)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    answer = run_prepare(tmp_path, tmp_path / "store", preexec_fn=limit)
    assert answer.returncode == 1
    assert "cannot be written (File too large)" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert not list(tmp_path.glob("store*"))


@pytest.mark.not_fast
def test_worker_that_dies_is_reported() -> None:
    with ShardWorker(tokenizer(), "en") as worker:
        there, here = worker.build(pack_texts(["A text."])), build_part(["A text."], tokenizer(), "en")
        assert {name: array.tolist() for name, array in there.items()} == {
            name: array.tolist() for name, array in here.items()
        }
        worker.process.kill()
        worker.process.wait()
        with pytest.raises(PretuneError, match="a worker process ended with exit code"):
            worker.build(pack_texts(["A text."] * 100_000))


@given(st.lists(st.text()))
def test_packed_texts_are_unpacked_unchanged(texts: list[str]) -> None:
    found, spans = unpack_texts(pack_texts(texts))
    assert found == texts and spans.shape == (0, 3)


@pytest.mark.parametrize(
    "text", ["\x00\x01", "\u200b", "😀" * 1000, "a" * 300_000, "\u202eabc", "e\u0301\u0301\u0301", "��"]
)
def test_unusual_texts_are_stored(tmp_path: Path, text: str) -> None:
    for kind in ("byte-level-bpe", "wordpiece"):
        (tmp_path / kind).mkdir()
        store = make(tmp_path / kind, ["Before.", text, "After."], kind)  # type: ignore[arg-type]
        assert store.documents == 3
        assert store.tokenizer.decode(store.document(2)).replace(" ", "").endswith("After.")


def test_joined_stores_equal_one_store_of_several_languages(tmp_path: Path, english: list[str]) -> None:
    texts = [" ".join(text.split()) for text in english[:6]]
    tokenizer = train_on_documents([Document(text, tmp_path, 1) for text in texts], "bpe", 300)
    made = []
    for name, some in {"ru": texts[:2], "en": texts[2:3], "de": texts[3:]}.items():
        (tmp_path / f"{name}.txt").write_text("\n".join(some), encoding="utf-8")
        settings = StoreSettings(language=name, split_by="line", shard_bytes=2000)
        made.append(build_store([tmp_path / f"{name}.txt"], tokenizer, tmp_path / name, settings, 1))
    for store in made:  # cached values must not persist
        assert len(store.sentence_offsets) and (store.document_languages == 0).all()
    (tmp_path / "all.txt").write_text("\n".join(texts), encoding="utf-8")
    joined = join_stores(made)
    assert joined.languages == ["de", "en", "ru"] and joined.document_languages.tolist() == [2, 2, 1, 0, 0, 0]
    assert (joined.documents, joined.tokens, joined.sentences) == tuple(
        sum(getattr(store, name) for store in made) for name in ("documents", "tokens", "sentences")
    )
    parts = [store.document(i) for store in made for i in range(store.documents)]
    for index, part in enumerate(parts):
        assert joined.document(index).tolist() == part.tolist()
    spans = (np.array([0, joined.tokens - 9]), np.array([joined.tokens, 9]))
    ends = np.cumsum([store.tokens for store in made])[:-1]
    words = np.concatenate([store.gather_words(np.array([0]), np.array([store.tokens])) for store in made])
    assert joined.gather_words(*spans).tolist() == [*words.tolist(), *words[-9:].tolist()]
    assert np.isin(ends, joined.sentence_offsets).all() and len(joined.document_bytes) == 6
    assert made[0].languages == ["ru"]  # the original stores are unchanged
    again = join_stores([made[0].with_language("fr"), made[2]])
    assert again.languages == ["de", "fr"] and again.document_languages.tolist() == [1, 1, 0, 0, 0]
    assert join_stores(made[:1]) is made[0]
    other = train_on_documents([Document(text, tmp_path, 1) for text in texts], "bpe", 200)
    strange = build_store([tmp_path / "en.txt"], other, tmp_path / "strange", StoreSettings(split_by="line"), 1)
    with pytest.raises(PretuneError, match="have different tokenizers; prepare"):
        join_stores([made[0], strange])
