"""Language modeling metrics: perplexity, bits per byte, minimal pairs, and stereotype bias."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from pretune.inference.likelihood import LikelihoodScorer
from pretune.metrics.diagnostics import preference_rate
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import progress
from pretune.text.corpus.documents import SplitBy, read_documents, read_jsonl, read_table
from pretune.text.corpus.files import Errors, file_format, find_files
from pretune.text.examples.labeled import read_labeled

Row = dict[str, Any]
AT_ONCE = 64  # texts
BETTER, WORSE = "sentence_good", "sentence_bad"  # Warstadt et al., 2020, arXiv:1912.00582 (BLiMP)
MORE, LESS = "sent_more", "sent_less"  # Nangia et al., 2020, arXiv:2010.00133 (CrowS-Pairs)


@dataclass(frozen=True)
class ReadingOptions:
    """Options for reading evaluation texts.

    `limit` is the maximum number of texts; `max_length` is the length in tokens of the windows in which a long text is
    read, and `stride` the distance between their starts.
    """

    max_length: int | None = None
    stride: int | None = None
    limit: int | None = None
    split_by: SplitBy = "auto"  # how .txt files are split into texts
    encoding_errors: Errors = "strict"  # what to do with invalid UTF-8


def evaluate_language(
    scorer: LikelihoodScorer, data: Sequence[str | Path] | str | Path, how: ReadingOptions, columns: Row
) -> Row:
    """Return metrics of a language model on the files `data`: accuracy on sentence pairs, perplexity on other texts.

    `how` are the reading options; `columns` maps roles, such as text or pair, to the names of columns.
    """
    files = find_files(data)
    first = _first_row(files[0], how.encoding_errors)
    if BETTER in first or MORE in first:
        unused = [*columns, *(name for name in ("max_length", "stride") if getattr(how, name) is not None)]
        if unused:
            names = " and ".join(f"--{name}" for name in unused)
            raise PretuneError(
                f"{names}: {files[0]} contains sentence pairs, which are never split into windows; remove {names}"
            )
    if BETTER in first:
        return minimal_pairs(scorer, _rows(files, (BETTER, WORSE), how))
    if MORE in first:
        return stereotype_bias(scorer, _rows(files, (MORE, LESS), how))
    sources = None
    if columns.get("pair"):
        read = [read_labeled(file, columns, errors=how.encoding_errors, labels=False) for file in files]
        sources = [text for rows in read for text in rows.texts][: how.limit]
        texts: Iterable[str] = [text for rows in read for text in rows.pairs or []][: how.limit]
    else:
        documents = read_documents(
            files, split_by=how.split_by, text_field=columns.get("text"), encoding_errors=how.encoding_errors
        )
        texts = (document.text for document in islice(documents, how.limit))
    return perplexity(scorer, texts, how, sources)


def perplexity(
    scorer: LikelihoodScorer, texts: Iterable[str], how: ReadingOptions, sources: Sequence[str] | None = None
) -> Row:
    """Return the perplexity of texts per token (pseudo-perplexity for masked language models) and the bits per byte.

    `sources` are the source texts of an encoder-decoder, which predicts `texts` from them. Unknown tokens lower the
    perplexity, so their share is reported.
    """
    if not scorer.method.probability:
        raise PretuneError(
            f"a model trained with the objective {scorer.head!r} has no perplexity, because it classifies tokens; evaluate it on sentence pairs"
        )
    tokenizer = scorer.model.require_tokenizer()
    unknown_id = tokenizer.role("unknown") if tokenizer.has_role("unknown") else -1
    count = tokens = size = unknown = skipped = 0
    nats = 0.0
    left = iter(texts)
    with progress("reading") as bar:
        while part := list(islice(left, AT_ONCE)):
            given = None if sources is None else sources[count : count + len(part)]
            scores = np.concatenate(scorer(part, given, how.max_length, how.stride))
            ids, _ = tokenizer.encode_many(part)
            there = ~np.isnan(scores)
            nats -= float(scores[there].sum())
            tokens, skipped = tokens + int(there.sum()), skipped + int((~there).sum())
            unknown += int((ids == unknown_id).sum())
            size += sum(len(text.encode("utf-8", "replace")) for text in part)
            count += len(part)
            bar.update(count, f"{count:,} texts, {math.exp(nats / max(1, tokens)):.2f}")
    if not tokens:
        raise PretuneError("no text has a token that can be predicted; give longer texts")
    name = "perplexity" if scorer.method.exact else "pseudo_perplexity"
    # Tokens without context to be predicted from are assumed to cost as much as the average of the others.
    bits = nats * (tokens + skipped) / tokens / math.log(2)
    found = {name: math.exp(nats / tokens), "bits_per_byte": bits / max(1, size)}
    facts = {"objective": scorer.head, "texts": count, "tokens": tokens + skipped, "bytes": size}
    return {**found, **facts, "unknown_share": unknown / (tokens + skipped), "not_predicted": skipped}


def minimal_pairs(scorer: LikelihoodScorer, rows: Sequence[Row]) -> Row:
    """Return how often a model prefers the acceptable sentence of a minimal pair, on average and by paradigm.

    A paradigm is a set of pairs that test the same contrast, as in BLiMP.
    """
    good, bad = (_sums(scorer, [row[name] for row in rows]) for name in (BETTER, WORSE))
    by: dict[str, dict[str, list[int]]] = {"paradigms": {}, "phenomena": {}, "fields": {}}
    for number, row in enumerate(rows):
        for kind, key in (("paradigms", "UID"), ("phenomena", "linguistics_term"), ("fields", "field")):
            if row.get(key):
                by[kind].setdefault(str(row[key]), []).append(number)
    shares = {
        kind: {
            name: preference_rate([good[i] for i in own], [bad[i] for i in own]) for name, own in sorted(groups.items())
        }
        for kind, groups in by.items()
    }
    overall = mean(shares["paradigms"].values()) if shares["paradigms"] else preference_rate(good, bad)
    tables = {kind: [{"name": n, "accuracy": v} for n, v in found.items()] for kind, found in shares.items() if found}
    return {"accuracy": overall, "pairs": len(rows), "objective": scorer.head, **tables}


def stereotype_bias(scorer: LikelihoodScorer, rows: Sequence[Row]) -> Row:
    """Return how often a model assigns the higher likelihood to the more stereotypical of two sentences.

    A model without bias has the value 0.5.
    """
    tokenizer = scorer.model.require_tokenizer()
    sides = [[str(row[name]) for row in rows] for name in (MORE, LESS)]
    scores = [scorer(side) for side in sides]
    sums: list[list[float]] = [[], []]
    for number in range(len(rows)):
        more, less = (tokenizer.encode(side[number]) for side in sides)
        blocks = SequenceMatcher(None, more, less, autojunk=False).get_matching_blocks()
        for side in (0, 1):
            kept = [scores[side][number][block[side] : block[side] + block.size] for block in blocks]
            sums[side].append(float(np.nansum(np.concatenate(kept))))
    kinds: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        kinds.setdefault(str(row.get("bias_type", "all")), []).append(number)
    table = [
        {"kind": kind, "pairs": len(own), "stereotype": preference_rate(*([side[i] for i in own] for side in sums))}
        for kind, own in sorted(kinds.items())
    ]
    return {"stereotype": preference_rate(*sums), "pairs": len(rows), "objective": scorer.head, "kinds": table}


def _sums(scorer: LikelihoodScorer, texts: Sequence[str]) -> list[float]:
    """Return the log-likelihood of each text, summed over its tokens."""
    with progress("reading", total=len(texts)) as bar:
        found: list[float] = []
        for start in range(0, len(texts), AT_ONCE):
            found += [float(np.nansum(scores)) for scores in scorer(texts[start : start + AT_ONCE])]
            bar.update(len(found), "sentences")
    return found


def _table(file: Path, errors: Errors) -> Iterable[tuple[int, Row]]:
    """Yield (line number, row) from a .jsonl, .csv or .tsv file; `errors` says how to handle invalid UTF-8."""
    return read_jsonl(file, errors) if file_format(file) == ".jsonl" else read_table(file, errors)


def _first_row(file: Path, errors: Errors) -> Row:
    """Return the first row of a .jsonl, .csv or .tsv file; {} for other files, such as plain text."""
    if file_format(file) not in (".jsonl", ".csv", ".tsv"):
        return {}
    return next((row for _, row in _table(file, errors)), {})


def _rows(files: Sequence[Path], names: Sequence[str], how: ReadingOptions) -> list[Row]:
    """Return the rows of files, at most `how.limit` per file; raise an error if a row has no sentence in a column.

    `names` are the columns with sentences.
    """
    found: list[Row] = []
    for file in files:
        for line, row in islice(_table(file, how.encoding_errors), how.limit):
            for name in names:
                if not isinstance(row.get(name), str) or not row[name].strip():
                    raise PretuneError(
                        f"{file}, line {line}: the column {name!r} has no sentence; add a sentence, or remove the row"
                    )
            found.append(row)
    return found
