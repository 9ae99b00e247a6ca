"""`evaluate`, `compare` and `contamination`: what a model is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pretune.runtime.output_paths import folder_of
from pretune.training.settings import Batching, Budget, Optimizer, Schedule, Watching
from pretune.verbs.option_modes import BY_BUDGET, EPOCHS, ON_ROWS, reading
from pretune.verbs.results import Facts, Rows
from pretune.verbs.verb import Options, only, verb

if TYPE_CHECKING:
    from pretune.evaluation.suite_runner import Evaluation
    from pretune.text.store.store import Store
    from pretune.training.run_folder import Run


@dataclass(frozen=True)
class Evaluated:
    """An evaluation of a suite."""

    evaluation: Evaluation
    out: Path

    def describe(self) -> dict[str, Any]:
        """Everything, for programs."""
        return {**self.evaluation.describe(), "out": str(self.out)}

    def table(self) -> dict[str, Any]:
        """The table of the field, for people."""
        from pretune.evaluation.published_results import sources
        from pretune.evaluation.suite_report import costs, notes, rows, scored

        suite, tasks = self.evaluation.suite, scored(self.evaluation)
        return {
            suite.title: rows(self.evaluation),
            "cost": costs(self.evaluation),
            "notes": notes(self.evaluation),
            "sources": [f"{source}: {', '.join(names)}" for source, names in sources(suite, tasks).items()],
        }


def in_several_languages(o: Options) -> bool:
    """Return whether a suite has tasks with files in several languages."""
    from pretune.evaluation.suite import find_suite

    return o.suite is not None and any(task.language for task in find_suite(o.suite).tasks.values())


@verb(
    only(
        "tasks", "language", "seeds", "seed", "shots", "out", "subsets", "keep", "strategy", *BY_BUDGET, "scratch", "deterministic", "devices",
        where="with --suite", when=lambda o: o.suite is not None,
    ),
    only("text", "pair", "length", "stride", "limit", "layout", "errors", where="without --suite, to texts", when=lambda o: o.suite is None),
    *reading("layout", files=lambda o: o.data if o.suite is None else ()),
    only(
        "keep", "strategy", *BY_BUDGET, "scratch", "deterministic",
        where="to fine-tuning; with --shots nothing is trained", when=lambda o: o.shots is None,
    ),
    only("seeds", "seed", where="where examples are drawn, not with --shots 0", when=lambda o: o.shots != 0),
    only("language", where="to suites whose tasks have files in several languages", when=in_several_languages),
    EPOCHS,
    ON_ROWS,
    out=folder_of("suite.json", "an evaluation"),
)  # fmt: skip
def evaluate(
    model: str | Path | Run,
    *,
    data: Sequence[str | Path] | str | Path,
    suite: str | None = None,
    tasks: Sequence[str] = (),
    language: str = "",
    seeds: int = 3,
    shots: int | None = None,
    out: str | Path | None = None,
    subsets: bool = False,
    keep: bool = False,
    strategy: str = "full",
    epochs: float = 3.0,
    budget: Budget | None = None,
    optimizer: Optimizer | None = None,
    schedule: Schedule | None = None,
    batch: Batching | None = None,
    watching: Watching | None = None,
    scratch: bool = False,
    deterministic: bool = False,
    seed: int = 0,
    text: str | None = None,
    pair: str | None = None,
    length: int | None = None,
    stride: int | None = None,
    limit: int | None = None,
    layout: Literal["auto", "line", "blank", "file"] = "auto",
    errors: Literal["strict", "replace"] = "strict",
    device: str | None = None,
    devices: int = 1,
    partial: bool = False,
) -> Evaluated | Facts:
    """Score a model on a suite of tasks, or its language on texts.

    With --suite, it is fine-tuned on every task whose official files are in --data, with several seeds, and scored by the
    official metrics: the row of the table that the field prints, beside reference rows; OUT has a report, the answers, and a
    submission where there are test files. What is finished is not done again. With --shots, nothing is learned: a decoder or an
    encoder-decoder is asked, after so many examples.

    Without, --data are texts: perplexity and bits per byte (of masked models pseudo-perplexity); or pairs of sentences, in
    BLiMP's format, how often the right one is likelier, or in that of CrowS-Pairs, how often the stereotype is.

    Parameters
    ----------
    model
        A run, a model folder or a model of the box.
    data
        Folder with the suite's official files; or texts: .txt, .jsonl, .csv, .tsv or .parquet.
    suite
        glue, superglue, russian-superglue, xglue, squad, text, summarization, korean, translation, or a .yaml file.
    tasks
        Only these of the suite.
    language
        The language to learn in, of tasks that have files in several.
    seeds
        So many fine-tunings a task, or draws of the examples to show; means and spread are told.
    shots
        Do not fine-tune: show so many examples (of each class, where there are classes; 0: none), and ask.
    out
        Folder of the evaluation.
    subsets
        Judge by files that are not whole, which is said; else they are refused.
    keep
        Keep the weights of all fine-tunings.
    strategy
        What moves: full, frozen, top(4), gradual, lora(8) …
    epochs
        How often every row is seen.
    budget
        Limits instead of epochs.
    optimizer
        name, lr, betas, eps, decay, clip, matrix_lr, momentum.
    schedule
        kind, warmup, final.
    batch
        sequences (rows in a step), length.
    watching
        log, evaluate, save, keep, patience.
    scratch
        Start from random weights instead of the model's, to see what those are worth.
    deterministic
        Same seed, same machine, same bits, on a GPU too, where that takes longer.
    seed
        The first of the seeds.
    text
        Column of the text; with --pair, of what an encoder-decoder reads.
    pair
        Column of what it then writes.
    length
        Tokens of a window, for texts that are longer.
    stride
        Tokens from one window to the next.
    limit
        Read so many texts, or pairs of each file.
    layout
        How .txt files are split into texts: one per line, separated by blank lines, or whole files.
    errors
        What to do with invalid UTF-8 in texts.
    device
        cpu or cuda; a GPU is used where there is one.
    devices
        Share the fine-tunings of a suite out to so many devices of this machine, a process for each (several share a GPU
        where there are fewer); on a CPU, to so many processes.
    partial
        Go on where keys or tensors are unknown (left out), or tensors missing or of another shape (left random).

    Examples
    --------
    >>> evaluate("runs/mine", suite="glue", data="glue/", out="runs/mine-glue").evaluation.means  # doctest: +SKIP
    >>> evaluate("runs/mine", data="held_out.txt").describe()["bits_per_byte"]  # doctest: +SKIP
    """
    import os

    from pretune.runtime.errors import PretuneError
    from pretune.runtime.progress import say

    if suite is None:
        from pretune.evaluation.language_modeling import Reading, evaluate_language
        from pretune.inference.likelihood import Scorer

        scorer = Scorer.load(os.fspath(model), device, partial)
        columns = {role: name for role, name in (("text", text), ("pair", pair)) if name}
        return Facts(evaluate_language(scorer, data, Reading(length, stride, limit, layout, errors), columns))
    from pretune.evaluation.suite import find_suite
    from pretune.evaluation.suite_report import write_report
    from pretune.evaluation.suite_runner import Request, evaluate_suite

    if out is None:
        raise PretuneError("an evaluation of a suite needs a folder of its own; name one with --out")
    folders = [data] if isinstance(data, str | os.PathLike) else list(data)
    if len(folders) != 1 or not Path(folders[0]).is_dir():
        given = ", ".join(map(str, folders))
        raise PretuneError(f"{given}: not a folder; --data is the one in which the files of {suite} are")
    if seeds < 1:
        raise PretuneError(f"--seeds {seeds}: at least one fine-tuning has to be done")
    if shots is not None and shots < 0:
        raise PretuneError(f"--shots {shots}: 0 or more examples")
    if shots == 0:
        seeds = 1  # without examples there is no chance in it
    settings = {
        "strategy": strategy,
        "epochs": epochs,
        "budget": budget,
        "optimizer": optimizer,
        "schedule": schedule,
        "batch": batch,
        "watching": watching,
        "scratch": scratch,
        "deterministic": deterministic,
        "partial": partial,
    }
    chosen = find_suite(suite, language).chosen(list(tasks))
    request = Request(
        os.fspath(model),
        chosen,
        Path(folders[0]),
        Path(out),
        seeds,
        seed,
        settings,
        subsets,
        keep,
        device,
        shots,
        devices,
    )
    evaluation = evaluate_suite(request)
    say(f"report: {write_report(evaluation, Path(out))}")
    return Evaluated(evaluation, Path(out))


@verb()
def compare(first: str | Path, second: str | Path) -> Rows:
    """Is the second model better than the first? Paired bootstrap over the examples, and the seeds, of two evaluations.

    Parameters
    ----------
    first
        Folder of an evaluation of a suite.
    second
        Folder of another evaluation of the same suite.

    Examples
    --------
    >>> compare("runs/a-glue", "runs/b-glue")[0]["p"]  # doctest: +SKIP
    0.012
    """
    from pretune.evaluation.comparison import compare_evaluations

    return Rows("differences", compare_evaluations(Path(first), Path(second)))


@verb()
def contamination(
    store: str | Path | Store, *, suite: str, data: str | Path, tasks: Sequence[str] = (), words: int = 13
) -> Rows:
    """How much of a suite's dev and test files stands in a pretraining store: runs of words that both have.

    Parameters
    ----------
    store
        The token store that a model was pretrained on.
    suite
        glue, superglue, russian-superglue … or a .yaml file.
    data
        Folder with the suite's official files.
    tasks
        Only these of the suite.
    words
        In a run. Shorter texts, of 5 words or more, are looked for as a whole.

    Examples
    --------
    >>> contamination("store/", suite="glue", data="glue/")[0]["share"]  # doctest: +SKIP
    0.003
    """
    from pretune.evaluation.contamination import FEWEST, overlap, read_splits
    from pretune.evaluation.suite import find_suite
    from pretune.runtime.errors import PretuneError
    from pretune.text.store.store import Store

    if words < FEWEST:
        raise PretuneError(f"--words {words}: runs of fewer than {FEWEST} words are in every store")
    splits = read_splits(find_suite(suite).chosen(list(tasks)), Path(data), subsets=True)
    if not splits:
        raise PretuneError(f"{data}: no dev or test file of {suite} is here")
    opened = store if isinstance(store, Store) else Store(store)
    return Rows("overlap", overlap(opened, splits, words), hidden=("first",))
