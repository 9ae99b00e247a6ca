"""Read the published files of SentEval and RuSentEval: one task per file, with the split, the label and the sentence on a line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pretune.probing.probing_task import ProbingTask, Split
from pretune.probing.suites.candidates import Candidate, UnusableTaskError, fill_dev, make_task
from pretune.probing.suites.data_files import find_data
from pretune.probing.suites.treebank import TASKS
from pretune.runtime.errors import PretuneError, quote
from pretune.text.corpus.files import check_is_file, file_suffix, read_lines

SPLIT_CODES: dict[str, Split] = {"tr": "train", "va": "dev", "te": "test"}
SENTEVAL = {name: group for name, (group, _) in TASKS.items()}
# Of RuSentEval, only gapping.txt is public; the names of the other tasks follow the paper.
RUSENTEVAL = {
    **dict.fromkeys(("sent_len", "sentence_length", "wc", "word_content"), "surface"),
    **dict.fromkeys(("conj_type", "impersonal_sent", "tree_depth", "gapping", "ngram_shift", "nshift"), "syntax"),
    **dict.fromkeys(("subj_number", "subj_gender", "obj_number", "obj_gender", "predicate_aspect", "predicate_tense"), "semantics"),
    **dict.fromkeys(("predicate_voice", "aspect", "tense", "voice"), "semantics"),
}  # fmt: skip
OTHER = "other"  # the group of tasks with other names


def load_senteval(data: Path | None, seed: int) -> list[ProbingTask]:
    """Read the ten tasks of SentEval from a folder with its files, or one task from a file."""
    files = find_data(data, (".txt",), "senteval")
    if data is not None and data.is_dir():
        files = [file for file in files if task_name(file) in SENTEVAL]
        if not files:
            names = ", ".join(f"{name}.txt" for name in SENTEVAL)
            raise PretuneError(f"{data}: the folder contains none of the files of SentEval ({names}); check the path")
        files.sort(key=lambda file: list(SENTEVAL).index(task_name(file)))
    return [_load_file(file, SENTEVAL, seed) for file in files]


def load_rusenteval(data: Path | None, seed: int) -> list[ProbingTask]:
    """Read the tasks of RuSentEval from a folder with its files, all in the layout of SentEval, or one task from a file."""
    return [_load_file(file, RUSENTEVAL, seed) for file in find_data(data, (".txt",), "rusenteval")]


def task_name(file: Path) -> str:
    """Return the name of the probing task that a file contains, from the name of the file.

    >>> task_name(Path("data/probing/tree_depth.txt.gz"))
    'tree_depth'
    """
    return file.name[: file.name.lower().rindex(file_suffix(file))] if file_suffix(file) else file.name


def _load_file(file: Path, groups: dict[str, str], seed: int) -> ProbingTask:
    """Return the probing task in a file; its group, such as syntax, is looked up by the name of the file."""
    name = task_name(file)
    try:
        return make_task(name, groups.get(name, OTHER), fill_dev(list(read_senteval(file)), seed, name))
    except UnusableTaskError as error:
        raise PretuneError(
            f"{file}: the task {name!r} cannot be probed, because {error}; add the examples that are missing"
        ) from None


def read_senteval(file: str | Path) -> Iterator[Candidate]:
    """Yield an example for each line of a file of SentEval, which has split (tr, va or te), label and sentence."""
    path = check_is_file(file)
    for number, line in read_lines(path):
        if not line.strip():
            continue
        cells = line.split("\t")
        if len(cells) < 3 or not cells[1].strip() or not cells[-1].strip():
            raise PretuneError(
                f"{path}, line {number}: expected split, label and sentence, separated by tabs, but found {quote(line)}; "
                "correct this line"
            )
        if cells[0] not in SPLIT_CODES:
            raise PretuneError(f"{path}, line {number}: the split is {quote(cells[0])}, but must be tr, va or te")
        yield Candidate(cells[-1].strip(), cells[1].strip(), SPLIT_CODES[cells[0]], cells[-1].strip())
