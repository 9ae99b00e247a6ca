"""Compute translation metrics with sacrebleu (Post, 2018, *A Call for Clarity in Reporting BLEU Scores*, arXiv:1804.08771)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pretune.runtime.errors import PretuneError
from pretune.runtime.optional_imports import import_optional


def translation_metrics(translations: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Return corpus BLEU and chrF of translations, and the signature of sacrebleu.

    The signature identifies the variant of BLEU, for comparisons with published scores.
    """
    sacrebleu = import_optional("sacrebleu.metrics", "BLEU")
    if len(translations) != len(references):
        raise PretuneError(
            f"there are {len(translations)} translations but {len(references)} references; "
            "give one reference per translation"
        )
    bleu, texts = sacrebleu.BLEU(), (list(translations), [list(references)])
    return {
        "bleu": round(bleu.corpus_score(*texts).score, 2),
        "chrf": round(sacrebleu.CHRF().corpus_score(*texts).score, 2),
        "signature": str(bleu.get_signature()),
    }
