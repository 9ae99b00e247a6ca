"""Compare fine-tuning on seven labeled tasks with `transformers`, with the same settings: scores and times.

    python perf/task_comparison.py run --side pretune --model MODEL --data TASKS [--tasks RTE …] [--seeds 0 1 2] --out FILE
    python perf/task_comparison.py table FILE…

TASKS is a folder with the official files of CoLA, SST-2, MRPC, STS-B, RTE, TREC and CoNLL-2003. Sides: `pretune`;
`transformers`, eager and padded, without attention dropout, like pretune; `transformers-default`, with its
configuration unchanged. Every line of FILE is one fine-tuning run; its seconds are from reading the files to the dev
scores, without the report of pretune, which `transformers` does not have.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from common import add_result, machine, read_results

ROWS, LENGTH, RATE = 32, 128, 5e-5
SIDES = ("pretune", "transformers", "transformers-default")


@dataclass(frozen=True)
class Task:
    """The files of a task, its objective, its number of epochs, and the metric for the comparison."""

    kind: str
    files: tuple[str, str]
    epochs: int
    metric: str


TASKS = {
    "CoLA": Task("classify", ("CoLA/train.tsv", "CoLA/dev.tsv"), 3, "matthews"),
    "SST-2": Task("classify", ("SST-2/train.tsv", "SST-2/dev.tsv"), 1, "accuracy"),
    "MRPC": Task("classify", ("MRPC/train.tsv", "MRPC/dev.tsv"), 3, "f1"),
    "STS-B": Task("regress", ("STS-B/train.tsv", "STS-B/dev.tsv"), 3, "spearman"),
    "RTE": Task("classify", ("RTE/train.tsv", "RTE/dev.tsv"), 3, "accuracy"),
    "TREC": Task("classify", ("TREC/train.txt", "TREC/test.txt"), 3, "accuracy"),
    "CoNLL-2003": Task("tag", ("CoNLL-2003/eng.train", "CoNLL-2003/eng.testa"), 2, "f1"),
    "NSMC": Task("classify", ("NSMC-resplit/ratings_train.txt", "NSMC-resplit/ratings_test.txt"), 2, "accuracy"),
    "KorSTS": Task("regress", ("KorSTS/sts-train.tsv", "KorSTS/sts-dev.tsv"), 3, "spearman"),
}


KOREAN = ("NSMC", "KorSTS")  # for Korean models
COLUMNS = {  # of tables with a header: text, second text, label
    "SST-2": (0, None, 1),
    "MRPC": (3, 4, 0),
    "STS-B": (7, 8, 9),
    "RTE": (1, 2, 3),
    "NSMC": (1, None, 2),
    "KorSTS": (5, 6, 4),
}


def read(name: str, file: Path) -> list[dict[str, Any]]:
    """Return the rows of an official file, by role."""
    lines = file.read_text(encoding="utf-8" if name != "TREC" else "latin-1").splitlines()
    if name == "CoNLL-2003":
        rows: list[dict[str, Any]] = []
        sentence: list[list[str]] = []
        for line in [*lines, ""]:
            if line and not line.startswith("-DOCSTART-"):
                sentence.append(line.split())
            elif sentence:
                rows.append({"words": [parts[0] for parts in sentence], "tags": [parts[-1] for parts in sentence]})
                sentence = []
        return rows
    if name == "TREC":
        return [{"text": line.partition(" ")[2], "label": line.partition(":")[0]} for line in lines]
    parts = [line.split("\t") for line in lines]
    if name == "CoLA":
        return [{"text": row[3], "label": row[1]} for row in parts]
    roles = dict(zip(("text", "pair", "label"), COLUMNS[name], strict=True))
    return [{role: row[at] for role, at in roles.items() if at is not None} for row in parts[1:]]


def with_pretune(model: str, task: Task, rows: Sequence[list[dict[str, Any]]], seed: int) -> dict[str, float]:
    """Return the dev scores of pretune."""
    import pretune as pt

    with TemporaryDirectory() as name:
        files = [Path(name) / f"{part}.jsonl" for part in ("train", "dev")]
        for file, part in zip(files, rows, strict=True):
            file.write_text("".join(json.dumps(row) + "\n" for row in part), encoding="utf-8")
        run = pt.finetune(
            model, str(files[0]), dev=str(files[1]), out=Path(name) / "run", objective=task.kind, epochs=task.epochs,
            optimizer=pt.Optimizer(lr=RATE), batch=pt.Batching(size=ROWS, max_length=LENGTH), num_seeds=1, seed=seed,
            report=False,
        )  # fmt: skip
        return {key.removeprefix("dev/"): value for key, value in run.results.items() if key.startswith("dev/")}


def with_transformers(
    folder: str, task: Task, rows: Sequence[list[dict[str, Any]]], seed: int, device: torch.device, default: bool
) -> dict[str, float]:
    """Return the dev scores of `transformers`."""
    from tokenizers import Tokenizer
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoModelForTokenClassification

    torch.manual_seed(seed)
    tagging, gpu = task.kind == "tag", device.type == "cuda"
    if tagging:
        labels = sorted({tag for row in rows[0] for tag in row["tags"]})
    else:
        labels = sorted({row["label"] for row in rows[0]}) if task.kind == "classify" else ["number"]
    config: Any = AutoConfig.from_pretrained(folder)
    config.num_labels = len(labels)
    config.problem_type = "regression" if task.kind == "regress" else None
    if not default:
        config.attention_probs_dropout_prob = 0.0
    maker: Any = AutoModelForTokenClassification if tagging else AutoModelForSequenceClassification
    model = maker.from_pretrained(folder, config=config, dtype=torch.float32).to(device)
    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    tokenizer.enable_truncation(LENGTH)
    tokenizer.no_padding()
    parts = [encode(tokenizer, part, task, labels) for part in rows]
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01, fused=gpu)
    steps = task.epochs * -(-len(parts[0]) // ROWS)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / (0.1 * steps), (steps - step) / (0.9 * steps))
    )
    model.train()  # from_pretrained disables dropout
    chance = np.random.default_rng(seed)
    for _ in range(task.epochs):
        for inputs, target in batches(parts[0], chance.permutation(len(parts[0])), tagging, device):
            with torch.autocast(device.type, torch.bfloat16, enabled=gpu):
                loss = model(**inputs, labels=target).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
    model.eval()
    found: list[Any] = []
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=gpu):
        for inputs, target in batches(parts[1], np.arange(len(parts[1])), tagging, device):
            logits = model(**inputs).logits.float()
            chosen = logits[:, 0] if task.kind == "regress" else logits.argmax(-1)
            if tagging:
                found += [row[there >= 0].tolist() for row, there in zip(chosen, target, strict=True)]
            else:
                found += chosen.tolist()
    return score(task, found, rows[1], labels)


Encoded = tuple[list[int], list[int], Any]  # ids, token types, and the label or the labels of the tokens


def encode(tokenizer: Any, rows: list[dict[str, Any]], task: Task, labels: list[str]) -> list[Encoded]:
    """Return the inputs of `transformers`; the first token of a word has its tag, the others -100."""
    if task.kind == "tag":
        encoded = tokenizer.encode_batch([row["words"] for row in rows], is_pretokenized=True)
        targets: list[Any] = []
        for one, row in zip(encoded, rows, strict=True):
            words = one.word_ids
            firsts = [word is not None and word != before for word, before in zip(words, [None, *words], strict=False)]
            tags = [labels.index(row["tags"][w]) if first else -100 for w, first in zip(words, firsts, strict=True)]
            targets.append(tags)
    else:
        encoded = tokenizer.encode_batch([(row["text"], row["pair"]) if "pair" in row else row["text"] for row in rows])
        number = task.kind == "regress"
        targets = [float(row["label"]) if number else labels.index(row["label"]) for row in rows]
    return [(one.ids, one.type_ids, target) for one, target in zip(encoded, targets, strict=True)]


def batches(
    rows: list[Encoded], order: Any, tagging: bool, device: torch.device
) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield batches with rows padded to the longest one."""
    for at in range(0, len(order), ROWS):
        chosen = [rows[i] for i in order[at : at + ROWS]]
        longest = max(len(row[0]) for row in chosen)
        ids, types, mask = (torch.zeros(len(chosen), longest, dtype=torch.long) for _ in range(3))
        tags = torch.full((len(chosen), longest), -100)
        for n, (own, kinds, target) in enumerate(chosen):
            ids[n, : len(own)], types[n, : len(own)], mask[n, : len(own)] = torch.tensor(own), torch.tensor(kinds), 1
            if tagging:
                tags[n, : len(own)] = torch.tensor(target)
        inputs = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
        target = tags if tagging else torch.tensor([row[2] for row in chosen])
        yield {key: x.to(device, non_blocking=True) for key, x in inputs.items()}, target.to(device, non_blocking=True)


def score(task: Task, found: list[Any], rows: list[dict[str, Any]], labels: list[str]) -> dict[str, float]:
    """Return the scores of predictions of `transformers` by the same definitions."""
    if task.kind == "tag":
        from pretune.text.examples.tag_schemes import parse_tags

        both = hits = 0
        for answer, row in zip(found, rows, strict=True):
            predicted = [labels[i] for i in answer] + ["O"] * (len(row["tags"]) - len(answer))
            one, other = set(parse_tags(predicted)), set(parse_tags(row["tags"]))
            both, hits = both + len(one) + len(other), hits + len(one & other)
        return {"f1": 2 * hits / max(1, both)}
    if task.kind == "regress":
        from scipy.stats import spearmanr

        return {"spearman": float(spearmanr(found, [float(row["label"]) for row in rows]).statistic)}
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    right = [labels.index(row["label"]) for row in rows]
    scores = {"accuracy": accuracy_score(right, found), "matthews": matthews_corrcoef(right, found)}
    return {**scores, "f1": f1_score(right, found, average="binary" if len(labels) == 2 else "macro")}


def run(options: argparse.Namespace) -> None:
    """Write a line for each fine-tuning run. With --warm, the first run is repeated and not written."""
    os.environ["PRETUNE_PROGRESS"] = "none"
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    about = machine()
    work = [(name, seed) for name in options.tasks for seed in options.seeds]
    for number, (name, seed) in enumerate([work[0], *work] if options.warm else work):
        task = TASKS[name]
        start = time.perf_counter()
        rows = [read(name, Path(options.data) / file)[: options.rows] for file in task.files]
        if options.side == "pretune":
            scores = with_pretune(options.model, task, rows, seed)
        else:
            scores = with_transformers(options.model, task, rows, seed, device, options.side == "transformers-default")
        seconds = time.perf_counter() - start
        line = {
            "alone": not options.untimed,
            "side": options.side,
            "task": name,
            "seed": seed,
            "score": scores[task.metric],
            "seconds": seconds,
            **about,
        }
        print(json.dumps(line), flush=True)
        if number or not options.warm:
            add_result(Path(options.out), line)


def table(files: Sequence[str]) -> str:
    """Return means over seeds with standard deviations, as Markdown."""
    lines = read_results(files)
    rows = [
        "| task | metric | " + " | ".join(SIDES) + " | seconds, pretune | seconds, transformers | ratio |",
        "| --- | --- " + "| ---: " * 6 + "|",
    ]
    for name, task in TASKS.items():
        cells, seconds = [], []
        for side in SIDES:
            chosen = [line for line in lines if (line["side"], line["task"]) == (side, name)]
            scores = [100 * line["score"] for line in chosen]
            spread = f" ± {stdev(scores):.1f}" if len(scores) > 1 else ""
            cells.append(f"{mean(scores):.1f}{spread}" if scores else "–")
            timed = [line["seconds"] for line in chosen if line["alone"]]
            seconds.append(min(timed) if timed else float("nan"))
        ratio = seconds[1] / seconds[0]
        rows.append(
            f"| {name} | {task.metric} | "
            + " | ".join(cells)
            + f" | {seconds[0]:.1f} | {seconds[1]:.1f} | {ratio:.1f} |"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("run")
    one.add_argument("--side", choices=SIDES, required=True)
    one.add_argument("--model", required=True)
    one.add_argument("--data", required=True)
    one.add_argument("--tasks", nargs="+", default=[name for name in TASKS if name not in KOREAN], choices=list(TASKS))
    one.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    one.add_argument("--rows", type=int, help="maximum rows of each file, to try it out")
    one.add_argument("--warm", action="store_true", help="run the first fine-tuning once before, as a warmup")
    one.add_argument("--untimed", action="store_true", help="other work runs at the same time: ignore seconds")
    one.add_argument("--out", required=True)
    verbs.add_parser("table").add_argument("files", nargs="+")
    options = parser.parse_args()
    if options.verb == "run":
        run(options)
    else:
        print(table(options.files))


if __name__ == "__main__":
    main()
