"""Make the record: the best English encoder that fifteen minutes of pretraining on one GPU give, in steps that keep their results.

What comes first, on a machine with the corpora and the official files of GLUE, MNLI and LingNLI in TASKS:

    python perf/record.py pack TASKS .gpu-site/parts --corpora CORPORA/*.jsonl.xz --tokenizer TOKENIZER --limit-mib 14

or, if `script/record_corpus CORPORA TASKS OUT --open-only --lowercase --vocab-size 16384` has prepared the store already, with
`--stores store=OUT/store` instead. If 64 MiB travel at a time, of which the repository takes 33, the packages that the other machine lacks (18 MB, in
.gpu-site/packages) go with the first part, and the six others go in pairs. Only the openly licensed corpora need to travel.

Then, on a machine with a GPU, whose folder HOME lives as long as the machine, the parts arrive in one call or in several:

    export PYTHONPATH=src:.gpu-site/packages
    python3 perf/record.py unpack .gpu-site/parts HOME         # exit code 3 until all parts are there
    python3 perf/record.py start HOME --minutes 24             # runs perf/record.yaml (--plan), detached from the call
    python3 perf/record.py follow HOME --minutes 5 --out $OUT  # in each further call: copies results and models there

`start` begins where the last one ended: a row of results.jsonl is never computed again, and pretraining continues from its checkpoint.
Each result is on the disk as soon as it is known; `--retry-failed` repeats what has failed. Afterwards, with all that came back in BACK:

    python perf/record.py join BACK record runs/record         # the model
    python perf/record.py page BACK/results.jsonl              # writes docs/record.md

The same for Russian (TERRa, DaNetQA, and words in context, beside a bag of words and random weights):

    python perf/record.py pack TASKS .gpu-site/parts --corpora CORPORA/ru/literature.jsonl.xz \
        --names TERRa DaNetQA RUSSE=RUSSE-WiC-derived
    python perf/record.py run HOME --plan perf/record_ru.yaml --minutes 27
    python perf/record.py table HOME/results.jsonl --plan perf/record_ru.yaml

GLUE-5 is the mean of CoLA (Matthews), SST-2 (accuracy), MRPC (F1), STS-B (Spearman) and RTE (accuracy) on the dev sets, each the median of the
seeds at the last step. MRPC, STS-B and RTE start from the model tuned on NLI. `vectors` is Spearman's correlation on STS-B's dev set of
the cosines of mean-pooled vectors, without any training.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from common import machine
from detached import LOG, is_running, start_detached
from record_jobs import RESULTS, JobRunner, forget_failures, read_rows
from record_page import score_table, write_page
from record_plan import read_plan, record_jobs
from record_travel import MIB, join, pack, split, unpack

HERE = Path(__file__).resolve().parent
PLAN = HERE / "record.yaml"
GLUE = ("CoLA", "SST-2", "MRPC", "STS-B", "RTE")
IMDB_LABEL, IMDB_TEXT = 2, 3  # columns of IMDb/train.tsv
LABELED = ("train", "dev", "val")  # files of a task that are needed
WAITING = 3  # exit code while parts are missing
OUTBOX, SENT = "outbox", "sent.json"
MOST_FILES, MOST_BYTES, LARGEST = 8, 64 * MIB, 15 * MIB  # that one call brings back


def write_nli(tasks: Path, out: Path) -> int:
    """Write the different training pairs of MNLI, LingNLI, and SNLI into one table; return their number."""
    files = [tasks / "MNLI" / "train.tsv", *sorted((tasks / "LingNLI").glob("train_*.tsv"))]
    files += [file for file in [tasks / "SNLI" / "train.tsv"] if file.is_file()]
    rows: dict[tuple[str, str], str] = {}
    for file in files:
        with file.open(encoding="utf-8") as stream:
            for row in csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE):
                if row["gold_label"] in ("entailment", "neutral", "contradiction"):
                    rows.setdefault((row["sentence1"], row["sentence2"]), row["gold_label"])
    with out.open("w", encoding="utf-8") as stream:
        stream.write("sentence1\tsentence2\tlabel\n")
        stream.writelines(f"{first}\t{second}\t{label}\n" for (first, second), label in rows.items())
    return len(rows)


def write_reviews(tasks: Path, out: Path, characters: int = 600) -> int:
    """Write the ends of the training reviews of IMDb, where the verdict is, with their labels into a table; return their number."""
    with (tasks / "IMDb" / "train.tsv").open(encoding="utf-8") as stream:
        rows = list(csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    with out.open("w", encoding="utf-8") as stream:
        stream.write("text\tlabel\n")
        for row in rows:
            text = " ".join(row[IMDB_TEXT].replace("<br />", " ").split())
            text = text if len(text) <= characters else text[-characters:].partition(" ")[2]
            stream.write(f"{text}\t{row[IMDB_LABEL]}\n")
    return len(rows)


def sentence_pairs(folder: Path, count: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """Yield pairs of texts that belong together, from a token store: adjacent sentences, and a sentence twice."""
    import numpy as np

    from pretune.text.store.store import Store

    store, chance = Store(folder), random.Random(seed)
    offsets, sentences = np.asarray(store.document_offsets), np.asarray(store.sentence_offsets)
    lengths = np.diff(sentences)
    good = (lengths >= 8) & (lengths <= 60)
    inside = np.ones(len(lengths), dtype=bool)
    inside[offsets[1:] - 1] = False  # the last sentence of a document has no next one
    adjacent = np.flatnonzero(inside[:-1] & good[:-1] & good[1:])
    for at in chance.sample(adjacent.tolist(), min(count, len(adjacent))):
        first, second = (store.tokenizer.decode(store.sentence(at + step).tolist()) for step in (0, 1))
        yield first, (first if chance.random() < 0.5 else second)


def write_pairs(store: Path, out: Path, count: int) -> None:
    """Write pairs of texts that belong together, for contrastive learning, into a .jsonl file."""
    with out.open("w", encoding="utf-8") as stream:
        for first, second in sentence_pairs(store, count):
            stream.write(json.dumps({"text": first, "pair": second}, ensure_ascii=False) + "\n")


def pack_all(
    tasks: Path,
    names: Sequence[str],
    corpora: Sequence[Path],
    tokenizer: Path | None,
    stores: Mapping[str, Path],
    out: Path,
    limit: int,
) -> None:
    """Pack corpora or a token store, the files of the five tasks, and the NLI pairs into parts that travel one at a time."""
    with tempfile.TemporaryDirectory() as name:
        content = {f"corpora/{file.name}": file for file in corpora}
        content |= stores
        content |= {"tokenizer": tokenizer} if tokenizer is not None else {}
        for task in names:
            name_there, _, name_here = task.partition("=")
            for file in (tasks / (name_here or name_there)).iterdir():
                if file.stem in LABELED:
                    content[f"tasks/{name_there}/{file.name}"] = file
        if (tasks / "MNLI" / "train.tsv").is_file():
            content["nli.tsv"] = Path(name) / "nli.tsv"
            write_nli(tasks, content["nli.tsv"])
        if (tasks / "IMDb" / "train.tsv").is_file():
            content["reviews.tsv"] = Path(name) / "reviews.tsv"
            write_reviews(tasks, content["reviews.tsv"])
        sizes = pack(content, out, limit)
    print(f"{out}: {sizes['bytes'] / MIB:.1f} MiB in {sizes['parts']} parts, {sizes['packed'] / MIB:.1f} MiB")


def export(run: Path, out: Path) -> None:
    """Write a model in 16 bits into OUT, and the same as parts into the outbox of HOME, which is two levels above OUT."""
    import torch

    from pretune.models.loading import load

    model = load(run)
    out.mkdir(parents=True, exist_ok=True)
    model.save(out, kind=torch.bfloat16)
    split(out, out.parent.parent / OUTBOX, LARGEST)


def vectors(model: str, tasks: Path) -> float:
    """Return Spearman's correlation, in percent, of scores and cosines on STS-B's dev set without training."""
    import numpy as np
    from scipy.stats import spearmanr

    import pretune

    with (tasks / "STS-B" / "dev.tsv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    loaded = pretune.load(model)
    first, second = (np.asarray(loaded.embed([row[key] for row in rows])) for key in ("sentence1", "sentence2"))
    cosines = (first * second).sum(-1) / np.linalg.norm(first, axis=-1) / np.linalg.norm(second, axis=-1)
    return 100 * float(spearmanr(cosines, [float(row["score"]) for row in rows]).statistic)


def bag_of_words_accuracy(data: Path, suite: str, task: str) -> float:
    """Return the accuracy, in percent, of a bag of words on the dev set of a task whose examples have one text or two."""
    from pretune.evaluation.suites.declaration import find_suite
    from pretune.training.jobs.bag_of_words import bag_of_words

    read = find_suite(suite).tasks[task].read
    train, dev = (read(split, data, allow_incomplete=True).rows for split in ("train", "dev"))
    texts = [[f"{row['text']} {row.get('pair', '')}" for row in rows] for rows in (train, dev)]
    answers = bag_of_words(texts[0], [str(row["label"]) for row in train], texts[1])
    return 100 * sum(answer == str(row["label"]) for answer, row in zip(answers, dev, strict=True)) / len(dev)


def run(home: Path, plan_file: Path, minutes: float) -> bool:
    """Run the jobs of a plan until all have ended or the minutes are over; return whether all have ended."""
    plan = read_plan(plan_file)
    runner = JobRunner(partial(record_jobs, plan, home), home, plan.at_once, machine())
    finished = runner.run(60 * minutes)
    print("all jobs have ended" if finished else "the time is over; the same command continues", flush=True)
    return finished


def retry(home: Path, wanted: bool) -> None:
    """Forget failed jobs if that is wanted."""
    if wanted and (home / RESULTS).is_file():
        forget_failures(home / RESULTS)


def start(home: Path, plan_file: Path, minutes: float) -> None:
    """Run the jobs of a plan in a process that outlives this one, with a copy of the code."""
    home = home.resolve()  # the process runs in this folder
    home.mkdir(parents=True, exist_ok=True)
    if not is_running(home):
        shutil.copyfile(plan_file, home / "plan.yaml")
    words = ["run", str(home), "--plan", str(home / "plan.yaml"), "--minutes", str(minutes)]
    start_detached(home, "record.py", words)


def follow(home: Path, out: Path, minutes: float, pause: float = 2.0) -> None:
    """Copy new results into `out` until the minutes are over or all jobs have ended, then the parts of models that fit."""
    out.mkdir(parents=True, exist_ok=True)
    deadline, shown = time.monotonic() + 60 * minutes, set[str]()
    while True:
        over = time.monotonic() >= deadline or not is_running(home)
        for key, row in read_rows(home / RESULTS).items():
            if key not in shown:
                shown.add(key)
                print(
                    key,
                    {name: row[name] for name in ("score", "seconds", "error", "wall_seconds") if name in row},
                    flush=True,
                )
        for file, name in (
            (home / RESULTS, RESULTS),
            (home / "runs" / "record" / "metrics.jsonl", "record.metrics.jsonl"),
        ):
            if file.is_file():
                shutil.copyfile(file, out / name)
        if over:
            break
        time.sleep(pause)
    send(home, out)
    print("still running" if is_running(home) else "not running", flush=True)
    if (home / LOG).is_file():
        shutil.copyfile(home / LOG, out / LOG)


def send(home: Path, out: Path) -> list[str]:
    """Copy parts of models that have not been copied before into `out`, as many as one call brings back; return their names."""
    file = home / SENT
    sent: list[str] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    new, size = list[str](), sum(one.stat().st_size for one in out.iterdir())
    for part in sorted((home / OUTBOX).glob("*.tar.*")):
        if part.name in sent or len(new) >= MOST_FILES - 3 or size + part.stat().st_size > MOST_BYTES - MIB:
            continue
        shutil.copyfile(part, out / part.name)
        new.append(part.name)
        size += part.stat().st_size
    file.write_text(json.dumps(sent + new), encoding="utf-8")
    return new


def main(words: list[str] | None = None) -> None:
    """Run one step of the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)

    def verb(name: str, *places: str) -> argparse.ArgumentParser:
        found = verbs.add_parser(name)
        for place in places:
            found.add_argument(place, type=Path)
        return found

    verb("nli", "tasks", "out")
    verb("pairs", "store", "out").add_argument("--count", type=int, default=400_000)
    found = verb("pack", "tasks", "out")
    found.add_argument("--names", nargs="+", default=GLUE, help="folders of TASKS, as THERE or THERE=HERE")
    found.add_argument("--corpora", nargs="*", type=Path, default=[], help=".jsonl.xz files to prepare there")
    found.add_argument(
        "--tokenizer", type=Path, help="folder of the tokenizer to prepare them with; trained there by default"
    )
    found.add_argument("--stores", nargs="*", default=[], help="token stores that are prepared already, as NAME=FOLDER")
    found.add_argument("--limit-mib", type=float, default=26.0, help="size of a part")
    verb("unpack", "parts", "home")
    for name in ("run", "start"):
        found = verb(name, "home")
        found.add_argument("--plan", type=Path, default=PLAN)
        found.add_argument("--minutes", type=float, required=True)
        found.add_argument("--retry-failed", action="store_true", help="repeat jobs that have failed")
    found = verb("follow", "home")
    found.add_argument("--minutes", type=float, required=True)
    found.add_argument("--out", type=Path, required=True)
    verb("export", "model", "out")
    verb("vectors", "model", "tasks")
    found = verb("bag-of-words", "tasks")
    found.add_argument("suite")
    found.add_argument("task")
    verb("join", "parts").add_argument("name")
    verbs.choices["join"].add_argument("out", type=Path)
    found = verbs.add_parser("page")
    found.add_argument("results", nargs="*", type=Path)
    found.add_argument("--out", type=Path, default=HERE.parent / "docs" / "record.md")
    found.add_argument("--plan", type=Path, default=PLAN)
    found.add_argument("--pilots", type=Path, default=HERE / "record_pilots.yaml", help="plan of the pilots")
    found = verbs.add_parser("table")
    found.add_argument("results", nargs="+", type=Path)
    found.add_argument("--plan", type=Path, default=PLAN)
    given = parser.parse_args(words)
    match given.verb:
        case "nli":
            print(f"{given.out}: {write_nli(given.tasks, given.out):,} pairs")
        case "pairs":
            write_pairs(given.store, given.out, given.count)
        case "pack":
            pack_all(
                given.tasks,
                given.names,
                given.corpora,
                given.tokenizer,
                {name: Path(folder) for name, _, folder in (one.partition("=") for one in given.stores)},
                given.out,
                int(given.limit_mib * MIB),
            )
        case "unpack":
            if not unpack(given.parts, given.home):
                sys.exit(WAITING)
        case "run":
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            retry(given.home, given.retry_failed)
            run(given.home, given.plan, given.minutes)
        case "start":
            retry(given.home, given.retry_failed)
            start(given.home, given.plan, given.minutes)
        case "follow":
            follow(given.home, given.out, given.minutes)
        case "export":
            export(given.model, given.out)
        case "vectors":
            print(json.dumps({"score": round(vectors(str(given.model), given.tasks), 2)}))
        case "bag-of-words":
            accuracy = bag_of_words_accuracy(given.tasks, given.suite, given.task)
            print(json.dumps({"metric": "accuracy", "score": round(accuracy, 2)}))
        case "join":
            join(given.parts, given.name, given.out)
        case "table":
            print(score_table(given.results, read_plan(given.plan)))
        case "page":
            write_page(given.results, read_plan(given.plan), read_plan(given.pilots), given.out)


if __name__ == "__main__":
    main()
