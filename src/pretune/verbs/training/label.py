"""The `label` verb: label texts with active learning, in the terminal or in a spreadsheet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pretune.runtime.output_paths import check_new_file, check_updated_file
from pretune.verbs import options as opt
from pretune.verbs.option_modes import TEXT_COLUMN_RULE
from pretune.verbs.results import ResultTable
from pretune.verbs.verb import verb

SHOWN = 20  # proposals that are printed in the terminal


@verb(TEXT_COLUMN_RULE, out=check_updated_file, to=check_new_file)
def label(
    inputs: opt.TextInputs,
    *,
    out: str | Path,
    labels: Sequence[str] = (),
    model: opt.Model = "pretune-small-en",
    text: opt.Text = None,
    batch_size: int = 10,
    to: str | Path | None = None,
    answers: str | Path | opt.Table | None = None,
    seed: opt.Seed = 0,
) -> ResultTable:
    """Label texts by hand, asking first for those that a classifier would learn most from (active learning).

    Texts are proposed in batches that are uncertain and diverse; a fifth of them are a random sample, on which the accuracy
    is measured by cross-validation. Without --to and --answers, labels are typed in the terminal. Every answer is saved at
    once, and the same command resumes. Suggestions come from the names of the labels (zero-shot) until two labels are in use.

    Parameters
    ----------
    out
        Table of the labels, .csv, .tsv, .jsonl, or .parquet, to be used by `pretune finetune`; rows that are already in
        it count as labeled. The learning curve is written to a .json file next to it.
    labels
        Names of the labels to choose from; by default those of the last session.
    batch_size
        Number of texts to propose at a time, before the classifier is updated.
    to
        Write the next texts to this table with an empty column `label` to fill in, instead of asking in the terminal.
    answers
        Read labels from a table that --to wrote and that was filled in.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> texts = ["Where is my parcel?", "Thank you!", "Great service.", "When do you open?"]
    >>> asked = label(texts, labels=["praise", "question"], out=f"{folder}/a.csv", to=f"{folder}/ask.csv", batch_size=3)
    >>> given = [{"text": row["text"], "label": "question" if "?" in row["text"] else "praise"} for row in asked]
    >>> label(texts, out=f"{folder}/a.csv", answers=given).facts["remaining"]
    1
    """
    import sys

    from pretune.models.open_model import OpenModel
    from pretune.runtime.errors import PretuneError
    from pretune.runtime.progress import log_info
    from pretune.text.corpus.table_writer import check_table_suffix
    from pretune.training.jobs.labeling import (
        LabelingSession,
        check_unread,
        distinct_texts,
        draw_curve,
        label_in_terminal,
        text_key,
        write_proposals,
    )
    from pretune.verbs.shared_inputs import as_path, open_reference, read_texts, split_text_files

    if to is None and answers is None and (sys.stdin is None or not sys.stdin.isatty()):
        raise PretuneError(
            "labels cannot be typed here, because the input is not a terminal; write texts to a table with --to, and read "
            "the labels with --answers"
        )
    if batch_size < 1:
        raise PretuneError(f"--batch-size {batch_size}: at least one text must be proposed; choose a number above 0")
    files = {file.resolve() for file in split_text_files(inputs)[0]}
    for path in (out, *([] if to is None else [to])):
        check_table_suffix(path)
        if Path(path).resolve() in files:
            raise PretuneError(f"{path}: an input file cannot also be an output; choose another name for the output")
    if to is not None and Path(to).resolve() == Path(out).resolve():
        raise PretuneError(f"{to}: --to and --out are the same file; choose another --to")
    reference = open_reference(model)
    opened = reference if isinstance(reference, OpenModel) else OpenModel(reference)
    texts = [item.text for item in read_texts(inputs, text)]
    session = LabelingSession(texts, labels, Path(out), opened, seed)
    if left_out := len(texts) - len(distinct_texts(texts)):
        log_info(
            f"{left_out} of {len(texts)} texts are blank or occur twice; {len(session.texts)} different texts remain"
        )
    if answers is not None:
        session.add_answers(as_path(answers))
    if to is not None:
        check_unread(Path(to), {text_key(session.texts[row]): given for row, given in session.answers.items()})
    if answers is None and to is None:

        def show(line: str) -> None:
            print(line, file=sys.stderr, flush=True)

        try:
            label_in_terminal(session, batch_size, sys.stdin.readline, show)
        except KeyboardInterrupt:
            show("")  # all answers are saved
    else:
        session.update_curve()
        if answers is not None:
            log_info(draw_curve(session.curve))
    curve = [{name: round(value, 4) for name, value in vars(point).items()} for point in session.curve]
    facts = session.summary()
    if to is None:
        return ResultTable("learning_curve", curve, facts=facts)
    proposals = session.proposals(batch_size)
    if proposals:
        write_proposals(proposals, Path(to))
    else:
        log_info("all texts are labeled or skipped; there is nothing more to propose")
    return ResultTable("proposals", proposals, shown=SHOWN, facts={**facts, "learning_curve": curve})
