"""The `translate` verb: translation, or another text-to-text task, with an encoder-decoder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pretune.runtime.output_paths import check_new_file
from pretune.verbs import options as opt
from pretune.verbs.results import ResultTable
from pretune.verbs.verb import Options, only, verb

SHOWN = 20  # rows of a file that are printed in the terminal


def reads_tables(o: Options) -> bool:
    """Return whether a table file is among the inputs in the command-line options `o`."""
    from pretune.text.examples.labeled import FORMATS
    from pretune.verbs.shared_inputs import split_models

    _, rest = split_models(o.model, o.inputs)
    return any(str(given).endswith(FORMATS) for given in rest)


@verb(
    only("text", where="to tables, not to texts or .txt files", when=reads_tables),
    only("length_penalty", where="to beam search (--num-beams 2 or more)", when=lambda o: o.num_beams > 1),
    only("alignments", where="without --out, as a .txt file cannot hold them", when=lambda o: o.out is None),
    out=check_new_file,
    plot=check_new_file,
)
def translate(
    model: opt.Models,
    inputs: opt.Paths = (),
    *,
    text: opt.Text = None,
    references: str | Path | opt.Table | None = None,
    num_beams: opt.NumBeams = 5,
    length_penalty: opt.LengthPenalty = 1.0,
    max_new_tokens: int = 200,
    alignments: bool = False,
    plot: str | Path | None = None,
    out: str | Path | None = None,
    device: opt.Device = None,
    ignore_mismatched: opt.IgnoreMismatched = False,
) -> ResultTable:
    """Translate texts with an encoder-decoder, or an ensemble of several, by beam search.

    The models of an ensemble share a tokenizer, and their token probabilities are averaged. A model that was trained for another
    text-to-text task, such as summarization, works in the same way.

    Parameters
    ----------
    model
        Run folder or model folder of an encoder-decoder that was trained with the objective translate.
    inputs
        More models, followed by texts or by files: .txt with one text per line, .csv, .tsv, .jsonl, or .parquet.
    references
        .txt file with one reference translation per line, to compute BLEU and chrF with sacrebleu (the extra `eval`).
    max_new_tokens
        Maximum number of tokens to generate for a translation.
    alignments
        Add the attention weights over the source to each row.
    plot
        Plot the attention weights of the first few texts as heat maps to this .png, .svg, or .pdf file.
    out
        Write the translations to this .txt file, one per line.

    Examples
    --------
    >>> translate("runs/de", ["A man sleeps."])[0]["translation"]  # doctest: +SKIP
    'Ein Mann schläft.'
    >>> translate(["runs/a", "runs/b"], "test.en.txt", references="test.de.txt").facts["bleu"]  # doctest: +SKIP
    """
    from pretune.inference.attention_alignment import MAX_HEAT_MAPS, draw_alignments
    from pretune.inference.generation.decoding_loops import GenerationConfig
    from pretune.inference.generation.translate import Translator
    from pretune.metrics.translation import translation_metrics
    from pretune.runtime.atomic_io import write_bytes
    from pretune.runtime.errors import PretuneError
    from pretune.verbs.shared_inputs import split_models

    runs, rest = split_models(model, inputs)
    texts = read_texts(rest, text)
    if not texts:
        raise PretuneError("no inputs were given; give texts or files")
    right = read_texts([references], None) if references is not None else None
    if right is not None and len(right) != len(texts):
        raise PretuneError(
            f"{references}: the file has {len(right)} references for {len(texts)} texts; give one reference per text"
        )
    translator = Translator.load(runs, device, ignore_mismatched)
    written = translator.translate(
        texts, GenerationConfig(max_new_tokens, num_beams=num_beams, length_penalty=length_penalty)
    )
    rows = translator.describe(texts, written, alignments)
    said = [row["translation"] for row in rows]
    facts: dict[str, Any] = {} if right is None else translation_metrics(said, right)
    if plot is not None:
        draw_alignments(translator.align(texts[:MAX_HEAT_MAPS], written[:MAX_HEAT_MAPS]), Path(plot))
        facts["plot"] = str(plot)
    if out is not None:
        write_bytes(Path(out), "".join(f"{' '.join(line.split())}\n" for line in said).encode())
        return ResultTable("written", [{"file": str(out), "rows": len(rows)}], facts=facts)
    return ResultTable(
        "translations", rows, hidden=("alignment",), shown=SHOWN if len(rows) > SHOWN else None, facts=facts
    )


def read_texts(inputs: Sequence[Any], text: str | None) -> list[str]:
    """Return all texts of the inputs: plain texts, the lines of .txt files, and the text column of tables."""
    from pretune.text.corpus.files import file_format, read_lines
    from pretune.text.examples.labeled import FORMATS, read_labeled

    found: list[str] = []
    for given in inputs:
        path = Path(given)
        kind = file_format(path)
        if kind == ".txt" and (isinstance(given, Path) or path.is_file()):
            found += [line for _, line in read_lines(path)]
        elif kind in FORMATS and (isinstance(given, Path) or path.is_file()):
            found += read_labeled(path, {"text": text} if text else {}, labels=False, pairs=False).texts
        else:
            found.append(str(given))
    return found
