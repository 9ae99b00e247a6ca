"""Derive the files of data/studies that some studies of docs/studies read, from the corpora and task files in a folder.

    python perf/study_data.py data                     # all of them
    python perf/study_data.py data number misspelled   # some of them

data/corpora/LANGUAGE/*.jsonl.xz, data/tasks-en, data/tasks-ml and data/parallel must exist; docs/studies/README.md says what they are.
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import os
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from pretune import prepare, train_tokenizer
from pretune.text.examples.conllu import read_conllu

ENGLISH_MIB = 9.0  # of all English corpora, as .xz
VOCABULARY = 8192
PAIRS = {"ru": "en-ru-mix", "de": "tatoeba-en-de", "fr": "tatoeba-en-fr"}
NLI_COLUMNS = ("sentence1", "sentence2", "gold_label")
NEAR, MIDDLE = 2, 5  # largest distances in words between subject and verb
LITTLE_WORDS, ENGLISH, RUSSIAN, KOREAN, NEWS = 30_000, 2_000, 2_000, 2_000, 1000
SENTENCE_PAIRS, DOCUMENTS = 50_000, 2000  # of each language, for the multilingual stores
MULTILINGUAL_VOCABULARY, SAMPLED = 16_000, 5  # every fifth text is enough to train a tokenizer
CLEAN = 3000  # documents
PHRASES, TASK_ROWS = 20_000, 10_000  # of SST-2, and of each task in text form
FOREIGN = {"de": "eltec", "fr": "eltec", "ru": "webdocs", "ko": "webdocs"}


def read_texts(file: Path, limit: int | None = None) -> Iterator[str]:
    """Yield the texts of a .jsonl.xz file of documents."""
    with lzma.open(file, "rt", encoding="utf-8") as lines:
        yield from (json.loads(line)["text"] for line in islice(lines, limit))


def write_texts(file: Path, texts: Sequence[str]) -> None:
    """Write documents to a .jsonl file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts), encoding="utf-8")


def write_rows(file: Path, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a table with a header; a .tsv file is written without quotes, so tabs in cells become spaces."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as out:
        if file.suffix == ".csv":
            csv.writer(out).writerows([columns, *rows])
        else:
            out.writelines("\t".join(" ".join(cell.split()) for cell in row) + "\n" for row in [columns, *rows])
    print(f"{file}: {len(rows):,} rows")


def read_tsv(file: Path, columns: Sequence[str]) -> list[list[str]]:
    """Return some columns of a .tsv file with a header and without quotes."""
    with file.open(encoding="utf-8") as lines:
        names = next(lines).rstrip("\n").split("\t")
        rows = (dict(zip(names, line.rstrip("\n").split("\t"), strict=False)) for line in lines)
        return [[row[name] for name in columns] for row in rows if all(row.get(name) for name in columns)]


def equal_limit(sizes: Sequence[float], total: float) -> float:
    """Return the size to which the largest of `sizes` are to be cut, so that their sum is at most `total`.

    >>> equal_limit([1.0, 5.0, 9.0], 7.0)
    3.0
    """
    left, rest = total, sorted(sizes)
    for number, size in enumerate(rest):
        share = left / (len(rest) - number)
        if size > share:
            return share
        left -= size
    return max(sizes, default=0.0)


def every_nth(texts: Iterator[str], share: float) -> Iterator[str]:
    """Yield this share of texts, evenly distributed over all of them.

    >>> list(every_nth(iter("abcdef"), 0.5))
    ['b', 'd', 'f']
    """
    kept = 0
    for number, text in enumerate(texts, 1):
        if kept + 1 <= share * number:
            yield text
            kept += 1


def english(data: Path, out: Path) -> None:
    """Write a tokenizer, and a store of all English corpora, of which the large ones are thinned to equal sizes."""
    files = sorted((data / "corpora/en").glob("*.jsonl.xz"))
    sizes = [file.stat().st_size for file in files]
    limit = equal_limit(sizes, ENGLISH_MIB * (1 << 20))
    texts = [
        text for file, size in zip(files, sizes, strict=True) for text in every_nth(read_texts(file), limit / size)
    ]
    text = out / "english.jsonl"
    write_texts(text, texts)
    train_tokenizer([str(text)], kind="wordpiece", vocab_size=VOCABULARY, lowercase=True, out=out / "tokenizer")
    prepare([str(text)], tokenizer=str(out / "tokenizer"), out=out / "english")
    text.unlink()


def phrases(data: Path, out: Path) -> None:
    """Write the first training phrases of SST-2, which are in random order."""
    columns = ("sentence", "label")
    write_rows(out / "sst2.tsv", columns, read_tsv(data / "tasks-en/SST-2/train.tsv", columns)[:PHRASES])


def little(data: Path, out: Path) -> None:
    """Write the first documents of an encyclopedia, about 30,000 words."""
    kept, words = [], 0
    for text in read_texts(data / "corpora/en/wikipedia_en_2020.jsonl.xz"):
        kept.append(text)
        words += len(text.split())
        if words >= LITTLE_WORDS:
            break
    write_texts(out / "little.jsonl", kept)


def languages(data: Path, out: Path) -> None:
    """Write English, Russian and Korean documents to train and to test on."""
    write_texts(out / "en.train.jsonl", list(read_texts(data / "corpora/en/wikipedia_en_2020.jsonl.xz", ENGLISH)))
    write_texts(out / "en.dev.jsonl", list(read_texts(data / "corpora/en/news_wikinews.jsonl.xz", NEWS)))
    russian = list(read_texts(data / "corpora/ru/webdocs.jsonl.xz", RUSSIAN))
    literature = [text[:4000] for text in read_texts(data / "corpora/ru/literature.jsonl.xz", 100)]
    korean = list(read_texts(data / "corpora/ko/webdocs.jsonl.xz", KOREAN))
    write_texts(out / "ru.train.jsonl", russian)
    write_texts(out / "ru.dev.jsonl", literature)
    write_texts(out / "ko.train.jsonl", korean[100:])
    write_texts(out / "ko.dev.jsonl", korean[:100])


def misspell(word: str, chance: random.Random) -> str:
    """Return a word with two neighboring letters in its middle exchanged, or as it is if it is short."""
    if len(word) < 4 or not word.isalpha():
        return word
    at = chance.randrange(1, len(word) - 2)
    return word[:at] + word[at + 1] + word[at] + word[at + 2 :]


def misspelled(data: Path, out: Path) -> None:
    """Write news in which every fifth word has two letters exchanged."""
    chance = random.Random(0)
    texts = [
        " ".join(misspell(word, chance) if chance.random() < 0.2 else word for word in text.split())
        for text in read_texts(data / "corpora/en/news_wikinews.jsonl.xz", NEWS)
    ]
    out.mkdir(parents=True, exist_ok=True)
    (out / "misspelled.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")


def number(data: Path, out: Path) -> None:
    """Write the words before present-tense verbs, labeled with the number of the verb, by the distance of its subject.

    Linzen et al., 2016, arXiv:1611.01368, predict the number of verbs in this way. Half of the distant subjects of the
    training files are held out, too, because they are rare.
    """
    rows: dict[str, list[tuple[str, str]]] = {name: [] for name in ("train", "near", "middle", "far")}
    chance = random.Random(0)
    for split in ("train", "dev", "test"):
        for tree in read_conllu(data / f"tasks-ml/UD/UD_English-EWT/en_ewt-ud-{split}.conllu"):
            for at, word in enumerate(tree.words):
                label = {"VBZ": "singular", "VBP": "plural"}.get(tree.words[word.head].xpos)
                if word.relation != "nsubj" or word.head <= at or label is None:
                    continue
                distance = word.head - at
                name = "near" if distance <= NEAR else "middle" if distance <= MIDDLE else "far"
                trained = split == "train" and (name == "near" or chance.random() < 0.5)
                before = " ".join(one.form for one in tree.words[: word.head])
                rows["train" if trained else name].append((before, label))
    for name, found in rows.items():
        write_rows(out / f"number/{name}.csv", ("text", "label"), found)


def xnli(data: Path, out: Path) -> None:
    """Write MNLI and LingNLI for training, and XNLI's dev sets in four languages, with the same columns."""
    tasks = data / "tasks-en"
    names = ("MNLI/train.tsv", "LingNLI/train_LitL.tsv", "LingNLI/train_LotS.tsv", "LingNLI/train_baseline.tsv")
    rows = [row for name in names for row in read_tsv(tasks / name, NLI_COLUMNS)]
    write_rows(out / "xnli/train.en.tsv", NLI_COLUMNS, rows)
    for language in ("en", *PAIRS):
        lines = (data / f"tasks-ml/XNLI/dev-{language}.tsv").read_text(encoding="utf-8").splitlines()
        write_rows(out / f"xnli/dev.{language}.tsv", NLI_COLUMNS, [line.split("\t") for line in lines])


def parallel(data: Path, out: Path) -> None:
    """Write parallel texts, and stores of running text in four languages with one tokenizer.

    The store of a language also has its side of the parallel texts, so that no arm sees other sentences.
    """
    texts: dict[str, list[str]] = {language: [] for language in ("en", *PAIRS)}
    (out / "parallel").mkdir(parents=True, exist_ok=True)
    for language, name in PAIRS.items():
        for side in ("en", language):
            lines = (data / "parallel" / name / f"train.{side}").read_text(encoding="utf-8").split("\n")
            lines = lines[:SENTENCE_PAIRS]
            (out / f"parallel/en-{language}.{side}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
            texts[side] += ["\n".join(lines[at : at + 20]) for at in range(0, len(lines), 20)]
    texts["en"] += read_texts(data / "corpora/en/wikipedia_en_2020.jsonl.xz", DOCUMENTS)
    texts["ru"] += read_texts(data / "corpora/ru/webdocs.jsonl.xz", DOCUMENTS)
    for language in ("de", "fr"):
        texts[language] += [text[:100_000] for text in read_texts(data / f"corpora/{language}/eltec.jsonl.xz", 100)]
    folder = out / "multilingual"
    files = {language: folder / f"{language}.jsonl" for language in texts}
    for language, own in texts.items():
        write_texts(files[language], own)
    sample = [text for own in texts.values() for text in own[::SAMPLED]]
    write_texts(folder / "for-tokenizer.jsonl", sample)
    sampled = [str(folder / "for-tokenizer.jsonl")]
    train_tokenizer(sampled, kind="unigram", vocab_size=MULTILINGUAL_VOCABULARY, out=folder / "tokenizer")
    for language, file in files.items():
        prepare([str(file)], tokenizer=str(folder / "tokenizer"), language=language, out=folder / language)


def text_to_text(data: Path, out: Path) -> None:
    """Write the first examples of four tasks as pairs of texts."""
    tasks = data / "tasks-en"
    rows = [
        [f"sst2: {text}", "good" if label == "1" else "bad"]
        for text, label in read_tsv(tasks / "SST-2/train.tsv", ("sentence", "label"))[:TASK_ROWS]
    ]
    for name, file, columns in (
        ("mnli", "MNLI/train.tsv", NLI_COLUMNS),
        ("rte", "RTE/train.tsv", ("sentence1", "sentence2", "label")),
        ("qnli", "QNLI/train.tsv", ("question", "sentence", "label")),
    ):
        found = read_tsv(tasks / file, columns)[:TASK_ROWS]
        rows += [[f"{name}: {first} / {second}", label] for first, second, label in found]
    write_rows(out / "tasks.tsv", ("en", "answer"), rows)


def translation(data: Path, out: Path) -> None:
    """Write the English and German captions of Multi30k as .txt files, one caption per line."""
    for language in ("en", "de"):
        for name in ("train", "val"):
            text = (data / f"parallel/multi30k/{name}.{language}").read_text(encoding="utf-8")
            file = out / f"multi30k/{name}.{language}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")


def unclean(data: Path, out: Path) -> None:
    """Write documents of an encyclopedia, as much text of film reviews, and the first with as many unclean documents.

    Cleaning would remove these: a third of these are in other languages, a third are source code, and a third are menus: titles that repeat.
    """
    clean = list(read_texts(data / "corpora/en/wikipedia_en_2020.jsonl.xz", CLEAN))
    chance = random.Random(0)
    foreign = [
        text[at : at + 3000]
        for language in ("de", "fr", "ru", "ko")
        for text in read_texts(data / f"corpora/{language}/{FOREIGN[language]}.jsonl.xz", 200)
        for at in range(0, min(len(text), 60_000), 3000)
    ]
    code = [file.read_text(encoding="utf-8", errors="ignore") for file in sorted(Path(os.__file__).parent.glob("*.py"))]
    code = [text[at : at + 3000] for text in code for at in range(0, len(text), 3000)]
    titles = [" ".join(text.split()[:3]) for text in clean]
    menus = ["\n".join(chance.choices(titles[:300], k=60)) for _ in clean]
    junk = [text for kind in (foreign, code, menus) for text in chance.sample(kind, min(len(kind), CLEAN // 3))]
    mixed = [*clean, *junk]
    chance.shuffle(mixed)
    write_texts(out / "clean.jsonl", clean)
    write_texts(out / "unclean.jsonl", mixed)
    size, reviews = sum(map(len, clean)), list[str]()
    for text in read_texts(data / "corpora/en/reviews_imdb_unsup.jsonl.xz"):
        reviews.append(text)
        size -= len(text)
        if size <= 0:
            break
    write_texts(out / "reviews.jsonl", reviews)


PARTS: dict[str, Callable[[Path, Path], None]] = {
    "english": english, "phrases": phrases, "little": little, "languages": languages, "misspelled": misspelled, "number": number, "xnli": xnli, "parallel": parallel,
    "text-to-text": text_to_text, "translation": translation, "unclean": unclean,
}  # fmt: skip


def main() -> None:
    """Derive the files that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--out", type=Path, help="default: DATA/studies")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"there is no part {min(unknown)}; choose from {', '.join(PARTS)}")
    for name in given.parts or PARTS:
        PARTS[name](given.data, given.out or given.data / "studies")


if __name__ == "__main__":
    main()
