"""Labeling of texts by a person, with active learning: the state of a session, its files, and the dialog in a terminal.

LABELED.csv                       the labels so far, replaced atomically after every answer
LABELED.json                      the names of the labels, the texts that were skipped, and the learning curve
LABELED.embeddings.safetensors    the embeddings of the texts, so that the next session starts quickly

The order of the rows of LABELED.csv is the order of the answers. A session that is killed resumes from these files.
"""

from __future__ import annotations

import hashlib
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from typing_extensions import TypedDict

from pretune.inference.ask import load_zero_shot_predictor
from pretune.inference.embed import embed_texts
from pretune.models.name_resolution import find_folder
from pretune.models.open_model import OpenModel
from pretune.runtime.arrays import Array
from pretune.runtime.atomic_io import write_json
from pretune.runtime.checksummed_safetensors import read_tensors, write_tensors
from pretune.runtime.errors import PretuneError, make_printable, quote, shorten, suggest
from pretune.runtime.parsing import read_mapping, validate_schema
from pretune.runtime.progress import log_info, progress
from pretune.runtime.randomness import permutation
from pretune.text.corpus.table_writer import table_writer
from pretune.text.examples.column_roles import MissingLabel
from pretune.text.examples.labeled import list_first, parse_label, read_labeled
from pretune.training.jobs.active_learning import ActiveLearner, CurvePoint, is_trainable

COLUMNS = {"text": "text", "label": "label"}  # of the files with labels and with proposals
BLOCK = 512  # texts embedded between two updates of the progress bar
SAMPLED = 50  # texts over which suggestions without labels are calibrated
LONGEST_SHOWN = 2_000  # characters of a text in the terminal
BAR = 30  # characters of a bar that stands for an accuracy of 1
SKIP, UNDO, QUIT = "s", "u", "q"
Proposal = dict[str, Any]  # text, label (empty), suggestion, probability


class Progress(TypedDict):
    """The content of the JSON file of a labeling session: model, label names, skipped texts, and learning curve."""

    model: str
    labels: list[str]
    skipped: list[str]
    learning_curve: list[dict[str, float]]


class LabelingSession:
    """A session in which a person labels a pool of texts; it stores the labels and chooses the texts to label next.

    Every label is saved at once. A row is the index of a text in the pool.
    """

    def __init__(self, texts: Iterable[str], labels: Sequence[str], out: Path, model: OpenModel, seed: int = 0) -> None:
        self.out, self.model, self.seed = out, model, seed
        self.progress_file = out.with_suffix(".json")
        progress = read_progress(self.progress_file) if self.progress_file.is_file() else None
        saved = read_labeled(out, COLUMNS) if out.is_file() else None
        own = list(zip(saved.texts, saved.labels or (), strict=True)) if saved else []
        self.labels = list(labels) or (progress["labels"] if progress else sorted({label for _, label in own}))
        check_labels(self.labels)
        for place, (_, label) in enumerate(own):
            if label not in self.labels:
                assert saved is not None
                known = suggest(label, self.labels)
                raise PretuneError(f"{saved.location(place)}: {quote(label)} is not one of --labels; {known}")
        self.texts = distinct_texts([*texts, *(text for text, _ in own)])
        if not self.texts:
            raise PretuneError("all texts are blank; give a file with texts that have words")
        self.rows = {text_key(text): row for row, text in enumerate(self.texts)}
        self.answers = {self.rows[text_key(text)]: label for text, label in own if text.strip()}
        skipped = progress["skipped"] if progress else []
        self.skipped = [self.rows[key] for key in map(text_key, skipped) if key in self.rows]
        self.history = list(self.answers)  # rows in the order of the answers, skipped ones included
        self.curve: list[CurvePoint] = []
        if progress is None or progress["labels"] != self.labels:
            self.save_progress()

    # -- proposals --------------------------------------------------------------------------------------------------

    @cached_property
    def learner(self) -> ActiveLearner:
        """The active learner that chooses texts to label, by the embeddings of all texts."""
        file = self.out.with_suffix(".embeddings.safetensors")
        return ActiveLearner(self.texts, cached_embeddings(self.model, self.texts, file), self.seed)

    @cached_property
    def guess(self) -> Callable[[Sequence[str]], list[dict[str, Any]]]:
        """The zero-shot classifier that suggests labels while fewer than two classes have labeled texts."""
        sample = permutation(len(self.texts), self.seed, "usual")[:SAMPLED]
        return load_zero_shot_predictor(self.model, self.labels, [self.texts[row] for row in sample])

    def propose(self, count: int) -> list[int]:
        """Return the rows of up to `count` texts to label next; a row is the index of a text in the pool."""
        return self.learner.propose(self.answers, count, self.skipped)

    def suggest(self, rows: Sequence[int]) -> list[tuple[str, float]]:
        """Return the most probable label of each row with its probability, predicted from the labels so far.

        While fewer than two classes have labeled texts, a zero-shot classifier is used instead.
        """
        if not rows:
            return []
        if not is_trainable(self.answers):
            return [(found["label"], found["probability"]) for found in self.guess([self.texts[row] for row in rows])]
        classes = sorted(set(self.answers.values()))
        found = self.learner.predict(self.answers, rows)
        return [(classes[int(row.argmax())], float(row.max())) for row in found]

    def proposals(self, count: int) -> list[Proposal]:
        """Return up to `count` texts to label next, as rows of a table with the columns of a file of proposals.

        These are the text, an empty label, the suggested label, and its probability; the most uncertain text is first.
        """
        rows = self.propose(count)
        return [
            {"text": self.texts[row], "label": "", "suggestion": label, "probability": round(share, 3)}
            for row, (label, share) in zip(rows, self.suggest(rows), strict=True)
        ]

    # -- answers ----------------------------------------------------------------------------------------------------

    def answer(self, row: int, label: str) -> None:
        """Record the label that a person gave to the text in row `row`, and save all labels."""
        self.answers.pop(row, None)
        self.answers[row] = label
        self.history.append(row)
        self.save_labels()

    def skip(self, row: int) -> None:
        """Record that a person skipped the text in row `row`, and save the skipped texts."""
        self.skipped.append(row)
        self.history.append(row)
        self.save_progress()

    def undo(self) -> int | None:
        """Undo the last label or skip, and return the row of its text; None if there is nothing to undo."""
        if not self.history:
            return None
        row = self.history.pop()
        if row in self.skipped:
            self.skipped.remove(row)
            self.save_progress()
        else:
            del self.answers[row]
            self.save_labels()
        return row

    def add_answers(self, file: str | Path) -> None:
        """Read labels for texts of the pool from a table, and save them; rows with an empty label have no effect."""
        rows = read_labeled(file, COLUMNS, label=label_or_empty)
        found: dict[int, str] = {}
        for place, (text, label) in enumerate(zip(rows.texts, rows.labels or (), strict=True)):
            where, row = rows.location(place), self.rows.get(text_key(text))
            if label and label not in self.labels:
                raise PretuneError(f"{where}: {quote(label)} is not one of the labels; {suggest(label, self.labels)}")
            if row is None:
                problem = f"the text {quote(shorten(text, 60))} is not among the texts to label"
                raise PretuneError(f"{where}: {problem}; restore the text as it was proposed, or remove the row")
            if label and found.get(row, label) != label:
                raise PretuneError(
                    f"{where}: the text has two labels, {found[row]} and {label}; keep one of the two rows"
                )
            if label:
                found[row] = label
        if not found:
            raise PretuneError(
                f'{rows.file}: no row has a label; fill in the column "label" with one of: {self.listed}'
            )
        changed = sum(self.answers.get(row, label) != label for row, label in found.items())
        self.answers |= found
        self.skipped = [row for row in self.skipped if row not in found]
        self.save_labels()
        empty = len(rows) - len(found)
        notes = [f"{changed} of them replace an earlier label"] if changed else []
        notes += [f"{empty} rows without a label can be proposed again"] if empty else []
        log_info("; ".join([f"{rows.file}: {len(found)} labels read", *notes]))

    @property
    def listed(self) -> str:
        """The names of all labels, joined by commas, for messages."""
        return ", ".join(self.labels)

    # -- files ------------------------------------------------------------------------------------------------------

    def save_labels(self) -> None:
        """Write the labeled texts to the table of labels, in the order in which they were labeled."""
        if not self.answers:
            self.out.unlink(missing_ok=True)  # a table without rows has no columns
            return
        with table_writer(self.out) as write:
            write([{"text": self.texts[row], "label": label} for row, label in self.answers.items()])

    def save_progress(self) -> None:
        """Write the session's JSON file: the names of the labels, skipped texts, and the learning curve."""
        skipped = [self.texts[row] for row in self.skipped]
        curve = [asdict(point) for point in self.curve]
        content = Progress(model=str(self.model), labels=self.labels, skipped=skipped, learning_curve=curve)
        write_json(self.progress_file, content)

    def update_curve(self) -> list[CurvePoint]:
        """Measure the learning curve of the labels so far, save it, and return it."""
        self.curve = self.learner.learning_curve(self.answers)
        self.save_progress()
        return self.curve

    def summary(self) -> dict[str, Any]:
        """Return numbers of labeled, skipped and remaining texts, the labels per class, and the command to run next."""
        counts = Counter(self.answers.values())
        facts: dict[str, Any] = {
            "file": str(self.out),
            "labeled": len(self.answers),
            "skipped": len(self.skipped),
            "remaining": len(self.texts) - len({*self.answers, *self.skipped}),
            "per_label": {label: counts[label] for label in self.labels},
        }
        if is_trainable(self.answers):
            words = ["pretune", "finetune", str(self.model), str(self.out), "--out", f"runs/{self.out.stem}"]
            facts["next"] = shlex.join(words)
        return facts


# -- texts and embeddings ---------------------------------------------------------------------------------------------


def text_key(text: str) -> str:
    """Return a text with its white space normalized, to recognize a text that a spreadsheet program has changed.

    >>> text_key("one\\r\\n two ")
    'one two'
    """
    return " ".join(text.split())


def distinct_texts(texts: Iterable[str]) -> list[str]:
    """Return texts in their order, without blank texts and without repetitions that differ only in white space.

    >>> distinct_texts(["a", " ", "b", "a "])
    ['a', 'b']
    """
    found: dict[str, str] = {}
    for text in texts:
        found.setdefault(text_key(text), text)
    found.pop("", None)
    return list(found.values())


def cached_embeddings(model: OpenModel, texts: Sequence[str], file: Path) -> Array:
    """Return the embeddings of texts, (texts, width), computed by a model or read from the cache `file`.

    The cache is used if it is from the same model and texts, and is written again if not.
    """
    code = hashlib.sha256(str(model).encode())
    for path in sorted(find_folder(model).iterdir()):
        if path.is_file():
            code.update(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}".encode())
    for text in texts:
        code.update(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
    key = torch.frombuffer(bytearray(code.digest()), dtype=torch.uint8)
    if file.is_file():
        try:
            stored = read_tensors(file)
        except PretuneError:  # damaged: it is written again
            stored = {}
        if {"key", "vectors"} <= stored.keys() and torch.equal(stored["key"], key):
            return np.asarray(stored["vectors"].numpy())
    blocks = []
    with progress("embedding", len(texts)) as bar:
        for start in range(0, len(texts), BLOCK):
            blocks.append(embed_texts(model, texts[start : start + BLOCK]))
            bar.update(start + len(blocks[-1]))
    vectors = np.concatenate(blocks)
    write_tensors(file, {"key": key, "vectors": torch.from_numpy(vectors)})
    return vectors


# -- files and options --------------------------------------------------------------------------------------------------


def read_progress(file: Path) -> Progress:
    """Read the JSON file of a labeling session; if it is damaged, the error advises to delete it."""
    try:
        return validate_schema(read_mapping(file, "the progress of a labeling session"), Progress, str(file))
    except PretuneError as error:
        raise PretuneError(
            f"{error}; delete this file to continue; texts that were skipped will be proposed again"
        ) from error


def check_labels(labels: Sequence[str]) -> None:
    """Raise an error unless there are at least two labels, all different and not blank."""
    if not labels:
        raise PretuneError("there are no labels to choose from; name two or more with --labels")
    if len(labels) == 1:
        raise PretuneError(f"there is only one label, {quote(labels[0])}; name two or more with --labels")
    if any(label != label.strip() or not label for label in labels):
        raise PretuneError("a label is blank, or begins or ends with a space; name each label with --labels")
    if twice := [label for label, count in Counter(labels).items() if count > 1]:
        raise PretuneError(f"the label {quote(twice[0])} is given twice; name each label once with --labels")


def label_or_empty(value: Any) -> str:
    """Return the label in a table cell, or "" if the cell is empty.

    >>> label_or_empty(" good "), label_or_empty(None)
    ('good', '')
    """
    try:
        return parse_label(value)
    except MissingLabel:
        return ""


def write_proposals(proposals: Sequence[Proposal], file: Path) -> None:
    """Write a table with the texts to label next; a person fills in its column `label`."""
    with table_writer(file) as write:
        write(proposals)


def check_unread(file: Path, answers: Mapping[str, str]) -> None:
    """Raise an error if a file of proposals has labels that are not in `answers` (text → label) and would be lost.

    The file is about to be replaced by new proposals.
    """
    if not file.is_file():
        return
    rows = read_labeled(file, COLUMNS, label=label_or_empty)
    filled = zip(rows.lines, rows.texts, rows.labels or (), strict=True)
    unread = [f"line {line}" for line, text, label in filled if label and answers.get(text_key(text)) != label]
    if unread:
        problem = f"{file}: the file has {len(unread)} labels that were not read ({list_first(unread)})"
        raise PretuneError(
            f"{problem}; read these labels with --answers FILE first, or write the new file elsewhere with --to"
        )


# -- terminal -----------------------------------------------------------------------------------------------------------


def draw_curve(curve: Sequence[CurvePoint]) -> str:
    """Return a learning curve as text, with one bar per number of labels.

    >>> print(draw_curve([CurvePoint(8, 0.5, 0.1, 0.4, 10)]))
    labels  accuracy
         8  0.50 ± 0.10  ███████████████···············
    on 10 texts held out; always answering the most frequent label: 0.40
    """
    if not curve:
        return "The accuracy is shown as soon as a few randomly chosen texts have labels."
    lines = ["labels  accuracy"]
    for point in curve:
        full = round(BAR * point.accuracy)
        score = f"{point.accuracy:.2f} ± {point.standard_error:.2f}"
        lines.append(f"{point.labels:>6}  {score}  {'█' * full}{'·' * (BAR - full)}")
    last = curve[-1]
    return "\n".join(
        [*lines, f"on {last.tested} texts held out; always answering the most frequent label: {last.majority:.2f}"]
    )


def answer_keys(labels: Sequence[str]) -> dict[str, str]:
    """Return which key to type for each label (key → label): numbers from 1, or the labels if one of them is a number.

    >>> answer_keys(["good", "bad"]), answer_keys(["0", "1"])
    ({'1': 'good', '2': 'bad'}, {'0': '0', '1': '1'})
    """
    if any(label.isdigit() for label in labels):
        return {label: label for label in labels}
    return {str(number): label for number, label in enumerate(labels, 1)}


def label_in_terminal(
    session: LabelingSession, batch_size: int, read: Callable[[], str], show: Callable[[str], None]
) -> None:
    """Ask a person to label texts, `batch_size` at a time, until all are labeled or the person quits.

    The learning curve is shown after each batch.

    Parameters
    ----------
    session
        The session, which saves every answer.
    read
        Returns a line that the person types, and "" at the end of the input.
    show
        Prints a text, such as a question or the learning curve.
    """
    keys = answer_keys(session.labels)
    names = {label.casefold(): label for label in session.labels if label.casefold() not in (SKIP, UNDO, QUIT)}
    typed = {**names, **keys}
    menu = "  ".join(key if key == label else f"{key} {label}" for key, label in keys.items())
    show(f"{len(session.texts)} texts, {len(session.answers)} labeled. Type a number or a label, then Enter.")
    while rows := session.propose(batch_size):
        guesses = dict(zip(rows, session.suggest(rows), strict=True))
        while rows:
            row = rows[0]
            label, share = guesses.get(row) or session.suggest([row])[0]
            show(f"\n[{len(session.answers)} labeled]  {shorten(make_printable(session.texts[row]), LONGEST_SHOWN)}")
            show(f"  {menu}    {SKIP} skip  {UNDO} undo  {QUIT} quit    (suggestion: {label} {share:.2f})")
            line = read()
            given = line.strip().casefold()
            if not line or given == QUIT:
                session.update_curve()
                return
            if given == SKIP:
                session.skip(rows.pop(0))
            elif given == UNDO:
                last = session.undo()
                if last is None:
                    show("There is no answer to undo.")
                else:
                    rows = [last, *(other for other in rows if other != last)]
            elif given in typed:
                session.answer(rows.pop(0), typed[given])
            else:
                show(f"{quote(line.strip())} is not an answer; type {', '.join(keys)}, {SKIP}, {UNDO} or {QUIT}.")
        session.update_curve()
        show("\n" + draw_curve(session.curve))
    show("All texts are labeled or skipped.")
