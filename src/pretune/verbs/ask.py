"""`ask`: answers of a pretrained model, without training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pretune.verbs.results import Rows

if TYPE_CHECKING:
    from pretune.training.runs import Run


def ask(
    model: str | Path | Run,
    texts: Sequence[str] = (),
    *,
    cloze: str = "{text} [MASK]",
    answers: Sequence[str] = (),
    examples: str | Path | None = None,
    shots: int = 1,
    calibrate: bool = False,
    tokens: int = 20,
    data: str | Path | None = None,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    partial: bool = False,
) -> Rows:
    """Ask a language model that was trained for no task: what belongs in a gap, with no example, one, or a few.

    A masked language model chooses among words; one that writes ranks answers of any length, or writes its own.

    Parameters
    ----------
    model
        A run or model folder of a masked language model (BERT), or of one that writes (GPT-2).
    texts
        Texts to ask about.
    cloze
        What is asked: {text} (and {pair}) for the text, [MASK] for the answer, as in "{text} It was [MASK]."
    answers
        Answers to choose from, or label:answer; without any, a model that writes gives its own.
    examples
        Labeled rows of which a few are shown before, to a model that writes.
    shots
        How many of them: of each class, where there are answers to choose from.
    calibrate
        Divide by how likely answers are for texts that say nothing.
    tokens
        Of an answer that is written, at most.
    data
        A file of rows to ask about instead: .csv, .tsv, .jsonl or .parquet.
    text
        Column of the text.
    pair
        Column of the second text.
    label
        Column of the right answer, by which the others are judged.
    seed
        Which examples are shown, and in which order.
    out
        Write the answers to this .jsonl file.
    partial
        Go on where the checkpoint lacks tensors (these are left random), or has some that are unknown or of another shape.

    Examples
    --------
    >>> ask("runs/mine", ["a delightful film"], cloze="It was [MASK].", answers=["good", "bad"])[0]["label"]  # doctest: +SKIP
    'good'
    """
    import json
    import os

    from pretune.atomic import write_bytes
    from pretune.errors import PretuneError
    from pretune.inference.ask import Question, in_order, judge
    from pretune.inference.ask import ask as ask_model
    from pretune.inference.predict import plain_texts
    from pretune.text.labeled import read_labeled
    from pretune.text.shots import draw_shots, draw_some

    columns = {role: name for role, name in (("text", text), ("pair", pair), ("label", label)) if name}
    if data is None and not texts:
        raise PretuneError("nothing to ask about: give texts, or a file with --data")
    rows = plain_texts(texts) if data is None else read_labeled(data, columns, labels=label is not None)
    if any(":" in answer for answer in answers) and not all(":" in answer for answer in answers):
        raise PretuneError(f"answers {', '.join(answers)}: give all of them as label:answer, or none")
    labels = [answer.partition(":")[0].strip() for answer in answers]
    words = "/".join(answers) if any(":" in answer for answer in answers) else ""
    shown = None
    if examples is not None:
        found = read_labeled(examples, columns)
        shown = in_order((draw_shots if labels else draw_some)(found, shots, seed), seed)
    found_answers = ask_model(os.fspath(model), rows, Question(cloze, labels, words, shown, calibrate, tokens), partial)
    answered = [{"text": text, **answer} for text, answer in zip(rows.texts, found_answers, strict=True)]
    if out is not None:
        lines = (json.dumps(row, ensure_ascii=False) for row in answered)
        write_bytes(Path(out), ("\n".join(lines) + "\n").encode())
    facts = judge(found_answers, rows.labels, labels) if rows.labels is not None else {}
    return Rows("answers", answered, hidden=("probabilities",), facts=facts)
