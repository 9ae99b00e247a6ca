"""Compare translation from English to German on Multi30k: recurrent models with and without attention, and the Transformer.

    python perf/translation.py run --data MULTI30K --out FOLDER [--systems rnn …] [--seeds 0 1 2]
    python perf/translation.py table FOLDER --plot docs/measurements/translation.png

MULTI30K has train.en, train.de and the test sets of 2016, 2017 and 2018. Systems are the presets in
docs/recipes/multi30k. Every line of FOLDER/results.jsonl is one training run: BLEU and chrF (sacrebleu) on the test set
of 2016 with beam search, and BLEU by the length of the source on all three test sets.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from common import add_result, machine, read_results, spread

RECIPES = Path(__file__).parents[1] / "docs" / "recipes" / "multi30k"
SYSTEMS = {
    "rnn": "RNN",
    "rnn-reversed": "RNN, source reversed",
    "attention": "with attention",
    "attention-reversed": "with attention, source reversed",
    "attention-both-ways": "with attention, bidirectional encoder",
    "transformer": "Transformer",
}
TESTS = ("test_2016_flickr", "test_2017_flickr", "test_2018_flickr")
BOUNDS = (0, 8, 10, 12, 14, 17, 20, 99)  # words of the source


def read(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


def run(options: argparse.Namespace) -> None:
    """Write a line for each training run that is not done yet."""
    import pretune as pt
    from pretune.metrics.translation import translation_metrics

    os.environ["PRETUNE_PROGRESS"] = "none"
    data, out = Path(options.data), Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    files = []
    for language in ("en", "de"):  # the package reads lines of .txt
        files.append(out / f"train.{language}.txt")
        lines = read(data / f"train.{language}")[: options.rows]
        files[-1].write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    texts, right = ([line for test in TESTS for line in read(data / f"{test}.{one}")] for one in ("en", "de"))
    first = len(read(data / f"{TESTS[0]}.en"))
    if options.rows:
        texts, right, first = texts[:9], right[:9], 9
    results = out / f"results{options.part}.jsonl"
    done = [(line["system"], line["seed"]) for line in load(out)]
    for system in options.systems:
        for seed in options.seeds:
            if (system, seed) in done:
                continue
            folder = out / f"{system}-{seed}"
            shutil.rmtree(folder, ignore_errors=True)
            budget = pt.Budget(steps=options.steps) if options.steps else None
            start = time.perf_counter()
            trained = pt.pretrain(str(RECIPES / f"{system}.yaml"), files, budget=budget, seed=seed, out=folder)
            seconds = time.perf_counter() - start
            translations = [row["translation"] for row in pt.translate(trained, texts)]
            words = [len(text.split()) for text in texts]
            lengths = {}
            for low, high in pairwise(BOUNDS):
                chosen = [at for at, count in enumerate(words) if low < count <= high]
                if chosen:
                    lengths[high] = translation_metrics([translations[i] for i in chosen], [right[i] for i in chosen])[
                        "bleu"
                    ]
            line = {
                "system": system,
                "seed": seed,
                **translation_metrics(translations[:first], right[:first]),
                "lengths": lengths,
                "parameters": sum(p.numel() for p in pt.load(trained).core.backbone.parameters()),
                "seconds": seconds,
                **machine(),
            }
            print(json.dumps(line), flush=True)
            add_result(results, line)


def load(folder: Path) -> list[dict[str, Any]]:
    """Return all lines so far, of all processes."""
    return read_results(sorted(folder.glob("results*.jsonl")))


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Return means over seeds with standard deviations, as Markdown."""
    rows = ["| system | parameters | BLEU | chrF | seconds | seeds |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for system, name in SYSTEMS.items():
        own = [line for line in lines if line["system"] == system]
        if own:
            cells = []
            for key in ("bleu", "chrf"):
                values = [line[key] for line in own]
                cells.append(f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(own) > 1 else ""))
            seconds = mean(line["seconds"] for line in own)
            rows.append(
                f"| {name} | {own[0]['parameters'] / 1e6:.1f} M | {' | '.join(cells)} | {seconds:.0f} | {len(own)} |"
            )
    return "\n".join(rows)


def plot(lines: Sequence[dict[str, Any]], file: Path) -> None:
    """Plot BLEU by system, with one point per seed, and by the length of the source."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), gridspec_kw={"width_ratios": [2, 3]})
    shown = [system for system in SYSTEMS if any(line["system"] == system for line in lines)]
    colors = dict(zip(SYSTEMS, pyplot.get_cmap("tab10").colors, strict=False))
    for at, system in enumerate(shown):
        own = [line for line in lines if line["system"] == system]
        scores = [line["bleu"] for line in own]
        left.barh(at, mean(scores), color=colors[system], alpha=0.5)
        left.plot(scores, [at] * len(scores), "o", color=colors[system], markersize=4)
        left.text(max(scores) + 0.5, at, f"{mean(scores):.1f}", va="center")
        highs = [high for high in map(str, BOUNDS[1:]) if high in own[0]["lengths"]]
        curves = [[line["lengths"][high] for high in highs] for line in own]
        middle = [mean(values) for values in zip(*curves, strict=True)]
        beside = [spread(values) for values in zip(*curves, strict=True)]
        style = "--" if "reversed" in system else "-"
        right.errorbar(
            range(len(highs)), middle, beside, fmt=f"o{style}", color=colors[system], label=SYSTEMS[system], capsize=2
        )
    left.set_yticks(range(len(shown)), [SYSTEMS[system] for system in shown])
    left.invert_yaxis()
    left.set_xlabel("BLEU, test of 2016")
    left.set_xlim(0, left.get_xlim()[1] + 4)
    edges = list(pairwise(BOUNDS))
    names = [f"{low + 1}–{high}" if high < BOUNDS[-1] else f"> {low}" for low, high in edges]
    right.set_xticks(range(len(names)), [f"≤ {BOUNDS[1]}", *names[1:]])
    right.set_xlabel("words of the source")
    right.set_ylabel("BLEU, tests of 2016, 2017, 2018")
    right.legend(fontsize=8)
    right.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(file, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("run")
    one.add_argument("--data", required=True)
    one.add_argument("--out", required=True)
    one.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    one.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    one.add_argument("--part", default="", help="suffix of the results file, if several processes share the folder")
    one.add_argument("--steps", type=int, help="instead of those of the presets, to try it out")
    one.add_argument("--rows", type=int, help="maximum rows of the training text, to try it out")
    two = verbs.add_parser("table")
    two.add_argument("folder")
    two.add_argument("--plot")
    options = parser.parse_args()
    if options.verb == "run":
        run(options)
        return
    lines = load(Path(options.folder))
    print(table(lines))
    if options.plot:
        plot(lines, Path(options.plot))


if __name__ == "__main__":
    main()
