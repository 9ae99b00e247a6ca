"""Contextual calibration of prompted answers (Zhao et al., 2021, arXiv:2102.09690).

The probabilities of the answers are divided by those for texts without content, so that an answer that is likely for any
text has no advantage.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pretune.objectives.task import Answer
from pretune.objectives.tasks.classify import class_answer
from pretune.text.examples.labeled import LabeledRows

CONTENT_FREE_TEXTS = ("N/A", "[MASK]", "")  # texts without content, as in the paper


def content_free_rows(rows: LabeledRows) -> LabeledRows:
    """Return rows for calibration, with the same columns as `rows`, whose texts have no content, such as "N/A"."""
    texts = list(CONTENT_FREE_TEXTS)
    more = dict.fromkeys(rows.extra, texts)
    return LabeledRows(Path("nothing"), {}, texts, None if rows.pairs is None else texts, extra=more)


def calibrate_answers(answers: Sequence[Answer], empty: Sequence[Answer]) -> list[Answer]:
    """Return answers whose probabilities are divided by their means over content-free texts (`empty`) and renormalized.

    >>> half = {"label": "a", "probabilities": {"a": 0.6, "b": 0.4}}
    >>> calibrate_answers([half], [half])[0]["probabilities"]
    {'a': 0.5, 'b': 0.5}
    """
    labels = list(empty[0]["probabilities"])
    shares = np.array([[answer["probabilities"][label] for label in labels] for answer in answers])
    usual = np.array([[answer["probabilities"][label] for label in labels] for answer in empty])
    shares = shares / (usual / usual.sum(-1, keepdims=True)).mean(0)
    return [class_answer(row, labels) for row in shares / shares.sum(-1, keepdims=True)]
