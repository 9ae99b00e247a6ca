"""`translate`: an encoder-decoder writes what texts become."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretune.runtime.output_paths import new_file
from pretune.verbs.results import Rows
from pretune.verbs.verb import Options, only, verb

if TYPE_CHECKING:
    from pretune.training.run_folder import Run

    Runs = Sequence[str | Path | Run]

SHOWN = 20  # rows of a file that people see


def reads_tables(o: Options) -> bool:
    """Return whether a table is among the inputs."""
    from pretune.text.examples.labeled import FORMATS
    from pretune.verbs.shared_inputs import split_runs

    _, rest = split_runs(o.model, o.inputs)
    return any(str(given).endswith(FORMATS) for given in rest)


@verb(
    only("text", where="to tables, not to texts or .txt files", when=reads_tables),
    only("length_penalty", where="to beam search (--beams 2 or more)", when=lambda o: o.beams > 1),
    only("alignments", where="without --out, as a .txt file has no place for them", when=lambda o: o.out is None),
    out=new_file,
    plot=new_file,
)
def translate(
    model: str | Path | Run | Runs,
    inputs: Sequence[str | Path] | str | Path = (),
    *,
    text: str | None = None,
    references: str | Path | None = None,
    beams: int = 5,
    length_penalty: float = 1.0,
    tokens: int = 200,
    alignments: bool = False,
    plot: str | Path | None = None,
    out: str | Path | None = None,
    device: str | None = None,
    partial: bool = False,
) -> Rows:
    """Translate texts, or rewrite them in whatever way an encoder-decoder was trained for, by beam search.

    Several models with one tokenizer write together: each word is the likeliest by the mean of what they expect.

    Parameters
    ----------
    model
        A run or model folder with an encoder-decoder that was trained with translate.
    inputs
        Further models, then texts, or files: .txt with a text a line, .csv, .tsv, .jsonl or .parquet.
    text
        Column of the text.
    references
        A .txt file with the right translations, a line each: how good these are is told by sacrebleu (the extra `eval`).
    beams
        Look for the likeliest translation with so many beginnings at a time; 1 takes the likeliest word each time.
    length_penalty
        How translations of different length compare: their scores are divided by the length to this power.
    tokens
        Of a translation, at most.
    alignments
        With where each word looked, in every row.
    plot
        Draw that for the first few texts, as heat maps with the words on the axes, in this .png, .svg or .pdf file.
    out
        Write the translations to this .txt file, a line each.
    device
        cpu or cuda; a GPU is used where there is one.
    partial
        Go on where keys or tensors are unknown (left out), or tensors missing or of another shape (left random).

    Examples
    --------
    >>> translate("runs/de", ["A man sleeps."])[0]["translation"]  # doctest: +SKIP
    'Ein Mann schläft.'
    >>> translate(["runs/a", "runs/b"], "test.en.txt", references="test.de.txt").facts["bleu"]  # doctest: +SKIP
    """
    from pretune.inference.attention_alignment import MOST, draw
    from pretune.inference.generation.generate import Decoding
    from pretune.inference.generation.translate import Translator
    from pretune.metrics.translation import translation_metrics
    from pretune.runtime.atomic_io import write_bytes
    from pretune.runtime.errors import PretuneError
    from pretune.verbs.shared_inputs import split_runs

    runs, rest = split_runs(model, inputs)
    texts = read_texts(rest, text)
    if not texts:
        raise PretuneError("nothing to translate: give texts or files")
    right = read_texts([references], None) if references is not None else None
    if right is not None and len(right) != len(texts):
        raise PretuneError(f"{references}: {len(right)} references for {len(texts)} texts; there must be one for each")
    translator = Translator.load(runs, device, partial)
    written = translator.write(texts, Decoding(tokens, beams=beams, length_penalty=length_penalty))
    rows = translator.describe(texts, written, alignments)
    said = [row["translation"] for row in rows]
    facts: dict[str, Any] = {} if right is None else translation_metrics(said, right)
    if plot is not None:
        draw(translator.align(texts[:MOST], written[:MOST]), Path(plot))
        facts["plot"] = str(plot)
    if out is not None:
        write_bytes(Path(out), "".join(f"{' '.join(line.split())}\n" for line in said).encode())
        return Rows("written", [{"file": str(out), "rows": len(rows)}], facts=facts)
    return Rows("translations", rows, hidden=("alignment",), shown=SHOWN if len(rows) > SHOWN else None, facts=facts)


def read_texts(inputs: Sequence[Any], text: str | None) -> list[str]:
    """Texts as they are, or those of files, line by line or by a column."""
    from pretune.text.corpus.files import file_format, read_lines
    from pretune.text.examples.labeled import FORMATS, read_labeled

    found: list[str] = []
    for given in inputs:
        path = Path(given)
        kind = file_format(path)
        if kind == ".txt" and (isinstance(given, Path) or path.is_file()):
            found += [line for _, line in read_lines(path)]
        elif kind in FORMATS and (isinstance(given, Path) or path.is_file()):
            found += read_labeled(path, {"text": text} if text else {}, labels=False).texts
        else:
            found.append(str(given))
    return found
