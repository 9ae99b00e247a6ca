"""Suites of probing tasks, read from published files or derived from treebanks.

A suite is a function from files to tasks. `candidates` separates splits and balances labels for all of them; `parsed_sentence` holds
the properties of a sentence that the tasks derived from treebanks use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from pretune.probing.probing_task import ProbingTask
from pretune.probing.suites.candidates import describe_counts, limit_examples
from pretune.probing.suites.data_files import detect_format
from pretune.runtime.errors import PretuneError, suggest
from pretune.runtime.progress import log_info
from pretune.text.corpus.files import file_format


@dataclass(frozen=True)
class Suite:
    """A registered suite of probing tasks, with its help text.

    `function` is the name of the function in `module` that loads the tasks, given the data and a seed.
    """

    help: str
    module: str
    function: str

    def load(self, data: Path | None, seed: int) -> list[ProbingTask]:
        """Load the tasks of the suite from a file or folder; `seed` determines sampled splits and examples."""
        function: Callable[[Path | None, int], list[ProbingTask]] = getattr(
            import_module(f"{__name__}.{self.module}"), self.function
        )
        return function(data, seed)


SUITES = {
    "senteval": Suite("the ten tasks of SentEval, from its files", "senteval", "load_senteval"),
    "rusenteval": Suite("the tasks of RuSentEval (Russian), from its files", "senteval", "load_rusenteval"),
    "treebank": Suite("the ten tasks of SentEval, derived from a treebank (CoNLL-U or bracketed trees)", "treebank", "load_treebank"),
    "morphology": Suite("part of speech and each feature of words in a treebank (CoNLL-U)", "morphology", "load_morphology"),
    "edges": Suite("edge probing: dependencies, constituents, entities, or labeled spans from JSON Lines", "edges", "load_edges"),
    "words-in-context": Suite("whether a word has the same meaning in two sentences (WiC)", "words_in_context", "load_words_in_context"),
    "table": Suite("one task from a table with texts, labels and, optionally, splits and spans", "table", "load_table"),
}  # fmt: skip


def load_suite(name: str, data: Path | None, max_examples: int | None = None, seed: int = 0) -> list[ProbingTask]:
    """Return the tasks of a suite, and log the number of examples of each.

    Parameters
    ----------
    name
        The name of a suite (a key of `SUITES`), or a file: a treebank for the suite `treebank`, JSON Lines with "targets" for
        `edges`, any other table for `table`.
    data
        A file or folder with the data of the suite; None if `name` is a file.
    max_examples
        The largest number of examples of a task; they are drawn such that the shares of splits and labels stay the same.
    seed
        The seed of everything that is drawn at random: splits, examples, and changes of sentences.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> lines = [f"{split}\\t{label}\\ta {label} text" for split in ("tr", "va", "te") for label in ("short", "long")]
    >>> _ = (folder / "sentence_length.txt").write_text("\\n".join(lines))
    >>> [task] = load_suite("senteval", folder)
    >>> task.name, task.group, task.labels
    ('sentence_length', 'surface', ['long', 'short'])
    """
    if max_examples is not None and max_examples < 1:
        raise PretuneError(f"the maximum number of examples is {max_examples}; give a number of at least 1")
    if name not in SUITES:
        if data is not None or not Path(name).is_file():
            raise PretuneError(
                f"there is no suite {name!r}; choose {', '.join(SUITES)}, or give a file; {suggest(name, SUITES)}"
            )
        data, name = Path(name), suite_of_file(Path(name))
    tasks = [limit_examples(task, max_examples, seed) for task in SUITES[name].load(data, seed)]
    if not tasks:
        raise PretuneError(f"{data}: no task of the suite {name!r} has enough examples; give more data")
    for task in tasks:
        if len({example.label for example in task.part("train")}) < 2:
            advice = (
                "give examples of others"
                if max_examples is None
                else "choose a larger number of examples, or give more data"
            )
            raise PretuneError(
                f"{data}: the training examples of the task {task.name!r} have fewer than two labels; {advice}"
            )
    log_info("\n".join(f"{name}: {describe_counts(task)}" for task in tasks))
    return tasks


def suite_of_file(file: Path) -> str:
    """Return the name of the suite that reads a file, detected from its contents.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "trees.txt"
    >>> _ = file.write_text("(S (NP (NN rain)) (VP (VBZ falls)))")
    >>> suite_of_file(file)
    'treebank'
    """
    if file_format(file) in (".csv", ".tsv", ".parquet"):
        return "table"
    match detect_format(file):
        case "conllu" | "brackets":
            return "treebank"
        case "json":
            from pretune.text.corpus.documents import read_jsonl

            return "edges" if "targets" in next(read_jsonl(file), (0, {}))[1] else "table"
        case _:
            return "table"
